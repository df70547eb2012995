#pragma once
#include "plan/step_buffers.h"

namespace oomlab::nn {

struct StepSizes {
  std::uint64_t sums;
  StepSizes(const TransformerSpec& spec, const StepLevers& levers)
      : sums(StepBuffers(spec, levers).key_value_gradient_sums) {}
};

}  // namespace oomlab::nn
