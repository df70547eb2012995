#include "plan/image/diffusers.h"

#include <algorithm>
#include <stdexcept>

#include "plan/bytes.h"
#include "plan/image/diffusers_walk.h"
#include "plan/image/run.h"

namespace oomlab::image {

std::uint64_t DiffusersPeaks::whole() const {
  return std::max({loaded, text.total(), denoiser.total(), decoder.total()});
}

namespace {

using Offload = DiffusersRun::Offload;

// How bitsandbytes stores a matrix.
std::uint64_t encoded_bytes(const TensorOf& matrix, unsigned bits) {
  constexpr std::uint64_t kBlock = 64;  // weights that share an absmax in FP32
  const std::uint64_t weights = matrix.elements();
  if (bits == 8) return checked_sum(round_to_granule(weights), round_to_granule(4 * matrix.shape[0]));
  return checked_sum(round_to_granule((weights + 1) / 2), round_to_granule((weights + kBlock - 1) / kBlock * 4));
}

struct Component {
  std::uint64_t bytes = 0;
  std::uint64_t largest_module = 0;   // bytes of the weight and bias of one leaf module
  std::uint64_t largest_encoded = 0;  // values of the largest matrix in fewer bits
};

Component component_of(const std::vector<TensorOf>& tensors, std::uint64_t element_bytes, unsigned bits) {
  Component component;
  std::string module;
  std::uint64_t of_module = 0;
  for (const TensorOf& tensor : tensors) {
    const bool keeps_fp32 = bits && tensor.name.ends_with(".wo.weight");
    const bool is_encoded = bits && !keeps_fp32 && is_linear(tensor);
    const std::uint64_t bytes =
        is_encoded ? encoded_bytes(tensor, bits)
                   : round_to_granule(checked_product(tensor.elements(), keeps_fp32 ? 4 : element_bytes));
    if (is_encoded) component.largest_encoded = std::max(component.largest_encoded, tensor.elements());
    component.bytes = checked_sum(component.bytes, bytes);
    const std::string name = tensor.name.substr(0, tensor.name.rfind('.'));
    of_module = name == module ? of_module + bytes : bytes;
    module = name;
    component.largest_module = std::max(component.largest_module, of_module);
  }
  return component;
}

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

}  // namespace

DiffusersPeaks diffusers_peaks(const PipelineSpec& spec, const DiffusersRun& run) {
  const std::uint64_t factor = spec.autoencoder.factor(), size = run.size ? run.size : spec.size;
  const std::uint64_t multiple = factor * (spec.unet() ? spec.unet()->reduction() : spec.flux()->patch);
  require(run.batch > 0, "a batch has at least one image");
  require(size <= kMostPixels && run.batch <= kMostPixels, "at most 65,536 images, and pixels on a side");
  require(size > 0 && size % multiple == 0, "the image's sides are no multiples of what the denoiser halves");
  for (const unsigned bits : {run.denoiser_bits, run.text_bits})
    require(bits == 0 || bits == 8 || bits == 4, "bitsandbytes has 8 and 4 bits");
  const std::uint64_t element = element_bytes(run.dtype), latents = size / factor;

  std::vector<Component> texts;
  for (const TextEncoderSpec& text : spec.text)
    texts.push_back(component_of(tensors_of(text), element, text.kind == TextKind::t5 ? run.text_bits : 0));
  const Component denoiser = component_of(tensors_of(spec.denoiser), element, run.denoiser_bits);
  // SDXL's autoencoder overflows in FP16, and is cast to FP32 for decoding (force_upcast).
  const bool upcast = spec.unet() && spec.unet()->added_condition && run.dtype == DType::fp16;
  const std::uint64_t of_decoder = upcast ? 4 : element;
  const std::vector<TensorOf> autoencoder_tensors = tensors_of(spec.autoencoder, AutoencoderPart::both);
  const Component loaded_autoencoder = component_of(autoencoder_tensors, element, 0);
  const Component autoencoder = component_of(autoencoder_tensors, of_decoder, 0);

  std::uint64_t all = checked_sum(denoiser.bytes, loaded_autoencoder.bytes);
  for (const Component& text : texts) all = checked_sum(all, text.bytes);
  DiffusersPeaks peaks;
  if (run.offload == Offload::none) peaks.loaded = all;
  const auto weights = [&](const Component& component) {
    switch (run.offload) {
      case Offload::model: return component.bytes;
      case Offload::sequential: return component.largest_module;
      case Offload::none: break;
    }
    return all;
  };

  const std::uint64_t sequences = run.batch * (spec.is_guided() ? 2 : 1);
  for (std::size_t i = 0; i < spec.text.size(); ++i) {
    // A prompt is encoded once, whatever the number of its images.
    const std::uint64_t prompts = spec.is_guided() ? 2 : 1;
    const DiffusersStage stage{weights(texts[i]), text_activations(spec.text[i], prompts, element)};
    if (stage.total() > peaks.text.total()) peaks.text = stage;
  }
  peaks.denoiser = {weights(denoiser), denoiser_activations(spec, run, sequences, latents)};
  // A product with a matrix in 4 bits makes it whole in the number format of the activations.
  if (run.denoiser_bits == 4) peaks.denoiser.activations += round_to_granule(denoiser.largest_encoded * element);
  peaks.decoder = {weights(autoencoder), decoder_activations(spec, run, of_decoder, latents)};
  if (run.offload == Offload::none) peaks.decoder.weights = all - loaded_autoencoder.bytes + autoencoder.bytes;
  return peaks;
}

}  // namespace oomlab::image
