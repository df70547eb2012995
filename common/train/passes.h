#pragma once
// The order of work in a pipeline. (Who has which part of the work, and what that needs and sends: plan/ranks.h.)

#include <algorithm>
#include <cstddef>
#include <vector>

#include "plan/ranks.h"

namespace oomlab::train {

/// One entry of a stage's work: the forward or the backward pass of a micro-batch.
struct Pass {
  bool forward;
  std::size_t micro_batch;
};
/// GPipe (Huang et al., 2019) runs all forward passes, then all backward passes, and holds all micro-batches. 1F1B
/// (Narayanan et al., "PipeDream", 2019) lets a stage run ahead by as many micro-batches as there are stages behind it:
/// stages − stage are in flight at most. One stage alone does a forward and a backward pass in turns.
inline std::vector<Pass> passes_of(const plan::Layout& layout, std::size_t stage, std::size_t micro_batches) {
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

}  // namespace oomlab::train
