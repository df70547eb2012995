// What to write for one way to train: the Trainer's, TRL's, DeepSpeed's or torchtune's words. Names are those of
// transformers 5, peft 0.18, TRL 0.25, DeepSpeed 0.18 and torchtune 0.6. Nothing of them is run here.

#include <fmt/format.h>

#include <utility>

#include "question.h"
#include "reader.h"

namespace oomlab::fit {

namespace {

// As from_pretrained() takes it.
std::string model_words(const Question& question) {
  const bool hub = question.shape->name.find('/') != std::string::npos && question.model.starts_with("--model");
  return hub ? "\"" + question.shape->name + "\"" : "\"your/model\"";
}

const char* class_of(const Question& question) {
  if (question.shape->family == nn::HfFamily::bert) return "AutoModelForMaskedLM";
  if (question.shape->family == nn::HfFamily::vit) return "AutoModelForImageClassification";
  return "AutoModelForCausalLM";
}

std::string torch_name(DType dtype) { return std::string("torch.") + row_of(dtype).torch; }

std::string lora_config(const Way& way) {
  return fmt::format("LoraConfig(r={}, target_modules=\"all-linear\")", way.step.lora->rank);
}

class Code {
 public:
  Code(const Question& question, const Way& way, Framework framework)
      : question_(question), way_(way), step_(way.step), framework_(framework) {}

  std::vector<std::string> lines() {
    launch();
    if (tensor()) {
      tensor_parallel();
      return lines_;
    }
    switch (framework_) {
      case Framework::trainer: trainer(); break;
      case Framework::trl: trl(); break;
      case Framework::deepspeed: deepspeed(); break;
      case Framework::torchtune: torchtune(); break;
    }
    return lines_;
  }

 private:
  template <class... T>
  void say(fmt::format_string<T...> text, T&&... values) {
    lines_.push_back(fmt::format(text, std::forward<T>(values)...));
  }
  // On a line of its own where it is too long.
  void say_long(const std::string& head, const std::string& tail) {
    if (head.size() + tail.size() + 2 <= kMostColumns) {
      lines_.push_back(head + tail);
      return;
    }
    lines_.push_back(head);
    lines_.push_back("    " + tail);
  }
  // "bf16=True, " and what belongs to it.
  std::string precision() const { return half() ? fmt::format("{}=True, ", name_of(*half())) : std::string(); }
  std::string attention() const { return step_.eager_attention ? ", attn_implementation=\"eager\"" : ""; }

  bool tensor() const { return step_.ranks && step_.ranks->parallel == HfParallel::tensor; }
  bool fsdp() const { return step_.ranks && step_.ranks->parallel == HfParallel::fsdp2; }
  bool zero() const { return step_.ranks && is_zero(step_.ranks->parallel); }
  int stage() const { return zero() ? 1 + int(step_.ranks->parallel) - int(HfParallel::zero1) : fsdp() ? 3 : 0; }
  // In which 16 bits it computes.
  std::optional<DType> half() const {
    if (step_.autocast) return step_.autocast;
    return zero() && step_.weights != DType::fp32 ? std::optional(step_.weights) : std::nullopt;
  }
  // What starts the program, where that is not python alone.
  void launch() {
    if (framework_ == Framework::torchtune && !tensor()) return;
    std::string line = way_.expandable ? "PYTORCH_ALLOC_CONF=expandable_segments:True " : "";
    if (line.empty() && !step_.ranks) return;
    line += step_.ranks ? fmt::format("torchrun --nproc-per-node {} train.py", nodes(step_.ranks->count).first)
                        : "python train.py";
    if (step_.ranks && nodes(step_.ranks->count).second > 1)
      line += fmt::format("  # on each of {} nodes", nodes(step_.ranks->count).second);
    lines_.push_back("$ " + line);
  }
  // Cards of a node, and nodes.
  static std::pair<std::uint64_t, std::uint64_t> nodes(std::uint64_t cards) {
    constexpr std::uint64_t kCardsOfANode = 8;
    if (cards <= kCardsOfANode || cards % kCardsOfANode != 0) return {cards, 1};
    return {kCardsOfANode, cards / kCardsOfANode};
  }

  void four_bits() {
    const std::string compute = torch_name(step_.autocast.value_or(DType::fp32));
    say("four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\",");
    if (fsdp()) say("    bnb_4bit_quant_storage={},  # what FSDP divides", compute);
    say("    bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype={})", compute);
  }
  void arguments(const char* kind) {
    say("{}(per_device_train_batch_size={}, gradient_accumulation_steps={},", kind, step_.batch, step_.micro_batches);
    rest_of_arguments();
  }
  void rest_of_arguments() {
    say("    {}gradient_checkpointing={}, {}optim=\"{}\"{}", precision(), step_.checkpoint ? "True" : "False",
        step_.loss == HfLoss::liger ? "use_liger_kernel=True, " : "", name_of(step_.optimizer),
        fsdp() || zero() ? "," : ", ...)");
    if (zero()) {
      say("    deepspeed=\"ds.json\", ...)");
      configuration();
    }
    if (fsdp()) say("    fsdp=True, fsdp_config={{\"version\": 2}}, ...)  # transformers 5.10 or newer");
  }

  void model() {
    const std::string name = model_words(question_);
    if (way_.method == Method::qlora) {
      four_bits();
      say_long(fmt::format("model = {}.from_pretrained(", class_of(question_)),
               fmt::format("{}, quantization_config=four_bits{})", name, attention()));
      if (fsdp()) {
        say("model = get_peft_model(model, {})", lora_config(way_));
        return;
      }
      say("model = get_peft_model(prepare_model_for_kbit_training(model),");
      say("    {})", lora_config(way_));
      return;
    }
    say_long(fmt::format("model = {}.from_pretrained(", class_of(question_)),
             fmt::format("{}, dtype={}{})", name, torch_name(step_.weights), attention()));
    if (step_.lora) say("model = get_peft_model(model, {})", lora_config(way_));
  }
  void trainer() {
    model();
    arguments("TrainingArguments");
  }

  // Two groups, because no list of foreach or fused holds DTensors and plain tensors.
  void tensor_parallel() {
    model();
    say("mesh = init_device_mesh(\"cuda\", ({},))", step_.ranks->count);
    say("parallelize_module(model, mesh, {{\"model.layers.*.self_attn.[qkv]_proj\": ColwiseParallel(),");
    say("    \"model.layers.*.mlp.[gu]*_proj\": ColwiseParallel(), \"model.layers.*.*.[od]*_proj\": "
        "RowwiseParallel(){}",
        question_.shape->tied ? "})" : ",");
    if (!question_.shape->tied) say("    \"lm_head\": ColwiseParallel(output_layouts=Replicate())}})");
    if (step_.checkpoint) say("model.gradient_checkpointing_enable()");
    say("whole = [p for p in model.parameters() if not isinstance(p, DTensor)]  # a group, DTensors another");
  }

  void trl() {
    std::string init = fmt::format("{{\"dtype\": {}}}", torch_name(step_.weights));
    if (way_.method == Method::qlora) {
      four_bits();
      init = "{\"quantization_config\": four_bits}";
    }
    say("args = SFTConfig(max_length={}, model_init_kwargs={},", step_.seq, init);
    say("    per_device_train_batch_size={}, gradient_accumulation_steps={},", step_.batch, step_.micro_batches);
    rest_of_arguments();
    say_long(fmt::format("SFTTrainer({}, ", model_words(question_)),
             fmt::format("args=args, train_dataset=...{}", step_.lora ? "," : ")"));
    if (step_.lora) say("    peft_config={})", lora_config(way_));
  }

  void deepspeed() {
    say("# the model as --framework trainer has it");
    say("TrainingArguments(deepspeed=\"ds.json\", {}gradient_checkpointing={},", precision(),
        step_.checkpoint ? "True" : "False");
    say("    per_device_train_batch_size={}, gradient_accumulation_steps={},", step_.batch, step_.micro_batches);
    say("    optim=\"{}\", ...)", name_of(step_.optimizer));
    configuration();
  }
  void configuration() {
    const std::string words = half() ? fmt::format("\"{}\": {{\"enabled\": true}}, ", name_of(*half())) : "";
    const bool optimizer = zero() && step_.ranks->offload_optimizer,
               weights = zero() && step_.ranks->offload_parameters;
    say("ds.json: {{{}\"train_micro_batch_size_per_gpu\": \"auto\",", words);
    say("    \"zero_optimization\": {{\"stage\": {}{}{}", stage(),
        optimizer ? ", \"offload_optimizer\": {\"device\": \"cpu\"}" : "", weights ? "," : "}}");
    if (weights) say("        \"offload_param\": {{\"device\": \"cpu\"}}}}}}");
  }

  void torchtune() {
    const bool lora = step_.lora.has_value();
    const std::string kind = lora ? "lora_finetune" : "full_finetune";
    if (step_.ranks)
      say("tune run --nproc_per_node {} {}_distributed --config YOUR.yaml \\", nodes(step_.ranks->count).first, kind);
    else
      say("tune run {}_single_device --config YOUR.yaml \\", kind);
    say("    batch_size={} gradient_accumulation_steps={} tokenizer.max_seq_len={} \\", step_.batch,
        step_.micro_batches, step_.seq);
    const char* const optimizer = step_.optimizer == HfOptimizer::adamw_8bit    ? "bitsandbytes.optim.AdamW8bit"
                                  : step_.optimizer == HfOptimizer::adamw_paged ? "bitsandbytes.optim.PagedAdamW8bit"
                                                                                : "torch.optim.AdamW";
    say("    enable_activation_checkpointing={} dtype={} \\", step_.checkpoint ? "True" : "False",
        name_of(step_.weights == DType::fp32 ? DType::fp32 : DType::bf16));
    say("    optimizer._component_={}{}", optimizer, lora ? " \\" : "");
    if (lora) say("    model.lora_rank={}  # a qlora_ model for 4 bits", step_.lora->rank);
  }

  const Question& question_;
  const Way& way_;
  const HfStep& step_;
  Framework framework_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> code_of(const Question& question, const Way& way, Framework framework) {
  return Code(question, way, framework).lines();
}

}  // namespace oomlab::fit
