#pragma once
// Precision (chapter 03): bytes of an element. FP16 has a loss scale.

#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr NameList kModelDTypeWords = names_of(kModelDTypes, " ", " ");
inline constexpr NameList kModelDTypeChoice = names_of(kModelDTypes, ", ", " or ");
inline constexpr Option<std::string> kPrecision{"precision", kModelDTypeChoice.text, kModelDTypeWords.text};

inline std::string precision_refuses(const Work&, const Levers& levers) {
  if (levers.precision != DType::fp16 || levers.optimizer.weights != nn::WeightForm::stochastic) return "";
  return "--weight-update stochastic carries into the lower half of a float, which is what BF16 leaves out; take bf16";
}

inline void precision_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (levers.precision == DType::fp32) return;
  const char* const name = name_of(levers.precision);
  const char* const torch = torch_word(levers.precision);
  if (levers.optimizer.weights != nn::WeightForm::master) {
    words.in_pytorch("model = model.to(torch.{})", torch);
    words.in_trainer("{}=False, and from_pretrained(…, dtype=torch.{})", name, torch);
    words.nowhere("DeepSpeed's {} has an FP32 master copy; here there is none", name);
    return;
  }
  words.in_pytorch("with torch.autocast(\"cuda\", torch.{}): loss = …", torch);
  if (levers.precision == DType::fp16)
    words.in_pytorch("scaler = torch.amp.GradScaler(\"cuda\")  # scale(loss).backward(), step(optimizer), update()");
  words.in_trainer("{}=True", name);
  words.in_deepspeed("\"{}\": {{\"enabled\": true}}", name);
  words.nowhere(
      "autocast keeps FP32 weights and gradients, and copies of 16 bits while they are needed; here, as in DeepSpeed, "
      "weights and gradients have 16 bits beside an FP32 master copy");
}

inline const Lever& precision() {
  static const Lever lever{
      .name = "precision",
      .chapter = "03_mixed_precision",
      .changes = Lever::Changes::state,
      .options = {kPrecision},
      .words = {{"precision", [](const Levers& l) { return l.precision != DType::fp32; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (const auto name = options.find(kPrecision)) levers.precision = parse_dtype(*name);
            levers.optimizer.weights = usual_weights(levers.precision);
          },
      .options_of = [](const Levers& levers) { return fmt::format("--precision {}", name_of(levers.precision)); },
      .differs = [](const Levers& a, const Levers& b) { return a.precision != b.precision; },
      .take =
          [](const Levers& target, Levers& levers) {
            levers.precision = target.precision;
            levers.optimizer.weights = usual_weights(target.precision);
          },
      .tries =
          [](const Reach&) {
            return each_of(kModelDTypes, [](Levers& levers, DType dtype) { levers.precision = dtype; });
          },
      .refuses = precision_refuses,
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.precision == DType::fp32 ? Numbers{}
                                                   : Numbers{Numbers::Change::fewer_bits, "weights of 16 bits"};
          },
      .apply =
          [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
            step.element_bytes = element_bytes(levers);
            step.loss_scale = levers.precision == DType::fp16;
          },
      .elsewhere = precision_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
