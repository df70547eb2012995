#pragma once
// The mitigation: do not keep what can be computed again (Chen et al., "Training deep nets with sublinear memory cost",
// 2016), and only what is cheap to compute (Korthikanti et al., "Reducing activation recomputation", 2022).
//
// A schedule (plan/step_form.h) cuts the layers into segments. A segment is either plain: its layers keep what its Keep
// says; or it is recomputed: only its input is kept, and before its backward pass its forward pass runs again. A
// recomputed segment of one layer is "checkpoint every layer".

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "harness/chinese.h"
#include "nn/models/scheduled_step.h"
#include "nn/models/transformer.h"
#include "plan/language.h"
#include "plan/schedule.h"

namespace oomlab::checkpointing {

using nn::keep_everything, nn::keep_selected, nn::recompute_segments, nn::root_of;
using nn::predict_schedule, nn::recompute_cost, nn::segment_choices, nn::solve_schedule;
using nn::Schedule, nn::Segment;

/// Forward and backward as Transformer::forward_backward(), to the same bits, with this schedule. The loop over layers
/// is nn/models/scheduled_step.h's. With `on_host`, the inputs that are kept wait in host memory.
template <class T>
void checkpointed_step(Context& context, nn::Transformer<T>& model, nn::TokenBatch batch, const Schedule& schedule,
                       const float* scale_on_device = nullptr, nn::StepOptions options = {},
                       nn::HostCheckpoints<T>* on_host = nullptr) {
  nn::ScheduledPass<T> pass(context, model, batch, schedule, on_host);
  DeviceBuffer<T> residual = model.head(context, batch, pass.output(), options, scale_on_device);
  const Phase phase(context.ledger(), "backward");
  pass.backward(context, model, batch, std::move(residual), options.accumulate);
}

/// "4 kept, 2 without norms+GELU, 6 recomputed in segments of 3": how many layers are treated how.
inline std::string describe(const Schedule& schedule, const Say& say = {}) {
  std::map<std::string, std::size_t> layers;
  for (const Segment& s : schedule) {
    std::string how;
    if (s.recompute) {
      how = s.layers == 1 ? "recomputed" : fmt::format("recomputed in segments of {}", s.layers);
    } else {
      if (!s.keep.norms) how += "norms+";
      if (!s.keep.gelu) how += "GELU+";
      if (!s.keep.probabilities) how += "probabilities+";
      if (!s.keep.post_attention_residual) how += "middle+";
      how = how.empty() ? "kept" : "without " + how.substr(0, how.size() - 1);
    }
    layers[how] += s.layers;
  }
  std::string text;
  for (const char* first : {"kept", "without", "recomputed"})
    for (const auto& [how, count] : layers)
      if (how.starts_with(first))
        text += say("{}{} {}", "{}{} 层{}", text.empty() ? "" : say(", ", "，"), count,
                    say.chinese ? in_chinese(how) : how);
  return text;
}

}  // namespace oomlab::checkpointing
