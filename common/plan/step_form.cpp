#include "plan/step_form.h"

#include "plan/named.h"

namespace oomlab::nn {

const char* name_of(AttentionForm form) noexcept {
  switch (form) {
    case AttentionForm::textbook: return "textbook";
    case AttentionForm::tiled: return "tiled";
    case AttentionForm::fused: return "fused";
  }
  return "?";
}

AttentionForm parse_attention(std::string_view name) {
  return parse_named("attention", name, {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused});
}

const char* name_of(LossForm form) noexcept { return form == LossForm::full ? "full" : "chunked"; }

LossForm parse_loss(std::string_view name) { return parse_named("loss", name, {LossForm::full, LossForm::chunked}); }

}  // namespace oomlab::nn
