#pragma once
// Operations of a transformer's step, without running it.

#include <cstdint>

#include "plan/model/adapters.h"
#include "plan/model/transformer.h"
#include "plan/step_form.h"

namespace oomlab::nn {

/// Floating-point operations of the matrix products of one layer, a multiplication and an addition counted as two. What
/// fused attention does in its kernels is counted as if it were products: two in the forward, seven in the backward
/// pass.
struct LayerFlops {
  std::uint64_t forward, backward;
  std::uint64_t last_product;             ///< of the forward pass, what a recomputed layer can leave out (0 in bert);
                                          ///< of an MLP by tiles both of its products
  std::uint64_t probabilities;            ///< of the forward pass, the scores of textbook attention; 0 in other forms
  std::uint64_t post_attention_residual;  ///< of the forward pass, what Keep::post_attention_residual saves
  /// Beyond its forward pass, what the backward pass of a layer recomputes whose segment's forward pass has run again.
  std::uint64_t recompute_in_backward;
  std::uint64_t mlp_again;  ///< of an MLP by tiles, its first product: its backward pass has it again, whatever is kept
};
/// Of `sequences` sequences of `seq` tokens. Throws std::length_error beyond 64 bits.
LayerFlops layer_flops(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                       const StepForm& form = {});
/// The same of one of so many sequences, which have equally many: tiles of attention depend on how many there are, and
/// on the heads that a rank has where `head_shares` of them share those out. All of these ranks together.
LayerFlops layer_flops_of_each(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                               const StepForm& form = {}, std::uint64_t head_shares = 1);
/// What adapters of `layers` layers add to a step of one sequence, on each of `parts` ranks that share a layer: r (in +
/// out) a token in the forward pass; in the backward pass as much for the input's gradient, and twice as much for their
/// own, since x Aᵀ is computed again.
std::uint64_t adapter_flops_of_each(const TransformerSpec& spec, const AdapterForm& adapters, std::uint64_t parts,
                                    std::uint64_t seq, const Schedule& schedule, const StepForm& form);
/// What a segment computes a second time, beside what its attention's form always does.
std::uint64_t recompute_flops(const LayerFlops& layer, const Segment& segment);
/// A whole step. An empty schedule: all layers keep what the form says. Of what is frozen no gradient is computed; what
/// adapters add is not among it.
std::uint64_t step_flops(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                         const Schedule& schedule = {}, const StepForm& form = {}, Trained trained = Trained::all,
                         std::uint64_t head_shares = 1);
/// The same of one of so many sequences, for batches whose operations are beyond 64 bits.
std::uint64_t step_flops_of_each(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq,
                                 const Schedule& schedule = {}, const StepForm& form = {},
                                 Trained trained = Trained::all, std::uint64_t head_shares = 1);

}  // namespace oomlab::nn
