// The same on several devices, and where streams put work off as long as CUDA allows.

#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <string>
#include <vector>

#include "cuda/raii.h"

namespace oomlab {
namespace {

class HostWrappers : public testing::Test {
 protected:
  void SetUp() override {
    host::Machine machine = initial;
    machine.devices = 3;
    machine.deferred = true;
    host::configure(machine);
  }
  void TearDown() override {
    EXPECT_EQ("nothing", host::describe(host::live()));
    host::configure(initial);
  }
  const host::Machine initial = host::machine();
};

TEST_F(HostWrappers, ADeviceGuardReturnsToTheDeviceBefore) {
  int device = -1;
  {
    const DeviceGuard one(1);
    {
      const DeviceGuard two(2);
      CUDA_CHECK(cudaGetDevice(&device));
      EXPECT_EQ(device, 2);
    }
    CUDA_CHECK(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
    EXPECT_THROW(DeviceGuard(3), CudaError);
    CUDA_CHECK(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
  }
  CUDA_CHECK(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

TEST_F(HostWrappers, ElapsedTimeWaitsForItsEnd) {
  const Stream stream;
  Event start, stop;
  start.record(stream);
  stop.record(stream);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, stop), cudaErrorNotReady);
  (void)cudaGetLastError();
  EXPECT_NO_THROW((void)elapsed_ms(start, stop));
}

TEST(HostBlasHandle, AddsUpInFp32AndEveryStepMayFail) {
  std::vector<std::string> sites;
  for (std::uint64_t call = 1; call < 10; ++call) {
    host::arm_fault(call, false);
    try {
      const CublasHandle handle(nullptr);
      host::disarm_fault();
      break;
    } catch (const CublasError&) {
      sites.emplace_back(host::fault_site());
    }
    host::disarm_fault();
    EXPECT_EQ("nothing", host::describe(host::live())) << sites.back();
  }
  EXPECT_EQ((std::vector<std::string>{"cublasCreate", "cublasSetStream", "cublasSetMathMode"}), sites);
}

}  // namespace
}  // namespace oomlab
