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
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/tensor_table.h"

namespace oomlab::nn {

namespace {

template <class T>
__global__ void to_master_kernel(const T* value, float* master, std::size_t count) {
  for (std::size_t i : grid_range(count)) master[i] = static_cast<float>(value[i]);
}

__global__ void first_state_kernel(ScaleState* state, float scale) {
  for ([[maybe_unused]] std::size_t once : block_range(1)) *state = {scale, 0, 0, 0, 0, 0, 0};
}

template <class T>
struct GradientTensor {
  const T* gradient;
  std::size_t count;
};
template <class T>
struct MixedTensor {
  T* value;
  const T* gradient;
  float *master, *first, *second;  // master null: there is no such copy
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
    if (bad) atomicAdd(&state->overflow, 1u);
}

// Before the updates: AdamW's factors for this step, if it is done.
__global__ void begin_kernel(ScaleState* state, AdamWSettings s) {
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    if (state->overflow) continue;
    ++state->steps;
    const auto t = static_cast<double>(state->steps);
    state->rate = static_cast<float>(static_cast<double>(s.lr) / (1.0 - pow(static_cast<double>(s.beta1), t)));
    state->second_unbiased = static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(s.beta2), t)));
  }
}

// After them: the scale of the next step.
__global__ void end_kernel(ScaleState* state, LossScaling scaling) {
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    if (!scaling.dynamic) continue;
    if (state->overflow) {
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

template <class T>
__global__ void update_kernel(const __grid_constant__ TensorTable<MixedTensor<T>, kTensorsOfLaunch> table,
                              AdamWSettings s, const ScaleState* __restrict__ state) {
  if (state->overflow) return;
  const float unscale = 1.0f / state->scale;
  const AdamWFactors factors = adamw_factors(s, state->rate, state->second_unbiased);
  for (std::size_t at = 0; at < table.size; ++at) {
    const MixedTensor<T> t = table.tensors[at];
    const bool packs = aligned_for_packs(t.value, t.gradient, t.master, t.first, t.second);
    for_packs<T>(GridRange{}, t.count, packs, [&](auto value, std::size_t i) {
      using V = decltype(value);
      constexpr std::size_t lanes = V::size;
      constexpr bool kPacks = lanes > 1;
      float w[lanes], g[lanes], m[lanes], v[lanes];
      load_floats<kPacks, lanes>(g, t.gradient + i * lanes);
      load_floats<kPacks, lanes>(m, t.first + i * lanes);
      load_floats<kPacks, lanes>(v, t.second + i * lanes);
      if (t.master)
        load_floats<kPacks, lanes>(w, t.master + i * lanes);
      else
        load_floats<kPacks, lanes>(w, t.value + i * lanes);
      each_lane<V>([&](std::size_t k) {
        adamw_moments(factors, g[k] * unscale, m[k], v[k]);
        w[k] = adamw_weight(factors, m[k], v[k], w[k]);
      });
      store_floats<kPacks, lanes>(t.first + i * lanes, m);
      store_floats<kPacks, lanes>(t.second + i * lanes, v);
      if (t.master) store_floats<kPacks, lanes>(t.master + i * lanes, w);
      store_floats<kPacks, lanes>(t.value + i * lanes, w);
    });
  }
}

}  // namespace

template <class T>
MixedAdamW<T>::MixedAdamW(Context& context, std::vector<ParameterOf<T>> parameters, AdamWSettings settings,
                          LossScaling scaling, bool master_weights)
    : parameters_(std::move(parameters)), settings_(settings), scaling_(scaling) {
  for (const ParameterOf<T>& p : parameters_) {
    if (!p.gradient && p.count) throw std::invalid_argument("parameter '" + p.name + "' has no gradient to follow");
    const auto state = [&](const char* what) {
      return context.buffer<float>(p.count, Category::optimizer, p.name + what);
    };
    if (master_weights) {
      master_.push_back(state(" master"));
      launch(to_master_kernel<T>, shape_for_items(p.count), context.stream(), p.value, master_.back().data(), p.count);
    }
    for (auto* moments : {&first_, &second_}) {
      moments->push_back(state(moments == &first_ ? " m" : " v"));
      CUDA_CHECK(cudaMemsetAsync(moments->back().data(), 0, moments->back().bytes(), context.stream()));
    }
  }
  state_ = context.buffer<ScaleState>(1, Category::optimizer, "loss scale");
  launch(first_state_kernel, shape_for_rows(1), context.stream(), state_.data(), scaling.initial);
}

template <class T>
void MixedAdamW<T>::step(Context& context) {
  const Phase phase(context.ledger(), "optimizer");
  if (scaling_.dynamic)
    launch_over_tensors(
        overflow_kernel<T>, context.stream(), parameters_.size(), Pack<T>::size,
        [&](std::size_t i) {
          return GradientTensor<T>{parameters_[i].gradient, parameters_[i].count};
        },
        state_.data());
  launch(begin_kernel, shape_for_rows(1), context.stream(), state_.data(), settings_);
  launch_over_tensors(
      update_kernel<T>, context.stream(), parameters_.size(), Pack<T>::size,
      [&](std::size_t i) {
        const ParameterOf<T>& p = parameters_[i];
        return MixedTensor<T>{p.value,          p.gradient,        master_.empty() ? nullptr : master_[i].data(),
                              first_[i].data(), second_[i].data(), p.count};
      },
      settings_, state_.data());
  launch(end_kernel, shape_for_rows(1), context.stream(), state_.data(), scaling_);
}

template <class T>
ScaleState MixedAdamW<T>::state(Context& context) const {
  return read_value(context, state_);
}

template <class T>
std::vector<StateTensor> MixedAdamW<T>::state_tensors() {
  std::vector<StateTensor> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterOf<T>& p = parameters_[i];
    all.push_back({p.name, kDTypeOf<T>, p.value, p.count * sizeof(T)});
    if (!master_.empty()) all.push_back({p.name + " master", DType::fp32, master_[i].data(), master_[i].bytes()});
    all.push_back({p.name + " m", DType::fp32, first_[i].data(), first_[i].bytes()});
    all.push_back({p.name + " v", DType::fp32, second_[i].data(), second_[i].bytes()});
  }
  all.push_back({"loss scale", DType::uint8, state_.data(), state_.bytes()});
  return all;
}

template class MixedAdamW<float>;
template class MixedAdamW<__half>;
template class MixedAdamW<__nv_bfloat16>;

}  // namespace oomlab::nn
