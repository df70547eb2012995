#include "plan/model/activation.h"

namespace oomlab::nn {

const char* name_of(Activation activation) noexcept {
  switch (activation) {
    case Activation::none: return "none";
    case Activation::relu: return "relu";
    case Activation::gelu: return "gelu";
    case Activation::hard_sigmoid: return "hard sigmoid";
    case Activation::hard_swish: return "hard swish";
    case Activation::silu: return "silu";
    case Activation::quick_gelu: return "quick gelu";
    case Activation::exact_gelu: return "exact gelu";
  }
  return "?";
}

}  // namespace oomlab::nn
