#pragma once
// A text encoder: CLIP's (Radford et al., 2021), transformers' CLIPTextModel, inference only.

#include <cstddef>
#include <span>
#include <string>

#include "memory/context.h"
#include "nn/models/image/blocks.h"
#include "nn/models/image/weights.h"

namespace oomlab::image {

/// T is what weights and activations are stored as: float, __half or __nv_bfloat16.
template <class T>
class TextEncoder {
 public:
  /// Throws as WeightStore(), and std::invalid_argument for another kind than CLIP.
  TextEncoder(Context& context, const TextEncoderSpec& spec, Residency residency, const ReadTensor& read);

  const TextEncoderSpec& spec() const noexcept { return spec_; }
  /// With Residency::model a stage() of these must be there while forward() runs; with the others it is nothing.
  WeightStore<T>& weights() noexcept { return weights_; }

  /// New buffers of activations.
  struct Output {
    DeviceBuffer<T> rows;    ///< the last hidden states, behind the final norm, [texts, positions, width]
    DeviceBuffer<T> pooled;  ///< with spec().projection: of one row of each text, [texts, projection]; otherwise empty
  };
  /// From tokens [texts, positions] on the device. Attention is causal; every token is there, none is masked. `ends`: the
  /// position in each text of the row that is pooled; empty: the last one. Phase "text encoder". Throws OutOfMemory: what
  /// the pass had allocated is free again; std::invalid_argument for ends that are not there.
  Output forward(Context& context, const int* tokens, std::size_t texts, const Form& form,
                 std::span<const std::size_t> ends = {});

 private:
  void layer(Context& context, const std::string& name, DeviceBuffer<T>& x, std::size_t texts, const Form& form);
  TextEncoderSpec spec_;
  WeightStore<T> weights_;
};

}  // namespace oomlab::image
