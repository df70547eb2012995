#pragma once
// What it takes to make images with diffusers: text encoders, denoiser and decoder, one after the other, as a pipeline's
// defaults have them, and with what people switch on. The bytes are those of plan/image/diffusers.h.

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plan/bytes.h"
#include "plan/category.h"
#include "plan/image/diffusers.h"

namespace oomlab {
class JsonWriter;
}

namespace oomlab::fit {

struct Question;

/// What people switch on, in the order of what it costs: the first ones cost nothing.
enum class PipelineLever {
  vae_slicing,        ///< images are decoded one by one
  sdpa,               ///< scaled_dot_product_attention instead of all scores
  vae_half,           ///< SDXL's decoder in 16 bits: diffusers makes it FP32, because it overflows in FP16
  model_cpu,          ///< one model at a time on the card
  two_passes,         ///< guidance in two passes of the denoiser
  vae_tiling,         ///< an image is decoded in tiles that are blended
  attention_slicing,  ///< attention in parts, where it is not scaled_dot_product_attention
  t5_eight_bits,      ///< linear layers of T5, by bitsandbytes
  t5_four_bits,       ///< the same
  eight_bits,         ///< linear layers of the denoiser
  four_bits,          ///< the same
  sequential_cpu      ///< one block at a time on the card
};
using PipelineLevers = std::set<PipelineLever>;

/// What --with and --without take: diffusers' names, where it has one.
struct PipelineWord {
  PipelineLever lever;
  const char* word;
  int weight;  ///< how much is lost by it, against the others': of all that fits, the least sum is proposed
};
inline constexpr std::array kPipelineWords{
    PipelineWord{PipelineLever::vae_slicing, "enable_vae_slicing", 1},
    PipelineWord{PipelineLever::sdpa, "sdpa", 1},
    PipelineWord{PipelineLever::vae_half, "sdxl-vae-fp16-fix", 2},
    PipelineWord{PipelineLever::model_cpu, "enable_model_cpu_offload", 4},
    PipelineWord{PipelineLever::two_passes, "two-passes", 5},
    PipelineWord{PipelineLever::vae_tiling, "enable_vae_tiling", 6},
    PipelineWord{PipelineLever::attention_slicing, "enable_attention_slicing", 7},
    PipelineWord{PipelineLever::t5_eight_bits, "t5-8-bits", 8},
    PipelineWord{PipelineLever::t5_four_bits, "t5-4-bits", 9},
    PipelineWord{PipelineLever::eight_bits, "8-bits", 10},
    PipelineWord{PipelineLever::four_bits, "4-bits", 12},
    PipelineWord{PipelineLever::sequential_cpu, "enable_sequential_cpu_offload", 30}};
std::vector<std::string> words_of_pipelines();
const char* name_of(PipelineLever lever);

/// A pipeline as diffusers has it.
struct PublicPipeline {
  const char* name;  ///< of plan/image
  const char* repository;
  const char* type;  ///< "StableDiffusionXLPipeline"
};
/// The pipeline that people call so: "sdxl", "stabilityai/stable-diffusion-xl-base-1.0", "flux"; nothing: there is none.
/// Throws std::invalid_argument with one line for a name that begins like theirs.
const PublicPipeline* pipeline_called(std::string_view name);
/// The names that --list has.
std::vector<std::string> names_of_pipelines();

/// One way to make the images, and what it needs.
struct PipelineWay {
  std::uint64_t batch = 1, size = 0;
  PipelineLevers levers;  ///< that are on
  DType dtype = DType::fp16;
  image::DiffusersPeaks peaks{};
  std::uint64_t allocator = 0;                      ///< reserved beyond what is live
  std::uint64_t outside = 0, spare = 0, limit = 0;  ///< the context, what it may grow by, and what there is
  image::DiffusersCost cost{};
  std::uint64_t host_limit = UINT64_MAX;
  std::uint64_t live() const { return peaks.whole(); }
  ByCategory bytes() const;  ///< of the fullest stage
  std::uint64_t needed() const { return checked_sum({live(), allocator, outside}); }
  bool fits() const { return checked_sum(needed(), spare) <= limit && cost.host <= host_limit; }
  bool has(PipelineLever lever) const { return levers.contains(lever); }
};

struct PipelineAnswer {
  PipelineWay as_is;
  std::optional<PipelineWay>
      changed{};  ///< where it does not fit, with the changes with which it does, and that cost least
  std::optional<PipelineWay> smallest{};  ///< where nothing fits: what comes closest
  std::optional<PipelineWay> largest{};   ///< of --largest, where one fits
};

/// Refuses what goes with no pipeline, and fills what a question leaves open: the size. Throws UsageError.
void read_pipeline(Question& question, const std::string& task);
/// Throws UsageError where --with names what this run does not have.
PipelineAnswer answer_pipeline(const Question& question);
/// All parameters of all models.
std::uint64_t parameters_of(const image::PipelineSpec& spec);

/// At most kMostLines lines of at most kMostColumns columns, in the question's language; the first is the answer.
std::string first_words(const Question& question, const PipelineAnswer& answer);
std::string first_line(const Question& question, const PipelineAnswer& answer);
void write(JsonWriter& json, const Question& question, const PipelineAnswer& answer);

}  // namespace oomlab::fit
