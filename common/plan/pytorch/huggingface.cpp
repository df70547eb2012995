#include "plan/pytorch/huggingface.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

namespace {

bool zero(const HfStep& step) { return step.ranks && step.ranks->parallel >= HfParallel::zero1; }

// Of what torch.distributed.tensor.parallel divides, each rank has the same.
void check_tensor_parallel(const nn::HfShape& shape, const HfStep& step) {
  const std::uint64_t ranks = step.ranks->count;
  const bool known = shape.family == nn::HfFamily::llama || shape.family == nn::HfFamily::mistral ||
                     shape.family == nn::HfFamily::qwen2 || shape.family == nn::HfFamily::qwen3;
  if (!known || shape.output_bias || shape.mlp_bias)
    throw std::invalid_argument(
        fmt::format("tensor parallelism is known of llama, mistral, qwen2 and qwen3, without "
                    "biases behind attention and in MLPs; not of {}",
                    shape.name));
  const auto divides = [&](const char* what, std::uint64_t count) {
    if (count % ranks != 0)
      throw std::invalid_argument(fmt::format("{} ranks do not divide {}'s {} {}", ranks, shape.name, count, what));
  };
  divides("heads", shape.heads);
  divides("heads of keys", shape.kv_heads);
  divides("values within an MLP", shape.mlp);
  if (!shape.tied) divides("tokens of its vocabulary", shape.vocabulary);
  if (step.lora) throw std::invalid_argument("adapters are not known in tensor parallelism");
  if (step.loss != HfLoss::full) throw std::invalid_argument("in tensor parallelism only the whole loss is known");
  if (step.ranks->compute) throw std::invalid_argument("param_dtype is FSDP's");
}

// Of mixtures of experts.
void check_experts(const HfStep& step) {
  if (step.lora)
    throw std::invalid_argument(
        "adapters of experts are not known: peft makes all experts' weights anew in each pass; training "
        "in full is known");
  if (zero(step)) throw std::invalid_argument("experts are not known in DeepSpeed's shards; FSDP divides them");
  if (step.optimizer == HfOptimizer::adafactor)
    throw std::invalid_argument("of experts Adafactor's state is not known; AdamW's and SGD's is");
}

void check(const nn::HfShape& shape, const HfStep& step) {
  const bool images = shape.family == nn::HfFamily::vit;
  if (shape.layers == 0 || step.batch == 0 || step.micro_batches == 0 || (step.seq == 0 && !images))
    throw std::invalid_argument("a step has at least one sequence of one token, and one layer");
  if (!images && step.seq > shape.positions)
    throw std::invalid_argument(
        fmt::format("a sequence of {} tokens is longer than the {} of {}", step.seq, shape.positions, shape.name));
  const bool encoder = images || shape.family == nn::HfFamily::bert;
  if (step.loss != HfLoss::full && encoder)
    throw std::invalid_argument(fmt::format("a loss by chunks is a decoder's; {} has none", shape.name));
  if (shape.experts) check_experts(step);
  if (step.lora && step.lora->rank == 0) throw std::invalid_argument("an adapter has a rank of at least 1");
  if (!step.ranks) return;
  if (step.ranks->count == 0) throw std::invalid_argument("a step has at least one rank");
  if (step.ranks->offload_optimizer && !zero(step))
    throw std::invalid_argument("an optimizer's state is put on the host by DeepSpeed only");
  if (step.ranks->offload_parameters && step.ranks->parallel != HfParallel::zero3)
    throw std::invalid_argument("weights are on the host at ZeRO's stage 3 only");
  if (step.ranks->parallel == HfParallel::ddp) return;
  if (!torch_adamw(step.optimizer) && step.optimizer != HfOptimizer::sgd)
    throw std::invalid_argument("of shards only AdamW and SGD are known");
  if (step.ranks->parallel == HfParallel::tensor) check_tensor_parallel(shape, step);
  if (step.ranks->parallel == HfParallel::zero3 && step.lora && step.lora->four_bits)
    throw std::invalid_argument("four bits are not known in DeepSpeed's shards; FSDP divides them");
  if (zero(step) && step.ranks->compute) throw std::invalid_argument("DeepSpeed computes in the type of the weights");
}

using Updated = std::vector<HfUnits::Updated>;
using Storages = std::vector<std::unique_ptr<Storage>>;

// A tensor beside each that is updated, `times` times.
void add_like(Storages& to, TorchMemory& memory, const Updated& updated, int times) {
  for (const auto& [count, dtype] : updated)
    for (int i = 0; i < times; ++i)
      to.push_back(
          std::make_unique<Storage>(memory, checked_product(count, element_bytes(dtype)), Category::optimizer));
}

// What the optimizer keeps between steps, where it is not a tensor beside each.
std::uint64_t state_bytes(const HfStep& step, const HfModules::Trained& trained) {
  switch (step.optimizer) {
    case HfOptimizer::adamw_8bit: {  // two bytes each, and two FP32 scales for 256; embeddings: eight bytes
      const std::uint64_t narrow = trained.count - trained.embeddings;
      return checked_sum({checked_product(narrow, 2), checked_product((narrow + 255) / 256, 8),
                          checked_product(trained.embeddings, 8)});
    }
    case HfOptimizer::adafactor: return checked_product(trained.rows_and_columns, sizeof(float));
    default: return 0;
  }
}

// What foreach updates at once: all, but in tensor parallelism, where its lists cannot hold both, what is divided and what
// is whole one after the other.
Updated largest_group(const HfStep& step, const HfModules& modules, const Updated& all) {
  if (!step.ranks || step.ranks->parallel != HfParallel::tensor) return all;
  Updated divided, whole;
  std::uint64_t bytes_divided = 0, bytes_whole = 0;
  std::size_t i = 0;
  for (const Parameter& parameter : modules.parameters()) {
    if (!parameter.trained) continue;
    (parameter.divided ? divided : whole).push_back(all[i]);
    std::uint64_t& bytes = parameter.divided ? bytes_divided : bytes_whole;
    bytes = checked_sum(bytes, checked_product(all[i].count, element_bytes(all[i].dtype)));
    ++i;
  }
  return bytes_divided > bytes_whole ? divided : whole;
}

Storages make_state(TorchMemory& memory, const HfStep& step, const HfModules& modules, const Updated& updated) {
  Storages state;
  if (torch_adamw(step.optimizer))
    add_like(state, memory, updated, 2);
  else
    state.push_back(std::make_unique<Storage>(memory, state_bytes(step, modules.trained()), Category::optimizer));
  return state;
}

// What its step needs beside that, for a moment.
void update(TorchMemory& memory, const HfStep& step, const HfModules& modules, const Updated& updated) {
  Storages temporaries;
  if (step.optimizer == HfOptimizer::adamw_foreach)
    add_like(temporaries, memory, largest_group(step, modules, updated), 1);
  if (step.optimizer == HfOptimizer::adafactor) {
    // An update and what it is made of; of 16 bits also gradient and weight in FP32.
    const bool narrow = step.weights != DType::fp32 && !step.lora;
    const std::uint64_t bytes = checked_product(modules.trained().largest, (narrow ? 4 : 2) * sizeof(float));
    temporaries.push_back(std::make_unique<Storage>(memory, bytes, Category::optimizer));
  }
}

}  // namespace

HfPeak huggingface_peak(const nn::HfShape& shape, const HfStep& step, bool recorded) {
  check(shape, step);
  const std::uint64_t granule = step.device == TorchDevice::cuda ? kGranule : 1;
  TorchMemory memory(granule, recorded);
  HfPeak peak{};
  {
    const bool units_there = step.ranks && step.ranks->parallel != HfParallel::tensor;
    const std::unique_ptr<HfUnits> units = units_there ? make_units(memory, step, shape.width) : nullptr;
    HfModules modules(memory, shape, step, units.get());
    peak.trained = modules.trained().count;
    Updated updated;
    if (units) updated = units->updated();
    for (const Parameter& parameter : modules.parameters())
      if (!units && parameter.trained) updated.push_back({parameter.value.count, parameter.value.dtype});
    Storages state;
    // The first step makes the state when its backward pass is over: that decides where it lies, and nothing else.
    for (int number = recorded ? 0 : 1; number < 2; ++number) {
      const bool first = number == 0;
      if (!first && state.empty()) state = make_state(memory, step, modules, updated);
      memory.forget_peak();
      for (std::uint64_t micro = 0; micro < std::min<std::uint64_t>(step.micro_batches, 2); ++micro) {
        Tensor loss = modules.loss();
        memory.moment("backward pass");
        modules.tape().backward(loss);
        if (units) units->end_backward();
        modules.forget();
      }
      memory.moment("optimizer's step");
      if (first) state = make_state(memory, step, modules, updated);
      if (units) units->begin_update();
      update(memory, step, modules, updated);
      for (Parameter& parameter : modules.parameters()) parameter.gradient = {};
      if (units) units->zero_gradients();
    }
    peak.host = units ? units->host_bytes() : 0;
    peak.bytes = memory.at_peak();
    peak.moment = memory.peak_moment();
  }
  peak.checked = !zero(step) && step.loss == HfLoss::full && step.autocast != DType::fp16 &&
                 step.weights != DType::fp16 && step.optimizer != HfOptimizer::adamw_8bit &&
                 step.optimizer != HfOptimizer::adamw_paged && !(step.lora && step.lora->four_bits);
  peak.events = memory.take_events();
  return peak;
}

}  // namespace oomlab::fit
