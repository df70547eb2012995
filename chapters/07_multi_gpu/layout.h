#pragma once
// Grids of ranks (grid.h) as the command line asks for them, and those that the table compares.

#include <optional>
#include <string>
#include <vector>

#include "harness/chapter.h"
#include "layout_rule.h"
#include "train/options.h"

namespace oomlab::multi_gpu {

inline constexpr Option<std::size_t> kTp{"tp", "Ranks that share each layer (tensor parallel)"};
inline constexpr Option<std::size_t> kPp{"pp", "Ranks that have different layers (pipeline parallel)"};
inline constexpr Option<std::size_t> kDp{"dp", "Ranks, or groups of them, that have different samples (data parallel)"};
inline constexpr Option<std::size_t> kZero{"zero", "ZeRO stage among those of --dp: 0 to 3", 0, 3};
inline constexpr Option<bool> kCheckpoint{"checkpoint", "Keep each layer's input only, and recompute the layer"};

/// Throws UsageError with layout_refused()'s line.
inline void check_layout(const Layout& layout, const nn::TransformerSpec& spec, std::size_t batch,
                         std::size_t micro_batch) {
  if (const std::string why = layout_refused(spec, layout, batch, micro_batch); !why.empty()) throw UsageError(why);
}

/// The grid that was asked for; nothing when none was. Throws UsageError for one that cannot be.
inline std::optional<Layout> grid_of(const Config& config, const nn::TransformerSpec& spec) {
  const auto tp = config.options.find(kTp), pp = config.options.find(kPp), dp = config.options.find(kDp);
  const auto zero = config.options.find(kZero);
  if (!tp && !pp && !dp && !zero) return std::nullopt;
  Layout grid{.tp = tp.value_or(1), .dp = dp.value_or(1), .pp = pp.value_or(1), .zero = int(zero.value_or(0))};
  check_layout(grid, spec, config.batch, config.options[train::kMicroBatch]);
  if (const std::string why = devices_refused(grid, std::size_t(config.devices)); config.devices_given && !why.empty())
    throw UsageError(why);
  return grid;
}

/// A way of splitting the work, as a row of the table.
struct NamedLayout {
  std::string name;
  Layout layout;
  bool data_parallel = false;  ///< as torch.nn.DataParallel: one rank has all state and all logits
  std::string refused = {};    ///< why this model or batch cannot have it; nobody asked for it
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
/// The table's rows: one device, and the grid that was asked for, or else all layouts of these devices. Throws
/// UsageError for a grid that cannot be.
inline std::vector<NamedLayout> rows_of(const Config& config, const nn::TransformerSpec& spec) {
  const std::size_t micro_batch = config.options[train::kMicroBatch], devices = std::size_t(config.devices);
  std::vector<NamedLayout> rows;
  if (const auto grid = grid_of(config, spec)) {
    const auto& [tp, dp, pp, zero, order] = *grid;
    if (grid->ranks() > 1) rows.push_back({fmt::format("tp {} x pp {} x dp {}, ZeRO-{}", tp, pp, dp, zero), *grid});
  } else {
    check_layout({}, spec, config.batch, micro_batch);
    if (devices > 1) rows = layouts_of(devices);
    for (NamedLayout& row : rows) row.refused = layout_refused(spec, row.layout, config.batch, micro_batch);
  }
  rows.insert(rows.begin(), {"one device", {}});
  return rows;
}

/// A row that is refused. Nobody gave its options, so it says why without their dashes, and the others run.
inline Variant left_out(const NamedLayout& row, std::size_t batch) {
  const std::string why = row.refused.substr(2);
  return {.name = row.name,
          .batch = batch,
          .predicted = [](std::size_t) { return ByCategory{}; },
          .agreement = {},
          .make = [why](Context&, std::size_t) -> std::unique_ptr<Workload> { throw VariantSkipped(why); }};
}

}  // namespace oomlab::multi_gpu
