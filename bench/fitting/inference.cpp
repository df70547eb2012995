// Inference: the ways of chapters 11 and 12. They cannot be combined: chapter 11's caches are for weights as they are,
// and chapter 12's weights have a cache that is contiguous.
//
// What must fit: `batch` sequences, each with `seq` tokens in the cache. Chapter 12 reads just these. Chapter 11 serves
// a stream of shorter and longer requests under a budget with room for so many of full length.

#include <fmt/format.h>

#include <algorithm>

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
  std::uint64_t batch, seq;
};

/// One way: with the weights of chapter 12, or as chapter 11 serves.
struct Candidate {
  std::string options, numbers;
  std::uint64_t changes = 0;
  DType dtype;                             ///< in which it computes
  std::optional<ModelFormat> format = {};  ///< of chapter 12
  ServingConfig server = {};               ///< of chapter 11, which serves fewer at a time where not all fit
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
    usual_ = bf16 ? DType::bf16 : DType::fp32;
    if (question.precision != DType::fp16) add_quantised();
    for (const DType dtype : kModelDTypes) add_served(dtype);
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
      std::uint64_t changes, bytes;
    };
    const auto better = [](const Compared& a, const Compared& b) {
      return std::tuple(a.seconds, a.changes, a.bytes) < std::tuple(b.seconds, b.changes, b.bytes);
    };
    std::optional<Compared> fewest, cheapest, closest;
    for (const Candidate& candidate : all_) {
      const std::optional<double> least = seconds(candidate, asked_);
      if (!least) continue;
      const Compared it{&candidate, *least, candidate.changes, bytes_of(candidate)};
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
  std::uint64_t bytes_of(const Candidate& candidate) const {
    try {
      return bytes(candidate, asked_).total();
    } catch (const std::length_error&) {
      return UINT64_MAX;
    }
  }
  bool fits(const Candidate& candidate, Asked asked) const {
    try {
      return bytes(candidate, asked).total() <= question_.room.left() &&
             on_host(candidate, asked) <= question_.room.host;
    } catch (const std::length_error&) {
      return false;
    }
  }
  Row row_of(const Candidate& candidate, std::string what) const {
    Row row{.what = std::move(what),
            .options = candidate.options,
            .changes = candidate.changes,
            .left = question_.room.left(),
            .peak = planned(candidate, asked_),
            .seconds = seconds(candidate, asked_),
            .host_bytes = on_host(candidate, asked_),
            .numbers = candidate.numbers};
    row.fits = fits(candidate, asked_) && row.seconds;
    // Chapter 11 serves fewer at a time where not all fit: its command would say ok.
    if (row.fits || candidate.format) row.command = command(candidate, asked_);
    return row;
  }
  template <class Fits>
  static std::uint64_t largest(std::uint64_t most, Fits fits) {
    std::uint64_t low = 0, high = most + 1;  // fits, does not
    while (high - low > 1) {
      const std::uint64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }
  Most most_of(const Candidate& candidate) const {
    return {.batch_at_once = largest(65536,
                                     [&](std::uint64_t n) {
                                       return fits(candidate, {n, asked_.seq});
                                     }),
            .seq = largest(spec_.positions, [&](std::uint64_t n) {
              return fits(candidate, {asked_.batch, n});
            })};
  }

  // With all sequences at full length.
  ByCategory bytes(const Candidate& of, Asked asked) const {
    if (of.format) return quantised::reading_bytes(spec_, of.format->linear, of.dtype, {asked.batch, asked.seq, 1});
    const CacheShape cache = cache_of(of, asked);
    return serve::server_bytes(of.dtype, spec_, cache, serve::kMaxRows, asked.seq, all_blocks(cache, asked));
  }
  // The same of host memory.
  std::uint64_t on_host(const Candidate& of, Asked asked) const {
    if (of.format) return 0;
    const CacheShape cache = cache_of(of, asked);
    return serve::host_bytes(of.dtype, spec_, cache, all_blocks(cache, asked)).total();
  }
  // Of the command.
  ByCategory planned(const Candidate& of, Asked asked) const {
    if (of.format) return bytes(of, asked);
    const std::uint64_t budget = budget_of(of, asked);
    const auto schedule = serve::schedule_within(budget, of.dtype, spec_, server_of(of, asked),
                                                 serve::request_lengths(requests(asked), asked.seq), asked.seq,
                                                 round_to_granule(default_workspace(budget)));
    return serve::server_bytes(of.dtype, spec_, cache_of(of, asked), serve::kMaxRows, asked.seq, schedule.max_blocks);
  }
  std::string command(const Candidate& of, Asked asked) const {
    if (of.format)
      return fmt::format(
          "{}12_quantisation --plan {} --batch {} --seq {} --batches 1 --rest {} --budget {} "
          "--filter '^{}$'",
          kRun, question_.model, asked.batch, asked.seq, name_of(usual_), question_.room.budget(), of.format->name);
    return fmt::format(
        "{}11_inference --plan {} --requests {} --longest {} --seq 1 --batch 1 --batches 1 "
        "--precision {}{} --budget {} --filter '^{}$'",
        kRun, question_.model, requests(asked), asked.seq, name_of(of.dtype), cpu_option(of.server),
        budget_of(of, asked), of.server.name);
  }
  // No token takes less: weights and cache are read, every weight is multiplied with every sequence's row.
  std::optional<double> seconds(const Candidate& of, Asked asked) const {
    const std::optional<double> peak = peak_tflops(card_, of.dtype);
    if (!peak) return std::nullopt;
    const double element = double(element_bytes(of.dtype)), tokens = double(asked.batch) * double(asked.seq);
    const double table = spec_.tied ? 0 : double(spec_.vocabulary) * double(spec_.width);  // looked up, not multiplied
    const double products = double(spec_.parameters()) - table;
    const std::uint64_t cpu_layers = of.server.cpu_layers;
    // Of a token, K and V of all heads in a layer: on the card, and on the CPU, always in FP32.
    const double heads = 2 * double(spec_.keys()), depth = double(spec_.depth());
    const double of_layer = heads * (of.server.cache_dtype ? depth + sizeof(float) : depth * element);
    const double token_there = double(cpu_layers) * heads * depth * sizeof(float);
    const double weights_there = double(serve::weight_bytes(of.dtype, spec_, cpu_layers).host);
    const double stored = of.format ? double(quantised::model_bytes(spec_, of.format->linear, of.dtype).all.stored)
                                    : double(spec_.parameters()) * element - weights_there;
    const double cache = tokens * double(spec_.layers - cpu_layers) * of_layer;
    const double read = std::max(0.0, stored - table * element + cache - 2 * card_.l2_mib * (1 << 20));
    const double there = weights_there + tokens * token_there;
    const double tflops = *peak * (of.format && of.format->linear.dynamic ? kInt8PerFp16 : 1);
    return std::max(2 * products * double(asked.batch) * (there > 0 ? 0 : 1) / (tflops * 1e12),
                    read / (card_.gb_per_s * 1e9)) +
           there / (question_.host_gb_per_s * 1e9);
  }

  // Chapter 12. The first one is the question's own: weights as they are.
  void add_quantised() {
    std::vector<ModelFormat> formats = quantised::model_formats(quantised::kInt4Group, usual_);
    std::ranges::stable_sort(
        formats, {}, [&](const ModelFormat& f) { return !(f.rest == usual_ && f.linear == quantised::Format{}); });
    for (const ModelFormat& format : formats) {
      const bool plain = format.linear == quantised::Format{}, first = all_.empty();
      if (plain && !peak_tflops(card_, format.rest)) continue;
      if (!first && plain && (question_.precision || without("precision"))) continue;
      if (!plain && (without("weights") || question_.precision)) continue;
      try {
        (void)quantised::model_bytes(spec_, format.linear, format.rest);
      } catch (const std::invalid_argument&) {
        continue;  // its groups do not divide a matrix
      }
      const DType weights = plain ? format.rest : code_dtype(format.linear.scheme);
      all_.push_back({.options = format.name,
                      .numbers = fmt::format("weights of {} bits", bits(weights)),
                      .changes = std::uint64_t(!first),
                      .dtype = format.rest,
                      .format = format});
    }
  }

  // Chapter 11: a cache in pages of 16 tokens, in 8 bits, and layers on the CPU.
  void add_served(DType dtype) {
    const bool usual = dtype == usual_;
    if (!peak_tflops(card_, dtype)) return;
    if (question_.precision ? dtype != *question_.precision : without("precision") && !usual) return;
    if (asked_.seq < serve::kShortestLimit || asked_.batch > 4096) return;
    // Weights of chapter 12 are not FP16. Where only that is asked for, the first way is one of these.
    const std::uint64_t more = std::uint64_t(!usual && question_.precision != DType::fp16);
    const auto add = [&](const ServingConfig& server, std::uint64_t changes) {
      all_.push_back(
          {.options = fmt::format("{}: {}{}", name_of(dtype), server.name, cpu_option(server)),
           .numbers = server.cache_dtype ? "keys and values of 8 bits" : fmt::format("weights of {} bits", bits(dtype)),
           .changes = changes + more,
           .dtype = dtype,
           .server = server});
    };
    if (dtype == DType::fp16) add({.name = serve::kContiguous}, 0);
    if (without("pages")) return;
    add({.name = serve::kPaged}, 1);
    if (!without("kv-8-bits")) add({.name = serve::kEightBits, .cache_dtype = DType::int8}, 2);
    if (without("processor")) return;
    // As few layers there as must be.
    const std::uint64_t fewest =
        serve::fewest_cpu_layers(question_.room.left(), dtype, spec_, serve::kMaxRows, asked_.seq, asked_.batch);
    if (fewest > 0) add({.name = serve::kOnCpu, .cpu_layers = std::min(spec_.layers, fewest)}, 2);
  }
  static std::string cpu_option(const ServingConfig& server) {
    return server.cpu_layers ? fmt::format(" --processor-layers {}", server.cpu_layers) : std::string();
  }
  // A block of a contiguous cache is as long as a request may be.
  static ServingConfig server_of(const Candidate& of, Asked asked) {
    ServingConfig server = of.server;
    if (server.name == serve::kContiguous) server.block_tokens = asked.seq;
    return server;
  }
  CacheShape cache_of(const Candidate& of, Asked asked) const {
    return serve::cache_shape(of.dtype, spec_, server_of(of, asked));
  }
  static std::uint64_t all_blocks(const CacheShape& cache, Asked asked) {
    return checked_product(asked.batch, cache.blocks_for(asked.seq));
  }
  // Of the stream: 16 for each place, but not more than chapter 11 plans.
  static std::uint64_t requests(Asked asked) {
    const std::uint64_t most = std::clamp<std::uint64_t>(kMostServedTokens / asked.seq, 1, 1024);
    return std::clamp<std::uint64_t>(16 * asked.batch, std::min<std::uint64_t>(32, most), most);
  }
  // Room for all sequences at full length, and the workspace that such a budget has.
  std::uint64_t budget_of(const Candidate& of, Asked asked) const {
    const std::uint64_t needed = bytes(of, asked).total();
    std::uint64_t budget = needed + kBlasWorkspaceBytes;
    for (std::uint64_t least = needed; budget > least;) {
      const std::uint64_t middle = least + (budget - least) / 2;
      if (middle - std::min(middle, round_to_granule(default_workspace(middle))) >= needed)
        budget = middle;
      else
        least = middle + 1;
    }
    return budget;
  }

  const Question& question_;
  const nn::TransformerSpec& spec_;
  const Card& card_;
  Asked asked_;
  DType usual_ = DType::fp32;
  std::vector<Candidate> all_;
};

}  // namespace

Answer answer_inference(const Question& question) { return Inference(question).answer(); }

}  // namespace oomlab::fit
