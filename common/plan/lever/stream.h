#pragma once
// Weights in host memory (chapter 05; Ren et al., "ZeRO-Offload", 2021; Rajbhandari et al., "ZeRO-Infinity", 2021): a
// unit's come to the device for its forward pass and again for its backward pass, the next layer's beside the work of
// this one.

#include "plan/lever/offload.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kStream{
    "stream", "Weights are in host memory and come a layer at a time, for the forward and for the backward pass"};

inline std::string stream_refuses(const Work&, const Levers& levers) {
  if (!levers.streamed) return "";
  if (levers.method != Method::full) return "";  // nobody updates a base, and each replica has all of it
  if (!is_offloaded(levers))
    return "--stream has weights in host memory, which is where the CPU updates them: give --offload, too";
  if (levers.ranks.zero == 1 || levers.ranks.zero == 2)
    return fmt::format("--stream leaves no whole weights on a rank, which is what --zero {} has; take --zero 0 or 3",
                       levers.ranks.zero);
  return "";
}

/// Weights come up in each micro-batch, twice, and once more for a layer that is computed again before its backward
/// pass. (The last layer of a segment is used again at once.)
inline void stream_price(const Work& work, const Levers& levers, Price& price) {
  if (!levers.streamed) return;
  for (const std::uint64_t stage : kinds_of_stage(work.spec, levers.ranks)) {
    const nn::StepLevers step = step_of(work, levers, {.stage = stage});
    const nn::UnitElements units(work.spec, step);
    double layers = 2 * double(units.layers);
    for (const nn::Segment& segment : step.schedule)
      if (segment.recompute) layers += double(segment.layers - 1);
    const double token =
        double(units.token) * (step.slice.embeds() && work.spec.tied && step.slice.has_head(work.spec) ? 2 : 1);
    const double elements = layers * double(units.layer) + token + 2 * double(units.embedding) + double(units.head);
    const double up = elements / double(step.shards(3)) * double(step.element_bytes) * double(step.micro_batches);
    price.bus_bytes = std::max(price.bus_bytes, up);
  }
}

inline constexpr const char* kDeepSpeedStream = "\"offload_param\": {\"device\": \"cpu\", \"pin_memory\": true}";

inline void stream_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!levers.streamed) return;
  words.in_pytorch("fully_shard(layer, offload_policy=CPUOffloadPolicy())  # for each layer, then the model");
  if (levers.ranks.replicas() == 1)
    words.in_deepspeed("\"zero_optimization\": {{\"stage\": 3, {}, {}}}", kDeepSpeedOffload, kDeepSpeedStream);
  words.nowhere("DeepSpeed fetches by its own buckets, and keeps small weights on the device: peaks differ");
}

inline const Lever& stream() {
  static const Lever lever{
      .name = "weights in host memory",
      .chapter = "05_unified_memory",
      .changes = Lever::Changes::state,
      .options = {kStream},
      .words = {{"stream", [](const Levers& l) { return l.streamed; }}},
      .read = [](const OptionValues& options, Levers& levers) { levers.streamed = options[kStream]; },
      .options_of = [](const Levers& levers) { return std::string(levers.streamed ? "--stream" : ""); },
      .differs = [](const Levers& a, const Levers& b) { return a.streamed != b.streamed; },
      .take = [](const Levers& target, Levers& levers) { levers.streamed = target.streamed; },
      .tries =
          [](const Reach&) {
            return each_of(std::vector<int>{0, 1}, [](Levers& levers, int on) { levers.streamed = on == 1; });
          },
      .refuses = stream_refuses,
      .apply = [](const Work&, const Levers& levers, const RankCoordinates&,
                  nn::StepLevers& step) { step.streamed = levers.streamed; },
      .price = stream_price,
      .elsewhere = stream_elsewhere};
  return lever;
}

}  // namespace oomlab::plan::lever
