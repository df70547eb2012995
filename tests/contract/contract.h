#pragma once
// What the contract tests share: a fixture that skips where there is no device and sees that nothing is left behind.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "../device.h"
#include "cuda/raii.h"

constexpr std::size_t MiB = std::size_t(1) << 20;

#define EXPECT_CUDA(expected, call) EXPECT_EQ(expected, call) << cudaGetErrorName(cudaPeekAtLastError())
#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, call)

/// The call fails with this error, and leaves it as the last error, once.
#define EXPECT_CUDA_ERROR(expected, call)       \
  do {                                          \
    EXPECT_EQ(expected, call);                  \
    EXPECT_EQ(expected, cudaGetLastError());    \
    EXPECT_EQ(cudaSuccess, cudaGetLastError()); \
  } while (false)

/// The statements return true, in a process of their own: for calls that on a GPU may end in a fault of the device,
/// after which every other call of the process fails. The test's SetUp runs in that process, too.
#define EXPECT_IN_A_PROCESS_OF_ITS_OWN(...)                                                           \
  do {                                                                                                \
    GTEST_FLAG_SET(death_test_style, "threadsafe");                                                   \
    EXPECT_EXIT(std::_Exit([&]() -> bool { __VA_ARGS__ }() ? 0 : 1), testing::ExitedWithCode(0), ""); \
  } while (false)

class Contract : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_DEVICE();
    ASSERT_CUDA(cudaDeviceSynchronize());
    (void)cudaGetLastError();
  }
  void TearDown() override { EXPECT_EQ(cudaSuccess, cudaGetLastError()) << "left behind by the test"; }
};

/// n values on the device, from cudaMalloc; of none, too, the address is not null. They are there for any stream:
/// cudaMemcpy() may return while what it has read is still on its way to the device, and streams that do not block do not
/// wait for that.
template <class T>
class Values {
 public:
  explicit Values(std::size_t n) : count_(n) {
    CUDA_CHECK(cudaMalloc(&data_, std::max<std::size_t>(n, 1) * sizeof(T)));
  }
  explicit Values(const std::vector<T>& v) : Values(v.size()) {
    CUDA_CHECK(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  ~Values() { oomlab::report_if_failed(cudaFree(data_), "cudaFree"); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  /// Waits for the device and reads all of it.
  std::vector<T> get() const {
    CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<T> v(count_);
    CUDA_CHECK(cudaMemcpy(v.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};
