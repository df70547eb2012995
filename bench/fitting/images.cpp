#include "images.h"

#include "largest.h"
#include "options.h"
#include "plan/json_writer.h"
#include "plan/network_step.h"
#include "plan/option.h"
#include "plan/pytorch/detection.h"
#include "plan/pytorch/reserved.h"
#include "plan/text.h"
#include "question.h"
#include "words.h"

namespace oomlab::fit {

namespace {

constexpr std::uint64_t kMostImages = std::uint64_t(1) << 20;

nn::UpdateRule rule_of(const Question& question) {
  switch (question.reader.optimizer) {
    case HfOptimizer::sgd: return nn::UpdateRule::momentum;
    case HfOptimizer::adafactor: return nn::UpdateRule::adafactor;
    default: return nn::UpdateRule::adamw;
  }
}

void follow(const Question& question, ImagesWay& way) {
  const FpnStep step{.batch = way.batch,
                     .size = *question.input,
                     .training = question.training,
                     .optimizer = question.reader.optimizer};
  const FpnPeak peak = fpn_peak(*question.backbone, step, true);
  way.bytes = peak.bytes;
  const std::uint64_t live = way.bytes.total();
  if (const auto percent = question.room.fragmentation_percent) {
    way.allocator = static_cast<std::uint64_t>(double(live) * *percent / 100);
    return;
  }
  const auto segments = question.reader.expandable ? TorchSegments::expandable : TorchSegments::native;
  const std::uint64_t taken = checked_sum(way.outside, way.spare);
  Reserved reserved{.peak = 0, .live = 0, .allocated = 0, .fits = false};
  if (way.fits()) reserved = reserved_by_replay(peak.events, segments, way.limit - taken);
  if (!reserved.fits) reserved = reserved_by_replay(peak.events, segments);
  way.allocator = reserved.peak - std::min(reserved.peak, live);
}

ImagesWay needs(const Question& question, ImagesWay way) {
  way.outside = checked_sum(question.room.context, question.room.workspace);
  way.spare = question.room.reserve;
  way.limit = question.room.memory;
  if (question.backbone) {
    follow(question, way);
    return way;
  }
  const nn::NetworkSpec& spec = *question.network;
  const nn::NetworkForm form{.activation_in_place = way.in_place, .recompute_norms = way.recomputed};
  const PeakBytes peak = question.training
                             ? nn::predict_training(spec, way.batch, *question.input, rule_of(question), form)
                             : nn::predict_inference(spec, way.batch, *question.input, form);
  way.bytes = peak.at_peak;
  return way;
}

std::optional<ImagesWay> largest(const Question& question, std::uint64_t most, ImagesWay way) {
  const auto fits = [&](std::uint64_t n) {
    try {
      ImagesWay other = way;
      other.batch = n;
      return needs(question, other).fits();
    } catch (const std::length_error&) {
      return false;
    }
  };
  way.batch = largest_that_fits(most, fits, [](std::uint64_t) { return true; });
  return way.batch ? std::optional(needs(question, way)) : std::nullopt;
}

class ImagesWords {
 public:
  ImagesWords(const Question& question, const ImagesAnswer& answer)
      : q_(question), a_(answer), say_{question.chinese} {}

  std::string first() const {
    const ImagesWay& is = a_.as_is;
    if (q_.largest) {
      if (!a_.largest) return say_("largest batch: none", "最大 batch：没有");
      return say_("largest batch: {} with {} of {} GiB", "最大 batch：{}，需 {} / {} GiB", a_.largest->batch,
                  gib(a_.largest->needed()), gib(is.limit));
    }
    if (is.fits())
      return say_("fits: {} of {} GiB in FP32, {}", "放得下：FP32，{2}，需 {0} / {1} GiB", gib(is.needed()),
                  gib(is.limit), task());
    std::string line = is.needed() > is.limit
                           ? say_("does not fit: {} GiB too many", "放不下：超出 {} GiB", gib(is.needed() - is.limit))
                           : say_("too close: {} of {} GiB", "太紧：需 {} / {} GiB", gib(is.needed()), gib(is.limit));
    if (!a_.changed) return line + say_("; smaller images, or a larger card", "；缩小图像，或更大的卡");
    return line + say_("; {} of {} GiB with {}", "；改动后需 {0} / {1} GiB：{2}", gib(a_.changed->needed()),
                       gib(is.limit), change());
  }

  std::string all() {
    std::string text = first() + "\n";
    const ImagesWay& is = a_.as_is;
    const nn::InputSize seen = q_.backbone ? q_.backbone->padded(*q_.input) : *q_.input;
    text += say_("({}, {} x {} x {} x {}, {}, on {})", "（{}，{} x {} x {} x {}，{}，{}）", one_line(q_.spec.name),
                 is.batch, q_.network ? q_.network->in_channels : q_.backbone->body.in_channels(), seen.height,
                 seen.width, task(), q_.card_named ? q_.card->title : gib(q_.room.memory) + " GiB") +
            "\n";
    for (std::size_t c = 0; c < kCategoryCount; ++c) row(text, words_of(Category(c), say_.chinese), is.bytes.bytes[c]);
    row(text, say_("allocator", "分配器"), is.allocator);
    row(text, say_("context, cuBLAS", "上下文、cuBLAS"), is.outside);
    text += "  " + padded(say_("needed", "共需"), 30) +
            say_("{:>10} to {} GiB", "{:>10} 至 {} GiB", gib(is.needed()), gib(checked_sum(is.needed(), is.spare))) +
            "\n";
    return text + (q_.backbone ? of_backbone() : of_network());
  }

 private:
  std::string of_network() const {
    return say_("planned for this course's own network (chapter 10), to the byte; PyTorch keeps the same maps",
                "按本课程自己的网络（第 10 章）规划，精确到字节；PyTorch 保存同样的特征图") +
           "\n" +
           say_("its cuDNN has workspaces beside them, which are not known. more: --json",
                "其 cuDNN 另有工作区，大小未知。更多：--json") +
           "\n";
  }
  std::string of_backbone() const {
    const nn::FpnBackbone& backbone = *q_.backbone;
    std::string text;
    if (q_.training)
      text += say_("torchvision's backbone with FPN: {} of {} stages are trained, norms are frozen",
                   "torchvision 的主干加 FPN：{1} 个阶段中训练 {0} 个，归一化冻结", backbone.trained_stages,
                   backbone.stages().size()) +
              "\n";
    return text +
           say_("not counted: RPN, heads of regions and masks, NMS, their losses; cuDNN's workspaces",
                "未计入、另外还要的：RPN、区域头和掩码头、NMS 及其损失；cuDNN 的工作区") +
           "\n" +
           say_("followed operator by operator, as PyTorch records itself on a CPU; allocator by replay. more: --json",
                "逐个算子推算，与 PyTorch 在 CPU 上自测一致；分配器按规则重放。更多：--json") +
           "\n";
  }
  std::string task() const { return q_.training ? say_("trained", "训练") : say_("run", "推理"); }
  std::string change() const {
    if (a_.changed->batch != a_.as_is.batch) return say_("a batch of {}", "每次 {} 张", a_.changed->batch);
    return a_.changed->recomputed ? say_("norms made again", "重算归一化")
                                  : say_("activations in place", "激活就地计算");
  }
  void row(std::string& text, const std::string& what, std::uint64_t bytes) const {
    if (bytes > 0) text += "  " + padded(what, 30) + fmt::format("{:>10} GiB\n", gib(bytes));
  }

  const Question& q_;
  const ImagesAnswer& a_;
  const Say say_;
};

void write(JsonWriter& json, const ImagesWay& way) {
  json.begin_object().member("batch", way.batch).member("live_bytes", way.bytes.total());
  json.member("allocator_bytes", way.allocator).member("outside_bytes", way.outside);
  json.member("device_bytes", way.needed()).member("fits", way.fits()).end_object();
}

}  // namespace

std::optional<nn::NetworkSpec> network_named(const std::string& name) {
  for (const char* const family : {"resnet", "mobilenet", "unet", "two-branch"})
    if (name.starts_with(family)) return nn::parse_network(name);
  return std::nullopt;
}

void read_images(Question& question) {
  require_of_network(question);
  if (!question.input) question.input = question.backbone ? nn::kDetectorInput : nn::InputSize{224, 224};
  const HfOptimizer optimizer = question.reader.optimizer;
  if (eight_bit(optimizer) || (question.backbone && optimizer == HfOptimizer::adafactor))
    throw UsageError(fmt::format("--optim {}: of {} AdamW{} and SGD with momentum are known", name_of(optimizer),
                                 one_line(question.spec.name), question.backbone ? "" : ", Adafactor"));
}

void require_input(const Question& question) {
  if (!question.input || question.network || question.backbone) return;
  if (question.pipeline) throw UsageError(fmt::format("--input: {} makes images; say --size", question.pipeline->name));
  const nn::HfShape& shape = *question.shape;
  if (shape.family != nn::HfFamily::vit)
    throw UsageError(fmt::format("--input: {} takes no images", one_line(shape.name)));
  // A row of its table of positions for each patch, and one more.
  std::uint64_t side = 0;
  while ((side + 1) * (side + 1) < shape.positions) ++side;
  side = checked_product(side, shape.patch);
  if (question.input->height != side || question.input->width != side)
    throw UsageError(fmt::format("--input {} x {}: {} has positions for {} x {} pixels only", question.input->height,
                                 question.input->width, one_line(shape.name), side, side));
}

std::uint64_t parameters_of_images(const Question& question) {
  return question.backbone ? question.backbone->parameters() : question.network->parameters();
}

ImagesAnswer answer_images(const Question& question) {
  const ImagesWay asked{.batch = question.batch};
  ImagesAnswer answer{.as_is = needs(question, asked)};
  if (question.largest) {
    answer.largest = largest(question, kMostImages, asked);
    return answer;
  }
  if (answer.as_is.fits()) return answer;
  if (question.training && question.network) {
    for (const bool recomputed : {false, true}) {
      const ImagesWay way = needs(question, {.batch = asked.batch, .in_place = true, .recomputed = recomputed});
      if (way.fits()) {
        answer.changed = way;
        return answer;
      }
    }
  }
  if (asked.batch > 1) answer.changed = largest(question, asked.batch - 1, asked);
  return answer;
}

std::string first_words(const Question& question, const ImagesAnswer& answer) {
  return ImagesWords(question, answer).all();
}
std::string first_line(const Question& question, const ImagesAnswer& answer) {
  return ImagesWords(question, answer).first();
}

void write(JsonWriter& json, const Question& question, const ImagesAnswer& answer) {
  json.begin_object().member("line", first_line(question, answer)).member("fits", answer.as_is.fits());
  json.key("as_is"), write(json, answer.as_is);
  const auto written = [&](const auto& way) { write(json, way); };
  json.member("changed", answer.changed, written).member("largest", answer.largest, written).end_object();
}

}  // namespace oomlab::fit
