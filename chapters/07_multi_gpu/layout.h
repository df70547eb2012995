#pragma once
// Grids of ranks (grid.h) as the command line asks for them, and those that the table compares.

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "grid.h"
#include "harness/chapter.h"

namespace oomlab::multi_gpu {

inline constexpr Option<std::size_t> kTp{"tp", "Ranks that share each layer (tensor parallel)"};
inline constexpr Option<std::size_t> kPp{"pp", "Ranks that have different layers (pipeline parallel)"};
inline constexpr Option<std::size_t> kDp{"dp", "Ranks, or groups of them, that have different samples (data parallel)"};
inline constexpr Option<std::size_t> kZero{"zero", "ZeRO stage among those of --dp: 0 to 3", 0, 3};
inline constexpr Option<bool> kCheckpoint{"checkpoint", "Keep each layer's input only, and recompute the layer"};

/// Throws UsageError with one line when this model, batch and layout do not fit together.
inline void check_layout(const Layout& layout, const nn::TransformerSpec& spec, std::size_t batch,
                         std::size_t micro_batch) {
  if (layout.zero > 3) throw UsageError(fmt::format("--zero {} is not allowed; write 0 to 3", layout.zero));
  if (spec.heads % layout.tp != 0)
    throw UsageError(
        fmt::format("--tp {} does not divide the {} heads of model '{}'", layout.tp, spec.heads, spec.name));
  if (layout.pp > spec.layers)
    throw UsageError(
        fmt::format("--pp {} is more than the {} layers of model '{}'", layout.pp, spec.layers, spec.name));
  if (batch % (layout.dp * micro_batch) != 0)
    throw UsageError(fmt::format("--batch {} is not a multiple of --micro-batch {} times {} replicas", batch,
                                 micro_batch, layout.dp));
  if (layout.zero >= 2 && layout.pp > 1)
    throw UsageError(
        fmt::format("--zero {} and --pp {} do not go together; ZeRO-1 goes with pipelines", layout.zero, layout.pp));
}

/// The grid that was asked for; nothing when none was. Throws UsageError.
inline std::optional<Layout> grid_of(const Config& config) {
  const auto tp = config.options.find(kTp), pp = config.options.find(kPp), dp = config.options.find(kDp);
  const auto zero = config.options.find(kZero);
  if (!tp && !pp && !dp && !zero) return std::nullopt;
  Layout grid{.tp = tp.value_or(1), .dp = dp.value_or(1), .pp = pp.value_or(1), .zero = int(zero.value_or(0))};
  const std::size_t ranks = checked_product(checked_product(grid.tp, grid.pp), grid.dp);
  if (config.devices_given && ranks != std::size_t(config.devices))
    throw UsageError(fmt::format("--tp {} x --pp {} x --dp {} are {} ranks, and --devices says {}", grid.tp, grid.pp,
                                 grid.dp, ranks, config.devices));
  if (ranks > 1'000'000) throw UsageError(fmt::format("{} ranks are too many; a million are allowed", ranks));
  return grid;
}

/// A way of splitting the work, as a row of the table.
struct NamedLayout {
  std::string name;
  Layout layout;
  bool data_parallel = false;  ///< as torch.nn.DataParallel: one rank has all state and all logits
};
/// What n ranks, two or more, are compared in when no grid was asked for.
inline std::vector<NamedLayout> layouts_of(std::size_t n) {
  std::vector<NamedLayout> all{{fmt::format("DataParallel x {}", n), {.dp = n}, true},
                               {fmt::format("DDP x {}", n), {.dp = n}}};
  for (const int stage : {1, 2, 3}) all.push_back({fmt::format("ZeRO-{} x {}", stage, n), {.dp = n, .zero = stage}});
  all.push_back({fmt::format("tensor parallel x {}", n), {.tp = n}});
  all.push_back({fmt::format("pipeline x {}, GPipe", n), {.pp = n, .one_forward_one_backward = false}});
  all.push_back({fmt::format("pipeline x {}, 1F1B", n), {.pp = n}});
  if (n % 4 != 0) return all;
  const std::size_t tp = n % 8 == 0 ? 2 : 1;
  const Layout together{.tp = tp, .dp = n / tp / 2, .pp = 2, .zero = 1};
  all.push_back({fmt::format("tp {} x pp {} x dp {}, ZeRO-1", together.tp, together.pp, together.dp), together});
  return all;
}

}  // namespace oomlab::multi_gpu
