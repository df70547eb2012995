#pragma once
// The form of attention (chapter 08): scores that are never there as a whole.

#include "plan/attention.h"
#include "plan/lever/form.h"

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
  static const Lever lever = [] {
    Lever own = form_lever<&Levers::attention, kAttention, nn::parse_attention>("08_attention_and_loss");
    own.refuses = attention_refuses;
    own.apply = [](const Work&, const Levers& levers, const RankCoordinates&, nn::StepLevers& step) {
      step.form.attention = levers.attention;
    };
    own.elsewhere = attention_elsewhere;
    return own;
  }();
  return lever;
}

}  // namespace oomlab::plan::lever
