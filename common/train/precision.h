#pragma once
// How a model is stored and updated, for the chapters that offer a choice: FP32, or 16 bits with FP32 master weights
// (nn/mixed_precision.h).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <utility>

#include "nn/mixed_precision.h"
#include "train/text_training.h"

namespace oomlab::train {

/// How a model is stored and updated. `pure_fp16` has neither master weights nor a loss scale: the failure to see.
enum class Precision { fp32, fp16, bf16, pure_fp16 };
inline const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::fp16: return "fp16";
    case Precision::bf16: return "bf16";
    case Precision::pure_fp16: return "fp16 pure";
  }
  return "?";
}
inline Arithmetic arithmetic_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return Arithmetic::fp32;
    case Precision::bf16: return Arithmetic::bf16;
    default: return Arithmetic::fp16;
  }
}
inline std::size_t element_bytes(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }

inline nn::LossScaling scaling_of(Precision precision) {
  // Frameworks begin with 65536, and let the first steps be skipped until it has come down.
  return precision == Precision::fp16 ? nn::LossScaling::dynamic_from(1024) : nn::LossScaling::none();
}

inline bool has_master_weights(Precision precision) {
  return precision == Precision::fp16 || precision == Precision::bf16;
}

/// What stays allocated: 16 bytes per parameter in FP32 (4 + 4 + 8) and with master weights (2 + 2 + 4 + 8), 12 without
/// them (2 + 2 + 8), the loss and its scale.
inline ByCategory resident_with(const nn::TransformerSpec& spec, Precision precision) {
  ByCategory resident = resident_for_training(spec, element_bytes(precision), has_master_weights(precision) ? 3 : 2);
  resident[Category::optimizer] += nn::scale_state_bytes();
  return resident;
}

/// Peak allocated bytes by category of training: activations are 4 or 2 bytes per element.
inline ByCategory predict_precision(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                                    Precision precision, const nn::StepForm& form = {}) {
  const nn::StepLevers levers{
      .element_bytes = element_bytes(precision), .sequences = sequences, .seq = seq, .form = form};
  return nn::walk_step(spec, levers, resident_with(spec, precision)).at_peak;
}

/// The precision that --precision names; the command line knows no others.
inline Precision precision_of(const Config& config) {
  const std::string name = config.options[kPrecision];
  return name == "fp16" ? Precision::fp16 : name == "bf16" ? Precision::bf16 : Precision::fp32;
}

/// make(T{}) with the type that a model's elements have: float, __half or __nv_bfloat16.
template <class Make>
auto with_element_of(Precision precision, Make make) {
  switch (precision) {
    case Precision::fp32: return make(float{});
    case Precision::bf16: return make(__nv_bfloat16{});
    default: return make(__half{});
  }
}

}  // namespace oomlab::train
