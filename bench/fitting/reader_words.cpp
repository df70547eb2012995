// The first lines of an answer, in English and in Chinese.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plan/text.h"
#include "question.h"
#include "reader.h"
#include "words.h"

namespace oomlab::fit {

namespace {

std::string change_words(Change change, std::uint64_t micro_batch, bool chinese) {
  const Say say{chinese};
  switch (change) {
    case Change::expandable: return say("expandable segments", "可扩展段");
    case Change::checkpoint: return say("gradient checkpointing", "激活检查点");
    case Change::liger: return say("Liger's loss", "Liger 的 loss");
    case Change::micro_batch: return say("micro-batches of {}", "每次 {} 个样本的累积", micro_batch);
    case Change::eight_bits: return say("8-bit AdamW", "8 位 AdamW");
    case Change::paged: return say("paged 8-bit AdamW", "分页 8 位 AdamW");
    case Change::offload: return say("ZeRO-3 offload", "ZeRO-3 卸载优化器");
    case Change::offload_weights: return say("weights on the host", "卸载权重");
    case Change::narrow_weights: return say("16-bit weights", "16 位权重");
  }
  return "";
}

// What a change costs beside its bytes, if it does. Operations are those of matrix products: of three parts the forward
// pass is one, and of two where frozen weights need no gradients.
std::string price_words(Change change, Method method, bool chinese) {
  const Say say{chinese};
  switch (change) {
    case Change::expandable: return say("driver calls", "多调用驱动");
    case Change::checkpoint:
      return method == Method::full ? say("about a third more operations", "运算约多三分之一")
                                    : say("about half more operations", "运算约多一半");
    case Change::liger: return "";
    case Change::micro_batch: return say("smaller passes", "每次算得少");
    case Change::eight_bits: return say("rounded moments", "矩要舍入");
    case Change::paged: return say("rounded moments, over the bus", "矩要舍入，还过总线");
    case Change::offload: return say("the CPU updates", "由 CPU 更新");
    case Change::offload_weights: return say("over the bus", "过总线");
    case Change::narrow_weights: return say("small updates vanish", "小的更新会丢");
  }
  return "";
}

class Words {
 public:
  Words(const Question& question, const ReaderAnswer& answer) : q_(question), a_(answer), say{question.chinese} {}

  std::string first() const {
    if (!a_.largest.empty()) return largest();
    if (!q_.memory_named) return how_large();
    const Way& is = a_.as_is;
    if (is.fits())
      return say("fits: {} of {} GiB with PyTorch and {}, {} trained", "放得下：PyTorch，{2}（{3}），需 {0} / {1} GiB",
                 gib(is.device()), gib(is.memory), precision(is.step), what(is.method));
    const std::string begin = excess(is);
    if (a_.changed) {
      const auto line = [&](const std::string& how) {
        return begin + say("; {} of {} GiB with {}", "；改动后需 {0} / {1} GiB：{2}", gib(a_.changed->device()),
                           gib(is.memory), how);
      };
      const std::string with = line(changes(*a_.changed));
      if (columns_of(with) <= kMostColumns) return with;
      return line(say("{} changes", "{} 处改动", change_steps(*a_.changed, q_.chinese).size()));
    }
    std::vector<const Way*> fitting;
    for (const Way& way : a_.adapters)
      if (way.fits()) fitting.push_back(&way);
    if (!fitting.empty()) {
      const Way& way = *fitting.front();
      const std::string with = way.changes.empty() ? "" : say(" with {}", " 加{}", changes(way));
      const std::string rest =
          fitting.size() > 1 ? say(", {} {}", "，{} 需 {}", what(fitting.back()->method), gib(fitting.back()->device()))
                             : "";
      const auto line = [&](const std::string& how) {
        return begin + say("; {}{} needs {} of {} GiB{}", "；{}{}，需 {} / {} GiB{}", adapters(way), how,
                           gib(way.device()), gib(way.memory), rest);
      };
      return columns_of(line(with)) <= kMostColumns ? line(with) : line("");
    }
    if (a_.adapters.empty()) return begin + say("; nothing that is known here makes it fit", "；这里已知的办法都不够");
    const Way& last = a_.adapters.back();
    return begin + say("; nor does {}, which needs {} of {}", "；{} 也放不下，需 {} / {}", what(last.method),
                       gib(last.device()), gib(is.memory));
  }

  std::string all() {
    lines_ = {first()};
    title();
    if (q_.largest) largest_lines();
    table();
    if (!q_.largest) {
      changes_first();
      code();
    }
    footer();
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  // Why a way does not fit.
  std::string excess(const Way& way) const {
    if (way.device() > way.memory)
      return say("does not fit: {} GiB too many", "放不下：超出 {} GiB", gib(way.device() - way.memory));
    if (way.host > way.host_memory)
      return say("does not fit: {} of {} GiB, but {} GiB of host memory too many",
                 "放不下：需 {} / {} GiB，但主机内存超出 {} GiB", gib(way.device()), gib(way.memory),
                 gib(way.host - way.host_memory));
    return say("too close: {} of {} GiB, and {} more may go", "太紧：需 {} / {} GiB，还可能再占 {} GiB",
               gib(way.device()), gib(way.memory), gib(way.spare));
  }

  std::string what(Method method) const {
    switch (method) {
      case Method::full: return say("all parameters", "全部参数");
      case Method::lora: return "LoRA";
      case Method::qlora: return "QLoRA";
    }
    return "";
  }
  std::string precision(const HfStep& step) const {
    if (!step.autocast) return upper_case(step.weights);
    const std::string half = upper_case(*step.autocast);
    if (step.lora && step.lora->four_bits) return say("4-bit weights and {}", "4 位权重加 {}", half);
    if (step.weights != DType::fp32) return say("{} weights", "{} 权重", upper_case(step.weights));
    return say("{} autocast", "{} autocast", half);
  }
  std::string changes(const Way& way) const {
    std::vector<std::string> names;
    for (const ChangeStep& step : change_steps(way, q_.chinese)) names.push_back(step.words);
    if (names.empty()) return say("no change", "不改动");
    const std::string last = names.back();
    names.pop_back();
    if (names.empty()) return last;
    return fmt::format("{}{}{}", fmt::join(names, say(", ", "、")), say(" and ", "和"), last);
  }

  static const char* sharding(const HfStep& step) {
    switch (step.ranks->parallel) {
      case HfParallel::ddp: return "DDP";
      case HfParallel::fsdp2: return "FSDP";
      case HfParallel::tensor: return "TP";
      case HfParallel::zero1: return "ZeRO-1";
      case HfParallel::zero2: return "ZeRO-2";
      case HfParallel::zero3: return "ZeRO-3";
    }
    return "";
  }
  // LoRA, and on several cards how these share it where that is another way than as it is.
  std::string adapters(const Way& way) const {
    const HfStep& step = way.step;
    const bool other = step.ranks && a_.as_is.step.ranks && step.ranks->parallel != a_.as_is.step.ranks->parallel;
    return what(way.method) + (other ? say(" by {}", "（{}）", sharding(step)) : "");
  }

  // The smallest card that is known to hold it.
  std::string card_for(const Way& way) const {
    const Card* best = nullptr;
    for (const Card& card : cards()) {
      if (way.step.autocast == DType::bf16 && !card.has_bf16) continue;
      if (card.total_bytes() < checked_sum(way.device(), way.spare)) continue;
      if (!best || card.total_bytes() < best->total_bytes()) best = &card;
    }
    return best ? best->name : say("none known", "没有");
  }
  std::string how_large() const {
    std::string text = say("how large a card: {} GiB for {}", "要多大的卡：{0} GiB（{1}）", gib(a_.as_is.device()),
                           what(a_.as_is.method));
    for (const Way& way : a_.adapters) text += say(", {} for {}", "，{1} 需 {0}", gib(way.device()), what(way.method));
    return text;
  }
  std::string largest_name() const {
    return *q_.largest == Largest::batch ? say("batch", " batch") : say("seq", "序列");
  }
  std::string ways_name(const Way& way) const {
    const bool checkpoint = way.step.checkpoint && way.method != Method::qlora;
    return what(way.method) + (checkpoint ? say(", gradient checkpointing", "，激活检查点") : "");
  }
  std::string largest() const {
    const LargestOf& is = a_.largest.front();
    std::string text = is.most ? say("largest {}: {} with {} of {} GiB", "最大{}：{}，需 {} / {} GiB", largest_name(),
                                     is.most, gib(is.way.device()), gib(is.way.memory))
                               : say("largest {}: none as it is", "最大{}：现状一个也放不下", largest_name());
    for (std::size_t i = 1; i < a_.largest.size(); ++i) {
      if (a_.largest[i].most <= is.most) continue;
      text += say("; {} with {}", "；用{1}时为 {0}", a_.largest[i].most,
                  a_.largest[i].way.method == a_.as_is.method ? change_words(Change::checkpoint, 1, q_.chinese)
                                                              : what(a_.largest[i].way.method));
      break;
    }
    return text;
  }

  void title() {
    const HfStep& step = a_.as_is.step;
    const std::string size = q_.shape->family == nn::HfFamily::vit
                                 ? say("{} images", "{} 张图", step.batch)
                                 : say("{} x {} tokens", "{} x {} 个 token", step.batch, step.seq);
    std::string card =
        q_.memory_named ? say(", on {}", "，{}", q_.card_named ? q_.card->title : gib(q_.room.memory) + " GiB") : "";
    if (step.ranks)
      card += q_.gpus > 1 ? say(", each of {} by {}", "，{} 张卡中每张，{}", q_.gpus, sharding(step))
                          : say(", {}", "，{}", sharding(step));
    const std::string optimizer =
        step.optimizer == HfOptimizer::adamw_fused ? "" : std::string(", ") + name_of(step.optimizer);
    push(say("({}, {}, {}{}{})", "（{}，{}，{}{}{}）", short_name(q_.shape->name), size, precision(step), optimizer,
             card));
    if (!q_.other_cards.empty()) push(say("(other cards by that name: {})", "（同名的还有：{}）", q_.other_cards));
    if (q_.shape->experts)
      push(say("(adapters are not counted: peft makes all experts' weights anew in each pass)",
               "（不计适配器：peft 每次都重新生成全部专家的权重）"));
    if (q_.precision == DType::bf16 && !q_.card->has_bf16)
      push(say("({} has no BF16: planned with FP16, which takes the same memory and needs a loss scale)",
               "（{} 没有 BF16：按 FP16 计，内存相同，需要 loss scale）", q_.card->title));
  }

  void largest_lines() {
    for (const LargestOf& one : a_.largest)
      push(say("  {} {:>8}   {} GiB", "  {} {:>8}   {} GiB", padded(ways_name(one.way), 40),
               one.most ? std::to_string(one.most) : "-", one.most ? gib(one.way.device()) : "-"));
  }

  std::string moment(const Way& way) const {
    const std::string name = way.peak.moment;
    return name == "forward pass"    ? say("forward", "前向")
           : name == "backward pass" ? say("backward", "反向")
           : name == "loss"          ? say("loss", "loss")
                                     : say("optimizer", "优化器");
  }

  // A column for each way.
  void table() {
    std::vector<std::pair<std::string, const Way*>> ways{{say("as it is", "现状"), &a_.as_is}};
    if (a_.changed) ways.emplace_back(say("changed", "改动后"), &*a_.changed);
    if (!a_.as_is.fits() || !q_.memory_named)
      for (const Way& way : a_.adapters) ways.emplace_back(what(way.method), &way);
    const std::size_t width = q_.memory_named ? 15 : 17;
    const auto row = [&](const std::string& name, const auto& cell) {
      std::string line = padded("  " + name, 30);
      for (const auto& [head, way] : ways) {
        const std::string text = cell(head, *way);
        line += std::string(width - std::min(width, columns_of(text)), ' ') + text;
      }
      push(line);
    };
    row("GiB", [](const std::string& head, const Way&) { return head; });
    for (const Category category :
         {Category::parameters, Category::gradients, Category::optimizer, Category::activations})
      row(words_of(category, q_.chinese),
          [&](const std::string&, const Way& way) { return gib(way.peak.bytes[category]); });
    row(say("data, context, allocator", "数据、上下文、分配器"), [](const std::string&, const Way& way) {
      return gib(checked_sum(way.peak.bytes[Category::data], checked_sum(way.allocator, way.outside)));
    });
    row(say("at the fullest, in the", "峰值出现在"), [&](const std::string&, const Way& way) { return moment(way); });
    row(say("needed", "共需"), [&](const std::string&, const Way& way) {
      return say("{} to {}", "{} 至 {}", gib(way.device()), gib(checked_sum(way.device(), way.spare)));
    });
    if (q_.memory_named)
      row(say("left of {}", "还剩（共 {}）", gib(q_.room.memory)),
          [](const std::string&, const Way& way) { return gib(double(way.memory) - double(way.device())); });
    else
      row(say("the smallest card", "最小的卡"), [&](const std::string&, const Way& way) { return card_for(way); });
    if (std::ranges::any_of(ways, [](const auto& way) { return way.second->host > 0; }))
      row(say("host memory", "主机内存"), [](const std::string&, const Way& way) { return gib(way.host); });
  }

  void changes_first() {
    const Way* const way = q_.memory_named || !a_.changed ? chosen() : &*a_.changed;
    if (way->changes.empty()) return;
    std::uint64_t before = way->after.front();
    std::vector<std::string> parts;
    for (const ChangeStep& step : change_steps(*way, q_.chinese)) {
      const std::uint64_t saved = before - std::min(before, step.after);
      std::string inside = saved ? say("saves {} GiB", "省 {} GiB", gib(saved)) : "";
      if (!inside.empty() && !step.costs.empty()) inside += say("; ", "，");
      inside += step.costs;
      parts.push_back(inside.empty() ? step.words : say("{} ({})", "{}（{}）", step.words, inside));
      before = step.after;
    }
    push(say("change first: {}", "先改：{}", parts.front()));
    std::string line;  // as many on a line as it holds
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const std::string longer = line.empty() ? say("        then: {}", "再改：{}", parts[i]) : line + "; " + parts[i];
      if (columns_of(longer) > kMostColumns) {
        push(line);
        line = say("        then: {}", "再改：{}", parts[i]);
      } else {
        line = longer;
      }
    }
    if (!line.empty()) push(line);
  }
  const Way* chosen() const {
    if (const Way* const best = a_.best()) return best;
    return a_.changed ? &*a_.changed : a_.adapters.empty() ? &a_.as_is : &a_.adapters.back();
  }

  void code() {
    const Way& way = *chosen();
    static constexpr const char* kNames[] = {"Trainer", "TRL", "DeepSpeed", "torchtune"};
    const bool plain = way.step.ranks && way.step.ranks->parallel == HfParallel::tensor;  // which is no Trainer's
    // No space between Chinese words.
    push(say("write, for {} ({}):", way.method == Method::full ? "{}的写法（{}）：" : "{} 的写法（{}）：",
             what(way.method), plain ? "PyTorch" : kNames[std::size_t(q_.framework)]));
    for (const std::string& line : code_of(q_, way, q_.framework)) push("  " + line);
  }

  void footer() {
    push(chosen()->peak.checked
             ? say("live bytes are those of transformers' modules, within 2 % of PyTorch's own count on a CPU",
                   "张量的字节按 transformers 的各层算出，与 PyTorch 在 CPU 上自己的计数相差 2 % 以内")
             : say("live bytes are those of transformers' modules; 4 and 8 bits, FP16, Liger: from sources, not "
                   "measured",
                   "张量的字节按 transformers 的各层算出；4 位、8 位、FP16、Liger 的数来自源码，没有测过"));
    const auto percent = q_.room.fragmentation_percent;
    const std::string split = percent ? fmt::format(" {:.3g} %", *percent) : say(" by replay", "按其规则重放");
    push(say("allocator{}; {}; no padding. more: --all", "分配器{}；{}；不计补齐。更多：--all", split,
             words_of_context(q_, a_.as_is)));
  }

  void push(std::string line) { lines_.push_back(std::move(line)); }

  const Question& q_;
  const ReaderAnswer& a_;
  const Say say;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<ChangeStep> change_steps(const Way& way, bool chinese) {
  const bool paged = std::ranges::find(way.changes, Change::paged) != way.changes.end();
  std::vector<ChangeStep> steps;
  for (std::size_t i = 0; i < way.changes.size(); ++i) {
    if (way.changes[i] == Change::eight_bits && paged) continue;  // "paged" stands for both
    const std::uint64_t after = i + 1 < way.after.size() ? way.after[i + 1] : 0;
    steps.push_back({change_words(way.changes[i], way.micro_batch, chinese),
                     price_words(way.changes[i], way.method, chinese), after});
  }
  return steps;
}

std::string words_of_context(const Question& question, const Need& need) {
  const Say say{question.chinese};
  const bool measured = since_hopper(*question.card) && question.room.context == kContextSinceHopper.started &&
                        question.room.reserve == kContextSinceHopper.growth && question.room.nccl == 0;
  const std::string least = gib(need.outside), most = gib(checked_sum(need.outside, need.spare));
  if (measured)
    return say("context {} to {} GiB, as measured on an H100", "上下文 {} 至 {} GiB，按 H100 上测得的", least, most);
  return say("context {} to {} GiB assumed (all kernels loaded)", "上下文假定为 {} GiB，核函数全部加载后 {}", least,
             most);
}

std::string first_words(const Question& question, const ReaderAnswer& answer) { return Words(question, answer).all(); }
std::string first_line(const Question& question, const ReaderAnswer& answer) { return Words(question, answer).first(); }
}  // namespace oomlab::fit
