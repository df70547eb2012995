#pragma once
// The form of attention (chapter 08): scores that are never there as a whole.

#include "plan/attention.h"
#include "plan/lever/lever.h"

namespace oomlab::plan::lever {

inline constexpr Option<std::string> kAttention{"attention", "textbook, tiled or fused", "textbook tiled fused"};

inline std::string attention_refuses(const Work& work, const Levers& levers) {
  if (levers.attention != nn::AttentionForm::fused || work.spec.depth() <= nn::kFusedDepth) return "";
  return fmt::format("--attention fused takes heads of up to {} values; those of model '{}' have {}", nn::kFusedDepth,
                     work.spec.name, work.spec.depth());
}

inline void attention_elsewhere(const Work& work, const Levers& levers, Elsewhere& words) {
  words.in_pytorch("y = F.scaled_dot_product_attention(q, k, v, is_causal={})", work.spec.bert() ? "False" : "True");
  words.in_trainer("(model) attn_implementation=\"sdpa\"  # the default");
  if (levers.attention == nn::AttentionForm::textbook)
    words.nowhere(
        "the textbook's attention, which keeps its scores: scaled_dot_product_attention, the default, keeps none and "
        "is no slower, so there is no reason to write the textbook's");
  if (levers.attention == nn::AttentionForm::tiled)
    words.nowhere("attention by tiles of several kernels: the nearest is scaled_dot_product_attention, one kernel");
}

inline const Lever& attention() {
  using nn::AttentionForm;
  static const Lever lever{
      .name = "attention",
      .chapter = "08_attention_and_loss",
      .changes = Lever::Changes::activations,
      .options = {kAttention},
      .words = {{"attention", [](const Levers& l) { return l.attention != AttentionForm::textbook; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (const auto name = options.find(kAttention)) levers.attention = nn::parse_attention(*name);
          },
      .options_of =
          [](const Levers& levers) {
            return levers.attention == AttentionForm::textbook
                       ? ""
                       : fmt::format("--attention {}", nn::name_of(levers.attention));
          },
      .differs = [](const Levers& a, const Levers& b) { return a.attention != b.attention; },
      .take = [](const Levers& target, Levers& levers) { levers.attention = target.attention; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector{AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused},
                           [](Levers& levers, AttentionForm form) { levers.attention = form; });
          },
      .refuses = attention_refuses,
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.attention == AttentionForm::textbook ? Numbers{} : Numbers{Numbers::Change::rounding};
          },
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.form.attention = levers.attention; },
      .elsewhere = attention_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
