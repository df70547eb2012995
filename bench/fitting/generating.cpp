#include "generating.h"

#include <algorithm>

#include "answer.h"
#include "largest.h"
#include "plan/text.h"
#include "words.h"

namespace oomlab::fit {

namespace {

/// Tokens that an answer has, where --prompt does not say.
constexpr std::uint64_t kUsualAnswer = 256;

// All layers' keys and values of all tokens but the last, which nothing reads again.
std::uint64_t cache_bytes(const Question& question, const HfGeneration& asked) {
  const nn::HfShape& shape = *question.shape;
  const std::uint64_t token = checked_product(2 * shape.keys(), element_bytes(asked.weights));
  const std::uint64_t tokens = checked_product(asked.batch, asked.prompt + asked.new_tokens - 1);
  return checked_product(checked_product(shape.layers, tokens), token);
}

// Of one card: of several, the one that has most.
std::uint64_t layers_of_card(const Question& question) {
  const std::uint64_t layers = question.shape->layers, cards = std::min<std::uint64_t>(question.gpus, layers);
  return cards == 1 ? layers : std::min(layers, (layers + cards - 1) / cards + 1);
}

// Whole layers on each of several cards, as device_map="auto" puts them: the fullest has its share of all weights, at most
// a layer or the embedding more, and the keys and values of as many layers.
void split_among_cards(HfPeak& peak, const Question& question, const HfGeneration& asked) {
  const nn::HfShape& shape = *question.shape;
  const std::uint64_t cards = std::min<std::uint64_t>(question.gpus, shape.layers);
  std::uint64_t of_layers = 0;
  for (const nn::HfTensor& tensor : nn::parameters_of(shape))
    if (tensor.layer > 0) of_layers = checked_sum(of_layers, tensor.count());
  // What cannot be divided: a layer, or the embedding.
  const std::uint64_t undivided = checked_product(
      std::max(of_layers / shape.layers, checked_product(shape.vocabulary, shape.width)), element_bytes(asked.weights));
  std::uint64_t& weights = peak.bytes[Category::parameters];
  weights = std::min(weights, checked_sum((weights + cards - 1) / cards, undivided));
  const std::uint64_t cache = cache_bytes(question, asked);
  std::uint64_t& activations = peak.bytes[Category::activations];
  const std::uint64_t there = std::min(cache, activations);
  activations -= there - std::min(there, cache / shape.layers * layers_of_card(question));
  peak.checked = false;
}

HfPeak peak_of(const Question& question, const HfGeneration& asked) {
  HfPeak peak = huggingface_generation_peak(*question.shape, asked);
  if (question.cache == Cache::tuple) {
    // A dynamic cache has one layer's twice at a time, a tuple those of all layers.
    const std::uint64_t others = cache_bytes(question, asked) / question.shape->layers * (question.shape->layers - 1);
    peak.bytes[Category::activations] = checked_sum(peak.bytes[Category::activations], others);
    peak.checked = false;
  }
  if (question.gpus > 1) split_among_cards(peak, question, asked);
  return peak;
}

Generation needs(const Question& question, const HfGeneration& asked) {
  Generation found;
  static_cast<Need&>(found) = need_of(question, peak_of(question, asked));
  found.asked = asked;
  // A replay needs every length that the cache has on its way, which is too much to walk: the mean of traces instead.
  const double percent = question.room.fragmentation_percent.value_or(kFragmentation);
  found.allocator = static_cast<std::uint64_t>(double(found.live()) * percent / 100);
  found.completed = true;
  return found;
}

HfGeneration as_asked(const Question& question) {
  HfGeneration asked{.batch = question.batch, .eager_attention = question.reader.eager_attention};
  const std::uint64_t usual = std::min<std::uint64_t>(kUsualAnswer, (question.seq + 1) / 2);
  asked.prompt = question.prompt.value_or(question.seq > usual ? question.seq - usual : 1);
  asked.new_tokens = question.seq - std::min<std::uint64_t>(asked.prompt, question.seq - 1);
  const DType half = question.card->has_bf16 && question.precision != DType::fp16 ? DType::bf16 : DType::fp16;
  asked.weights = question.reader.weights.value_or(question.precision == DType::fp32 ? DType::fp32 : half);
  asked.static_cache = question.cache == Cache::fixed;
  return asked;
}

// The largest n up to `most` with which it fits, of sizes that `sized` makes; nothing: not even 1.
template <class Sized>
std::optional<Generation> largest_of(const Question& question, std::uint64_t most, Sized sized) {
  const auto of = [&](auto asks) {
    return [&, asks](std::uint64_t n) {
      try {
        return asks(sized(n));
      } catch (const std::length_error&) {
        return false;
      }
    };
  };
  const auto holds = of([&](const HfGeneration& asked) { return needs(question, asked).fits(); });
  const std::uint64_t n = largest_that_fits(most, holds, [](std::uint64_t) { return true; });
  return n ? std::optional(needs(question, sized(n))) : std::nullopt;
}

class GenerationWords {
 public:
  GenerationWords(const Question& question, const GenerationAnswer& answer, const Answer* course)
      : q_(question), a_(answer), course_(course), say_{question.chinese} {}

  std::string first() const {
    const Generation& is = a_.as_is;
    if (q_.largest) {
      if (!a_.largest) return say_("largest {}: none", "最大{}：没有", what());
      return say_("largest {}: {} with {} of {} GiB", "最大{}：{}，需 {} / {} GiB", what(), size(a_.largest->asked),
                  gib(a_.largest->device()), gib(is.memory));
    }
    if (is.fits())
      return say_("fits: {} of {} GiB with PyTorch's generate() and {} weights",
                  "放得下：PyTorch 的 generate()，{2} 权重，需 {0} / {1} GiB", gib(is.device()), gib(is.memory),
                  dtype(is));
    const std::string begin =
        is.device() > is.memory
            ? say_("does not fit: {} GiB too many", "放不下：超出 {} GiB", gib(is.device() - is.memory))
            : say_("too close: {} of {} GiB, and {} more may go", "太紧：需 {} / {} GiB，还可能再占 {} GiB",
                   gib(is.device()), gib(is.memory), gib(is.spare));
    if (a_.fewer)
      return begin + say_("; {} at a time need {} of {}", "；每次 {} 个则需 {} / {}", a_.fewer->asked.batch,
                          gib(a_.fewer->device()), gib(is.memory));
    if (course_ && course_->cheapest)
      return begin + say_("; this course's program with {} needs {}", "；本课程的程序需 {1}，方案是 {0}",
                          course_->cheapest->options, gib(course_->cheapest->peak.total()));
    return begin + say_("; fewer bits, or a larger card", "；需要更少的位数，或更大的卡");
  }

  std::string all() {
    lines_ = {first()};
    const Generation& is = a_.as_is;
    const std::string card = (q_.card_named ? q_.card->title : gib(q_.room.memory) + " GiB") + cards();
    const std::string what = say_("{}, {} x {} tokens, {} of them the prompt, {} weights, a cache that {}",
                                  "{}，{} x {} 个 token，其中提示词 {} 个，{} 权重，缓存{}", name(), is.asked.batch,
                                  q_.seq, is.asked.prompt, dtype(is),
                                  q_.cache == Cache::fixed   ? say_("is static", "固定")
                                  : q_.cache == Cache::tuple ? say_("is copied", "每次复制")
                                                             : say_("grows", "增长"));
    const std::string line = say_("({}, on {})", "（{}，{}）", what, card);
    if (columns_of(line) <= kMostColumns) {
      push(line);
    } else {
      push(say_("({},", "（{}，", what));
      push(say_(" on {})", "{}）", card));
    }
    if (!q_.other_cards.empty()) push(say_("(other cards by that name: {})", "（同名的还有：{}）", q_.other_cards));
    const std::uint64_t cache = cache_bytes(q_, is.asked) / q_.shape->layers * layers_of_card(q_);
    const std::uint64_t activations = is.peak.bytes[Category::activations];
    row(say_("parameters", "参数"), is.peak.bytes[Category::parameters]);
    row(say_("keys and values", "键和值"), std::min(cache, activations));
    row(say_("activations beside them", "其余激活"), activations - std::min(cache, activations));
    row(say_("data, context, allocator", "数据、上下文、分配器"),
        checked_sum(is.peak.bytes[Category::data], checked_sum(is.allocator, is.outside)));
    push("  " + padded(say_("needed", "共需"), 30) +
         say_("{:>10} to {} GiB", "{:>10} 至 {} GiB", gib(is.device()), gib(checked_sum(is.device(), is.spare))));
    push(say_("at the fullest in the {}", "峰值出现在{}",
              is.peak.moment == std::string("prefill") ? say_("prefill", "预填充") : say_("decoding", "解码")));
    push(say_("write (transformers):", "写法（transformers）："));
    push(fmt::format("  model = AutoModelForCausalLM.from_pretrained(..., dtype=torch.{}, device_map=\"{}\")",
                     row_of(is.asked.weights).torch, q_.gpus > 1 ? "auto" : "cuda"));
    push(fmt::format("  model.generate(**inputs, max_new_tokens={}{})", is.asked.new_tokens,
                     is.asked.static_cache ? ", cache_implementation=\"static\"" : ""));
    if (q_.gpus > 1)
      push(say_("whole layers on each card, the fullest with one more than its share: from sources, not measured",
                "每张卡放整层，最满的一张多放一层：只读过源码，没有测过"));
    push(say_("live bytes are those of transformers' modules; what the allocator splits is assumed, {:.3g} %",
              "张量的字节按 transformers 的各层算出；分配器碎片是假定的，{:.3g} %",
              q_.room.fragmentation_percent.value_or(kFragmentation)));
    push(say_("{}; no padding. more: --all", "{}；不计补齐。更多：--all", words_of_context(q_, is)));
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  std::string what() const { return *q_.largest == Largest::batch ? say_("batch", " batch") : say_("seq", "序列"); }
  std::uint64_t size(const HfGeneration& asked) const {
    return *q_.largest == Largest::batch ? asked.batch : asked.prompt + asked.new_tokens;
  }
  std::string cards() const { return q_.gpus == 1 ? "" : say_(", each of {} cards", "，{} 张卡中每张", q_.gpus); }
  static std::string dtype(const Generation& way) { return upper_case(way.asked.weights); }
  std::string name() const {
    std::string name = one_line(q_.shape->name);
    name = name.substr(name.rfind('/') + 1);
    constexpr std::size_t kMost = 26;
    return name.size() <= kMost ? name : "..." + name.substr(name.size() - kMost);
  }
  void row(const std::string& what, std::uint64_t bytes) {
    push("  " + padded(what, 30) + fmt::format("{:>10} GiB", gib(bytes)));
  }
  void push(std::string line) { lines_.push_back(std::move(line)); }

  const Question& q_;
  const GenerationAnswer& a_;
  const Answer* course_;
  const Say say_;
  std::vector<std::string> lines_;
};

}  // namespace

GenerationAnswer answer_generation(const Question& question) {
  const HfGeneration asked = as_asked(question);
  GenerationAnswer answer{.as_is = needs(question, asked)};
  const auto of_batch = [&](std::uint64_t n) {
    HfGeneration sized = asked;
    sized.batch = n;
    return sized;
  };
  const auto of_tokens = [&](std::uint64_t n) {
    HfGeneration sized = asked;
    sized.new_tokens = std::min(asked.new_tokens, n);
    sized.prompt = std::max<std::uint64_t>(1, n - sized.new_tokens);
    return sized;
  };
  if (question.largest)
    answer.largest = *question.largest == Largest::batch ? largest_of(question, kMostAtATime, of_batch)
                                                         : largest_of(question, question.shape->positions, of_tokens);
  else if (!answer.as_is.fits() && asked.batch > 1)
    answer.fewer = largest_of(question, asked.batch - 1, of_batch);
  return answer;
}

std::string first_words(const Question& question, const GenerationAnswer& answer, const Answer* course) {
  return GenerationWords(question, answer, course).all();
}
std::string first_line(const Question& question, const GenerationAnswer& answer, const Answer* course) {
  return GenerationWords(question, answer, course).first();
}

}  // namespace oomlab::fit
