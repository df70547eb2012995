#include "plan/image/diffusers.h"

#include <algorithm>
#include <stdexcept>

#include "plan/bytes.h"
#include "plan/image/diffusers_walk.h"
#include "plan/image/run.h"

namespace oomlab::image {

const DiffusersStage& DiffusersPeaks::fullest() const {
  const DiffusersStage& first = denoiser.total() > text.total() ? denoiser : text;
  return decoder.total() > first.total() ? decoder : first;
}

std::uint64_t DiffusersPeaks::whole() const { return std::max(loaded, fullest().total()); }

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

// All of a pipeline's, as a run stores them.
struct Components {
  std::vector<Component> text;
  Component denoiser;
  Component loaded_autoencoder, autoencoder;  // before decoding, and then
  std::uint64_t latents;                      // on a side
  std::uint64_t of_decoder;                   // bytes of a value
  std::uint64_t all() const {
    std::uint64_t sum = checked_sum(denoiser.bytes, loaded_autoencoder.bytes);
    for (const Component& one : text) sum = checked_sum(sum, one.bytes);
    return sum;
  }
};

Components components_of(const PipelineSpec& spec, const DiffusersRun& run) {
  const std::uint64_t factor = spec.autoencoder.factor(), size = run.size ? run.size : spec.size;
  const std::uint64_t multiple = factor * (spec.unet() ? spec.unet()->reduction() : spec.flux()->patch);
  require(run.batch > 0, "a batch has at least one image");
  require(size <= kMostPixels && run.batch <= kMostPixels, "at most 65,536 images, and pixels on a side");
  require(size > 0 && size % multiple == 0, "the image's sides are no multiples of what the denoiser halves");
  for (const unsigned bits : {run.denoiser_bits, run.text_bits})
    require(bits == 0 || bits == 8 || bits == 4, "bitsandbytes has 8 and 4 bits");
  require(run.guidance_passes == 1 || (run.guidance_passes == 2 && spec.is_guided()),
          "guidance takes one pass of a doubled batch, or where there is one, two passes");
  const std::uint64_t element = element_bytes(run.dtype);
  Components all;
  for (const TextEncoderSpec& text : spec.text)
    all.text.push_back(component_of(tensors_of(text), element, text.kind == TextKind::t5 ? run.text_bits : 0));
  all.denoiser = component_of(tensors_of(spec.denoiser), element, run.denoiser_bits);
  all.of_decoder = is_upcast(spec, run.dtype) && !run.vae_fp16 ? element_bytes(DType::fp32) : element;
  const std::vector<TensorOf> autoencoder = tensors_of(spec.autoencoder, AutoencoderPart::both);
  all.loaded_autoencoder = component_of(autoencoder, element, 0);
  all.autoencoder = component_of(autoencoder, all.of_decoder, 0);
  all.latents = size / factor;
  return all;
}

// A product with a matrix in 4 bits makes it whole in the number format of the activations.
std::uint64_t decoded_matrix(const Component& component, unsigned bits, std::uint64_t element_bytes) {
  return bits == 4 ? round_to_granule(checked_product(component.largest_encoded, element_bytes)) : 0;
}

}  // namespace

bool is_upcast(const PipelineSpec& spec, DType dtype) {
  return spec.unet() && spec.unet()->added_condition && dtype == DType::fp16;
}

DiffusersPeaks diffusers_peaks(const PipelineSpec& spec, const DiffusersRun& run) {
  const Components components = components_of(spec, run);
  const std::uint64_t element = element_bytes(run.dtype), all = components.all();
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

  for (std::size_t i = 0; i < spec.text.size(); ++i) {
    // A prompt is encoded once, whatever the number of its images.
    const std::uint64_t prompts = spec.is_guided() ? 2 : 1;
    DiffusersStage stage{.weights = weights(components.text[i]),
                         .activations = text_activations(spec.text[i], prompts, element)};
    stage.activations += decoded_matrix(components.text[i], run.text_bits, element);
    if (stage.total() > peaks.text.total()) peaks.text = stage;
  }
  const std::uint64_t images = checked_product(run.batch, spec.is_guided() && run.guidance_passes == 1 ? 2 : 1);
  peaks.denoiser = {.weights = weights(components.denoiser),
                    .activations = denoiser_activations(spec, run, images, components.latents)};
  peaks.denoiser.activations += decoded_matrix(components.denoiser, run.denoiser_bits, element);
  const ByCategory decoded = decoder_peak(spec, run, components.of_decoder, components.latents).at_peak;
  peaks.decoder = {.weights = weights(components.autoencoder),
                   .activations = decoded[Category::activations],
                   .workspace = decoded[Category::workspace]};
  if (run.offload == Offload::none)
    peaks.decoder.weights = all - components.loaded_autoencoder.bytes + components.autoencoder.bytes;
  return peaks;
}

DiffusersCost diffusers_cost(const PipelineSpec& spec, const DiffusersRun& run) {
  if (run.offload == Offload::none) return {};
  const Components components = components_of(spec, run);
  DiffusersCost cost{.host = components.all()};
  if (run.offload == Offload::model) {
    cost.bus_bytes = 2.0 * double(cost.host);
    return cost;
  }
  const double prompts = spec.is_guided() ? 2 : 1;  // each text is a call of its own
  for (const Component& text : components.text) cost.bus_bytes += prompts * double(text.bytes);
  cost.bus_bytes +=
      double(components.denoiser.bytes) * double(run.steps ? run.steps : spec.steps) * run.guidance_passes;
  const Component decoder =
      component_of(tensors_of(spec.autoencoder, AutoencoderPart::decoder), components.of_decoder, 0);
  cost.bus_bytes += double(decoder.bytes) * double(decoder_passes(spec, run, components.latents).count);
  return cost;
}

}  // namespace oomlab::image
