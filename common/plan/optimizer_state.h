#pragma once
// What an optimizer keeps, in bytes. Per parameter, in FP32, of a matrix of r rows and c columns, n = r · c:
//
//   rule        state                            update
//   adamw       8                                two moments, bias-corrected; decoupled weight decay
//   adamw8      2 + 8 / 256                      the same; a moment is a code of 8 bits, and 256 share an FP32 scale
//                                                (Dettmers et al., "8-bit optimizers via block-wise quantization",
//                                                2022)
//   adafactor   4 (r + c) / n                    no first moment; of the second one the means of rows and of columns
//                                                (Shazeer and Stern, "Adafactor", 2018, as torch.optim.Adafactor)
//   sgd         0                                w -= lr · g
//   momentum    4                                v = momentum · v + g;  w -= lr · v
//
//   weights     beside it, per parameter
//   stored      0                                updates of a model in BF16 are rounded to the nearest: small ones
//                                                vanish
//   master      4                                an FP32 copy gets the updates; the model is that copy, rounded
//   stochastic  0                                updates are rounded up or down at random, and so are right on average

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "plan/bytes.h"
#include "plan/category.h"
#include "plan/model/transformer.h"

namespace oomlab::nn {

/// Elements that share a scale, where moments are codes of 8 bits.
inline constexpr std::uint64_t kCodeBlock = 256;
/// Floats of Adafactor's sums before two for each row.
inline constexpr std::uint64_t kAdafactorScalars = 4;

enum class UpdateRule { adamw, adamw8, adafactor, sgd, momentum };
/// What is known of a rule.
struct UpdateRuleRow {
  UpdateRule rule;
  const char* name;
  bool of_transformers;                ///< whether --optimizer has it
  std::optional<std::size_t> buffers;  ///< of a parameter's size, in FP32; none: what it keeps has other sizes
};
/// In the order of UpdateRule.
inline constexpr UpdateRuleRow kUpdateRules[] = {
    {UpdateRule::adamw, "adamw", true, 2},          {UpdateRule::adamw8, "adamw8", true, {}},
    {UpdateRule::adafactor, "adafactor", true, {}}, {UpdateRule::sgd, "sgd", true, 0},
    {UpdateRule::momentum, "momentum", false, 1},
};
constexpr const UpdateRuleRow& row_of(UpdateRule rule) { return kUpdateRules[static_cast<std::size_t>(rule)]; }
static_assert(std::ranges::all_of(kUpdateRules, [](const UpdateRuleRow& row) { return &row_of(row.rule) == &row; }));
/// "adamw", "adamw8", "adafactor", "sgd", "momentum".
constexpr const char* name_of(UpdateRule rule) noexcept { return row_of(rule).name; }
/// Of those that a transformer is trained with. Throws std::invalid_argument with one line that says what is allowed.
UpdateRule parse_update_rule(std::string_view name);

enum class WeightForm { stored, master, stochastic };
/// "stored", "master", "stochastic".
const char* name_of(WeightForm form) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
WeightForm parse_weight_form(std::string_view name);

struct OptimizerForm {
  UpdateRule rule = UpdateRule::adamw;
  WeightForm weights = WeightForm::stored;
  /// adamw8: moments of embeddings stay in 32 bits, as in bitsandbytes' StableEmbedding. Their gradients are rare and
  /// large.
  bool wide_embeddings = false;
  bool paged_moments = false;  ///< adamw and adamw8: moments are in managed memory, whose pages come when they are used
  friend bool operator==(const OptimizerForm&, const OptimizerForm&) = default;
};

/// Tensors with fewer elements keep moments of 32 bits under adamw8: norms and biases, which are sensitive, and nothing
/// to be gained from.
inline constexpr std::uint64_t kLeastOf8Bits = 4096;
/// Whether this tensor's moments are codes.
bool has_8_bit_moments(const TensorShape& shape, const OptimizerForm& form);
/// What is kept on the device for one tensor, each array on its own rounded to the granule. Without rounding 8 n, 2 n + 8 ⌈n / 256⌉,
/// 4 (rows + columns) or for a vector 4 n, and 0; and 4 n for a master copy.
std::uint64_t state_bytes(const TensorShape& shape, const OptimizerForm& form);
/// What is kept in managed memory.
std::uint64_t paged_bytes(const TensorShape& shape, const OptimizerForm& form);
/// What is kept on the device, without rounding.
std::uint64_t exact_state_bytes(const TensorShape& shape, const OptimizerForm& form);
/// State buffers of parameter size, in FP32: 0 of sgd, 1 of momentum, 2 of adamw. Throws std::invalid_argument for the
/// others, whose buffers have other sizes.
std::uint64_t state_buffers(UpdateRule rule);
/// Adafactor's sums while it updates a tensor of at most so many rows (category workspace), rounded to the granule.
std::uint64_t adafactor_sums_bytes(std::uint64_t rows);
/// What nn::Optimizer allocates for the tensors of a model, or of a slice of it, by category.
ByCategory optimizer_bytes(const TransformerSpec& spec, const Slice& slice, const OptimizerForm& form);
inline ByCategory optimizer_bytes(const TransformerSpec& spec, const OptimizerForm& form) {
  return optimizer_bytes(spec, Slice{}, form);
}

/// What it has in managed memory.
std::uint64_t paged_bytes(const TransformerSpec& spec, const Slice& slice, const OptimizerForm& form);

/// The loss scale and what goes with it (nn/optimizer/mixed_precision.h), on the device.
inline constexpr std::uint64_t kScaleStateBytes = 32;
/// The same, rounded to the granule.
inline std::uint64_t scale_state_bytes() { return round_to_granule(kScaleStateBytes); }

}  // namespace oomlab::nn
