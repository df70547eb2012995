// Inference: the ways of chapters 11 and 12. They cannot be combined: chapter 11's caches are for weights as they are,
// and chapter 12's weights have a cache that is contiguous.
//
// What must fit: `batch` sequences, each with `seq` tokens in the cache. Chapter 12 reads just these. Chapter 11 serves
// a stream of shorter and longer requests under a budget with room for so many of full length.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "answer.h"
#include "plan/blas_workspace.h"
#include "plan/limits.h"
#include "plan/quantised/decoder.h"
#include "plan/serve/server.h"

namespace oomlab::fit {
namespace {

using quantised::ModelFormat;
using serve::CacheShape;
using serve::ServingConfig;

/// INT8 products are at most so much faster than FP16's with sums in FP32 (GeForce: 4 times; others: 2).
constexpr double kInt8PerFp16 = 4;

struct Asked {
  std::size_t batch, seq;
};

/// One way: its bytes for any batch and sequence, and what it costs.
struct Candidate {
  std::string options, numbers;
  std::size_t changes = 0;
  std::function<ByCategory(Asked)> bytes;  ///< with all sequences at full length
  std::function<ByCategory(Asked)> peak;   ///< of the command: what it plans
  std::function<std::string(Asked)> command;
  std::function<std::optional<double>(Asked)> seconds;
  std::function<std::size_t(Asked)> on_host = [](Asked) { return 0; };  ///< bytes of host memory, at full length
  bool serves = false;  ///< its command serves fewer at a time where not all fit, and never fails for it
};

class Inference {
 public:
  explicit Inference(const Question& question)
      : question_(question), spec_(question.spec), card_(*question.card), asked_{question.batch, question.seq} {
    if (!spec_.llama())
      throw std::invalid_argument(fmt::format(
          "--task infer: model '{}' is no decoder of chapters 11 and 12; take a llama, for example llama-3.1-8b",
          spec_.name));
    if (spec_.vocabulary < 256)
      throw std::invalid_argument(
          fmt::format("--task infer: model '{}' has a vocabulary of {}; text here is bytes, 256 of them", spec_.name,
                      spec_.vocabulary));
    if (question.precision == DType::bf16 && !card_.has_bf16)
      throw std::invalid_argument(
          fmt::format("--precision bf16: a {} does not compute with BF16; take fp16 or fp32", card_.title));
    const bool bf16 = card_.has_bf16 && question.precision != DType::fp32 && question.precision != DType::fp16;
    const DType usual = bf16 ? DType::bf16 : DType::fp32;
    if (question.precision != DType::fp16) add_quantised(usual);
    for (const DType dtype : kModelDTypes) add_served(dtype, usual);
    if (all_.empty())
      throw std::invalid_argument("no way of chapters 11 and 12 is left; see --precision and --without");
  }

  Answer answer() const {
    const Candidate& base = all_.front();
    Answer answer;
    answer.as_is = row_of(base, base.options);
    answer.as_is.numbers = "as asked for";
    answer.combinations = all_.size();
    // What a command plans takes a walk through its stream: of those that are shown only.
    struct Compared {
      const Candidate* candidate;
      double seconds;
      std::size_t changes, bytes;
    };
    const auto better = [](const Compared& a, const Compared& b) {
      return std::tuple(a.seconds, a.changes, a.bytes) < std::tuple(b.seconds, b.changes, b.bytes);
    };
    std::optional<Compared> fewest, cheapest, closest;
    for (const Candidate& candidate : all_) {
      const auto seconds = candidate.seconds(asked_);
      if (!seconds) continue;
      const Compared it{&candidate, *seconds, candidate.changes, bytes_of(candidate)};
      if (!closest || it.bytes < closest->bytes) closest = it;
      if (!fits(candidate, asked_)) continue;
      if (!fewest || it.changes < fewest->changes || (it.changes == fewest->changes && better(it, *fewest)))
        fewest = it;
      if (!cheapest || better(it, *cheapest)) cheapest = it;
    }
    const auto row = [&](const Compared& it) { return row_of(*it.candidate, it.candidate->options); };
    if (cheapest) answer.cheapest = row(*cheapest), answer.most = most_of(*cheapest->candidate);
    if (cheapest && !answer.as_is.fits) answer.ladder = {row(*fewest)};
    if (!cheapest && closest) answer.closest = row(*closest);
    answer.planned = all_.size();
    return answer;
  }

 private:
  // With the same numbers, neither weights nor cache have fewer bits than the precision.
  bool without(const char* lever) const {
    const bool fewer_bits = std::string_view(lever) == "weights" || std::string_view(lever) == "kv-8-bits";
    return question_.without.contains(lever) || (fewer_bits && question_.numbers == Numbers::same);
  }
  std::size_t bytes_of(const Candidate& candidate) const {
    try {
      return candidate.bytes(asked_).total();
    } catch (const std::length_error&) {
      return SIZE_MAX;
    }
  }
  bool fits(const Candidate& candidate, Asked asked) const {
    try {
      return candidate.bytes(asked).total() <= question_.room.left() && candidate.on_host(asked) <= question_.room.host;
    } catch (const std::length_error&) {
      return false;
    }
  }
  Row row_of(const Candidate& candidate, std::string what) const {
    Row row{.what = std::move(what),
            .options = candidate.options,
            .changes = candidate.changes,
            .left = question_.room.left(),
            .peak = candidate.peak(asked_),
            .seconds = candidate.seconds(asked_),
            .host_bytes = candidate.on_host(asked_),
            .numbers = candidate.numbers};
    row.fits = fits(candidate, asked_) && row.seconds;
    if (row.fits || !candidate.serves) row.command = candidate.command(asked_);
    return row;
  }
  template <class Fits>
  static std::size_t largest(std::size_t most, Fits fits) {
    std::size_t low = 0, high = most + 1;  // fits, does not
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }
  Most most_of(const Candidate& candidate) const {
    return {.batch_at_once = largest(65536,
                                     [&](std::size_t n) {
                                       return fits(candidate, {n, asked_.seq});
                                     }),
            .seq = largest(spec_.positions, [&](std::size_t n) {
              return fits(candidate, {asked_.batch, n});
            })};
  }

  // No token takes less: weights and cache are read, every weight is multiplied with every sequence's row.
  // `weights`: bytes that a token reads of them; `on_processor`: of the host's memory, weights and cache.
  std::optional<double> seconds(DType dtype, double faster, double weights, double cache, double on_processor,
                                Asked asked) const {
    const std::optional<double> peak = peak_tflops(card_, dtype);
    if (!peak) return std::nullopt;
    const double tflops = *peak * faster;
    const double table = spec_.tied ? 0 : double(spec_.vocabulary) * double(spec_.width);  // looked up, not multiplied
    const double products = double(spec_.parameters()) - table;
    const double read = std::max(0.0, weights + cache - 2 * card_.l2_mib * (1 << 20));
    return std::max(2 * products * double(asked.batch) * (on_processor > 0 ? 0 : 1) / (tflops * 1e12),
                    read / (card_.gb_per_s * 1e9)) +
           on_processor / (question_.host_gb_per_s * 1e9);
  }
  double table_bytes(std::size_t element) const {
    return spec_.tied ? 0 : double(spec_.vocabulary) * double(spec_.width) * double(element);
  }

  // Chapter 12. The first one is the question's own: weights as they are.
  void add_quantised(DType rest) {
    std::vector<ModelFormat> formats = quantised::model_formats(quantised::kInt4Group, rest);
    std::ranges::stable_sort(
        formats, {}, [&](const ModelFormat& f) { return !(f.rest == rest && f.linear == quantised::Format{}); });
    for (const ModelFormat& format : formats) {
      const bool plain = format.linear == quantised::Format{}, first = all_.empty();
      if (plain && !peak_tflops(card_, format.rest)) continue;
      if (!first && plain && (question_.precision || without("precision"))) continue;
      if (!plain && (without("weights") || question_.precision)) continue;
      double stored = 0;
      try {
        stored = double(quantised::model_bytes(spec_, format.linear, format.rest).all.stored);
      } catch (const std::invalid_argument&) {
        continue;  // its groups do not divide a matrix
      }
      const auto bytes = [this, format](Asked asked) {
        return quantised::reading_bytes(spec_, format.linear, format.rest, {asked.batch, asked.seq, 1});
      };
      const DType weights = plain ? format.rest : code_dtype(format.linear.scheme);
      all_.push_back({.options = format.name,
                      .numbers = fmt::format("weights of {} bits", bits(weights)),
                      .changes = std::size_t(!first),
                      .bytes = bytes,
                      .peak = bytes,
                      .command =
                          [this, format, rest](Asked asked) {
                            return fmt::format(
                                "{}12_quantisation --plan {} --batch {} --seq {} --batches 1 --rest {} --budget {} "
                                "--filter '^{}$'",
                                kRun, question_.model, asked.batch, asked.seq, name_of(rest), question_.room.budget(),
                                format.name);
                          },
                      .seconds =
                          [this, format, stored](Asked asked) {
                            const std::size_t element = element_bytes(format.rest);
                            const double cache = double(asked.batch) * 2 * double(spec_.layers) * double(asked.seq) *
                                                 double(spec_.keys()) * double(spec_.depth()) * double(element);
                            return seconds(format.rest, format.linear.dynamic ? kInt8PerFp16 : 1,
                                           stored - table_bytes(element), cache, 0, asked);
                          }});
    }
  }

  // Chapter 11: a cache in pages of 16 tokens, in 8 bits, and layers on the CPU.
  void add_served(DType dtype, DType usual_dtype) {
    const bool usual = dtype == usual_dtype;
    if (!peak_tflops(card_, dtype)) return;
    if (question_.precision ? dtype != *question_.precision : without("precision") && !usual) return;
    if (asked_.seq < serve::kShortestLimit || asked_.batch > 4096) return;
    // Weights of chapter 12 are not FP16. Where only that is asked for, the first way is one of these.
    const std::size_t more = std::size_t(!usual && question_.precision != DType::fp16);
    if (dtype == DType::fp16) add_server(dtype, {.name = serve::kContiguous}, more);
    if (without("pages")) return;
    add_server(dtype, {.name = serve::kPaged}, 1 + more);
    if (!without("kv-8-bits")) add_server(dtype, {.name = serve::kEightBits, .cache_dtype = DType::int8}, 2 + more);
    if (without("processor")) return;
    // As few layers there as must be.
    const std::uint64_t fewest =
        serve::fewest_cpu_layers(question_.room.left(), dtype, spec_, serve::kMaxRows, asked_.seq, asked_.batch);
    const std::uint64_t layers = std::min(spec_.layers, fewest);
    if (layers > 0) add_server(dtype, {.name = serve::kOnCpu, .cpu_layers = layers}, 2 + more);
  }
  // A block of a contiguous cache is as long as a request may be.
  static ServingConfig for_length(ServingConfig config, Asked asked) {
    if (config.name == serve::kContiguous) config.block_tokens = asked.seq;
    return config;
  }
  CacheShape cache_of(DType dtype, const ServingConfig& config, Asked asked) const {
    return serve::cache_shape(dtype, spec_, for_length(config, asked));
  }
  static std::uint64_t all_blocks(const CacheShape& cache, Asked asked) {
    return checked_product(asked.batch, cache.blocks_for(asked.seq));
  }
  ByCategory full_length(DType dtype, const ServingConfig& config, Asked asked) const {
    const CacheShape cache = cache_of(dtype, config, asked);
    return serve::server_bytes(dtype, spec_, cache, serve::kMaxRows, asked.seq, all_blocks(cache, asked));
  }
  // With all sequences at full length.
  serve::HostBytes host(DType dtype, const ServingConfig& config, Asked asked) const {
    const CacheShape cache = cache_of(dtype, config, asked);
    return serve::host_bytes(dtype, spec_, cache, all_blocks(cache, asked));
  }
  // Of the stream: 16 for each place, but not more than chapter 11 plans.
  static std::size_t requests(Asked asked) {
    const std::size_t most = std::clamp<std::size_t>(kMostServedTokens / asked.seq, 1, 1024);
    return std::clamp<std::size_t>(16 * asked.batch, std::min<std::size_t>(32, most), most);
  }
  // Room for all sequences at full length, and the workspace that such a budget has.
  std::size_t budget_of(DType dtype, const ServingConfig& config, Asked asked) const {
    const std::size_t needed = full_length(dtype, config, asked).total();
    std::size_t budget = needed + kBlasWorkspaceBytes;
    for (std::size_t least = needed; budget > least;) {
      const std::size_t middle = least + (budget - least) / 2;
      if (middle - std::min(middle, round_to_granule(default_workspace(middle))) >= needed)
        budget = middle;
      else
        least = middle + 1;
    }
    return budget;
  }
  ByCategory planned(DType dtype, const ServingConfig& config, Asked asked) const {
    const std::size_t budget = budget_of(dtype, config, asked);
    const auto schedule = serve::schedule_within(budget, dtype, spec_, for_length(config, asked),
                                                 serve::request_lengths(requests(asked), asked.seq), asked.seq,
                                                 round_to_granule(default_workspace(budget)));
    return serve::server_bytes(dtype, spec_, cache_of(dtype, config, asked), serve::kMaxRows, asked.seq,
                               schedule.max_blocks);
  }

  void add_server(DType dtype, const ServingConfig& config, std::size_t changes) {
    const std::size_t element = element_bytes(dtype);
    const std::string on_cpu =
        config.cpu_layers ? fmt::format(" --processor-layers {}", config.cpu_layers) : std::string();
    const double there = double(host(dtype, config, {0, asked_.seq}).weights);
    // Of a token in the cache of those layers, always in FP32.
    const double token_there = double(2 * config.cpu_layers * spec_.keys() * spec_.depth() * sizeof(float));
    all_.push_back(
        {.options = fmt::format("{}: {}{}", name_of(dtype), config.name, on_cpu),
         .numbers = config.cache_dtype ? "keys and values of 8 bits" : fmt::format("weights of {} bits", 8 * element),
         .changes = changes,
         .bytes = [this, dtype, config](Asked asked) { return full_length(dtype, config, asked); },
         .peak = [this, dtype, config](Asked asked) { return planned(dtype, config, asked); },
         .command =
             [this, dtype, config, on_cpu](Asked asked) {
               return fmt::format(
                   "{}11_inference --plan {} --requests {} --longest {} --seq 1 --batch 1 --batches 1 "
                   "--precision {}{} --budget {} --filter '^{}$'",
                   kRun, question_.model, requests(asked), asked.seq, name_of(dtype), on_cpu,
                   budget_of(dtype, config, asked), config.name);
             },
         .seconds =
             [this, dtype, config, there, token_there, element](Asked asked) {
               const double kept =
                   double(spec_.layers - config.cpu_layers) * double(asked.seq) * double(spec_.keys()) * 2;
               const double of_value =
                   config.cache_dtype ? double(spec_.depth()) + sizeof(float) : double(spec_.depth() * element);
               return seconds(dtype, 1, double(spec_.parameters()) * double(element) - there - table_bytes(element),
                              double(asked.batch) * kept * of_value,
                              there + double(asked.batch) * double(asked.seq) * token_there, asked);
             },
         .on_host = [this, dtype, config](Asked asked) { return host(dtype, config, asked).total(); },
         .serves = true});
  }

  const Question& question_;
  const nn::TransformerSpec& spec_;
  const Card& card_;
  Asked asked_;
  std::vector<Candidate> all_;
};

}  // namespace

Answer answer_inference(const Question& question) { return Inference(question).answer(); }

}  // namespace oomlab::fit
