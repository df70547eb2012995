#pragma once
// Optimizer offload (chapters 05 and 13; Ren et al., "ZeRO-Offload", 2021): the state lies in host memory, and the CPU
// updates the weights.

#include "plan/flops.h"
#include "plan/lever/used_once.h"
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

inline std::string offload_refuses(const Work& work, const Levers& levers) {
  if (!is_offloaded(levers)) return "";
  if (std::string why = used_once_refuses(work, levers, "--offload sends a gradient to the host"); !why.empty())
    return why;
  const nn::OptimizerForm& optimizer = levers.optimizer;
  if (optimizer.rule != nn::UpdateRule::adamw || optimizer.weights != usual_weights(levers.precision))
    return "--offload takes --optimizer adamw, with --weight-update master in bf16: host memory need not be small";
  return "";
}

/// Bytes of host memory that AdamW on the CPU reads and writes for a parameter: gradient, master weight and two
/// moments; master weight, two moments, and the weight that goes up. 28 with 16-bit weights.
inline double update_bytes(std::uint64_t element_bytes) { return double(element_bytes + 12 + 12 + element_bytes); }

/// The bus, pinned memory and update of chapter 13's ProcessorAdamW.
inline void offload_price(const Work& work, const Levers& levers, Price& price) {
  if (!is_offloaded(levers)) return;
  const std::uint64_t element = element_bytes(levers);
  const nn::UnitElements units(work.spec, {.element_bytes = element});
  const std::uint64_t largest = std::max({units.token, units.embedding, units.layer, units.head});
  const auto add_units = [&](std::uint64_t elements, std::uint64_t count) {
    // Two moments and a master weight of this step, and of the last one, to which a failed step goes back.
    price.pinned_bytes += 6 * count * round_to_granule(checked_product(elements, sizeof(float)));
    price.bus_bytes += double(count) * double(elements) * double(element);  // gradients down, with what pads a unit
  };
  add_units(units.token, 1);
  add_units(units.embedding, 1);
  add_units(units.layer, units.layers);
  add_units(units.head, 1);
  price.pinned_bytes += 4 * round_to_granule(checked_product(largest, element));

  const double token = double(work.spec.vocabulary) * double(work.spec.width);
  nn::TransformerSpec head_alone = work.spec;
  head_alone.layers = 0;
  const nn::StepForm form{.attention = levers.attention};
  const nn::LayerFlops layer = nn::layer_flops_of_each(work.spec, work.batch, work.seq, form);
  const double head = double(nn::step_flops_of_each(head_alone, work.batch, work.seq)) / 3;  // one of three passes
  price.update = {.bytes = update_bytes(element) * double(work.spec.parameters()),
                  .last_bytes = update_bytes(element) * token,
                  .last_bus_bytes = 2 * double(element) * token,
                  .forward_flops = double(work.batch) * (double(layer.forward) * double(work.spec.layers) + head)};
}

inline void offload_elsewhere(const Work&, const Levers& levers, Elsewhere& words) {
  if (!is_offloaded(levers)) return;
  words.in_pytorch(
      "optimizer = torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=True)");
  words.in_trainer("deepspeed=\"ds_config.json\"");
  if (levers.ranks.ranks() == 1)
    words.in_deepspeed(
        "\"zero_optimization\": {{\"stage\": 2, \"offload_optimizer\": {{\"device\": \"cpu\", \"pin_memory\": "
        "true}}}}");
  words.nowhere("ZeRO-Offload sends gradients by buckets, not by layers: what waits on the device differs");
}

inline const Lever& offload() {
  static const Lever lever = [] {
    Lever own = used_once_lever<nn::GradientLife::offloaded, kOffload>("offload", "13_optimizer_memory");
    own.read = read_offload;
    own.refuses = offload_refuses;
    own.resident = [](const Work&, const Levers& levers, ByCategory& bytes) {
      if (is_offloaded(levers)) bytes[Category::gradients] = bytes[Category::optimizer] = 0;
    };
    own.price = offload_price;
    own.elsewhere = offload_elsewhere;
    return own;
  }();
  return lever;
}

}  // namespace oomlab::plan::lever
