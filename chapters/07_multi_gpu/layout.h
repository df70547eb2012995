#pragma once
// Grids of ranks (plan/ranks.h) as the command line asks for them, and those that the table compares.

#include <optional>
#include <string>
#include <vector>

#include "harness/chapter.h"
#include "plan/lever/checkpoint.h"
#include "plan/lever/ranks.h"
#include "plan/lever/zero.h"
#include "plan/ranks.h"
#include "train/options.h"

namespace oomlab::multi_gpu {

using plan::coordinates_of, plan::kinds_of_stage, plan::most_in_flight, plan::slice_of;
using plan::Layout, plan::RankCoordinates;
using plan::lever::devices_refused, plan::lever::kCheckpoint, plan::lever::kDp, plan::lever::kPp, plan::lever::kTp,
    plan::lever::kZero;

/// What a row of this chapter trains, as the levers' rules see it.
inline plan::Work work_of(const Config& config, const nn::TransformerSpec& spec) {
  return {spec, config.batch, config.options[train::kSeq], config.budget, round_to_granule(config.workspace)};
}
/// The options as levers. Throws UsageError for a value that is not allowed.
inline plan::Levers levers_of(const Config& config) { return plan::levers_of(config.options).value(); }

/// The grid that was asked for; nothing when none was. Throws UsageError with plan::refused()'s line for one that cannot
/// be.
inline std::optional<Layout> grid_of(const Config& config, const nn::TransformerSpec& spec) {
  const plan::Levers levers = levers_of(config);
  if (const std::string why = refused(work_of(config, spec), levers); !why.empty()) throw UsageError(why);
  const bool asked =
      config.options.find(kTp) || config.options.find(kPp) || config.options.find(kDp) || config.options.find(kZero);
  if (!asked) return std::nullopt;
  if (const std::string why = devices_refused(levers.ranks, std::size_t(config.devices));
      config.devices_given && !why.empty())
    throw UsageError(why);
  return levers.ranks;
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
  const auto devices = std::size_t(config.devices);
  std::vector<NamedLayout> rows;
  if (const auto grid = grid_of(config, spec)) {
    const std::string words = fmt::format("tp {} x pp {} x dp {}, ZeRO-{}", grid->tp, grid->pp, grid->dp, grid->zero);
    if (grid->ranks() > 1) rows.push_back({words, *grid});
  } else {
    if (devices > 1) rows = layouts_of(devices);
    plan::Levers levers = levers_of(config);
    for (NamedLayout& row : rows) {
      levers.ranks = row.layout;
      row.refused = refused(work_of(config, spec), levers);
    }
  }
  rows.insert(rows.begin(), {"one device", {}});
  return rows;
}

/// A row that is refused. Nobody gave its options, so it says why without their dashes, and the others run.
inline Variant left_out(const NamedLayout& row, std::size_t batch) {
  const std::string why = row.refused.starts_with("--") ? row.refused.substr(2) : row.refused;
  return {.name = row.name,
          .batch = batch,
          .predicted = [](std::size_t) { return ByCategory{}; },
          .agreement = {},
          .make = [why](Context&, std::size_t) -> std::unique_ptr<Workload> { throw VariantSkipped(why); }};
}

}  // namespace oomlab::multi_gpu
