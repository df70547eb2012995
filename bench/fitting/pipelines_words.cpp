// The first lines of an answer about a pipeline that makes images, in English and in Chinese; and the same as JSON.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "plan/json_writer.h"
#include "question.h"
#include "reader.h"
#include "words.h"

namespace oomlab::fit {

namespace {

/// What a lever costs, and what does the same in ComfyUI and in AUTOMATIC1111's web UI.
struct LeverWords {
  PipelineLever lever;
  const char *costs, *costs_zh;
  const char *comfyui, *comfyui_zh;
  const char *a1111, *a1111_zh;
};
constexpr LeverWords kLeverWords[] = {
    {PipelineLever::vae_slicing, "images one after the other: nothing", "逐张解码，没有代价", "batches of 1",
     "batch 设为 1", "by itself", "自动如此"},
    {PipelineLever::sdpa, "nothing: the default since PyTorch 2", "没有代价：PyTorch 2 起的默认",
     "--use-pytorch-cross-attention", "--use-pytorch-cross-attention", "--opt-sdp-attention", "--opt-sdp-attention"},
    {PipelineLever::vae_half, "values differ in rounding", "数值只差舍入误差", "--fp16-vae, with that VAE",
     "--fp16-vae，用这个 VAE", "that VAE", "换成这个 VAE"},
    {PipelineLever::model_cpu, "{1} GiB in host memory, {0} over the bus a call",
     "主机内存 {1} GiB，每次调用经总线搬运 {0} GiB", "by itself", "自动如此", "--medvram", "--medvram"},
    {PipelineLever::two_passes, "the denoiser runs twice a step, for half the batch",
     "去噪器每步运行两遍，每遍半个 batch", "by itself where memory is short", "显存不足时自动如此",
     "by itself with --medvram", "用 --medvram 时自动如此"},
    {PipelineLever::vae_tiling, "tiles are blended: colours may differ between them", "分块后混合，块间颜色可能不同",
     "the node VAE Decode (Tiled)", "节点 VAE Decode (Tiled)", "the extension Tiled VAE", "扩展 Tiled VAE"},
    {PipelineLever::attention_slicing, "attention in parts, which takes longer", "注意力分几部分算，更慢",
     "--use-split-cross-attention", "--use-split-cross-attention", "--opt-split-attention", "--opt-split-attention"},
    {PipelineLever::t5_eight_bits, "other images, little: T5's linear layers", "图像略变：T5 的线性层用 8 位",
     "t5xxl_fp8_e4m3fn", "t5xxl_fp8_e4m3fn", "no counterpart", "没有对应的"},
    {PipelineLever::t5_four_bits, "other images: T5's linear layers in NF4", "图像会变：T5 的线性层用 NF4",
     "a GGUF of T5 (ComfyUI-GGUF)", "T5 的 GGUF（ComfyUI-GGUF）", "no counterpart", "没有对应的"},
    {PipelineLever::eight_bits, "other images, and slower: the denoiser's linear layers",
     "图像会变，也更慢：去噪器的线性层用 8 位", "--fp8_e4m3fn-unet", "--fp8_e4m3fn-unet", "FP8 weight, in its settings",
     "设置里的 FP8 weight"},
    {PipelineLever::four_bits, "other images: the denoiser's linear layers in NF4", "图像会变：去噪器的线性层用 NF4",
     "a GGUF of 4 bits (ComfyUI-GGUF)", "4 位的 GGUF（ComfyUI-GGUF）", "no counterpart", "没有对应的"},
    {PipelineLever::sequential_cpu, "slow: {1} GiB in host memory, {0} over the bus a call",
     "慢：主机内存 {1} GiB，每次调用经总线搬运 {0} GiB", "--novram", "--novram", "--lowvram", "--lowvram"},
};
const LeverWords& words_of(PipelineLever lever) { return *std::ranges::find(kLeverWords, lever, &LeverWords::lever); }
std::string costs_of(const PipelineWay& way, PipelineLever lever, bool chinese) {
  const LeverWords& words = words_of(lever);
  return Say{chinese}(words.costs, words.costs_zh, gib(way.cost.bus_bytes), gib(way.cost.host));
}
std::string torch_type(DType dtype) { return std::string("torch.") + torch_word(dtype); }

/// What switches a lever on. Pipelines had enable_vae_slicing() and enable_vae_tiling() of their own up to diffusers 0.39;
/// the autoencoder's work in all versions.
const char* call_of(PipelineLever lever) {
  if (lever == PipelineLever::vae_slicing) return "vae.enable_slicing";
  if (lever == PipelineLever::vae_tiling) return "vae.enable_tiling";
  return name_of(lever);
}

/// What to write with diffusers, for one way, in words that 0.36 and 0.42 have. torch_dtype is called dtype from 0.40 on,
/// and is taken until 1.0; older releases do not know the new word. Nothing of it is run here.
class Diffusers {
 public:
  Diffusers(const Question& question, const PipelineWay& way) : q_(question), way_(way) {}

  std::vector<std::string> lines() const {
    using enum PipelineLever;
    std::vector<std::string> all;
    std::string more;
    if (way_.has(vae_half)) {
      all.push_back(
          fmt::format(R"(vae = AutoencoderKL.from_pretrained("madebyollin/sdxl-vae-fp16-fix", torch_dtype={}))",
                      torch_type(way_.dtype)));
      more += ", vae=vae";
    }
    if (const std::string coded = coded_components(); !coded.empty()) {
      const int bits = way_.has(four_bits) || way_.has(t5_four_bits) ? 4 : 8;
      const std::string config = fmt::format("bits = PipelineQuantizationConfig(\"bitsandbytes_{}bit\",", bits),
                        components = fmt::format(" components_to_quantize=[{}],", coded);
      const bool one_line = config.size() + components.size() < kMostColumns;
      all.push_back(one_line ? config + components : config);
      if (!one_line) all.push_back("   " + components);
      std::string arguments = fmt::format("    quant_kwargs={{\"load_in_{}bit\": True", bits);
      if (bits == 4) arguments += R"(, "bnb_4bit_quant_type": "nf4")";
      all.push_back(arguments + "})");
      more += ", quantization_config=bits";
    }
    all.push_back(fmt::format("pipe = {}.from_pretrained(\"{}\",", q_.called->type, q_.called->repository));
    all.push_back(fmt::format("    torch_dtype={}{})", torch_type(way_.dtype), more));
    if (!way_.has(model_cpu) && !way_.has(sequential_cpu)) all.push_back(R"(pipe.to("cuda"))");
    if (q_.reader.eager_attention && !way_.has(sdpa)) all.push_back("pipe.unet.set_default_attn_processor()");
    std::vector<std::string> calls;
    for (const PipelineLever lever : {model_cpu, sequential_cpu, vae_slicing, vae_tiling, attention_slicing})
      if (way_.has(lever)) calls.push_back(fmt::format("pipe.{}()", call_of(lever)));
    if (calls.size() > 2) calls = {fmt::format("{}", fmt::join(calls, "; "))};  // so that all have room
    all.insert(all.end(), calls.begin(), calls.end());
    std::string call = fmt::format("pipe(prompt, height={0}, width={0}", way_.size);
    if (way_.batch > 1) call += fmt::format(", num_images_per_prompt={}", way_.batch);
    all.push_back(call + ").images");
    return all;
  }

 private:
  std::string coded_components() const {
    using enum PipelineLever;
    std::string names;
    if (way_.has(eight_bits) || way_.has(four_bits)) names = q_.pipeline->flux() ? "\"transformer\"" : "\"unet\"";
    if (way_.has(t5_eight_bits) || way_.has(t5_four_bits))
      names += names.empty() ? "\"text_encoder_2\"" : ", \"text_encoder_2\"";
    return names;
  }
  const Question& q_;
  const PipelineWay& way_;
};

class PipelineWords {
 public:
  PipelineWords(const Question& question, const PipelineAnswer& answer)
      : q_(question), a_(answer), say_{question.chinese} {}

  std::string first() const {
    const PipelineWay& is = a_.as_is;
    if (q_.largest) {
      const char* const what = *q_.largest == Largest::batch ? say_.chinese ? " batch" : "batch"
                               : say_.chinese                ? "尺寸"
                                                             : "size";
      if (!a_.largest) return say_("largest {}: none", "最大{}：没有", what);
      const PipelineWay& most = *a_.largest;
      return say_("largest {}: {} with {} of {} GiB", "最大{}：{}，需 {} / {} GiB", what,
                  *q_.largest == Largest::batch ? std::to_string(most.batch) : fmt::format("{0} x {0}", most.size),
                  gib(most.needed()), gib(is.limit));
    }
    if (is.fits())
      return say_("fits: {} of {} GiB in {}, at the fullest in the {}", "放得下：{2}，需 {0} / {1} GiB，峰值在{3}",
                  gib(is.needed()), gib(is.limit), upper_case(is.dtype), fullest(is));
    std::string line = is.needed() > is.limit
                           ? say_("does not fit: {} GiB too many", "放不下：超出 {} GiB", gib(is.needed() - is.limit))
                           : say_("too close: {} of {} GiB", "太紧：需 {} / {} GiB", gib(is.needed()), gib(is.limit));
    if (a_.changed) {
      const std::string with = line + say_("; {} of {} GiB with {}", "；改动后需 {0} / {1} GiB：{2}",
                                           gib(a_.changed->needed()), gib(is.limit), changes(*a_.changed));
      if (columns_of(with) <= kMostColumns) return with;
      return line + say_("; {} of {} GiB with {} changes", "；改 {2} 处后需 {0} / {1} GiB", gib(a_.changed->needed()),
                         gib(is.limit), added(*a_.changed).size());
    }
    if (!a_.smallest) return line + say_("; nothing is left to switch on", "；能打开的都已打开");
    return line + say_("; nothing here makes it fit, the least is {} GiB", "；怎么改都放不下，最少也要 {} GiB",
                       gib(a_.smallest->needed()));
  }

  std::string all() {
    lines_ = {first()};
    title();
    table();
    changed();
    code();
    elsewhere();
    footer();
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

  /// What a way has that the one that was asked for has not, the cheapest first.
  std::vector<PipelineLever> added(const PipelineWay& way) const {
    std::vector<PipelineLever> levers;
    std::ranges::copy_if(way.levers, std::back_inserter(levers), [&](PipelineLever l) { return !a_.as_is.has(l); });
    return levers;
  }

 private:
  const char* fullest(const PipelineWay& way) const {
    const image::DiffusersPeaks& peaks = way.peaks;
    if (peaks.decoder.total() == way.live()) return say_.chinese ? "解码器" : "decoder";
    if (peaks.denoiser.total() == way.live()) return say_.chinese ? "去噪器" : "denoiser";
    return say_.chinese ? "文本编码器" : "text encoders";
  }
  std::string changes(const PipelineWay& way) const {
    std::string text;
    for (const PipelineLever lever : added(way)) text += (text.empty() ? "" : say_(" and ", "、")) + name(lever);
    return text;
  }
  std::string name(PipelineLever lever) const {
    switch (lever) {
      case PipelineLever::two_passes: return say_("guidance in two passes", "分两遍做引导");
      case PipelineLever::t5_eight_bits: return say_("T5 in 8 bits", "8 位的 T5");
      case PipelineLever::t5_four_bits: return say_("T5 in 4 bits", "4 位的 T5");
      case PipelineLever::eight_bits: return say_("8-bit weights", "8 位权重");
      case PipelineLever::four_bits: return say_("4-bit weights", "4 位权重");
      default: return name_of(lever);
    }
  }
  void title() {
    push(say_("({}, {} x {} x {} pixels, {}, on {})", "（{}，{} x {} x {} 像素，{}，{}）", q_.pipeline->title,
              a_.as_is.batch, a_.as_is.size, a_.as_is.size, upper_case(a_.as_is.dtype),
              q_.card_named ? q_.card->title : gib(q_.room.memory) + " GiB"));
    for (const PipelineLever lever : a_.as_is.levers) push(say_("  with {}", "  已打开 {}", name(lever)));
    if (!q_.other_cards.empty()) push(say_("(other cards by that name: {})", "（同名的还有：{}）", q_.other_cards));
    if (a_.as_is.dtype == DType::fp16 && q_.pipeline->flux())
      push(say_("(Flux was trained in BF16; in FP16 its values may overflow)",
                "（Flux 是用 BF16 训练的，用 FP16 时数值可能溢出）"));
  }
  std::vector<const PipelineWay*> ways() const {
    std::vector<const PipelineWay*> all{&a_.as_is};
    for (const auto* const way : {&a_.changed, &a_.smallest, &a_.largest})
      if (*way) all.push_back(&**way);
    return all;
  }
  template <class Of>
  void row(const std::string& what, const Of& of) {
    std::string line = "  " + padded(what, 32);
    for (const PipelineWay* const way : ways()) line += fmt::format("{:>12}", of(*way));
    push(line);
  }
  void table() {
    std::string head = padded("  GiB", 34);
    const auto column = [&](const std::string& text) {
      head += std::string(12 - std::min<std::size_t>(12, columns_of(text)), ' ') + text;
    };
    column(say_("as it is", "现状"));
    if (a_.changed) column(say_("changed", "改动后"));
    if (a_.smallest) column(say_("the least", "最少"));
    if (a_.largest) column(say_("the largest", "最大"));
    push(head);
    using Peaks = image::DiffusersPeaks;
    const auto stage = [](const image::DiffusersStage Peaks::*one) {
      return [one](const PipelineWay& way) { return gib((way.peaks.*one).total()); };
    };
    row(say_("text encoders", "文本编码器"), stage(&Peaks::text));
    row(say_("denoiser", "去噪器"), stage(&Peaks::denoiser));
    row(say_("decoder", "解码器"), stage(&Peaks::decoder));
    row(say_("weights in the fullest stage", "峰值阶段的权重"),
        [](const PipelineWay& way) { return gib(way.peaks.fullest().weights); });
    row(say_("context, allocator", "上下文、分配器"),
        [](const PipelineWay& way) { return gib(checked_sum(way.outside, way.allocator)); });
    row(say_("needed", "共需"), [](const PipelineWay& way) { return gib(way.needed()); });
    row(say_("left of {}", "还剩（共 {}）", gib(a_.as_is.limit)),
        [](const PipelineWay& way) { return gib(double(way.limit) - double(way.needed())); });
  }
  void changed() {
    if (!a_.changed) return;
    for (const PipelineLever lever : added(*a_.changed))
      push(say_("change: {} ({})", "改动：{}（{}）", name(lever), costs_of(*a_.changed, lever, say_.chinese)));
  }
  const PipelineWay& chosen() const {
    return a_.changed ? *a_.changed : a_.largest ? *a_.largest : a_.smallest ? *a_.smallest : a_.as_is;
  }
  void code() {
    push(say_("write (diffusers):", "写法（diffusers）："));
    for (const std::string& line : Diffusers(q_, chosen()).lines()) push("  " + line);
    if (chosen().has(PipelineLever::two_passes))
      push(say_("  (two passes: the pipelines have no switch, Modular Diffusers' guiders run so)",
                "  （分两遍做引导：流水线没有开关，Modular Diffusers 的 guider 就是这样运行的）"));
  }
  void elsewhere() {
    for (const PipelineLever lever : chosen().levers) {
      if (lines_.size() + kFooter >= kMostLines) return;  // all are in the JSON
      const LeverWords& words = words_of(lever);
      push(say_("  {}: ComfyUI {}; A1111 {}", "  {}：ComfyUI {}；A1111 {}", name(lever),
                say_.chinese ? words.comfyui_zh : words.comfyui, say_.chinese ? words.a1111_zh : words.a1111));
    }
  }
  static constexpr std::size_t kFooter = 2;
  void footer() {
    push(say_("assumed: cuDNN's workspaces in the decoder; left out: the scheduler's tensors",
              "假定的：解码器中 cuDNN 的工作区；未计入：调度器的张量"));
    if (q_.pipeline->flux())
      push(say_("Flux's transformer and T5 are read in the libraries' sources, and nowhere run. more: --json",
                "Flux 的 transformer 和 T5 只读过两个库的源码，没有运行过。更多：--json"));
    else
      push(say_("read in diffusers' sources; a small U-Net and decoder were measured. more: --json",
                "读自 diffusers 的源码；小的 U-Net 和解码器测量过。更多：--json"));
  }
  void push(std::string line) { lines_.push_back(std::move(line)); }

  const Question& q_;
  const PipelineAnswer& a_;
  const Say say_;
  std::vector<std::string> lines_;
};

void write(JsonWriter& json, const Question& question, const PipelineAnswer& answer, const PipelineWay& way) {
  const PipelineWords words(question, answer);
  json.begin_object().member("batch", way.batch).member("size", way.size).member("precision", name_of(way.dtype));
  json.key("with").begin_array();
  for (const PipelineLever lever : way.levers) json.value(name_of(lever));
  json.end_array().key("stages").begin_object();
  json.member("text_encoders_bytes", way.peaks.text.total()).member("denoiser_bytes", way.peaks.denoiser.total());
  json.member("decoder_bytes", way.peaks.decoder.total()).end_object();
  json.key("bytes").begin_object();
  const ByCategory bytes = way.bytes();
  for (std::size_t c = 0; c < kCategoryCount; ++c) json.member(name_of(Category(c)), bytes.bytes[c]);
  json.end_object();
  json.member("live_bytes", way.live()).member("allocator_bytes", way.allocator);
  json.member("outside_bytes", way.outside).member("device_bytes", way.needed()).member("spare_bytes", way.spare);
  json.member("host_bytes", way.cost.host).member("bus_bytes", way.cost.bus_bytes).member("fits", way.fits());
  json.key("changes").begin_array();
  for (const PipelineLever lever : words.added(way)) {
    const LeverWords& row = words_of(lever);
    json.begin_object().member("what", name_of(lever)).member("costs", costs_of(way, lever, question.chinese));
    json.member("comfyui", question.chinese ? row.comfyui_zh : row.comfyui);
    json.member("a1111", question.chinese ? row.a1111_zh : row.a1111).end_object();
  }
  json.end_array().key("write").begin_array();
  for (const std::string& line : Diffusers(question, way).lines()) json.value(line);
  json.end_array().end_object();
}

}  // namespace

std::string first_words(const Question& question, const PipelineAnswer& answer) {
  return PipelineWords(question, answer).all();
}
std::string first_line(const Question& question, const PipelineAnswer& answer) {
  return PipelineWords(question, answer).first();
}

void write(JsonWriter& json, const Question& question, const PipelineAnswer& answer) {
  json.begin_object().member("line", first_line(question, answer)).member("fits", answer.as_is.fits());
  const auto written = [&](const PipelineWay& way) { write(json, question, answer, way); };
  json.key("as_is"), written(answer.as_is);
  json.member("changed", answer.changed, written).member("smallest", answer.smallest, written);
  json.member("largest", answer.largest, written).end_object();
}

}  // namespace oomlab::fit
