#pragma once
// For tests that need a device, and are skipped where there is none.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace oomlab::test {

/// False where there is no usable CUDA device; then no error of asking is left behind. The host runtime always has one.
inline bool has_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  (void)cudaGetLastError();
  return false;
}

}  // namespace oomlab::test

// In a test or in its SetUp(): what follows needs a device.
#define SKIP_WITHOUT_DEVICE() \
  if (!oomlab::test::has_device()) GTEST_SKIP() << "no CUDA device"
