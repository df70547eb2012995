#include "plan/image/run.h"

#include <algorithm>
#include <stdexcept>

#include "plan/image/walk.h"

namespace oomlab::image {

const char* name_of(Residency residency) noexcept {
  switch (residency) {
    case Residency::all: return "all";
    case Residency::model: return "model";
    case Residency::layer: return "layer";
  }
  return "?";
}

const char* name_of(DecoderCut cut) noexcept {
  switch (cut) {
    case DecoderCut::whole: return "whole";
    case DecoderCut::images: return "images";
    case DecoderCut::halo: return "halo";
    case DecoderCut::blended: return "blended";
  }
  return "?";
}

quantised::Format format_of_bits(unsigned bits) {
  switch (bits) {
    case 0: return {};
    case 8: return {.scheme = quantised::Scheme::int8_row};
    case 4: return {.scheme = quantised::Scheme::nf4};
    default: break;
  }
  throw std::invalid_argument("linear layers have 8 or 4 bits, or as many as the rest (0), not " +
                              std::to_string(bits));
}

void require_latents(const PipelineSpec& spec, nn::InputSize latents) {
  const std::uint64_t multiple = spec.unet() ? spec.unet()->reduction() : spec.flux()->patch;
  if (latents.height == 0 || latents.width == 0 || latents.height % multiple || latents.width % multiple)
    throw std::invalid_argument(spec.title + " makes images whose sides are multiples of " +
                                std::to_string(multiple * spec.autoencoder.factor()) + " pixels");
}

nn::InputSize latents_of(const PipelineSpec& spec, const Run& run) {
  const std::uint64_t size = run.size ? run.size : spec.size, factor = spec.autoencoder.factor();
  if (size > kMostPixels)
    throw std::invalid_argument("an image has at most " + std::to_string(kMostPixels) + " pixels on a side");
  const nn::InputSize latents{size / factor, size / factor};
  require_latents(spec, size % factor ? nn::InputSize{0, 0} : latents);
  return latents;
}

namespace {

std::uint64_t pixels(nn::InputSize size) { return checked_product(size.height, size.width); }

Buffer denoised(Simulation& simulation, Weights& weights, const PipelineSpec& spec, std::uint64_t images,
                nn::InputSize latents) {
  return std::visit(
      [&](const auto& denoiser) {
        return denoise(simulation, weights, denoiser, images, latents, spec.context_tokens());
      },
      spec.denoiser);
}

std::uint64_t latent_channels(const PipelineSpec& spec) { return spec.autoencoder.latent_channels; }

// What a denoiser is told of each image beside its text, as FP32 numbers.
Buffer timesteps_of(Simulation& simulation, std::uint64_t images) {
  return simulation.bytes(checked_product(images, element_bytes(DType::fp32)), Category::data);
}
// SDXL's six numbers; nothing for others.
Buffer numbers_of(Simulation& simulation, const PipelineSpec& spec, std::uint64_t images) {
  constexpr std::uint64_t kAddedNumbers = 6;
  if (!spec.unet() || !spec.unet()->added_time) return {};
  return simulation.bytes(checked_product(images, kAddedNumbers * element_bytes(DType::fp32)), Category::data);
}

// Of the row of a text that the denoiser reads beside the others; 0: none.
std::uint64_t pooled_width(const PipelineSpec& spec) {
  return spec.flux() ? spec.flux()->pooled : spec.text.back().projection;
}

// The whole pipeline, stage by stage.
class Pipeline {
 public:
  Pipeline(const PipelineSpec& spec, const Run& run)
      : spec_(spec), run_(run), latents_(latents_of(spec, run)), simulation_(run) {
    if (run.guidance_passes != 1 && run.guidance_passes != 2)
      throw std::invalid_argument("guidance takes one pass of a doubled batch, or two passes");
    if (run.guidance_passes == 2 && !spec.is_guided())
      throw std::invalid_argument(spec.title + " has one prediction a step: there are no two passes");
    for (const TextEncoderSpec& text : spec.text) texts_.emplace_back(simulation_, tensors_of(text), 0);
    denoiser_.emplace_back(simulation_, tensors_of(spec.denoiser), run.denoiser_bits);
    decoder_.emplace_back(simulation_, tensors_of(spec.autoencoder, AutoencoderPart::decoder), 0);
    stages_.whole = simulation_.peak();
  }

  void go() {
    stages_.text = stage([&] { encode(); });
    stages_.denoiser = stage([&] { denoise_all(); });
    stages_.decoder = stage([&] { decode_all(); });
    for (const PeakBytes* peak : {&stages_.text, &stages_.denoiser, &stages_.decoder})
      stages_.whole = later_peak(stages_.whole, *peak);
  }
  const Stages& stages() const { return stages_; }

  Cost cost() const {
    Cost cost;
    cost.host.pinned = simulation_.pinned_peak().at_peak;
    cost.bus_bytes = simulation_.work().bus_bytes;
    cost.multiply_adds = simulation_.work().multiply_adds;
    cost.weight_bytes = simulation_.work().weight_bytes;
    return cost;
  }

 private:
  template <class Body>
  PeakBytes stage(Body body) {
    simulation_.begin_phase();
    body();
    return simulation_.peak();
  }

  std::uint64_t sequences() const { return checked_product(run_.batch, spec_.is_guided() ? 2 : 1); }

  void encode() {
    std::vector<Encoded> encoded;
    for (std::size_t i = 0; i < spec_.text.size(); ++i) {
      Buffer turn = texts_[i].stage();
      Buffer tokens = simulation_.bytes(
          checked_product(checked_product(sequences(), spec_.text[i].positions), element_bytes(DType::int32)),
          Category::data);
      encoded.push_back(encode_text(simulation_, texts_[i], spec_.text[i], sequences()));
      simulation_.free(tokens);
      texts_[i].end(turn);
    }
    text_ = encoded.back().rows;
    pooled_ = encoded.back().pooled;
    if (encoded.size() == 1) return;
    Buffer& first = encoded.front().rows;
    if (spec_.flux()) {
      pooled_ = simulation_.rows(sequences(), spec_.text.front().width);
      simulation_.free(first);
    } else {
      const Buffer last = text_;
      text_ = simulation_.rows(checked_product(sequences(), spec_.context_tokens()), spec_.denoiser_context());
      encoded.back().rows = last;
      for (Encoded& each : encoded) simulation_.free(each.rows);
    }
  }

  void denoise_all() {
    const std::uint64_t of_image = checked_product(pixels(latents_), latent_channels(spec_));
    latents_buffer_ = simulation_.rows(run_.batch, of_image);
    Buffer turn = denoiser_.front().stage();
    const bool two_passes = run_.guidance_passes == 2;
    const std::uint64_t images = two_passes ? run_.batch : sequences();
    Buffer timesteps = timesteps_of(simulation_, images), numbers = numbers_of(simulation_, spec_, images);
    const Work before = simulation_.work();
    Buffer doubled;
    if (spec_.is_guided() && !two_passes) doubled = simulation_.rows(images, of_image);
    Buffer first = denoised(simulation_, denoiser_.front(), spec_, images, latents_);
    simulation_.free(doubled);
    if (two_passes) {
      Buffer second = denoised(simulation_, denoiser_.front(), spec_, images, latents_);
      simulation_.free(second);
    }
    simulation_.free(first);
    simulation_.repeat(before, (run_.steps ? run_.steps : spec_.steps) - 1);  // all steps are alike
    simulation_.free({&timesteps, &numbers});
    denoiser_.front().end(turn);
    simulation_.free({&text_, &pooled_});
  }

  void decode_all() {
    Buffer turn = decoder_.front().stage();
    Buffer images = decode(simulation_, decoder_.front(), spec_.autoencoder, latents_buffer_, run_.batch, latents_);
    decoder_.front().end(turn);
    simulation_.free(images);
  }

  const PipelineSpec& spec_;
  const Run& run_;
  nn::InputSize latents_;
  Simulation simulation_;
  std::vector<Weights> texts_, denoiser_, decoder_;
  Buffer text_, pooled_, latents_buffer_;
  Stages stages_;
};

}  // namespace

Stages peaks_of(const PipelineSpec& spec, const Run& run) {
  Pipeline pipeline(spec, run);
  pipeline.go();
  return pipeline.stages();
}

Cost cost_of(const PipelineSpec& spec, const Run& run) {
  Pipeline pipeline(spec, run);
  pipeline.go();
  return pipeline.cost();
}

PeakBytes predict_text_encoder(const TextEncoderSpec& spec, const Run& run, std::uint64_t texts) {
  Simulation simulation(run);
  Weights weights(simulation, tensors_of(spec), 0);
  weights.stage();
  simulation.bytes(checked_product(checked_product(texts, spec.positions), element_bytes(DType::int32)),
                   Category::data);
  encode_text(simulation, weights, spec, texts);
  return simulation.peak();
}

PeakBytes predict_denoiser(const PipelineSpec& spec, const Run& run, std::uint64_t images, nn::InputSize latents) {
  require_latents(spec, latents);
  Simulation simulation(run);
  Weights weights(simulation, tensors_of(spec.denoiser), run.denoiser_bits);
  weights.stage();
  simulation.rows(images, checked_product(pixels(latents), latent_channels(spec)));
  timesteps_of(simulation, images);
  numbers_of(simulation, spec, images);
  simulation.rows(checked_product(images, spec.context_tokens()), spec.denoiser_context());
  if (const std::uint64_t pooled = pooled_width(spec)) simulation.rows(images, pooled);
  denoised(simulation, weights, spec, images, latents);
  return simulation.peak();
}

PeakBytes predict_decoder(const AutoencoderSpec& spec, const Run& run, std::uint64_t images, nn::InputSize latents) {
  Simulation simulation(run);
  Weights weights(simulation, tensors_of(spec, AutoencoderPart::decoder), 0);
  weights.stage();
  const Buffer input = simulation.rows(checked_product(images, pixels(latents)), spec.latent_channels);
  decode(simulation, weights, spec, input, images, latents);
  return simulation.peak();
}

}  // namespace oomlab::image
