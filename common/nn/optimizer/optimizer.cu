#include "nn/optimizer/optimizer.h"

#include <algorithm>
#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/ops/instances.h"
#include "nn/ops/values.h"
#include "nn/optimizer/adamw_rule.h"
#include "nn/optimizer/dynamic_code.h"
#include "nn/optimizer/tensor_table.h"
#include "nn/optimizer/updated_weights.h"

namespace oomlab::nn {

// ------------------------------------------------------------------------------------------------------------- kernels

namespace {

template <class T>
struct UpdatedTensor {
  T* value;
  const T* gradient;
  float *master, *first, *second;  // null, where the rule and the form have none
  std::size_t count;
  std::uint32_t key;  // of stochastic rounding
};

// Rules for one number. kMoments: how many of m and v there are.
struct SgdRule {
  static constexpr int kMoments = 0;
  float lr;
  __device__ void begin(const float* /*bias_corrections*/) {}
  __device__ void operator()(float g, float& /*m*/, float& /*v*/, float& w) const { w = sgd_weight(lr, g, w); }
};
struct MomentumRule {
  static constexpr int kMoments = 1;
  float lr, momentum;
  __device__ void begin(const float* /*bias_corrections*/) {}
  __device__ void operator()(float g, float& m, float& /*v*/, float& w) const {
    m = sgd_velocity(momentum, g, m);
    w = sgd_weight(lr, m, w);
  }
};
struct AdamWRule {
  static constexpr int kMoments = 2;
  AdamWFactors factors;
  __device__ void begin(const float* bias_corrections) { correct_bias(factors, bias_corrections); }
  __device__ void operator()(float g, float& m, float& v, float& w) const {
    adamw_moments(factors, g, m, v);
    w = adamw_weight(factors, m, v, w);
  }
};

// Without __restrict__ on what is written: the compiler for the host would move the load of weights below the stores,
// and a load right after a store to the same place of another page waits for it.
template <class T, class Rule, WeightForm kForm, std::size_t kMost>
__global__ void update_kernel(const __grid_constant__ TensorTable<UpdatedTensor<T>, kMost> table, Rule rule,
                              StepOnDevice on_device) {
  const float f = factor_or_1(on_device.factor);
  if (f == 0.0f) return;
  rule.begin(on_device.bias_corrections);
  for (std::size_t at = 0; at < table.size; ++at) {
    const UpdatedTensor<T> t = table.tensors[at];
    const Weights<T, kForm> weights{t.value, t.master, t.key};
    const bool packs = aligned_for_packs(t.value, t.gradient, t.master, t.first, t.second);
    for_packs<T>(GridRange{}, t.count, packs, [&](auto pack, std::size_t i) {
      using V = decltype(pack);
      constexpr std::size_t lanes = V::size;
      constexpr bool kPacks = lanes > 1;
      float w[lanes], g[lanes], m[lanes], v[lanes];
      load_floats<kPacks, lanes>(g, t.gradient + i * lanes);
      if constexpr (Rule::kMoments > 0) load_floats<kPacks, lanes>(m, t.first + i * lanes);
      if constexpr (Rule::kMoments > 1) load_floats<kPacks, lanes>(v, t.second + i * lanes);
      weights.template load<kPacks, lanes>(w, i * lanes);
      each_lane<V>([&](std::size_t k) { rule(g[k] * f, m[k], v[k], w[k]); });
      if constexpr (Rule::kMoments > 0) store_floats<kPacks, lanes>(t.first + i * lanes, m);
      if constexpr (Rule::kMoments > 1) store_floats<kPacks, lanes>(t.second + i * lanes, v);
      weights.template store<kPacks, lanes>(w, i * lanes);
    });
  }
}

template <class T>
__global__ void master_copy_kernel(const T* value, float* master, std::size_t count) {
  for (std::size_t i : grid_range(count)) master[i] = static_cast<float>(value[i]);
}

// One row, whatever its shape: what is kept of them does not depend on it, but for Adafactor.
template <class T>
std::vector<TensorShape> shapes_of(const std::vector<ParameterOf<T>>& parameters, const OptimizerForm& form) {
  if (form.rule == UpdateRule::adafactor || form.wide_embeddings)
    throw std::invalid_argument("this optimizer asks for the shapes and units of its tensors");
  std::vector<TensorShape> shapes;
  for (const ParameterOf<T>& p : parameters) {
    if (!p.gradient && p.count) throw std::invalid_argument("parameter '" + p.name + "' has no gradient to follow");
    shapes.push_back({p.name, "", 1, p.count});
  }
  return shapes;
}
template <class T>
std::vector<T*> values_of(const std::vector<ParameterOf<T>>& parameters) {
  std::vector<T*> values;
  for (const ParameterOf<T>& p : parameters) values.push_back(p.value);
  return values;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- optimizer

template <class T>
Optimizer<T>::Optimizer(Context& context, std::vector<TensorShape> shapes, std::vector<T*> values, OptimizerForm form,
                        OptimizerSettings settings)
    : shapes_(std::move(shapes)), values_(std::move(values)), form_(form), settings_(settings) {
  if (std::is_same_v<T, float> && form.weights != WeightForm::stored)
    throw std::invalid_argument("weights in FP32 have no master copy and are not rounded");
  if (std::is_same_v<T, __half> && form.weights == WeightForm::stochastic)
    throw std::invalid_argument("weights in FP16 are rounded to the nearest; stochastic rounding is for BF16");
  std::size_t sums = 0;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const TensorShape& shape = shapes_[i];
    const std::size_t n = shape.count();
    State state;
    const auto zeroed = [&]<class V>(V, std::size_t count, const char* what) {
      TrackingResource& memory = form.paged_moments ? context.host_memory().managed() : context.memory();
      DeviceBuffer<V> buffer(memory, context.stream(), count, Category::optimizer, shape.name + what);
      CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), context.stream()));
      return buffer;
    };
    if (form.weights == WeightForm::master) {
      state.master = context.buffer<float>(n, Category::optimizer, shape.name + " master");
      launch(master_copy_kernel<T>, shape_for_items(n), context.stream(), values_[i], state.master.data(), n);
    }
    if (has_8_bit_moments(shape, form)) {
      for (int moment = 0; moment < 2; ++moment) {
        state.codes[moment] = zeroed(std::uint8_t{}, n, moment ? " v codes" : " m codes");
        state.absmax[moment] = zeroed(float{}, blocks_of(n), moment ? " v absmax" : " m absmax");
      }
    } else if (form.rule == UpdateRule::adafactor && shape.rows == 1) {
      state.second = zeroed(float{}, n, " v");
    } else if (form.rule == UpdateRule::adafactor) {
      state.row_means = zeroed(float{}, shape.rows, " v of rows");
      state.column_means = zeroed(float{}, shape.columns, " v of columns");
      sums = std::max(sums, 2 * shape.rows + kAdafactorScalars);
    } else {
      const std::size_t buffers = row_of(form.rule).buffers.value_or(2);
      if (buffers > 0) state.first = zeroed(float{}, n, buffers == 1 ? " velocity" : " m");
      if (buffers > 1) state.second = zeroed(float{}, n, " v");
    }
    states_.push_back(std::move(state));
  }
  if (sums != 0) sums_ = context.buffer<float>(sums, Category::workspace, "Adafactor's sums");
}

template <class T>
Optimizer<T>::Optimizer(Context& context, const std::vector<ParameterOf<T>>& parameters, OptimizerForm form,
                        OptimizerSettings settings)
    : Optimizer(context, shapes_of(parameters, form), values_of(parameters), form, settings) {
  for (const ParameterOf<T>& p : parameters) all_.push_back({all_.size(), p.gradient});
}

template <class T>
void Optimizer<T>::step(Context& context, StepOnDevice on_device) {
  const Phase phase(context.ledger(), "optimizer");
  update(context, all_, on_device);
  end_step();
}

template <class T>
void Optimizer<T>::update(Context& context, std::span<const Update> updates, StepOnDevice on_device) {
  if (form_.rule == UpdateRule::adafactor) {
    for (const Update& update : updates) adafactor(context, update, on_device.factor);
    return;
  }
  std::vector<Update> in_floats, in_codes;
  for (const Update& u : updates) (states_[u.tensor].codes[0] ? in_codes : in_floats).push_back(u);
  const auto update_all = [&](auto rule) {
    with_form<T>(form_.weights, [&](auto form) {
      launch_over_tensors(
          update_kernel<T, decltype(rule), form(), kTensorsOfLaunch>, context.stream(), in_floats.size(), Pack<T>::size,
          [&](std::size_t i) {
            const Update& u = in_floats[i];
            State& s = states_[u.tensor];
            return UpdatedTensor<T>{values_[u.tensor],     u.gradient,      s.master.data(),
                                    s.first.data(),        s.second.data(), shapes_[u.tensor].count(),
                                    rounding_key(u.tensor)};
          },
          rule, on_device);
    });
  };
  switch (form_.rule) {
    case UpdateRule::sgd: return update_all(SgdRule{settings_.sgd.lr});
    case UpdateRule::momentum: return update_all(MomentumRule{settings_.sgd.lr, settings_.sgd.momentum});
    default: update_all(AdamWRule{adamw_factors(settings_.adamw, steps_ + 1)}); adamw_8(context, in_codes, on_device);
  }
}

template <class T>
std::uint32_t Optimizer<T>::rounding_key(std::size_t tensor) const noexcept {
  return nn::rounding_key(settings_.seed, steps_ + 1, tensor);
}

template <class T>
std::uint64_t Optimizer<T>::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  const auto add = [&](const auto& buffer) {
    if (buffer) hash = nn::fingerprint(context, buffer.data(), buffer.bytes(), hash);
  };
  for (const State& s : states_) {
    add(s.master), add(s.first), add(s.second), add(s.row_means), add(s.column_means);
    for (int moment = 0; moment < 2; ++moment) add(s.codes[moment]), add(s.absmax[moment]);
  }
  return hash;
}

void adamw_update(Context& context, float* value, const float* gradient, float* first, float* second, std::size_t count,
                  const AdamWSettings& settings, std::uint64_t step) {
  launch_over_tensors(
      update_kernel<float, AdamWRule, WeightForm::stored, 1>, context.stream(), 1, Pack<float>::size,
      [&](std::size_t) { return UpdatedTensor<float>{value, gradient, nullptr, first, second, count, 0}; },
      AdamWRule{adamw_factors(settings, step)}, StepOnDevice{});
}

#define OOMLAB_OPTIMIZER(T) template class Optimizer<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_OPTIMIZER)

}  // namespace oomlab::nn
