#include "nn/optimizer/mixed_precision.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cmath>
#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/models/read_loss.h"
#include "nn/ops/instances.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/tensor_table.h"

namespace oomlab::nn {

namespace {

__global__ void first_state_kernel(ScaleState* state, float scale) {
  for ([[maybe_unused]] std::size_t once : block_range(1)) *state = {scale, 0, 0, 0, 0, 0, {0, 0}};
}

template <class T>
struct GradientTensor {
  const T* gradient;
  std::size_t count;
};

template <class T>
__global__ void overflow_kernel(const __grid_constant__ TensorTable<GradientTensor<T>, kTensorsOfLaunch> table,
                                ScaleState* state) {
  unsigned bad = 0;
  for (std::size_t t = 0; t < table.size; ++t) {
    const T* const gradient = table.tensors[t].gradient;
    for_packs<T>(GridRange{}, table.tensors[t].count, aligned_for_packs(gradient), [&](auto g, std::size_t i) {
      using V = decltype(g);
      g = load<V>(gradient, i);
      each_lane<V>([&](std::size_t k) { bad |= fabsf(static_cast<float>(g[k])) <= FLT_MAX ? 0u : 1u; });
    });
  }
  bad = block_max(bad);
  for ([[maybe_unused]] std::size_t once : block_range(1))
    if (bad) atomicAdd(&state->overflow, 1.0f);
}

// Before the updates: what gradients are multiplied by, and AdamW's corrections for this step, if it is done.
__global__ void begin_kernel(ScaleState* state, AdamWSettings s) {
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    state->factor = state->overflow != 0.0f ? 0.0f : 1.0f / state->scale;
    if (state->overflow != 0.0f) continue;
    ++state->steps;
    state->corrections = bias_corrections(s, state->steps);
  }
}

// After them: the scale of the next step.
__global__ void end_kernel(ScaleState* state, LossScaling scaling) {
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    if (!scaling.dynamic) continue;
    if (state->overflow != 0.0f) {
      state->overflow = 0;
      state->good_steps = 0;
      ++state->skipped;
      state->scale *= 0.5f;
    } else if (++state->good_steps == scaling.growth_interval) {
      state->good_steps = 0;
      state->scale *= 2.0f;
    }
  }
}

}  // namespace

LossScale::LossScale(Context& context, LossScaling scaling)
    : scaling_(scaling), state_(context.buffer<ScaleState>(1, Category::optimizer, "loss scale")) {
  launch(first_state_kernel, shape_for_rows(1), context.stream(), state_.data(), scaling.initial);
}

template <class T>
void LossScale::look_at(Context& context, const T* gradients, std::size_t count) {
  look_at_all<T>(context, {{"", nullptr, const_cast<T*>(gradients), count}});
}

template <class T>
void LossScale::look_at_all(Context& context, const std::vector<ParameterOf<T>>& parameters) {
  if (!scaling_.dynamic) return;
  launch_over_tensors(
      overflow_kernel<T>, context.stream(), parameters.size(), Pack<T>::size,
      [&](std::size_t i) {
        return GradientTensor<T>{parameters[i].gradient, parameters[i].count};
      },
      state_.data());
}

void LossScale::begin(Context& context, const AdamWSettings& settings) {
  launch(begin_kernel, shape_for_rows(1), context.stream(), state_.data(), settings);
}

void LossScale::end(Context& context) {
  launch(end_kernel, shape_for_rows(1), context.stream(), state_.data(), scaling_);
}

ScaleState LossScale::state(Context& context) const { return read_value(context, state_); }

template <class T>
ScaledOptimizer<T>::ScaledOptimizer(Context& context, std::vector<ParameterOf<T>> parameters, LossScaling scaling,
                                    OptimizerSettings settings, OptimizerForm form)
    : parameters_(std::move(parameters)), optimizer_(context, parameters_, form, settings), scale_(context, scaling) {}

template <class T>
void ScaledOptimizer<T>::step(Context& context) {
  const Phase phase(context.ledger(), "optimizer");
  scale_.look_at_all(context, parameters_);
  scale_.begin(context, optimizer_.settings().adamw);
  optimizer_.step(context, scale_.on_device());
  scale_.end(context);
}

template <class T>
std::vector<StateTensor> ScaledOptimizer<T>::state_tensors() {
  std::vector<StateTensor> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterOf<T>& p = parameters_[i];
    const typename Optimizer<T>::State& of = optimizer_.state(i);
    all.push_back({p.name, kDTypeOf<T>, p.value, p.count * sizeof(T)});
    const auto add = [&](const char* what, DType type, const auto& buffer) {
      if (buffer)
        all.push_back(
            {p.name + what, type, const_cast<void*>(static_cast<const void*>(buffer.data())), buffer.bytes()});
    };
    add(" master", DType::fp32, of.master);
    add(" m", DType::fp32, of.first);
    add(" v", DType::fp32, of.second);
    add(" m codes", DType::uint8, of.codes[0]);
    add(" m absmax", DType::fp32, of.absmax[0]);
    add(" v codes", DType::uint8, of.codes[1]);
    add(" v absmax", DType::fp32, of.absmax[1]);
  }
  all.push_back({"loss scale", DType::uint8, scale_.buffer().data(), scale_.buffer().bytes()});
  return all;
}

#define OOMLAB_SCALED(T)                                                \
  template class ScaledOptimizer<T>;                                    \
  template void LossScale::look_at<T>(Context&, const T*, std::size_t); \
  template void LossScale::look_at_all<T>(Context&, const std::vector<ParameterOf<T>>&);
OOMLAB_FOR_EACH_TYPE(OOMLAB_SCALED)

}  // namespace oomlab::nn
