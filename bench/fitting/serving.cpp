#include "serving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "largest.h"
#include "plan/names.h"
#include "plan/option.h"
#include "question.h"

namespace oomlab::fit {

namespace {

/// vLLM's formats beside those it computes in, by the names of its --quantization.
constexpr struct {
  const char* name;
  VllmWeights weights;
} kVllmWeights[] = {{"fp8", VllmWeights::eight}, {"awq", VllmWeights::four}, {"gptq", VllmWeights::four}};
/// What llama.cpp's -ctk takes.
constexpr std::array kCaches{GgufType::f32,  GgufType::f16,  GgufType::bf16, GgufType::q8_0,  GgufType::q5_1,
                             GgufType::q5_0, GgufType::q4_1, GgufType::q4_0, GgufType::iq4_nl};
/// Kinds that are proposed: each takes a step less than the one before.
constexpr const char* kProposed[] = {"q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "iq3_xxs", "iq2_xs"};
constexpr const char* kUsualKind = "q4_k_m";

[[noreturn]] void refuse(const char* option, const std::string& text, const std::vector<std::string>& known) {
  throw UsageError(fmt::format("{} '{}' is unknown; known: {}", option, text, fmt::join(known, ", ")));
}

bool is_vllm(const Question& question) { return question.engine == Engine::vllm; }

VllmRun vllm_of(const Question& question) {
  const ServingSettings& asked = question.serving;
  VllmRun run{.cards = question.gpus, .graphs = !asked.eager};
  const bool half = question.precision == DType::fp16 || !question.card->has_bf16;
  run.compute = question.precision == DType::fp32 ? DType::fp32 : half ? DType::fp16 : DType::bf16;
  set_defaults(run, question.room.memory, std::string_view(question.card->name).starts_with("a100"));
  run.batched_tokens = asked.batched_tokens.value_or(run.batched_tokens);
  run.sequences = asked.sequences.value_or(run.sequences);
  std::vector<std::string> known;
  for (const DType type : kModelDTypes) {
    if (asked.weights == oomlab::name_of(type)) run.compute = type;
    known.emplace_back(oomlab::name_of(type));
  }
  for (const auto& row : kVllmWeights) {
    if (asked.weights == row.name) run.weights = row.weights;
    known.emplace_back(row.name);
  }
  if (!asked.weights.empty() && std::ranges::find(known, asked.weights) == known.end())
    refuse("--weights", asked.weights, known);
  if (!asked.cache.empty() && asked.cache != "auto" && asked.cache != "fp8")
    refuse("--cache-type", asked.cache, {"auto", "fp8"});
  run.narrow_cache = asked.cache == "fp8";
  return run;
}

LlamaCppRun llama_cpp_of(const Question& question) {
  const ServingSettings& asked = question.serving;
  LlamaCppRun run{.sequences = question.batch, .tokens = question.seq, .cards = question.gpus};
  run.kind = gguf_kind(asked.weights.empty() ? kUsualKind : asked.weights);
  if (run.kind == nullptr) {
    std::vector<std::string> known;
    for (const GgufKind& kind : gguf_kinds()) known.emplace_back(kind.name);
    refuse("--weights", asked.weights, known);
  }
  run.micro_batch = asked.micro_batch.value_or(run.micro_batch);
  run.layers_on_cards = asked.layers.value_or(run.layers_on_cards);
  run.flash_attention = !question.reader.eager_attention;
  if (!asked.cache.empty()) {
    const auto found =
        std::ranges::find_if(kCaches, [&](GgufType type) { return lower_case(asked.cache) == name_of(type); });
    if (found == kCaches.end()) {
      std::vector<std::string> known;
      for (const GgufType type : kCaches) known.emplace_back(name_of(type));
      refuse("--cache-type", asked.cache, known);
    }
    run.cache = *found;
  }
  return run;
}

Between both(std::uint64_t bytes) { return {bytes, bytes}; }

class Serving {
 public:
  explicit Serving(const Question& question) : question_(question), shape_(*question.shape) {}

  ServingAnswer answer() const {
    ServingWay asked{.requests = question_.batch, .tokens = question_.seq};
    if (is_vllm(question_))
      asked.vllm = vllm_of(question_);
    else
      asked.llama_cpp = llama_cpp_of(question_);
    ServingAnswer answer{.as_is = needs(asked)};
    if (question_.largest)
      answer.largest = largest(asked);
    else if (!answer.as_is.fits())
      answer.changed = is_vllm(question_) ? changed_vllm(asked) : changed_llama_cpp(asked);
    return answer;
  }

 private:
  ServingWay needs(ServingWay way) const {
    const Room& room = question_.room;
    const Between outside{checked_sum(room.context, room.nccl), checked_sum({room.context, room.nccl, room.reserve})};
    if (is_vllm(question_)) {
      const VllmNeed need = vllm_need(shape_, way.vllm);
      way.limit = static_cast<std::uint64_t>(double(room.memory) * question_.serving.utilization);
      // Blocks are of 16 tokens.
      const std::uint64_t request = checked_product((checked_sum(way.tokens, 15)) / 16 * 16, need.token);
      way.rows = {{"weights", "weights and rotary table", "权重和旋转表", both(need.weights), Known::logs},
                  {"activations", "a pass at its fullest", "一次前向的峰值", need.activations, Known::logs},
                  {"outside", "context, NCCL", "上下文、NCCL", outside, Known::assumed},
                  {"graphs", "CUDA graphs", "CUDA graph", {0, need.graphs.high}, Known::assumed},
                  {"cache", "keys and values", "键和值", both(checked_product(request, way.requests)), Known::logs}};
      const Between taken = way.needed();
      const std::uint64_t cache = way.rows.back().bytes.low;
      const auto rest = [&](std::uint64_t all) { return way.limit - std::min(way.limit, all - cache); };
      way.cached = {vllm_tokens(need, rest(taken.high)), vllm_tokens(need, rest(taken.low))};
      return way;
    }
    way.llama_cpp.sequences = way.requests;
    way.llama_cpp.tokens = way.tokens;
    const LlamaCppNeed need = llama_cpp_need(shape_, way.llama_cpp);
    const LlamaCppPart& card = need.fullest();
    way.limit = room.memory;
    way.rows = {
        {"weights", "weights", "权重", both(card.weights), Known::logs},
        {"cache", "keys and values", "键和值", both(card.cache), Known::logs},
        {"compute", "compute buffer", "计算缓冲", both(card.compute), Known::logs},
        {"scratch", "kernels' scratch", "核函数暂存", {0, card.scratch}, Known::read},
        {"outside", "context", "上下文", {room.context, checked_sum(room.context, room.reserve)}, Known::assumed}};
    way.host = need.host.total();
    way.file = gguf_file_bytes(shape_, *way.llama_cpp.kind);
    return way;
  }

  // The engine refuses some: those are no way.
  void add(std::vector<ServingWay>& all, const ServingWay& way) const {
    try {
      ServingWay found = needs(way);
      if (found.fits()) all.push_back(std::move(found));
    } catch (const std::invalid_argument&) {
    }
  }

  std::vector<ServingWay> changed_vllm(const ServingWay& asked) const {
    std::vector<ServingWay> all;
    const auto with = [&](VllmWeights weights, bool narrow_cache) {
      ServingWay way = asked;
      way.vllm.weights = std::max(asked.vllm.weights, weights);
      way.vllm.narrow_cache = narrow_cache || asked.vllm.narrow_cache;
      if (all.empty()) add(all, way);
    };
    with(VllmWeights::as_is, true);
    with(VllmWeights::eight, false);
    with(VllmWeights::eight, true);
    with(VllmWeights::four, false);
    with(VllmWeights::four, true);
    const std::size_t narrower = all.size();
    for (std::uint64_t cards = asked.vllm.cards * 2; cards <= 8 && all.size() == narrower; cards *= 2) {
      ServingWay way = asked;
      way.vllm.cards = cards;
      add(all, way);
    }
    return all;
  }

  std::vector<ServingWay> changed_llama_cpp(const ServingWay& asked) const {
    std::vector<ServingWay> all;
    const auto mine = gguf_file_bytes(shape_, *asked.llama_cpp.kind);
    if (asked.llama_cpp.flash_attention && block_of(asked.llama_cpp.cache) == 1) {
      ServingWay way = asked;
      way.llama_cpp.cache = GgufType::q8_0;
      add(all, way);
    }
    for (const char* const name : kProposed) {
      if (!all.empty()) break;
      ServingWay way = asked;
      way.llama_cpp.kind = gguf_kind(name);
      if (gguf_file_bytes(shape_, *way.llama_cpp.kind) < mine) add(all, way);
    }
    const std::uint64_t most = std::min(shape_.layers + 1, asked.llama_cpp.layers_on_cards);
    const auto fewer = [&](std::uint64_t layers) {
      ServingWay way = asked;
      way.llama_cpp.layers_on_cards = layers;
      return way;
    };
    const std::uint64_t layers = largest_that_fits(
        most, [&](std::uint64_t n) { return needs(fewer(n)).fits(); }, [](std::uint64_t) { return true; });
    if (layers > 0 && layers < most) add(all, fewer(layers));
    return all;
  }

  std::optional<ServingWay> largest(const ServingWay& asked) const {
    const bool batch = *question_.largest == Largest::batch;
    const auto sized = [&](std::uint64_t n) {
      ServingWay way = asked;
      (batch ? way.requests : way.tokens) = n;
      return way;
    };
    const auto fits = [&](std::uint64_t n) {
      try {
        return needs(sized(n)).fits();
      } catch (const std::length_error&) {
        return false;
      }
    };
    const std::uint64_t most = batch ? kMostAtATime : shape_.positions;
    const std::uint64_t n = largest_that_fits(most, fits, [](std::uint64_t) { return true; });
    return n ? std::optional(needs(sized(n))) : std::nullopt;
  }

  const Question& question_;
  const nn::HfShape& shape_;
};

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

}  // namespace

void read_serving(Question& question) {
  if (is_vllm(question))
    (void)vllm_of(question);
  else
    (void)llama_cpp_of(question);
}

Between ServingWay::needed() const {
  Between sum;
  for (const ServingRow& row : rows) sum = {checked_sum(sum.low, row.bytes.low), checked_sum(sum.high, row.bytes.high)};
  return sum;
}

std::string weights_of(const Question& question, const ServingWay& way) {
  if (!is_vllm(question)) return upper(way.llama_cpp.kind->name);
  switch (way.vllm.weights) {
    case VllmWeights::as_is: return upper(oomlab::name_of(way.vllm.compute));
    case VllmWeights::eight: return "FP8";
    case VllmWeights::four: return "AWQ/GPTQ";
  }
  return "";
}

std::string cache_of(const Question& question, const ServingWay& way) {
  if (!is_vllm(question)) return upper(name_of(way.llama_cpp.cache));
  return way.vllm.narrow_cache ? "FP8" : upper(oomlab::name_of(way.vllm.compute));
}

ServingAnswer answer_serving(const Question& question) { return Serving(question).answer(); }

}  // namespace oomlab::fit
