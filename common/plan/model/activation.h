#pragma once
// What stands between the layers of a model.

namespace oomlab::nn {

/// hard_sigmoid: min(max(x + 3, 0), 6) / 6; hard_swish: x · hard_sigmoid(x) (Howard et al., 2019).
enum class Activation { none, relu, gelu, hard_sigmoid, hard_swish };
/// "none", "relu", "gelu", "hard sigmoid", "hard swish".
const char* name_of(Activation activation) noexcept;

}  // namespace oomlab::nn
