#pragma once
// What tests of operators need that are stored as float, __half or __nv_bfloat16: values as each of them holds them,
// how close results must be, and a fixture that is played with each block size.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/block_threads.h"
#include "device.h"

namespace oomlab::test {

/// 16-bit results may be off by what their own rounding costs, no more.
template <class T>
constexpr double kTolerance = 0;
template <>
constexpr double kTolerance<float> = 1e-4;
template <>
constexpr double kTolerance<__half> = 2e-3;  // 11 bits, and a few roundings
template <>
constexpr double kTolerance<__nv_bfloat16> = 1.6e-2;  // 8 bits

/// Statistics of norms are FP32 in every type.
inline constexpr double kStatistics = 1e-4;

template <class T>
std::vector<T> stored(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float v : values) result.push_back(static_cast<T>(v));
  return result;
}
/// Random values as T holds them.
template <class T>
std::vector<T> random(std::size_t count, unsigned seed, float bound = 2.0f) {
  return stored<T>(random_floats(count, seed, bound));
}
template <class T>
std::vector<double> wide(const std::vector<T>& values) {
  std::vector<double> all;
  for (const T& v : values) all.push_back(static_cast<float>(v));
  return all;
}
template <class F>
void for_each_type(F f) {
  f(float{});
  f(__half{});
  f(__nv_bfloat16{});
}

class TypedOps : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }

  template <class T>
  void expect(const DeviceBuffer<T>& found, const std::vector<double>& expected, const std::string& what,
              double tolerance = kTolerance<T>) {
    expect_close(wide(device.download(found)), expected, tolerance, what);
  }
  template <class T>
  DeviceBuffer<T> garbage(std::size_t count) {
    return device.upload(std::vector<T>(count, static_cast<T>(NAN)));
  }
  Device device;
};

}  // namespace oomlab::test
