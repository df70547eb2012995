#pragma once
// A context for tests, and vectors that travel to it and back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/context.h"

namespace oomlab::test {

struct Device {
  CudaResource resource;
  Ledger ledger;
  Context context{resource, ledger};

  /// In the order of the context's stream: cudaMemcpy() waits for nothing there, and nothing there for it.
  template <class T>
  void put(T* address, const std::vector<T>& values) {
    CUDA_CHECK(
        cudaMemcpyAsync(address, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, context.stream()));
  }
  template <class T>
  DeviceBuffer<T> upload(const std::vector<T>& values) {
    auto buffer = context.buffer<T>(values.size(), Category::data, "test");
    put(buffer.data(), values);
    CUDA_CHECK(cudaStreamSynchronize(context.stream()));
    return buffer;
  }
  /// The values lie `shift` elements behind an aligned address; what is before them is not a number.
  template <class T>
  DeviceBuffer<T> upload_shifted(std::vector<T> values, std::size_t shift) {
    values.insert(values.begin(), shift, static_cast<T>(NAN));
    return upload(values);
  }
  template <class T>
  std::vector<T> download(const T* address, std::size_t count) {
    std::vector<T> values(count);
    CUDA_CHECK(cudaMemcpyAsync(values.data(), address, count * sizeof(T), cudaMemcpyDeviceToHost, context.stream()));
    CUDA_CHECK(cudaStreamSynchronize(context.stream()));
    return values;
  }
  template <class T>
  std::vector<T> download(const DeviceBuffer<T>& buffer) {
    return download(buffer.data(), buffer.size());
  }
};

/// f() throws std::invalid_argument with one line.
template <class F>
void expect_refused_in_one_line(F f, const std::string& what) {
  try {
    (void)f();
    ADD_FAILURE() << "accepted: " << what;
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    EXPECT_FALSE(message.empty()) << what;
    EXPECT_EQ(message.find('\n'), std::string::npos) << what;
  }
}

inline std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

/// Floats in [−bound, bound), none closer to zero than `gap`.
inline std::vector<float> random_floats(std::size_t count, unsigned seed, float bound = 2.0f, float gap = 0.0f) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& v : values) {
    v = (static_cast<float>(generator() >> 8) / (1 << 23) - 1.0f) * bound;
    if (std::fabs(v) < gap) v = v < 0 ? v - gap : v + gap;
  }
  return values;
}

inline std::vector<int> random_labels(std::size_t count, std::size_t classes, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<int> labels(count);
  for (int& l : labels) l = static_cast<int>(generator() % classes);
  return labels;
}

/// Differences are measured against the largest value: a sum that cancels to nothing has no relative
/// precision.
template <class A, class B>
void expect_close(const std::vector<A>& found, const std::vector<B>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double scale = 1e-30;
  for (const B& e : expected) scale = std::max(scale, std::fabs(double(e)));
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_LE(std::fabs(double(found[i]) - double(expected[i])), tolerance * scale)
        << what << " at " << i << ": " << found[i] << " instead of " << expected[i];
}

}  // namespace oomlab::test
