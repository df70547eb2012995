// Devices, versions, errors, peer access.

#include <string>

#include "contract.h"

namespace {

using Device = Contract;

TEST_F(Device, Versions) {
  int runtime = 0;
  EXPECT_CUDA(cudaSuccess, cudaRuntimeGetVersion(&runtime));
  EXPECT_GE(runtime, 12040);
  EXPECT_EQ(CUDART_VERSION, runtime);
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaRuntimeGetVersion(nullptr));
}

TEST_F(Device, CountAndCurrent) {
  int count = 0, device = -1;
  EXPECT_CUDA(cudaSuccess, cudaGetDeviceCount(&count));
  EXPECT_GE(count, 1);
  EXPECT_CUDA(cudaSuccess, cudaSetDevice(count - 1));
  EXPECT_CUDA(cudaSuccess, cudaGetDevice(&device));
  EXPECT_EQ(count - 1, device);
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaSetDevice(count));
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaSetDevice(-1));
  EXPECT_CUDA(cudaSuccess, cudaGetDevice(&device));
  EXPECT_EQ(count - 1, device) << "a refused device changes nothing";
  EXPECT_CUDA(cudaSuccess, cudaSetDevice(0));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaGetDevice(nullptr));
}

TEST_F(Device, Properties) {
  cudaDeviceProp prop;
  ASSERT_CUDA(cudaGetDeviceProperties(&prop, 0));
  EXPECT_FALSE(std::string(prop.name).empty());
  EXPECT_GE(prop.major, 0);
  EXPECT_GE(prop.minor, 0);
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaGetDeviceProperties(&prop, 1000));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaGetDeviceProperties(nullptr, 0));
  int value = 0;
  EXPECT_CUDA(cudaSuccess, cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  EXPECT_GE(value, 1);
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1000));
}

TEST_F(Device, LastErrorStaysUntilItIsRead) {
  EXPECT_CUDA(cudaErrorInvalidDevice, cudaSetDevice(1000));
  int count = 0;
  EXPECT_EQ(cudaSuccess, cudaGetDeviceCount(&count));  // a success does not clear it
  EXPECT_EQ(cudaErrorInvalidDevice, cudaPeekAtLastError());
  EXPECT_EQ(cudaErrorInvalidDevice, cudaPeekAtLastError());
  EXPECT_EQ(cudaErrorInvalidDevice, cudaGetLastError());
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

TEST_F(Device, ErrorsHaveNames) {
  EXPECT_STREQ("cudaSuccess", cudaGetErrorName(cudaSuccess));
  EXPECT_STREQ("no error", cudaGetErrorString(cudaSuccess));
  EXPECT_STREQ("cudaErrorMemoryAllocation", cudaGetErrorName(cudaErrorMemoryAllocation));
  EXPECT_STREQ("out of memory", cudaGetErrorString(cudaErrorMemoryAllocation));
  EXPECT_STREQ("cudaErrorInvalidValue", cudaGetErrorName(cudaErrorInvalidValue));
  EXPECT_STREQ("invalid argument", cudaGetErrorString(cudaErrorInvalidValue));
  EXPECT_STREQ("cudaErrorNotReady", cudaGetErrorName(cudaErrorNotReady));
  EXPECT_STREQ("unrecognized error code", cudaGetErrorName(static_cast<cudaError_t>(12345)));
  EXPECT_STREQ("unrecognized error code", cudaGetErrorString(static_cast<cudaError_t>(12345)));
}

TEST_F(Device, Peers) {
  int can = -1;
  EXPECT_CUDA(cudaSuccess, cudaDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(0, can) << "a device is not its own peer";
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&can, 0, 1000));
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one device";
  EXPECT_CUDA(cudaSuccess, cudaDeviceCanAccessPeer(&can, 0, 1));
}

}  // namespace
