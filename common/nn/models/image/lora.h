#pragma once
// The low-rank adapters of a denoiser's attention (plan/image/lora.h): their tensors, and which layer each belongs to.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "memory/context.h"
#include "nn/layers/adapter.h"
#include "nn/optimizer/optimizer.h"
#include "plan/image/lora.h"

namespace oomlab::image {

/// T is what they are stored as, the denoiser's.
template <class T>
class LoraAdapters {
 public:
  /// Allocates A and B (category parameters), and their gradients (category gradients). A begins uniform in ±1 / √in, as
  /// peft has it, and B with 0: at first the denoiser does what it did without. Throws OutOfMemory (nothing stays
  /// allocated), and std::invalid_argument for a rank of 0, and for a denoiser without attention.
  LoraAdapters(Context& context, const UNetSpec& spec, const LoraForm& form, std::uint64_t seed);

  const LoraForm& form() const noexcept { return form_; }
  /// As lora_tensors().
  const std::vector<TensorOf>& tensors() const noexcept { return tensors_; }
  /// In that order.
  std::vector<nn::ParameterOf<T>> parameters();
  /// The adapter of a layer, "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"; one of rank 0 where it has none.
  /// It points to the gradients, too, which a backward pass writes.
  nn::Adapter<T> of(const std::string& layer);

 private:
  LoraForm form_;
  std::vector<TensorOf> tensors_;
  std::map<std::string, std::size_t> number_of_a_;  // by layer
  std::vector<DeviceBuffer<T>> values_, gradients_;
};

}  // namespace oomlab::image
