#pragma once
// Which grids of ranks a model and a batch can be shared out over: one rule for this chapter, for the capstone, and for
// whoever searches. It needs no harness.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "grid.h"
#include "plan/limits.h"

namespace oomlab::multi_gpu {

/// Why this cannot be, in one line that begins with the option to change; empty when it can. `micro_batch`: samples of
/// a pass; 0: all that a rank has.
inline std::string layout_refused(const nn::TransformerSpec& spec, const Layout& l, std::size_t batch,
                                  std::size_t micro_batch) {
  if (l.zero < 0 || l.zero > 3) return fmt::format("--zero {} is not allowed; write 0 to 3", l.zero);
  if (l.zero > 0 && l.dp == 1)
    return fmt::format("--zero {} shares out what the ranks of --dp have in common, and --dp is 1", l.zero);
  if (l.zero >= 2 && l.pp > 1)
    return fmt::format("--zero {} and --pp {} do not go together; ZeRO-1 goes with pipelines", l.zero, l.pp);
  for (const auto& [count, what] : {std::pair(spec.heads, "heads"), std::pair(spec.keys(), "heads of keys and values"),
                                    std::pair(spec.hidden(), "hidden units")})
    if (count % l.tp != 0)
      return fmt::format("--tp {} does not divide the {} {} of model '{}'", l.tp, count, what, spec.name);
  if (l.pp > spec.layers)
    return fmt::format("--pp {} is more than the {} layers of model '{}'", l.pp, spec.layers, spec.name);
  if (batch % l.dp != 0) return fmt::format("--dp {} does not divide --batch {}", l.dp, batch);
  const std::size_t share = batch / l.dp;
  if (micro_batch != 0 && share % micro_batch != 0)
    return l.dp == 1 ? fmt::format("--micro-batch {} does not divide --batch {}", micro_batch, batch)
                     : fmt::format("--micro-batch {} does not divide the {} samples of a rank (--batch {}, --dp {})",
                                   micro_batch, share, batch, l.dp);
  if (l.dp > kMostRanks || l.tp * l.pp > kMostRanks / l.dp)  // of heads and layers there are not so many
    return fmt::format("--tp {} x --pp {} x --dp {} are too many ranks; up to {} are allowed", l.tp, l.pp, l.dp,
                       kMostRanks);
  return "";
}

/// Why a grid is not what --devices says; empty when it is.
inline std::string devices_refused(const Layout& l, std::size_t devices) {
  if (l.ranks() == devices) return "";
  return fmt::format("--tp {} x --pp {} x --dp {} are {} ranks, and --devices says {}", l.tp, l.pp, l.dp, l.ranks(),
                     devices);
}

}  // namespace oomlab::multi_gpu
