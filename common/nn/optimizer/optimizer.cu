#include "nn/optimizer/optimizer.h"

#include <stdexcept>

#include "cuda/check.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/tensor_table.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------------------------- kernels

namespace {

struct SgdTensor {
  float* value;
  const float* gradient;
  float* velocity;  // null without momentum
  std::size_t count;
};
struct AdamWTensor {
  float* value;
  const float* gradient;
  float *first, *second;
  std::size_t count;
};

template <std::size_t kMost>
__global__ void sgd_kernel(const __grid_constant__ TensorTable<SgdTensor, kMost> table, float lr) {
  for (std::size_t t = 0; t < table.size; ++t) {
    float* const value = table.tensors[t].value;
    const float* const __restrict__ gradient = table.tensors[t].gradient;
    for_packs(GridRange{}, table.tensors[t].count, aligned_for_packs(value, gradient), [&](auto w, std::size_t i) {
      using V = decltype(w);
      w = load<V>(value, i);
      const V g = load<V>(gradient, i);
      each_lane<V>([&](std::size_t k) { w[k] = sgd_weight(lr, g[k], w[k]); });
      store(value, i, w);
    });
  }
}

template <std::size_t kMost>
__global__ void momentum_kernel(const __grid_constant__ TensorTable<SgdTensor, kMost> table, float lr, float momentum) {
  for (std::size_t t = 0; t < table.size; ++t) {
    float *const value = table.tensors[t].value, *const velocity = table.tensors[t].velocity;
    const float* const __restrict__ gradient = table.tensors[t].gradient;
    const bool packs = aligned_for_packs(value, gradient, velocity);
    for_packs(GridRange{}, table.tensors[t].count, packs, [&](auto w, std::size_t i) {
      using V = decltype(w);
      w = load<V>(value, i);
      V v = load<V>(velocity, i);
      const V g = load<V>(gradient, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = sgd_velocity(momentum, g[k], v[k]);
        w[k] = sgd_weight(lr, v[k], w[k]);
      });
      store(velocity, i, v);
      store(value, i, w);
    });
  }
}

// Without __restrict__ on what is written: the compiler for the host would move the load of `value` below the
// stores, and a load right after a store to the same place of another page waits for it.
template <std::size_t kMost>
__global__ void adamw_kernel(const __grid_constant__ TensorTable<AdamWTensor, kMost> table, AdamWFactors s) {
  for (std::size_t t = 0; t < table.size; ++t) {
    float *const value = table.tensors[t].value, *const first = table.tensors[t].first,
                 *const second = table.tensors[t].second;
    const float* const __restrict__ gradient = table.tensors[t].gradient;
    const bool packs = aligned_for_packs(value, gradient, first, second);
    for_packs(GridRange{}, table.tensors[t].count, packs, [&](auto w, std::size_t i) {
      using V = decltype(w);
      w = load<V>(value, i);
      V m = load<V>(first, i), v = load<V>(second, i);
      const V g = load<V>(gradient, i);
      each_lane<V>([&](std::size_t k) {
        adamw_moments(s, g[k], m[k], v[k]);
        w[k] = adamw_weight(s, m[k], v[k], w[k]);
      });
      store(first, i, m);
      store(second, i, v);
      store(value, i, w);
    });
  }
}

// One update of tensor_at(0) … tensor_at(n − 1).
template <std::size_t kMost, class At>
void sgd_update_all(Context& context, std::size_t n, At tensor_at, const SgdSettings& settings) {
  if (settings.momentum == 0.0f)
    launch_over_tensors(sgd_kernel<kMost>, context.stream(), n, 4, tensor_at, settings.lr);
  else
    launch_over_tensors(momentum_kernel<kMost>, context.stream(), n, 4, tensor_at, settings.lr, settings.momentum);
}
template <std::size_t kMost, class At>
void adamw_update_all(Context& context, std::size_t n, At tensor_at, const AdamWSettings& settings,
                      std::uint64_t step) {
  launch_over_tensors(adamw_kernel<kMost>, context.stream(), n, 4, tensor_at, adamw_factors(settings, step));
}

std::vector<DeviceBuffer<float>> make_state(Context& context, const std::vector<Parameter>& parameters,
                                            const char* suffix) {
  std::vector<DeviceBuffer<float>> state;
  state.reserve(parameters.size());
  for (const Parameter& p : parameters) {
    state.push_back(context.buffer<float>(p.count, Category::optimizer, p.name + suffix));
    CUDA_CHECK(cudaMemsetAsync(state.back().data(), 0, state.back().bytes(), context.stream()));
  }
  return state;
}

std::vector<Parameter> require_gradients(std::vector<Parameter> parameters) {
  for (const Parameter& p : parameters)
    if (!p.gradient && p.count) throw std::invalid_argument("parameter '" + p.name + "' has no gradient to follow");
  return parameters;
}

}  // namespace

void sgd_update(Context& context, float* value, const float* gradient, float* velocity, std::size_t count,
                const SgdSettings& settings) {
  sgd_update_all<1>(
      context, 1,
      [&](std::size_t) {
        return SgdTensor{value, gradient, velocity, count};
      },
      settings);
}

void adamw_update(Context& context, float* value, const float* gradient, float* first, float* second, std::size_t count,
                  const AdamWSettings& settings, std::uint64_t step) {
  adamw_update_all<1>(
      context, 1,
      [&](std::size_t) {
        return AdamWTensor{value, gradient, first, second, count};
      },
      settings, step);
}

// ---------------------------------------------------------------------------------------------------------- optimizers

Sgd::Sgd(Context& context, std::vector<Parameter> parameters, SgdSettings settings)
    : Optimizer(require_gradients(std::move(parameters))), settings_(settings) {
  if (settings_.momentum != 0.0f) velocity_ = make_state(context, parameters_, " velocity");
}

OptimizerKind Sgd::kind() const noexcept {
  return settings_.momentum == 0.0f ? OptimizerKind::sgd : OptimizerKind::momentum;
}

void Sgd::step(Context& context) {
  const Phase phase(context.ledger(), "optimizer");
  sgd_update_all<kTensorsOfLaunch>(
      context, parameters_.size(),
      [&](std::size_t i) {
        const Parameter& p = parameters_[i];
        return SgdTensor{p.value, p.gradient, velocity_.empty() ? nullptr : velocity_[i].data(), p.count};
      },
      settings_);
  ++steps_;
}

AdamW::AdamW(Context& context, std::vector<Parameter> parameters, AdamWSettings settings)
    : Optimizer(require_gradients(std::move(parameters))),
      settings_(settings),
      first_(make_state(context, parameters_, " m")),
      second_(make_state(context, parameters_, " v")) {}

void AdamW::step(Context& context) {
  const Phase phase(context.ledger(), "optimizer");
  adamw_update_all<kTensorsOfLaunch>(
      context, parameters_.size(),
      [&](std::size_t i) {
        const Parameter& p = parameters_[i];
        return AdamWTensor{p.value, p.gradient, first_[i].data(), second_[i].data(), p.count};
      },
      settings_, steps_ + 1);
  ++steps_;
}

}  // namespace oomlab::nn
