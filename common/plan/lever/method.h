#pragma once
// What is trained (chapter 14; Hu et al., "LoRA", 2021; Dettmers et al., "QLoRA", 2023): a whole model, or adapters
// beside weights that no step changes.

#include <stdexcept>

#include "plan/lever/lever.h"
#include "plan/model/adapters.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kMethod{
    "method", "full, lora (adapters beside a frozen model) or qlora (that model in NF4)", "full lora qlora"};
inline constexpr Option<std::size_t> kRank{"rank", "Rank of the adapters", 1, 1 << 16};
inline constexpr Option<std::size_t> kAlpha{"alpha", "What adapters add is multiplied by alpha / rank", 1, 1 << 20};
inline constexpr Option<std::string> kTargets{
    "targets", "Matrices with adapters: all, attention, qv, or names with commas between them: q_proj,down_proj"};

inline constexpr Option<std::size_t> kDropout{"dropout", "Percent of the adapters' inputs that a training step drops",
                                              0, 99};

inline bool trains_adapters(const Levers& levers) { return levers.method != Method::full; }

/// Their scale is 2, whatever the rank, where no --alpha says another.
inline nn::AdapterForm adapters_of_rank(std::uint64_t rank, std::string targets = "all") {
  return {.rank = rank, .alpha = 2 * static_cast<float>(rank), .targets = std::move(targets)};
}

inline void read_method(const OptionValues& options, Levers& levers) {
  if (const auto name = options.find(kMethod)) levers.method = parse_method(*name);
  const nn::AdapterForm usual;
  const auto rank = options.find(kRank);
  const auto alpha = options.find(kAlpha);
  const auto targets = options.find(kTargets);
  const auto dropout = options.find(kDropout);
  if (!trains_adapters(levers)) {
    for (const char* name : {kRank.name, kAlpha.name, kTargets.name, kDropout.name})
      if (options.has(name)) throw UsageError(fmt::format("--{} is of adapters: give --method lora or qlora", name));
    return;
  }
  levers.adapters = adapters_of_rank(rank.value_or(usual.rank), targets.value_or(usual.targets));
  if (alpha) levers.adapters.alpha = static_cast<float>(*alpha);
  if (dropout) levers.adapters.dropout = static_cast<float>(*dropout) / 100;
}

inline std::string method_options(const Levers& levers) {
  if (!trains_adapters(levers)) return "";
  const nn::AdapterForm usual;
  std::string words = fmt::format("--method {}", name_of(levers.method));
  if (levers.adapters.rank != usual.rank) words += fmt::format(" --rank {}", levers.adapters.rank);
  if (levers.adapters.alpha != adapters_of_rank(levers.adapters.rank).alpha)
    words += fmt::format(" --alpha {:g}", levers.adapters.alpha);
  if (levers.adapters.targets != usual.targets) words += fmt::format(" --targets {}", levers.adapters.targets);
  if (levers.adapters.dropout != 0) words += fmt::format(" --dropout {:.0f}", 100 * levers.adapters.dropout);
  return words;
}

inline std::string method_refuses(const Work& work, const Levers& levers) {
  if (!trains_adapters(levers)) return "";
  try {
    nn::require_adapters(work.spec, levers.adapters);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  if (levers.optimizer.wide_embeddings)
    return fmt::format("--wide-embeddings is about moments of embeddings, which --method {} does not train",
                       name_of(levers.method));
  return "";
}

inline void method_elsewhere(const Work& work, const Levers& levers, Elsewhere& words) {
  if (!trains_adapters(levers)) return;
  const bool four_bits = levers.method == Method::qlora;
  if (four_bits) {
    words.in_pytorch(
        "bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=True, "
        "bnb_4bit_compute_dtype=torch.{})",
        torch_word(levers.precision));
    words.in_pytorch("model = from_pretrained(…, quantization_config=bits)");
  }
  std::string targets = "\"all-linear\"";
  if (levers.adapters.targets != "all") {
    targets.clear();
    for (const nn::AdapterSlot& slot : nn::adapter_slots(work.spec, levers.adapters.targets)) {
      targets += fmt::format("{}\"{}\"", targets.empty() ? "[" : ", ", slot.name);
      if (std::string_view(slot.path).empty())
        words.nowhere("adapters of {} alone: in GPT-2's files Q, K and V are one matrix, c_attn", slot.name);
    }
    targets += "]";
  }
  std::string config = fmt::format("LoraConfig(r={}, lora_alpha={:g}, target_modules={}", levers.adapters.rank,
                                   levers.adapters.alpha, targets);
  if (levers.adapters.dropout != 0) config += fmt::format(", lora_dropout={:g}", levers.adapters.dropout);
  config += ")";
  words.in_pytorch("model = get_peft_model(model, {})  # peft", config);
  words.in_trainer("(SFTTrainer) peft_config={}", config);
}

inline const Lever& method() {
  static const Lever lever{
      .name = "method",
      .chapter = "14_adapters",
      .changes = Lever::Changes::state,
      .options = {kMethod, kRank, kAlpha, kTargets, kDropout},
      .read = read_method,
      .options_of = method_options,
      .differs = [](const Levers& a, const Levers& b) { return a.method != b.method || !(a.adapters == b.adapters); },
      .take =
          [](const Levers& target, Levers& levers) {
            levers.method = target.method;
            levers.adapters = target.adapters;
          },
      .tries =
          [](const Reach&) {
            std::vector<Levers> all(1);
            for (const auto& [method, adapters] :
                 {std::pair(Method::lora, adapters_of_rank(16)), std::pair(Method::lora, adapters_of_rank(4, "qv")),
                  std::pair(Method::qlora, adapters_of_rank(16))}) {
              all.emplace_back().method = method;
              all.back().adapters = adapters;
            }
            return all;
          },
      .refuses = method_refuses,
      .numbers =
          [](const Work&, const Levers& levers) {
            return trains_adapters(levers) ? Numbers{Numbers::Change::adapters, "adapters are trained"} : Numbers{};
          },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            if (!trains_adapters(levers)) return;
            step.trained = nn::Trained::adapters;
            step.adapters = levers.adapters;
            if (levers.method == Method::qlora) step.base.scheme = quantised::Scheme::nf4;
          },
      .elsewhere = method_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
