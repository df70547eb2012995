#include "plan/optimizer.h"

#include "plan/named.h"

namespace oomlab::nn {

const char* name_of(OptimizerKind kind) noexcept {
  switch (kind) {
    case OptimizerKind::sgd: return "sgd";
    case OptimizerKind::momentum: return "momentum";
    case OptimizerKind::adamw: return "adamw";
  }
  return "?";
}

OptimizerKind parse_optimizer(std::string_view name) {
  return parse_named("optimizer", name, {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::adamw});
}

std::uint64_t state_buffers(OptimizerKind kind) noexcept {
  return kind == OptimizerKind::sgd ? 0 : kind == OptimizerKind::momentum ? 1 : 2;
}

}  // namespace oomlab::nn
