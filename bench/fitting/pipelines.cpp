#include "pipelines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "largest.h"
#include "options.h"
#include "plan/names.h"
#include "plan/option.h"
#include "plan/text.h"
#include "question.h"

namespace oomlab::fit {

namespace {

constexpr PublicPipeline kPublicPipelines[] = {
    {"sd-1.5", "stable-diffusion-v1-5/stable-diffusion-v1-5", "StableDiffusionPipeline"},
    {"sd-2.1", "stabilityai/stable-diffusion-2-1", "StableDiffusionPipeline"},
    {"sdxl", "stabilityai/stable-diffusion-xl-base-1.0", "StableDiffusionXLPipeline"},
    {"flux.1-dev", "black-forest-labs/FLUX.1-dev", "FluxPipeline"},
    {"flux.1-schnell", "black-forest-labs/FLUX.1-schnell", "FluxPipeline"},
};
/// What else people call them, squeezed.
constexpr struct {
  const char* called;
  const char* name;
} kAlsoCalled[] = {{"sd15", "sd-1.5"},        {"stablediffusion15", "sd-1.5"},
                   {"sd21", "sd-2.1"},        {"stablediffusion21", "sd-2.1"},
                   {"sdxl10", "sdxl"},        {"stablediffusionxl", "sdxl"},
                   {"flux", "flux.1-dev"},    {"flux1", "flux.1-dev"},
                   {"fluxdev", "flux.1-dev"}, {"fluxschnell", "flux.1-schnell"}};
constexpr const char* kBeginnings[] = {"sd1", "sd2", "sd3", "sdxl", "stablediffusion", "flux"};

constexpr std::uint64_t kMostPictures = std::uint64_t(1) << 16, kMostSide = std::uint64_t(1) << 14;

// Small letters and digits, without the owner.
std::string squeezed(std::string_view name) {
  std::string text;
  for (const char c : lower_case(std::string(name.substr(name.rfind('/') + 1))))
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) text += c;
  return text;
}

const PublicPipeline* by_name(std::string_view name) {
  const auto* const found = std::ranges::find_if(kPublicPipelines, [&](const auto& p) { return p.name == name; });
  return found == std::end(kPublicPipelines) ? nullptr : found;
}

// Sides of images are multiples of this.
std::uint64_t step_of(const image::PipelineSpec& spec) {
  const std::uint64_t factor = spec.autoencoder.factor();
  return checked_product(factor, spec.unet() ? spec.unet()->reduction() : spec.flux()->patch);
}

class Pipelines {
 public:
  explicit Pipelines(const Question& question) : question_(question), spec_(*question.pipeline) {}

  PipelineAnswer answer() const {
    PipelineWay asked{.batch = question_.batch, .size = question_.size, .levers = question_.with};
    asked.dtype = dtype();
    for (const PipelineLever lever : asked.levers) {
      PipelineWay others = asked;
      others.levers.erase(lever);
      if (const char* const why = no_use_of(lever, others))
        throw UsageError(fmt::format("--with {}: {}", name_of(lever), why));
    }
    PipelineAnswer answer{.as_is = needs(asked)};
    if (question_.largest)
      answer.largest = largest(asked);
    else if (!answer.as_is.fits())
      search(asked, answer);
    return answer;
  }

 private:
  // torch_dtype: FP16 for Stable Diffusion, BF16 for Flux, where the card has it.
  DType dtype() const {
    if (question_.precision) return *question_.precision;
    return spec_.flux() && question_.card->has_bf16 ? DType::bf16 : DType::fp16;
  }

  // Why a lever changes nothing of `way`, or cannot be; null: it does.
  const char* no_use_of(PipelineLever lever, const PipelineWay& way) const {
    const bool eager = question_.reader.eager_attention;
    switch (lever) {
      case PipelineLever::vae_slicing:
        return way.batch > 1 || question_.largest == Largest::batch ? nullptr : "there is one image";
      case PipelineLever::sdpa:
        return !eager                                      ? "it is the default"
               : way.has(PipelineLever::attention_slicing) ? "say one of the two"
                                                           : nullptr;
      case PipelineLever::attention_slicing:
        return !eager
                   ? "it saves nothing beside scaled_dot_product_attention, the default; --attn-implementation eager "
                     "says otherwise"
               : way.has(PipelineLever::sdpa) ? "say one of the two"
                                              : nullptr;
      case PipelineLever::vae_half:
        return image::is_upcast(spec_, way.dtype) ? nullptr : "only SDXL's decoder, in FP16, is made FP32";
      case PipelineLever::vae_tiling:
        return way.size > spec_.size || question_.largest == Largest::size
                   ? nullptr
                   : "a tile is as large as what the model was trained for";
      case PipelineLever::two_passes: return spec_.is_guided() ? nullptr : "there is one prediction a step";
      case PipelineLever::model_cpu:
        return way.has(PipelineLever::sequential_cpu) ? "say one of the two ways to host memory" : nullptr;
      case PipelineLever::sequential_cpu:
        return way.has(PipelineLever::model_cpu) ? "say one of the two ways to host memory"
               : bits(way) || t5_bits(way)       ? "weights of 8 and 4 bits do not go block by block"
                                                 : nullptr;
      case PipelineLever::eight_bits:
      case PipelineLever::four_bits:
        return bits(way) ? "say one of the two" : no_use_of_bits(way, t5_bits(way), bits_of(lever));
      case PipelineLever::t5_eight_bits:
      case PipelineLever::t5_four_bits:
        return !spec_.flux()  ? "only Flux has T5"
               : t5_bits(way) ? "say one of the two"
                              : no_use_of_bits(way, bits(way), bits_of(lever));
    }
    return nullptr;
  }
  // `other`: of the other model, 0: as they are.
  static const char* no_use_of_bits(const PipelineWay& way, unsigned other, unsigned mine) {
    return way.has(PipelineLever::sequential_cpu) ? "weights of 8 and 4 bits do not go block by block"
           : other && other != mine               ? "say as many bits of the denoiser as of T5"
                                                  : nullptr;
  }
  static unsigned bits_of(PipelineLever lever) {
    return lever == PipelineLever::eight_bits || lever == PipelineLever::t5_eight_bits ? 8 : 4;
  }
  static unsigned bits(const PipelineWay& way) {
    return way.has(PipelineLever::eight_bits) ? 8 : way.has(PipelineLever::four_bits) ? 4 : 0;
  }
  static unsigned t5_bits(const PipelineWay& way) {
    return way.has(PipelineLever::t5_eight_bits) ? 8 : way.has(PipelineLever::t5_four_bits) ? 4 : 0;
  }

  image::DiffusersRun run_of(const PipelineWay& way) const {
    using Offload = image::DiffusersRun::Offload;
    using Attention = image::DiffusersRun::Attention;
    const bool eager = question_.reader.eager_attention && !way.has(PipelineLever::sdpa);
    return {.batch = way.batch,
            .size = way.size,
            .dtype = way.dtype,
            .offload = way.has(PipelineLever::sequential_cpu) ? Offload::sequential
                       : way.has(PipelineLever::model_cpu)    ? Offload::model
                                                              : Offload::none,
            .attention = !eager                                      ? Attention::sdpa
                         : way.has(PipelineLever::attention_slicing) ? Attention::sliced
                                                                     : Attention::eager,
            .guidance_passes = way.has(PipelineLever::two_passes) ? 2u : 1u,
            .vae_fp16 = way.has(PipelineLever::vae_half),
            .vae_slicing = way.has(PipelineLever::vae_slicing),
            .vae_tiling = way.has(PipelineLever::vae_tiling),
            .denoiser_bits = bits(way),
            .text_bits = t5_bits(way),
            .assumed_workspace = true};
  }

  PipelineWay needs(PipelineWay way) const {
    const image::DiffusersRun run = run_of(way);
    way.peaks = image::diffusers_peaks(spec_, run);
    way.cost = image::diffusers_cost(spec_, run);
    const Room& room = question_.room;
    way.allocator =
        static_cast<std::uint64_t>(double(way.live()) * room.fragmentation_percent.value_or(kFragmentation) / 100);
    way.outside = checked_sum(room.context, room.workspace);
    way.spare = room.reserve;
    way.limit = room.memory;
    if (question_.host_named) way.host_limit = room.host;
    return way;
  }

  // All that make sense, from the one that costs least on, as long as it may be the best.
  void search(const PipelineWay& asked, PipelineAnswer& answer) const {
    std::vector<PipelineLever> open;
    for (const PipelineWord& row : kPipelineWords)
      if (!asked.has(row.lever) && !question_.without.contains(row.word)) open.push_back(row.lever);
    std::optional<int> least;
    for (std::size_t chosen = 1; chosen < std::size_t(1) << open.size(); ++chosen) {
      PipelineWay way = asked;
      int weight = 0;
      bool sensible = true;
      for (std::size_t i = 0; i < open.size() && sensible; ++i) {
        if (!(chosen >> i & 1)) continue;
        sensible = no_use_of(open[i], way) == nullptr;
        way.levers.insert(open[i]);
        weight += weight_of(open[i]);
      }
      if (!sensible || (least && weight >= *least)) continue;
      way = needs(std::move(way));
      if (way.fits()) {
        least = weight;
        answer.changed = way;
      } else if (way.cost.host <= way.host_limit && (!answer.smallest || way.needed() < answer.smallest->needed())) {
        answer.smallest = way;
      }
    }
    if (answer.changed) answer.smallest.reset();
  }
  static int weight_of(PipelineLever lever) {
    return std::ranges::find(kPipelineWords, lever, &PipelineWord::lever)->weight;
  }

  std::optional<PipelineWay> largest(const PipelineWay& asked) const {
    const bool batch = *question_.largest == Largest::batch;
    const std::uint64_t step = step_of(spec_);
    const auto sized = [&](std::uint64_t n) {
      PipelineWay way = asked;
      (batch ? way.batch : way.size) = batch ? n : n * step;
      return way;
    };
    const auto fits = [&](std::uint64_t n) {
      try {
        return needs(sized(n)).fits();
      } catch (const std::length_error&) {
        return false;
      }
    };
    const std::uint64_t n =
        largest_that_fits(batch ? kMostPictures : kMostSide / step, fits, [](std::uint64_t) { return true; });
    return n ? std::optional(needs(sized(n))) : std::nullopt;
  }

  const Question& question_;
  const image::PipelineSpec& spec_;
};

}  // namespace

ByCategory PipelineWay::bytes() const {
  const image::DiffusersStage& stage = peaks.fullest();
  ByCategory bytes;
  bytes[Category::parameters] = stage.weights;
  bytes[Category::activations] = stage.activations;
  bytes[Category::workspace] = stage.workspace;
  return bytes;
}

std::vector<std::string> words_of_pipelines() {
  std::vector<std::string> words;
  for (const PipelineWord& row : kPipelineWords) words.emplace_back(row.word);
  return words;
}
const char* name_of(PipelineLever lever) {
  return std::ranges::find(kPipelineWords, lever, &PipelineWord::lever)->word;
}

const PublicPipeline* pipeline_called(std::string_view name) {
  const std::string called = squeezed(name);
  for (const PublicPipeline& pipeline : kPublicPipelines)
    if (called == squeezed(pipeline.name) || called == squeezed(pipeline.repository)) return &pipeline;
  for (const auto& also : kAlsoCalled)
    if (called == also.called) return by_name(also.name);
  if (std::ranges::any_of(kBeginnings, [&](const char* beginning) { return called.starts_with(beginning); }))
    throw std::invalid_argument(
        fmt::format("pipeline '{}' is unknown; known: {}", one_line(name), fmt::join(names_of_pipelines(), ", ")));
  return nullptr;
}

std::vector<std::string> names_of_pipelines() {
  std::vector<std::string> names;
  for (const PublicPipeline& pipeline : kPublicPipelines) names.emplace_back(pipeline.name);
  return names;
}

void read_pipeline(Question& question, const std::string& task) {
  if (!task.empty() && task != "image")
    throw UsageError(fmt::format("{} makes images: say --task image, not {}", question.pipeline->name, task));
  require_of_pipeline(question);
  if (question.reader.eager_attention && question.pipeline->flux())
    throw UsageError("--attn-implementation eager: Flux's attention is scaled_dot_product_attention");
  if (question.largest == Largest::seq) throw UsageError("--largest of a pipeline that makes images: batch or size");
  question.training = false;
  if (question.size == 0) question.size = question.pipeline->size;
  if (question.size > kMostSide)
    throw UsageError(
        fmt::format("--size {} is not allowed; write pixels of a side, up to {}", question.size, kMostSide));
  const std::uint64_t step = step_of(*question.pipeline);
  if (question.size % step != 0)
    throw UsageError(fmt::format("--size {}: sides of {}'s images are multiples of {}, such as {}", question.size,
                                 question.pipeline->name, step, (question.size / step + 1) * step));
}

PipelineAnswer answer_pipeline(const Question& question) { return Pipelines(question).answer(); }

std::uint64_t parameters_of(const image::PipelineSpec& spec) {
  std::uint64_t sum = checked_sum(image::parameters(image::tensors_of(spec.denoiser)),
                                  image::parameters(tensors_of(spec.autoencoder, image::AutoencoderPart::both)));
  for (const image::TextEncoderSpec& text : spec.text) sum = checked_sum(sum, image::parameters(tensors_of(text)));
  return sum;
}

}  // namespace oomlab::fit
