#pragma once
// How a model is stored and updated, for the chapters that offer a choice: FP32, or 16 bits with FP32 master weights
// (nn/optimizer/mixed_precision.h).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/dtype_of.h"
#include "nn/optimizer/mixed_precision.h"
#include "train/text_training.h"

namespace oomlab::train {

/// How a model is stored and updated. `pure_fp16` has neither master weights nor a loss scale: the failure to see.
enum class Precision { fp32, fp16, bf16, pure_fp16 };
/// The format in which its weights, gradients and activations are stored. Throws std::invalid_argument for what is no
/// enumerator.
inline DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return DType::fp32;
    case Precision::bf16: return DType::bf16;
    case Precision::fp16:
    case Precision::pure_fp16: return DType::fp16;
  }
  throw std::invalid_argument("a precision that is not known");
}
/// How a model of this format is trained. Throws std::invalid_argument for formats in which none is.
inline Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return Precision::fp32;
    case DType::fp16: return Precision::fp16;
    case DType::bf16: return Precision::bf16;
    default: throw std::invalid_argument(std::string("no model is trained in ") + name_of(dtype) + " here");
  }
}
/// What --precision asks for, where it is given.
inline std::optional<DType> dtype_asked(const Config& config) {
  const auto name = config.options.find(kPrecision);
  return name ? std::optional(parse_dtype(*name)) : std::nullopt;
}
/// Its format's name, and "fp16 pure".
inline const char* name_of(Precision precision) {
  return precision == Precision::pure_fp16 ? "fp16 pure" : name_of(dtype_of(precision));
}
/// Bytes of a stored weight, gradient or activation.
inline std::size_t element_bytes(Precision precision) { return element_bytes(dtype_of(precision)); }

/// Dynamic for FP16; the others need none.
inline nn::LossScaling scaling_of(Precision precision) {
  // Frameworks begin with 65536, and let the first steps be skipped until it has come down.
  return precision == Precision::fp16 ? nn::LossScaling::dynamic_from(1024) : nn::LossScaling::none();
}

/// Whether the optimizer keeps FP32 weights beside the model's.
inline bool has_master_weights(Precision precision) {
  return precision == Precision::fp16 || precision == Precision::bf16;
}
/// AdamW with that copy, or without.
inline nn::OptimizerForm optimizer_form(Precision precision) {
  return {.weights = has_master_weights(precision) ? nn::WeightForm::master : nn::WeightForm::stored};
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
  return nn::simulate_step(spec, levers, resident_with(spec, precision)).at_peak;
}

/// The precision that --precision names; the command line knows no others.
inline Precision precision_of(const Config& config) { return precision_of(parse_dtype(config.options[kPrecision])); }

/// make(T{}) with the type that a model's elements have: float, __half or __nv_bfloat16.
template <class Make>
auto with_element_of(Precision precision, Make make) {
  return with_type_of<float, __half, __nv_bfloat16>(dtype_of(precision), make);
}

}  // namespace oomlab::train
