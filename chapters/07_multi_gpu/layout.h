#pragma once
// Who does what: ranks in a grid of tensor, data and pipeline groups, and the order of work in a pipeline.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "harness/chapter.h"
#include "nn/transformer.h"

namespace oomlab::multi_gpu {

inline constexpr Option<std::size_t> kTp{"tp", "Ranks that share each layer (tensor parallel)"};
inline constexpr Option<std::size_t> kPp{"pp", "Ranks that have different layers (pipeline parallel)"};
inline constexpr Option<std::size_t> kDp{"dp", "Ranks, or groups of them, that have different samples (data parallel)"};
inline constexpr Option<std::size_t> kZero{"zero", "ZeRO stage among those of --dp: 0 to 3", 0, 3};
inline constexpr Option<bool> kCheckpoint{"checkpoint", "Keep each layer's input only, and recompute the layer"};

/// How the work is split. Ranks are numbered as in Megatron-LM: those of a tensor group are neighbours, then those of a
/// data group, then the stages: rank = (stage · dp + replica) · tp + part.
struct Layout {
  std::size_t tp = 1, dp = 1, pp = 1;
  int zero = 0;                          ///< ZeRO stage of the dp groups (Rajbhandari et al., 2020)
  bool one_forward_one_backward = true;  ///< the pipeline's order; false: GPipe's, all forward passes first
  std::size_t ranks() const { return tp * dp * pp; }
};

struct RankCoordinates {
  std::size_t part, replica, stage;
};
inline RankCoordinates coordinates_of(const Layout& layout, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return {r % layout.tp, r / layout.tp % layout.dp, r / layout.tp / layout.dp};
}

/// Layers as evenly as they go; the first stages have one more.
inline nn::Slice slice_of(const nn::TransformerSpec& spec, const Layout& layout, const RankCoordinates& place) {
  const std::size_t few = spec.layers / layout.pp, more = spec.layers % layout.pp;
  return {.first_layer = place.stage * few + std::min(place.stage, more),
          .layers = few + (place.stage < more),
          .part = place.part,
          .parts = layout.tp};
}

/// One entry of a stage's work: the forward or the backward pass of a micro-batch.
struct Pass {
  bool forward;
  std::size_t micro_batch;
};
/// GPipe (Huang et al., 2019) runs all forward passes, then all backward passes, and holds all micro-batches. 1F1B
/// (Narayanan et al., "PipeDream", 2019) lets a stage run ahead by as many micro-batches as there are stages behind it:
/// stages − stage are in flight at most.
inline std::vector<Pass> passes_of(const Layout& layout, std::size_t stage, std::size_t micro_batches) {
  const std::size_t ahead =
      layout.one_forward_one_backward ? std::min(layout.pp - stage - 1, micro_batches) : micro_batches;
  std::vector<Pass> passes;
  std::size_t next = 0;
  for (; next < ahead; ++next) passes.push_back({true, next});
  for (std::size_t done = 0; done < micro_batches; ++done) {
    if (next < micro_batches) passes.push_back({true, next++});
    passes.push_back({false, done});
  }
  return passes;
}

/// Micro-batches that passes_of() has in flight at most.
inline std::size_t most_in_flight(const Layout& layout, std::size_t stage, std::size_t micro_batches) {
  return layout.one_forward_one_backward ? std::min(layout.pp - stage, micro_batches) : micro_batches;
}

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
