#pragma once
// What stands between the layers of a model.

namespace oomlab::nn {

/// hard_sigmoid: min(max(x + 3, 0), 6) / 6; hard_swish: x · hard_sigmoid(x) (Howard et al., 2019). silu: x / (1 + e^−x)
/// (Hendrycks and Gimpel, 2016); quick_gelu: x / (1 + e^(−1.702 x)), GELU as CLIP has it. gelu: its
/// tanh form; exact_gelu: x · Φ(x), through the error function.
enum class Activation { none, relu, gelu, hard_sigmoid, hard_swish, silu, quick_gelu, exact_gelu };
/// "none", "relu", "gelu", "hard sigmoid", "hard swish", "silu", "quick gelu", "exact gelu".
const char* name_of(Activation activation) noexcept;

}  // namespace oomlab::nn
