#pragma once
// Optimizer offload (chapters 05 and 13; Ren et al., "ZeRO-Offload", 2021): the state lies in host memory, and the CPU
// updates the weights.

#include "plan/flops.h"
#include "plan/host_state.h"
#include "plan/lever/used_once.h"
#include "plan/plan.h"
#include "plan/step_units.h"

namespace oomlab::plan::lever {

inline constexpr Option<bool> kOffload{"offload", "The CPU updates the weights, from a state in host memory"};

inline constexpr auto is_offloaded = has_life<nn::GradientLife::offloaded>;

inline void read_offload(const OptionValues& options, Levers& levers) {
  if (!options[kOffload]) return;
  if (levers.gradients != nn::GradientLife::always)
    throw UsageError("--offload has each gradient sent to the host: leave --in-backward out");
  levers.gradients = nn::GradientLife::offloaded;
}

inline std::string offload_refuses(const Work&, const Levers& levers) {
  using nn::UpdateRule;
  const UpdateRule rule = levers.optimizer.rule;
  const bool known = rule == UpdateRule::adamw || rule == UpdateRule::adamw8 || rule == UpdateRule::sgd;
  if (!is_offloaded(levers) || known) return "";
  return fmt::format(
      "--offload updates on the processor, which has adamw, adamw8 and sgd; with --optimizer {} take --in-backward",
      nn::name_of(rule));
}

/// The bus and the update of train/host_optimizer.h.
inline void offload_price(const Work& work, const Levers& levers, Price& price) {
  if (!is_offloaded(levers)) return;
  const Layout& grid = levers.ranks;
  for (const auto& [stage, ranks] : kinds_of_rank(work.spec, grid)) {
    const nn::StepLevers step = step_of(work, levers, {.stage = stage});
    const double update = nn::host_update_bytes(work.spec, step);
    price.update.bytes += double(ranks) * update;

    // Gradients go down in each micro-batch, weights up once: down is the busier way.
    const nn::UnitElements units(work.spec, step);
    const std::uint64_t shards = step.shards(1);
    const double elements = double(units.trained(step));
    const double down = elements / double(shards) * double(step.element_bytes) * double(step.micro_batches);
    price.bus_bytes = std::max(price.bus_bytes, down);
    if (!step.slice.embeds()) continue;
    const double last = double(step.frozen() ? units.adapters : units.token);  // is updated last
    price.update.last_bytes = update * last / elements;
    price.update.last_bus_bytes = 2 * double(step.element_bytes) * last / double(shards);
    const nn::StepForm form{.attention = levers.attention};
    const nn::LayerFlops layer = nn::layer_flops_of_each(work.spec, work.batch, work.seq, form, grid.head_shares());
    const double share = double(share_of(work, levers));
    price.update.forward_flops =
        share * double(layer.forward) * double(step.slice.layers) / double(grid.tp) / double(grid.cp);
    if (!step.slice.has_head(work.spec)) continue;
    const nn::TransformerSpec head_alone = nn::with_layers(work.spec, 0);
    const double head = double(nn::step_flops_of_each(head_alone, work.batch, work.seq)) / 3;  // one of three passes
    price.update.forward_flops += share * head / double(grid.cp);
  }
}

inline constexpr const char* kDeepSpeedOffload = "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}";

/// With several ranks lever/zero.h has DeepSpeed's words.
inline void offload_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!is_offloaded(levers)) return;
  const bool sgd = levers.optimizer.rule == nn::UpdateRule::sgd;
  words.in_pytorch(
      "optimizer = torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.{}, offload_gradients=True)",
      sgd ? "SGD" : "AdamW");
  words.in_trainer("deepspeed=\"ds_config.json\"");
  if (levers.ranks.replicas() == 1 && !levers.streamed)
    words.in_deepspeed("\"zero_optimization\": {{\"stage\": 2, {}}}", kDeepSpeedOffload);
  if (levers.optimizer.rule == nn::UpdateRule::adamw8 || levers.optimizer.weights == nn::WeightForm::stochastic)
    words.nowhere(
        "moments of 8 bits, or stochastic rounding, where the CPU updates: CPUOffloadOptimizer and DeepSpeed update in "
        "FP32, which takes 12 bytes of host memory for a parameter");
  words.nowhere("ZeRO-Offload sends gradients by buckets, not by layers: what waits on the device differs");
}

inline const Lever& offload() {
  static const Lever lever = [] {
    Lever own = used_once_lever<nn::GradientLife::offloaded, kOffload>("offload", "13_optimizer_memory");
    own.read = read_offload;
    own.refuses = offload_refuses;
    own.price = offload_price;
    own.elsewhere = offload_elsewhere;
    return own;
  }();
  return lever;
}

}  // namespace oomlab::plan::lever
