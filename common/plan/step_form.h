#pragma once
// How a transformer goes about a step, to the same result: the forms of attention and of the loss, and what each
// layer keeps for its backward pass.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace oomlab::nn {

/// What each does: nn/ops/attention.h.
enum class AttentionForm { textbook, tiled, fused };
/// "textbook", "tiled", "fused".
const char* name_of(AttentionForm form) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
AttentionForm parse_attention(std::string_view name);

/// The saved activations of a layer, from its forward pass until its backward pass. What is not saved is recomputed, to
/// the same bits: a whole layer before its backward pass, single tensors in the backward pass, when they are needed.
struct Keep {
  bool layer = true;                    ///< false: none; the layer is recomputed from its input
  bool norms = true;                    ///< outputs of layer norms, R·C each: two in gpt, one in bert
  bool gelu = true;                     ///< the output of the MLP's activation, R·F: GELU's, or SwiGLU's
  bool probabilities = true;            ///< of textbook attention, B·H·S²; the other forms have none to keep
  bool post_attention_residual = true;  ///< x + attention(x), R·C: one product of R·C² to recompute
  friend bool operator==(const Keep&, const Keep&) = default;

  /// Selective recompute of everything that is cheap to recompute: 9 R·C of gpt's 16 are left.
  static Keep selective_recompute() {
    return {.norms = false, .gelu = false, .probabilities = false, .post_attention_residual = false};
  }
};

/// How logits become a loss and gradients.
enum class LossForm {
  full,  ///< all logits at once, R·V
  /// Head, loss and both gradients for some rows after the other: so many that their logits take at most as much as the
  /// residual, R·C, and at most a quarter of all rows.
  chunked,
};
/// "full", "chunked".
const char* name_of(LossForm form) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
LossForm parse_loss(std::string_view name);

/// How a model goes about a step, to the same result. By default as textbooks have it.
struct StepForm {
  AttentionForm attention = AttentionForm::textbook;
  LossForm loss = LossForm::full;
  Keep keep{};  ///< of every layer, in forward_backward()
  /// What an MLP recomputes in its backward pass comes a quarter of the rows at a time: less memory at that moment.
  /// Its weights' gradients are then added up in another order: not the bits of an MLP that kept everything.
  bool by_rows = false;
  /// More than 1: the rows go through the MLP in so many pieces, and again in the backward pass, so that nothing between
  /// its two products is kept. What goes by rows does so in pieces of that size, and not in quarters. A gradient of
  /// weights adds up over the pieces.
  std::uint64_t mlp_tiles = 1;
  bool tiles_mlp() const { return mlp_tiles > 1; }
  friend bool operator==(const StepForm&, const StepForm&) = default;

  /// No scores, no logits, nothing saved that is cheap to recompute.
  static StepForm min_memory() { return {AttentionForm::tiled, LossForm::chunked, Keep::selective_recompute(), true}; }
};

/// Consecutive layers that are treated alike.
struct Segment {
  std::uint64_t layers = 0;
  bool recompute = false;  ///< only its input is saved; before its backward pass its forward pass runs again
  Keep keep{};             ///< of each layer, where not
  friend bool operator==(const Segment&, const Segment&) = default;
};
/// How all layers of a model, or of a slice of it, are treated. Empty: all keep what the step's form says.
using Schedule = std::vector<Segment>;
/// How many segments keep no more than their input, and are computed again.
inline std::uint64_t recomputed_segments(const Schedule& schedule) {
  return static_cast<std::uint64_t>(std::ranges::count_if(schedule, &Segment::recompute));
}

}  // namespace oomlab::nn
