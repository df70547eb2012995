#pragma once
// What a training step of a transformer needs, in bytes, without running it: a simulation of its allocations and
// releases in the order of the work. Every prediction about a transformer asks it, whatever levers are pulled:
// precision, saved activations, micro-batches, slices of the model, shards of its state. It shares nothing with the
// code it predicts but the shapes of tensors, how they are aligned in units, and the size of the loss scale.
//
//   step_buffers.h   every buffer: its shape, where it exists, how long it lives
//   step.cpp         the order of a step; step_layer.cpp: of a layer; step_head.cpp: of head and loss
//   step_state.cpp   what stays between steps
//   flops.h          operations
//
// Sizes: B sequences of S tokens are R = B·S rows of width C, and packed ones as many rows as they have tokens; H heads;
// V the vocabulary; E bytes per element. All bytes are as the ledger counts them: every buffer on its own rounded to the
// granule.

#include <cstdint>

#include "plan/context_form.h"
#include "plan/lengths.h"
#include "plan/model/adapters.h"
#include "plan/model/transformer.h"
#include "plan/optimizer_state.h"
#include "plan/peak.h"
#include "plan/quantised/format.h"
#include "plan/step_form.h"

namespace oomlab::nn {

/// torch.nn.DataParallel: each device computes its share of the batch, the first one has all else.
enum class DataParallel {
  none,
  first_device,  ///< the state, the whole batch's tokens and labels, and all logits
  other_device,  ///< a copy of the parameters for each step, and gradients from its backward pass on
};

/// When gradients are there. A unit is the token table, the other embeddings, a layer, or the head.
enum class GradientLife {
  always,                 ///< of all units, from step to step
  optimizer_in_backward,  ///< of a unit, in a flat buffer, from its backward pass until its update right after it
  offloaded,              ///< the same, and until those of the next unit are there, too: meanwhile they are copied
};

/// What can be chosen about a step, for one rank.
struct StepLevers {
  std::uint64_t element_bytes = sizeof(float);  ///< E, of parameters, gradients and activations
  std::uint64_t sequences = 0;                  ///< B, of a micro-batch
  std::uint64_t seq = 0;                        ///< S, of a sequence the tokens that this rank has
  /// Where sequences are packed, the tokens of those that the rank has in a step, in the order of its micro-batches; empty:
  /// each has S rows.
  LengthsInTurn lengths{};
  StepForm form{};  ///< its keep holds for layers that a schedule says nothing about
  Schedule schedule{};
  std::uint64_t micro_batches = 1;  ///< in a step, one after the other; gradients accumulate
  std::uint64_t in_flight = 1;      ///< how many of these wait for their backward pass at most (pipelines)
  Slice slice{};                    ///< the rank's stage and part
  std::uint64_t replicas = 1;       ///< ranks that have the same slice, and other samples or tokens
  /// What the replicas share out, in units (see unit_state_bytes()): 0 nothing, 1 the optimizer, 2 also gradients,
  /// 3 also parameters (Rajbhandari et al., "ZeRO", 2020).
  int zero = 0;
  DataParallel data_parallel = DataParallel::none;
  /// A tied token table's gradients are there from the head's backward pass to the embedding's; where these are on two
  /// stages, the head's stage has them until both are there.
  GradientLife gradients = GradientLife::always;
  /// The head alone is for one rank whose gradients are always there. Adapters are as in `adapters`. Beside them a layer's
  /// matrices, which are frozen, are stored as `base`.
  Trained trained = Trained::all;
  AdapterForm adapters{};
  quantised::Format base{};
  /// Weights are in host memory, and come for each unit's forward and backward pass; the next layer's are on their way
  /// beside it. For weights that the host updates, with ZeRO 0 or 3; or for those that are frozen.
  bool streamed = false;
  /// Inputs of segments that are recomputed wait in host memory: each leaves beside the forward pass of its layer, and
  /// comes back beside the backward pass of the segment behind it.
  bool checkpoints_on_host = false;
  /// The ranks that have the parts of a layer share out the rows of what they all would have: norms, residuals.
  bool sequence_parallel = false;
  std::uint64_t context_ranks = 1;          ///< that share out the tokens of every sequence; among the replicas
  ContextForm context = ContextForm::ring;  ///< how these go about attention
  OptimizerForm optimizer{};  ///< on the device, but for gradients that are offloaded, whose optimizer is on the host
  bool loss_scale = false;    ///< a loss scale is kept beside it
  bool packed() const { return !lengths.empty(); }
  /// Of a packed micro-batch, and those behind it.
  LengthsInTurn lengths_of(std::uint64_t micro_batch) const { return lengths.from(micro_batch * sequences); }
  /// So many micro-batches at least are not like one before.
  std::uint64_t packed_kinds() const { return std::min(micro_batches, lengths.period(sequences)); }
  /// R of a micro-batch, packed of the first one; of the one that has most; and of all micro-batches of a step. Throw
  /// std::length_error beyond 64 bits.
  std::uint64_t rows() const;
  std::uint64_t most_rows() const;
  std::uint64_t rows_of_step() const;
  /// Ranks that have a share each of these rows.
  std::uint64_t row_shares() const { return sequence_parallel ? slice.parts : 1; }
  bool ring() const { return context_ranks > 1 && context == ContextForm::ring; }
  bool ulysses() const { return context_ranks > 1 && context == ContextForm::ulysses; }
  bool frozen() const { return trained != Trained::all; }
  bool optimizer_on_host() const { return gradients == GradientLife::offloaded; }
  /// Whether the tied token table is on two stages of a pipeline: this one, and the one at the other end.
  bool shares_token(const TransformerSpec& spec) const { return spec.tied && slice.embeds() != slice.has_head(spec); }
  /// Replicas that have a share each of what is shared out from this stage of ZeRO on.
  std::uint64_t shards(int from_stage) const { return zero >= from_stage ? replicas : 1; }
};

/// The peak of a step on one rank, tokens and labels included, above what is `resident` between steps: parameters,
/// gradients, optimizer state, the loss. Throws std::length_error when a figure does not fit 64 bits, std::logic_error
/// for a schedule of another number of layers.
PeakBytes simulate_step(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident);

/// The peak of a forward pass that no backward pass follows, up to all logits, tokens and labels included. `graph`:
/// every layer keeps what the form says, as if one followed; otherwise nothing (Transformer::logits()). Of the levers
/// element_bytes, sequences, seq and form count, but for the form's loss. Throws as simulate_step().
PeakBytes simulate_forward(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident,
                           bool graph);

/// What one segment has, in bytes of activations, above what the segments before it hold. Of the levers element_bytes,
/// sequences, seq, form and slice.parts count; sequences are not packed.
struct SegmentBytes {
  std::uint64_t held;           ///< from its forward to its backward pass
  std::uint64_t forward_peak;   ///< at the fullest moment of its forward pass
  std::uint64_t backward_peak;  ///< at that of its backward pass
};
/// Of a segment of the levers' schedule. Throws as simulate_step().
SegmentBytes segment_bytes(const TransformerSpec& spec, const StepLevers& levers, const Segment& segment);
/// The fullest moment of the head and the loss, above what all segments hold: activations, and row losses (workspace).
/// The same levers count.
std::uint64_t head_peak_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// What the forward pass of one micro-batch holds until its backward pass, tokens and labels included.
ByCategory held_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// What embed() keeps until embed_backward(), beside the first layer's input.
std::uint64_t embedding_bytes(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                              std::uint64_t seq);
/// One residual [R, C]; of `shares` ranks that share out the rows, one rank's.
std::uint64_t residual_bytes(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                             std::uint64_t seq, std::uint64_t shares = 1);
/// Tokens and labels.
std::uint64_t token_batch_bytes(std::uint64_t sequences, std::uint64_t seq);
/// Of packed sequences: tokens, labels, positions and offsets.
std::uint64_t packed_batch_bytes(std::uint64_t sequences, std::uint64_t rows);

/// Units are tensors that are used together, in one flat buffer: the token table, the other embeddings, each layer, the
/// head. In a unit each tensor begins at a multiple of this many elements, so that a kernel may load 16 bytes at once;
/// the unit is padded to this many times the replicas, so that they have equal shards.
inline constexpr std::uint64_t kUnitAlign = 8;
/// What stays on the device from step to step, of a rank whose tensors lie in units: parameters, gradients that are
/// always there, the optimizer's state (plan/optimizer_state.h), each shared out as `zero` says; the loss scale; and room
/// for a decoded part of a matrix, where some are stored in fewer bits. The optimizer keeps its state by tensors, but of a
/// share of a unit as if that were one vector. A layer's adapters are a unit of their own.
ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// Of these the optimizer's state alone, without a loss scale, and without moments in managed memory.
ByCategory optimizer_state_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// What it has in managed memory.
std::uint64_t paged_state_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// Peak of making the frozen weights of such a rank, unit by unit: what is stored so far, a whole unit where a rank
/// keeps less of it, and pieces of a matrix on their way into fewer bits.
PeakBytes making_base_peak(const TransformerSpec& spec, const StepLevers& levers);

}  // namespace oomlab::nn
