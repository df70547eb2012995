#pragma once
// How ranks that share out the tokens of every sequence go about attention (context parallelism).

#include <string_view>

#include "plan/named.h"

namespace oomlab::nn {

/// What each does: nn/ops/context_attention.h.
enum class ContextForm { ring, ulysses };
/// "ring", "ulysses".
constexpr const char* name_of(ContextForm form) noexcept { return form == ContextForm::ring ? "ring" : "ulysses"; }
/// Throws std::invalid_argument with one line that says what is allowed.
inline ContextForm parse_context(std::string_view name) {
  return parse_named("context", name, {ContextForm::ring, ContextForm::ulysses});
}

}  // namespace oomlab::nn
