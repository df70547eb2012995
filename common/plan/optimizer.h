#pragma once
// What optimizers keep.

#include <cstdint>
#include <string_view>

#include "plan/bytes.h"

namespace oomlab::nn {

enum class OptimizerKind { sgd, momentum, adamw };
/// "sgd", "momentum", "adamw".
const char* name_of(OptimizerKind kind) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
OptimizerKind parse_optimizer(std::string_view name);
/// State buffers of parameter size: 0, 1, 2.
std::uint64_t state_buffers(OptimizerKind kind) noexcept;

/// The loss scale and what goes with it (nn/optimizer/mixed_precision.h), on the device.
inline constexpr std::uint64_t kScaleStateBytes = 32;
/// The same, rounded to the granule.
inline std::uint64_t scale_state_bytes() { return round_to_granule(kScaleStateBytes); }

}  // namespace oomlab::nn
