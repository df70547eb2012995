#pragma once
// Optimizers by the bytes that they keep. Per parameter, in FP32, of a matrix of r rows and c columns, n = r · c:
//
//   rule        state                            update
//   adamw       8                                two moments, bias-corrected; decoupled weight decay
//   adamw8      2 + 8 / 256                      the same; a moment is a code of 8 bits, and 256 share an FP32 scale
//                                                (Dettmers et al., "8-bit optimizers via block-wise quantization",
//                                                2022)
//   adafactor   4 (r + c) / n                    no first moment; of the second one the means of rows and of columns
//                                                (Shazeer and Stern, "Adafactor", 2018, as torch.optim.Adafactor)
//   sgd         0                                w -= lr · g
//
//   weights     beside it, per parameter
//   stored      0                                updates of a model in BF16 are rounded to the nearest: small ones
//                                                vanish
//   master      4                                an FP32 copy gets the updates; the model is that copy, rounded
//   stochastic  0                                updates are rounded up or down at random, and so are right on average
//
// Any tensors can be updated, in any order: all of them after the backward pass, or each layer's in it.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "memory/context.h"
#include "nn/adamw_rule.h"
#include "nn/dynamic_code.h"
#include "nn/transformer.h"

namespace oomlab::nn {

enum class UpdateRule { adamw, adamw8, adafactor, sgd };
/// "adamw", "adamw8", "adafactor", "sgd".
const char* name_of(UpdateRule rule) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
UpdateRule parse_update_rule(std::string_view name);

enum class WeightForm { stored, master, stochastic };
/// "stored", "master", "stochastic".
const char* name_of(WeightForm form) noexcept;

struct OptimizerForm {
  UpdateRule rule = UpdateRule::adamw;
  WeightForm weights = WeightForm::stored;
  /// adamw8: moments of embeddings stay in 32 bits, as in bitsandbytes' StableEmbedding. Their gradients are rare and
  /// large.
  bool wide_embeddings = false;
  friend bool operator==(const OptimizerForm&, const OptimizerForm&) = default;
};

/// Tensors with fewer elements keep moments of 32 bits under adamw8: norms and biases, which are sensitive, and nothing
/// to be gained from.
inline constexpr std::size_t kLeastOf8Bits = 4096;
/// Whether this tensor's moments are codes.
bool has_8_bit_moments(const TensorShape& shape, const OptimizerForm& form);
/// What is kept for one tensor, each array on its own rounded to the granule. Without rounding 8 n, 2 n + 8 ⌈n / 256⌉,
/// 4 (rows + columns) or for a vector 4 n, and 0; and 4 n for a master copy.
std::size_t state_bytes(const TensorShape& shape, const OptimizerForm& form);
/// The same without rounding.
std::size_t exact_state_bytes(const TensorShape& shape, const OptimizerForm& form);
/// What CompactOptimizer allocates for a model, by category.
ByCategory optimizer_bytes(const TransformerSpec& spec, const OptimizerForm& form);

struct OptimizerSettings {
  AdamWSettings adamw{};
  /// Adafactor's: the step is min(lr, 1 / √t) of the root mean square of the weights, and clipped by the update's.
  struct Adafactor {
    float lr = 1e-2f, decay = -0.8f, eps1 = 1.1920929e-7f, eps2 = 1e-3f, weight_decay = 0.0f;
  } adafactor{};
  float sgd_lr = 0.05f;
  std::uint64_t seed = 1;  ///< of stochastic rounding
};

/// T is float or __nv_bfloat16.
template <class T>
class CompactOptimizer {
 public:
  /// Tensors `shapes`, whose values are at `values`, not owned. The state is allocated and zeroed, master copies are
  /// taken. Throws OutOfMemory (nothing stays allocated), and std::invalid_argument for stochastic FP32.
  CompactOptimizer(Context& context, std::vector<TensorShape> shapes, std::vector<T*> values, OptimizerForm form,
                   OptimizerSettings settings = {});
  /// A tensor's number, and where its gradient is.
  struct Update {
    std::size_t tensor;
    const T* gradient;
  };
  /// Updates these tensors, as part of the step that end_step() ends. Gradients are multiplied by *factor, a float on
  /// the device; null: 1; if it is 0 nothing is done. Does not wait, and allocates nothing.
  void update(Context& context, std::span<const Update> updates, const float* factor = nullptr);
  void end_step() noexcept { ++steps_; }
  /// Steps done so far.
  std::uint64_t steps() const noexcept { return steps_; }
  const OptimizerForm& form() const noexcept { return form_; }
  /// A hash of the whole state (waits for the stream); 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;

  /// A tensor's buffers; those that it does not have are empty.
  struct State {
    DeviceBuffer<float> master;
    DeviceBuffer<float> first, second;            ///< moments
    DeviceBuffer<std::uint8_t> codes[2];          ///< of the two moments
    DeviceBuffer<float> absmax[2];                ///< of their blocks
    DeviceBuffer<float> row_means, column_means;  ///< Adafactor's of a matrix; `second` of a vector
  };
  const State& state(std::size_t tensor) const noexcept { return states_[tensor]; }

 private:
  void adafactor(Context& context, const Update& update, const float* factor);
  std::vector<TensorShape> shapes_;
  std::vector<T*> values_;
  OptimizerForm form_;
  OptimizerSettings settings_;
  std::vector<State> states_;
  DeviceBuffer<float> sums_;  // Adafactor's, of one tensor at a time
  std::uint64_t steps_ = 0;
};

/// Numbers in blocks of 256, as codes of 8 bits and an absmax for each block, and back.
void encode_blocks(Context& context, const float* from, std::size_t count, bool with_sign, std::uint8_t* codes,
                   float* absmax);
void decode_blocks(Context& context, const std::uint8_t* codes, const float* absmax, std::size_t count, bool with_sign,
                   float* to);

/// The factor of all gradients: 1 / scale, or less where their norm, divided by scale, is above `clip` (0: never), or 0
/// where it is not finite: such a step is left out. *factor is on the device, and `parts`, factor_parts() floats.
template <class T>
void gradient_factor(Context& context, std::span<const ParameterOf<T>> parameters, float scale, float clip,
                     float* parts, float* factor);
std::size_t factor_parts(std::span<const TensorShape> shapes);

}  // namespace oomlab::nn
