// Devices, versions, errors, peer access.

#include <string>

#include "contract.h"

namespace {

using Device = Contract;

TEST_F(Device, Versions) {
  int driver = 0, runtime = 0;
  EXPECT_CUDA(cudaSuccess, cudaDriverGetVersion(&driver));
  EXPECT_CUDA(cudaSuccess, cudaRuntimeGetVersion(&runtime));
  EXPECT_GE(driver, runtime);
  EXPECT_GE(runtime, 12040);
  EXPECT_EQ(CUDART_VERSION, runtime);
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaDriverGetVersion(nullptr));
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

TEST_F(Device, PropertiesAgreeWithAttributes) {
  cudaDeviceProp prop;
  ASSERT_CUDA(cudaGetDeviceProperties(&prop, 0));
  EXPECT_FALSE(std::string(prop.name).empty());
  EXPECT_EQ(1024, prop.maxThreadsPerBlock);
  EXPECT_EQ(32, prop.warpSize);
  EXPECT_GE(prop.multiProcessorCount, 1);
  const auto attribute = [](cudaDeviceAttr attr) {
    int value = -1;
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attr, 0));
    return value;
  };
  EXPECT_EQ(prop.maxThreadsPerBlock, attribute(cudaDevAttrMaxThreadsPerBlock));
  EXPECT_EQ(prop.maxGridSize[0], attribute(cudaDevAttrMaxGridDimX));
  EXPECT_EQ(prop.sharedMemPerBlock, static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlock)));
  EXPECT_EQ(prop.sharedMemPerBlockOptin, static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  EXPECT_EQ(prop.warpSize, attribute(cudaDevAttrWarpSize));
  EXPECT_EQ(prop.multiProcessorCount, attribute(cudaDevAttrMultiProcessorCount));
  EXPECT_EQ(prop.integrated, attribute(cudaDevAttrIntegrated));
  EXPECT_EQ(prop.concurrentKernels, attribute(cudaDevAttrConcurrentKernels));
  EXPECT_EQ(prop.unifiedAddressing, attribute(cudaDevAttrUnifiedAddressing));
  EXPECT_EQ(prop.major, attribute(cudaDevAttrComputeCapabilityMajor));
  EXPECT_EQ(prop.minor, attribute(cudaDevAttrComputeCapabilityMinor));
  EXPECT_EQ(prop.managedMemory, attribute(cudaDevAttrManagedMemory));
  EXPECT_EQ(prop.pageableMemoryAccess, attribute(cudaDevAttrPageableMemoryAccess));
  EXPECT_EQ(prop.concurrentManagedAccess, attribute(cudaDevAttrConcurrentManagedAccess));
  EXPECT_EQ(prop.memoryPoolsSupported, attribute(cudaDevAttrMemoryPoolsSupported));
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaGetDeviceProperties(&prop, 1000));
  int value;
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1000));
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
  EXPECT_CUDA_ERROR(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(1000, 0));
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one device";
  ASSERT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  if (!can) GTEST_SKIP() << "devices 0 and 1 do not reach each other";
  EXPECT_CUDA(cudaSuccess, cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_CUDA_ERROR(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_CUDA(cudaSuccess, cudaDeviceDisablePeerAccess(1));
  EXPECT_CUDA_ERROR(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
}

}  // namespace
