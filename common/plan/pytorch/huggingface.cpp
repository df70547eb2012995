#include "plan/pytorch/huggingface.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

namespace {

void check(const nn::HfShape& shape, const HfStep& step) {
  const bool images = shape.family == nn::HfFamily::vit;
  if (shape.layers == 0 || step.batch == 0 || step.micro_batches == 0 || (step.seq == 0 && !images))
    throw std::invalid_argument("a step has at least one sequence of one token, and one layer");
  if (!images && step.seq > shape.positions)
    throw std::invalid_argument(
        fmt::format("a sequence of {} tokens is longer than the {} of {}", step.seq, shape.positions, shape.name));
  if (step.lora && step.lora->rank == 0) throw std::invalid_argument("an adapter has a rank of at least 1");
}

// What the optimizer keeps between steps.
std::uint64_t state_bytes(const HfStep& step, const HfModules::Trained& trained, std::uint64_t parameter_bytes) {
  switch (step.optimizer) {
    case HfOptimizer::adamw_foreach:
    case HfOptimizer::adamw_fused: return checked_product(parameter_bytes, 2);
    case HfOptimizer::adamw_8bit: {  // two bytes each, and two FP32 scales for 256; embeddings: eight bytes
      const std::uint64_t narrow = trained.count - trained.embeddings;
      return checked_sum({checked_product(narrow, 2), checked_product((narrow + 255) / 256, 8),
                          checked_product(trained.embeddings, 8)});
    }
    case HfOptimizer::adamw_paged: return 0;
    case HfOptimizer::adafactor: return checked_product(trained.rows_and_columns, sizeof(float));
    case HfOptimizer::sgd: return 0;
  }
  throw std::invalid_argument("an optimizer that is not known");
}

// What its step needs beside that, for a moment.
std::uint64_t step_bytes(const HfStep& step, const HfModules::Trained& trained, std::uint64_t parameter_bytes) {
  switch (step.optimizer) {
    case HfOptimizer::adamw_foreach: return parameter_bytes;
    case HfOptimizer::adafactor: {  // an update and what it is made of; of 16 bits also gradient and weight in FP32
      const bool narrow = step.weights != DType::fp32 && !step.lora;
      return checked_product(trained.largest, (narrow ? 4 : 2) * sizeof(float));
    }
    default: return 0;
  }
}

}  // namespace

HfPeak huggingface_peak(const nn::HfShape& shape, const HfStep& step, bool recorded) {
  check(shape, step);
  const std::uint64_t granule = step.device == TorchDevice::cuda ? kGranule : 1;
  TorchMemory memory(granule, recorded);
  HfPeak peak{};
  {
    HfModules modules(memory, shape, step);
    peak.trained = modules.trained().count;
    std::uint64_t parameter_bytes = 0;
    for (const Parameter& parameter : modules.parameters())
      if (parameter.trained)
        parameter_bytes =
            checked_sum(parameter_bytes, checked_product(parameter.value.count, element_bytes(parameter.value.dtype)));
    const Storage state(memory, state_bytes(step, modules.trained(), parameter_bytes), Category::optimizer);
    memory.forget_peak();
    for (std::uint64_t micro = 0; micro < std::min<std::uint64_t>(step.micro_batches, 2); ++micro) {
      Tensor loss = modules.loss();
      memory.moment("backward pass");
      modules.tape().backward(loss);
      modules.forget();
    }
    memory.moment("optimizer's step");
    { const Storage temporaries(memory, step_bytes(step, modules.trained(), parameter_bytes), Category::optimizer); }
    for (Parameter& parameter : modules.parameters()) parameter.gradient = {};
  }
  peak.bytes = memory.at_peak();
  peak.moment = memory.peak_moment();
  peak.checked = step.autocast != DType::fp16 && step.weights != DType::fp16 &&
                 step.optimizer != HfOptimizer::adamw_8bit && step.optimizer != HfOptimizer::adamw_paged &&
                 !(step.lora && step.lora->four_bits);
  peak.events = memory.take_events();
  return peak;
}

}  // namespace oomlab::fit
