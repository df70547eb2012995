// How long one update takes, in ratios on this machine: of 16 million parameters, without a model around it.
// bench/peers/pytorch_optimizer.py runs it in turns with PyTorch's.

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "../../../../tests/nn/device.h"
#include "nn/compact_optimizer.h"

namespace {

using namespace oomlab;
using namespace oomlab::nn;

constexpr std::size_t kMatrices = 16, kSide = 1024;

// Milliseconds of one update, the median of some.
template <class T>
double milliseconds(OptimizerForm form, std::size_t rounds = 9) {
  test::Device device;
  std::vector<TensorShape> shapes;
  std::vector<DeviceBuffer<T>> buffers;
  std::vector<T*> values;
  std::vector<typename CompactOptimizer<T>::Update> updates;
  const std::vector<float> numbers = test::random_floats(kSide * kSide, 1, 0.1f);
  const std::vector<T> of_type(numbers.begin(), numbers.end());
  for (std::size_t i = 0; i < kMatrices; ++i) {
    shapes.push_back({"matrix " + std::to_string(i), "layer 1", kSide, kSide});
    buffers.push_back(device.upload(of_type)), values.push_back(buffers.back().data());
  }
  for (std::size_t i = 0; i < kMatrices; ++i) {
    buffers.push_back(device.upload(of_type));
    updates.push_back({i, buffers.back().data()});
  }
  CompactOptimizer<T> optimizer(device.context, shapes, values, form);
  std::vector<double> times;
  for (std::size_t round = 0; round < rounds + 2; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.update(device.context, updates);
    optimizer.end_step();
    device.context.synchronize();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    if (round >= 2) times.push_back(time.count());
  }
  std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

TEST(Speed, OfOneUpdate) {
  const double count = double(kMatrices * kSide * kSide);
  // Bytes that an update cannot but move: weights and state read and written, gradients read.
  const auto tell = [&](const char* name, double bytes, double ms) {
    std::printf("%-18s %7.2f ms  %6.2f bytes per parameter, %5.1f GB/s\n", name, ms, bytes, bytes * count / ms / 1e6);
    return ms;
  };
  const double adamw = tell("adamw", 28, milliseconds<float>({}));
  const double eight = tell("adamw8", 16 + 16.0 / 256, milliseconds<float>({UpdateRule::adamw8}));
  tell("adafactor", 12, milliseconds<float>({UpdateRule::adafactor}));
  tell("sgd", 12, milliseconds<float>({UpdateRule::sgd}));
  tell("bf16 stochastic", 22, milliseconds<__nv_bfloat16>({UpdateRule::adamw, WeightForm::stochastic}));
  // Codes are taken apart and put together 256 at a time, in vectors; number by number it takes fifty times as long.
  // What other programs do can cost more than this, but not three times in a row.
  double ratio = eight / adamw;
  for (int attempt = 0; attempt < 2 && ratio >= 10; ++attempt)
    ratio = milliseconds<float>({UpdateRule::adamw8}) / milliseconds<float>({});
  EXPECT_LT(ratio, 10);
}

}  // namespace
