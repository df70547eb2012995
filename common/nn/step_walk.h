#pragma once
// What a training step of a transformer needs, in bytes and operations, without running it: one walk through its
// allocations and releases in the order of the work. Every prediction about a transformer asks it, whatever levers are
// pulled: precision, what is kept, micro-batches, slices of the model, shards of its state. It shares nothing with the
// code it predicts but the shapes of tensors, how they are aligned in units, and the size of the loss scale.
//
// Sizes: B sequences of S tokens are R = B·S rows of width C; H heads; V the vocabulary; E bytes per element. All bytes
// are as the ledger counts them: every buffer on its own rounded to the granule.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/peak.h"
#include "nn/transformer.h"

namespace oomlab::nn {

/// Consecutive layers that are treated alike.
struct Segment {
  std::size_t layers = 0;
  bool recompute = false;  ///< kept is only its input; before its backward pass its forward pass runs again
  Keep keep{};             ///< of each layer, where not
  friend bool operator==(const Segment&, const Segment&) = default;
};
/// How all layers of a model, or of a slice of it, are treated. Empty: all keep what the step's form says.
using Schedule = std::vector<Segment>;

/// torch.nn.DataParallel: each device computes its share of the batch, the first one has all else.
enum class DataParallel {
  none,
  first_device,  ///< the state, the whole batch's tokens and labels, and all logits
  other_device,  ///< a copy of the parameters for each step, and gradients from its backward pass on
};

/// When gradients are there, on one device. A unit is the token table, the other embeddings, a layer, or the head.
enum class GradientLife {
  always,        ///< of all units, from step to step
  used_at_once,  ///< of a unit, in a flat buffer, from its backward pass until its update right after it
  sent_to_host,  ///< the same, and until those of the next unit are there, too: meanwhile they are copied
};

/// What can be chosen about a step, for one rank.
struct StepLevers {
  std::size_t element_bytes = sizeof(float);  ///< E, of parameters, gradients and activations
  std::size_t sequences = 0, seq = 0;         ///< B and S, of a micro-batch
  StepForm form{};                            ///< its keep holds for layers that a schedule says nothing about
  Schedule schedule{};
  std::size_t micro_batches = 1;  ///< in a step, one after the other; gradients accumulate
  std::size_t in_flight = 1;      ///< how many of these wait for their backward pass at most (pipelines)
  Slice slice{};                  ///< the rank's stage and part
  std::size_t replicas = 1;       ///< ranks that have the same slice and other samples
  /// What the replicas share out, in units (see unit_state_bytes()): 0 nothing, 1 the optimizer, 2 also gradients,
  /// 3 also parameters (Rajbhandari et al., "ZeRO", 2020). 2 and 3 are for slices of all layers.
  int zero = 0;
  DataParallel data_parallel = DataParallel::none;
  /// Another one than always is for one replica, no micro-batches, and slices of all layers. A tied token table's
  /// gradients are there from the head's backward pass to the embedding's.
  GradientLife gradients = GradientLife::always;
};

/// The peak of a step on one rank, tokens and labels included, above what is `resident` between steps: parameters,
/// gradients, optimizer state, the loss. Throws std::length_error when a figure does not fit 64 bits, std::logic_error
/// for a schedule of another number of layers.
PeakBytes walk_step(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident);

/// The peak of a forward pass that no backward pass follows, up to all logits, tokens and labels included. `graph`:
/// every layer keeps what the form says, as if one followed; otherwise nothing (Transformer::logits()). Of the levers
/// element_bytes, sequences, seq and form count, but for the form's loss. Throws as walk_step().
PeakBytes walk_forward(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident, bool graph);

/// What one segment has, in bytes of activations: from its forward to its backward pass, and at the fullest moment of
/// each of the two, above what the segments before it hold. Of the levers element_bytes, sequences, seq, form and
/// slice.parts count.
struct SegmentBytes {
  std::size_t held, forward_peak, backward_peak;
};
SegmentBytes segment_bytes(const TransformerSpec& spec, const StepLevers& levers, const Segment& segment);
/// The fullest moment of the head and the loss, above what all segments hold: activations, and row losses (workspace).
/// The same levers count.
std::size_t head_peak_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// What the forward pass of one micro-batch holds until its backward pass, tokens and labels included.
ByCategory held_bytes(const TransformerSpec& spec, const StepLevers& levers);
/// What embed() keeps until embed_backward(), beside the first layer's input.
std::size_t embedding_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                            std::size_t seq);
/// One residual [R, C].
std::size_t residual_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                           std::size_t seq);
/// Tokens and labels.
std::size_t token_batch_bytes(std::size_t sequences, std::size_t seq);

/// All tensors of a model, values of `element_bytes` each, each tensor rounded on its own.
std::size_t tensor_bytes(const TransformerSpec& spec, std::size_t element_bytes);

/// Units are tensors that are used together, in one flat buffer: the token table, the other embeddings, each layer, the
/// head. In a unit each tensor begins at a multiple of this many elements, so that a kernel may load 16 bytes at once;
/// the unit is padded to this many times the replicas, so that they have equal shards.
inline constexpr std::size_t kUnitAlign = 8;
/// Parameters, gradients and AdamW's state of a rank whose tensors lie in units: per parameter E + E + 8 bytes, with
/// 16-bit elements 12 for the 8 (master weights), each shared out as `zero` says; and the loss scale. Throws
/// std::invalid_argument for elements of another size than 4 and 2 bytes.
ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers);

/// Floating-point operations of the matrix products of one layer, a multiplication and an addition counted as two. What
/// fused attention does in its kernels is counted as if it were products: two in the forward, seven in the backward
/// pass.
struct LayerFlops {
  std::uint64_t forward, backward;
  std::uint64_t last_product;   ///< of the forward pass, what a recomputed layer can leave out (0 in bert)
  std::uint64_t probabilities;  ///< of the forward pass, the scores of textbook attention; 0 in other forms
  std::uint64_t middle;         ///< of the forward pass, what Keep::middle saves
  std::uint64_t again;          ///< what a layer computes once more whose forward pass has run twice
};
LayerFlops layer_flops(const TransformerSpec& spec, std::size_t sequences, std::size_t seq, const StepForm& form = {});
/// The same of one of so many sequences, which have equally many: tiles of attention depend on how many there are.
LayerFlops layer_flops_of_each(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                               const StepForm& form = {});
/// What a segment computes a second time, beside what its attention's form always does.
std::uint64_t recompute_flops(const LayerFlops& layer, const Segment& segment);
/// A whole step. An empty schedule: all layers keep what the form says.
std::uint64_t step_flops(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                         const Schedule& schedule = {}, const StepForm& form = {});
/// The same of one of so many sequences, for batches whose operations are beyond 64 bits.
std::uint64_t step_flops_of_each(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                                 const Schedule& schedule = {}, const StepForm& form = {});

}  // namespace oomlab::nn
