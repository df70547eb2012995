// The first lines of an answer about a server, in English and in Chinese.

#include <fmt/format.h>

#include <algorithm>

#include "plan/json_writer.h"
#include "question.h"
#include "reader.h"
#include "serving.h"
#include "words.h"

namespace oomlab::fit {

namespace {

class ServingWords {
 public:
  ServingWords(const Question& question, const ServingAnswer& answer)
      : q_(question), a_(answer), say_{question.chinese} {}

  std::string first() const {
    const ServingWay& is = a_.as_is;
    if (q_.largest) {
      if (!a_.largest) return say_("largest {}: none", "最大{}：没有", what());
      const ServingWay& most = *a_.largest;
      return say_("largest {}: {} with {} of {} GiB", "最大{}：{}，需 {} / {} GiB", what(),
                  *q_.largest == Largest::batch ? most.requests : most.tokens, between(most.needed()), gib(is.limit));
    }
    if (is.fits())
      return say_("fits: {} of {} GiB with {} and {} weights{}", "放得下：{2}，{3} 权重，需 {0} / {1} GiB{4}",
                  between(is.needed()), gib(is.limit), engine(), weights(is), requests(is));
    std::string line = excess(is);
    const char* between = "; ";
    for (const ServingWay& way : a_.changed) {
      const std::string more = say_("{} needs {}", "{} 需 {}", difference(way), gib(way.needed().high));
      const std::string longer =
          line + say_(between, a_.changed.front().needed().high == way.needed().high ? "；" : "，") + more;
      if (columns_of(longer) > kMostColumns) break;
      line = longer;
      between = ", ";
    }
    if (a_.changed.empty()) line += say_("; shorter requests, or more cards", "；缩短请求，或增加显卡");
    return line;
  }

  std::string all() {
    lines_ = {first()};
    title();
    table();
    if (vllm()) cache_lines();
    code();
    footer();
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

  /// What this way has that the one that was asked for has not; of that one, nothing.
  std::string difference(const ServingWay& way) const {
    const ServingWay& is = a_.as_is;
    if (way.vllm.cards != is.vllm.cards) return say_("each of {} cards", "{} 张卡中每张", way.vllm.cards);
    if (way.llama_cpp.layers_on_cards != is.llama_cpp.layers_on_cards)
      return fmt::format("-ngl {}", way.llama_cpp.layers_on_cards);
    std::string text;
    if (weights(way) != weights(is)) text = weights(way);
    if (cache_of(q_, way) != cache_of(q_, is))
      text += (text.empty() ? "" : say_(" and ", "和")) + say_("an {} cache", "{} 缓存", cache_of(q_, way));
    return text;
  }

  /// The command that serves this way, in lines.
  std::vector<std::string> command(const ServingWay& way) const {
    return vllm() ? command_of_vllm(way) : command_of_llama_cpp(way);
  }

 private:
  bool vllm() const { return q_.engine == Engine::vllm; }
  const char* engine() const { return vllm() ? "vLLM" : "llama.cpp"; }
  std::string what() const { return *q_.largest == Largest::batch ? say_("batch", " batch") : say_("seq", "序列"); }
  std::string weights(const ServingWay& way) const { return weights_of(q_, way); }

  // One figure, or two.
  std::string between(const std::string& low, const std::string& high) const {
    return low == high ? low : say_("{} to {}", "{} 至 {}", low, high);
  }
  std::string between(const Between& bytes) const { return between(gib(bytes.low), gib(bytes.high)); }
  // Of vLLM, how many of these requests its cache holds.
  std::string requests(const ServingWay& way) const {
    if (!vllm()) return "";
    const std::string count =
        between(std::to_string(way.cached.low / way.tokens), std::to_string(way.cached.high / way.tokens));
    return say_("; {} x {} tokens at once", "；可同时容纳 {} x {} 个 token", count, way.tokens);
  }
  std::string excess(const ServingWay& way) const {
    const Between needed = way.needed();
    if (needed.low > way.limit)
      return say_("does not fit: {} GiB too many", "放不下：超出 {} GiB",
                  between({needed.low - way.limit, needed.high - way.limit}));
    return say_("too close: {} of {} GiB", "太紧：需 {} / {} GiB", between(needed), gib(way.limit));
  }
  void title() {
    const std::string cards = q_.gpus == 1 ? "" : say_(", each of {} cards", "，{} 张卡中每张", q_.gpus);
    push(say_("({}, {} x {} tokens, {} weights, {} cache, on {}{})", "（{}，{} x {} 个 token，{} 权重，{} 缓存，{}{}）",
              short_name(q_.shape->name), a_.as_is.requests, a_.as_is.tokens, weights(a_.as_is), cache_of(q_, a_.as_is),
              q_.card_named ? q_.card->title : gib(q_.room.memory) + " GiB", cards));
    if (!q_.other_cards.empty()) push(say_("(other cards by that name: {})", "（同名的还有：{}）", q_.other_cards));
  }

  std::vector<const ServingWay*> ways() const {
    std::vector<const ServingWay*> all{&a_.as_is};
    if (a_.largest) all.push_back(&*a_.largest);
    for (const ServingWay& way : a_.changed) all.push_back(&way);
    return all;
  }
  static std::string cell(const std::string& text) {
    constexpr std::size_t kWidth = 15;
    return std::string(kWidth - std::min(kWidth, columns_of(text)), ' ') + text;
  }
  const char* basis(Known known) const {
    switch (known) {
      case Known::read: return say_.chinese ? "读源码" : "read";
      case Known::logs: return say_.chinese ? "读源码，与日志一致" : "read, agrees with logs";
      case Known::assumed: return say_.chinese ? "假定" : "assumed";
    }
    return "";
  }
  void table() {
    std::string head = padded("  GiB", 28) + cell(say_("as it is", "现状"));
    if (a_.largest) head += cell(say_("largest", "最大"));
    for (std::size_t i = 0; i < a_.changed.size(); ++i) head += cell(say_("change {}", "改法 {}", i + 1));
    push(head);
    for (std::size_t i = 0; i < a_.as_is.rows.size(); ++i) {
      const ServingRow& row = a_.as_is.rows[i];
      std::string line = padded("  " + std::string(say_.chinese ? row.chinese : row.english), 28);
      for (const ServingWay* const way : ways()) line += cell(between(way->rows[i].bytes));
      push(line + "  " + basis(row.known));
    }
    std::string needed = padded(say_("  needed", "  共需"), 28), host = padded(say_("  host memory", "  主机内存"), 28),
                file = padded(say_("  the file", "  文件"), 28);
    for (const ServingWay* const way : ways()) {
      needed += cell(between(way->needed()));
      host += cell(gib(way->host));
      file += cell(gib(way->file));
    }
    push(needed + "  " + say_("of {}", "/ {}", gib(a_.as_is.limit)));
    if (!vllm()) push(file);
    if (!vllm()) push(host);
  }

  void cache_lines() {
    const ServingWay& way = a_.as_is;
    push(say_("vLLM may take {} of the card's {} GiB; its cache will hold {} tokens",
              "vLLM 可用卡上 {1} GiB 中的 {0}；缓存可容纳 {2} 个 token", gib(way.limit), gib(q_.room.memory),
              between(std::to_string(way.cached.low), std::to_string(way.cached.high))));
    push(say_("fewer than --seq {} tokens: it does not start. A pass is of {} tokens, sampling of {} requests",
              "不足 --seq {} 个 token 则无法启动。一次前向 {} 个 token，采样 {} 个请求", way.tokens,
              way.vllm.batched_tokens, way.vllm.sequences));
  }

  const ServingWay& chosen() const {
    if (a_.largest) return *a_.largest;
    return a_.changed.empty() ? a_.as_is : a_.changed.front();
  }
  void code() {
    const ServingWay& way = chosen();
    push(say_("write:", "写法："));
    const char* indent = "  $ ";
    for (const std::string& line : command(way)) {
      push(indent + line);
      indent = "      ";
    }
    if (vllm() && way.vllm.weights == VllmWeights::four)
      push(say_("  (a model that was quantised so: its name ends in -AWQ or -GPTQ)",
                "  （用已量化的模型：名字以 -AWQ 或 -GPTQ 结尾）"));
  }

  std::vector<std::string> command_of_vllm(const ServingWay& way) const {
    std::string line = fmt::format("vllm serve MODEL --max-model-len {} --gpu-memory-utilization {:.2g}", way.tokens,
                                   q_.serving.utilization);
    if (way.vllm.cards > 1) line += fmt::format(" --tensor-parallel-size {}", way.vllm.cards);
    std::string more =
        fmt::format("--max-num-seqs {} --max-num-batched-tokens {}", way.vllm.sequences, way.vllm.batched_tokens);
    if (way.vllm.narrow_cache) more += " --kv-cache-dtype fp8";
    if (way.vllm.weights == VllmWeights::eight) more += " --quantization fp8";
    return {line + " \\", more};
  }

  std::vector<std::string> command_of_llama_cpp(const ServingWay& way) const {
    const LlamaCppRun& run = way.llama_cpp;
    const std::string line = fmt::format("llama-server -m MODEL-{}.gguf -c {} -np {} -ngl {} -ub {} -fa {}",
                                         weights(way), checked_product(way.requests, way.tokens), way.requests,
                                         std::min<std::uint64_t>(run.layers_on_cards, q_.shape->layers + 1),
                                         run.micro_batch, run.flash_attention ? "on" : "off");
    if (run.cache == GgufType::f16) return {line};
    return {line + " \\", fmt::format("-ctk {0} -ctv {0}", name_of(run.cache))};
  }

  void footer() {
    if (vllm())
      push(say_("the larger figures: sampling sorts all logits, graphs, a context that grows",
                "较大的数字：采样对全部 logits 排序、CUDA graph、上下文增长"));
    else
      push(say_("the larger figures: a layer's cache widened by kernels, a context that grows",
                "较大的数字：核函数展开一层缓存、上下文增长"));
    push(say_("nothing here was run: docs/fit_engines.md has the logs that it was held against. more: --json",
              "这里没有运行任何东西：对照过的日志见 docs/fit_engines.md。更多：--json"));
  }
  void push(std::string line) { lines_.push_back(std::move(line)); }

  const Question& q_;
  const ServingAnswer& a_;
  const Say say_;
  std::vector<std::string> lines_;
};

void write(JsonWriter& json, const Question& question, const ServingAnswer& answer, const ServingWay& way) {
  const Between needed = way.needed();
  const ServingWords words(question, answer);
  json.begin_object()
      .member("what", words.difference(way))
      .member("requests", way.requests)
      .member("tokens", way.tokens);
  json.key("bytes").begin_object();
  for (const ServingRow& row : way.rows) {
    json.key(row.key).begin_object().member("words", std::string(question.chinese ? row.chinese : row.english));
    json.member("low", row.bytes.low).member("high", row.bytes.high).end_object();
  }
  json.end_object();
  json.member("needed_low", needed.low).member("needed_high", needed.high).member("limit_bytes", way.limit);
  json.member("host_bytes", way.host).member("file_bytes", way.file).member("cached_tokens_low", way.cached.low);
  json.member("cached_tokens_high", way.cached.high).member("fits", way.fits()).key("write").begin_array();
  for (const std::string& line : words.command(way)) json.value(line);
  json.end_array().end_object();
}

}  // namespace

void write(JsonWriter& json, const Question& question, const ServingAnswer& answer) {
  json.begin_object().member("line", first_line(question, answer)).member("fits", answer.as_is.fits());
  json.key("as_is"), write(json, question, answer, answer.as_is);
  json.key("changed").begin_array();
  for (const ServingWay& way : answer.changed) write(json, question, answer, way);
  json.end_array();
  json.member("largest", answer.largest, [&](const ServingWay& way) { write(json, question, answer, way); })
      .end_object();
}

std::string first_words(const Question& question, const ServingAnswer& answer) {
  return ServingWords(question, answer).all();
}
std::string first_line(const Question& question, const ServingAnswer& answer) {
  return ServingWords(question, answer).first();
}

}  // namespace oomlab::fit
