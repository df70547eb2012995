// cuBLAS on the host runtime: what the real library does not have (faults, plan mode, deferred streams,
// counts), and sizes of int8 that GPUs refuse.

#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cuda/raii.h"
#include "oomlab_host.h"

namespace {

namespace host = oomlab::host;

class HostBlas : public testing::Test {
 protected:
  void TearDown() override {
    host::disarm_fault();
    EXPECT_EQ(host::describe(host::live()), "nothing");
    host::set_planning(false);
    host::configure(initial);
  }
  const host::Machine initial = host::machine();
};

/// One float on the device.
struct Value {
  explicit Value(float x) {
    CUDA_CHECK(cudaMalloc(&data, sizeof(float)));
    CUDA_CHECK(cudaMemcpy(data, &x, sizeof x, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));  // there for any stream, see Values in contract.h
  }
  Value(const Value&) = delete;
  ~Value() { cudaFree(data); }
  float get() const {
    float x = 0;
    CUDA_CHECK(cudaMemcpy(&x, data, sizeof x, cudaMemcpyDeviceToHost));
    return x;
  }
  float* data = nullptr;
};

cublasStatus_t multiply(cublasHandle_t blas, const float* a, const float* b, float* c, float alpha = 1) {
  const float zero = 0;
  return cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, a, 1, b, 1, &zero, c, 1);
}

// A GPU's rounding of the operands is its own; here it is to nearest even, 10 bits of mantissa.
TEST_F(HostBlas, Tf32RoundsItsOperands) {
  const oomlab::CublasHandle blas(nullptr);
  const Value unit(1), result(0);
  const float one = 1, zero = 0, infinity = std::numeric_limits<float>::infinity();
  const auto through = [&](float x, cublasComputeType_t compute) {
    const Value value(x);
    CUBLAS_CHECK(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, value.data, CUDA_R_32F, 1, unit.data,
                              CUDA_R_32F, 1, &zero, result.data, CUDA_R_32F, 1, compute, CUBLAS_GEMM_DEFAULT));
    return result.get();
  };
  for (const auto& [x, rounded] :
       {std::pair(1 + 0x1p-10f, 1 + 0x1p-10f), std::pair(1 + 0x1p-11f, 1.0f), std::pair(1 + 0x1.8p-10f, 1 + 0x1p-9f),
        std::pair(-1 - 0x1.2p-11f, -1 - 0x1p-10f), std::pair(0x1.fffp5f, 0x1p6f), std::pair(-infinity, -infinity)}) {
    EXPECT_EQ(rounded, through(x, CUBLAS_COMPUTE_32F_FAST_TF32)) << x;
    EXPECT_EQ(x, through(x, CUBLAS_COMPUTE_32F)) << x;
  }
  EXPECT_TRUE(std::isnan(through(std::nanf(""), CUBLAS_COMPUTE_32F_FAST_TF32)));
}

// Whatever is transposed, added to, or part of a batch; bit by bit where nothing is scaled or added to.
TEST_F(HostBlas, ProductsOfManagedMemoryAreThoseOfDeviceMemory) {
  const oomlab::CublasHandle blas(nullptr);
  constexpr int m = 37, n = 65, k = 130, batches = 3, ld = 131, elements = ld * ld * batches;
  const auto fill = [](float* values, int seed) {
    for (int i = 0; i < elements; ++i) values[i] = float((i * 7919 + seed) % 1009) / 1009 - 0.5f;
  };
  std::vector<float> host(elements);
  float *device[3], *managed[3];
  for (int i = 0; i < 3; ++i) {
    CUDA_CHECK(cudaMalloc(&device[i], elements * sizeof(float)));
    CUDA_CHECK(cudaMallocManaged(&managed[i], elements * sizeof(float)));
  }
  for (const int kept : {0, 1, 2})  // which of the three lies in device memory all the same
    for (const cublasOperation_t a : {CUBLAS_OP_N, CUBLAS_OP_T})
      for (const cublasOperation_t b : {CUBLAS_OP_N, CUBLAS_OP_T})
        for (const float beta : {0.0f, 0.5f, 1.0f})
          for (const int depth : {0, k})
            for (const int batch : {1, batches}) {
              for (int i = 0; i < 3; ++i) {
                fill(managed[i], i), fill(host.data(), i);
                CUDA_CHECK(cudaMemcpy(device[i], host.data(), elements * sizeof(float), cudaMemcpyHostToDevice));
              }
              const float alpha = beta == 0 ? 1.0f : 0.75f;
              const auto multiply = [&](const float* x, const float* y, float* z) {
                CUBLAS_CHECK(cublasGemmStridedBatchedEx(blas, a, b, m, n, depth, &alpha, x, CUDA_R_32F, ld, ld * ld, y,
                                                        CUDA_R_32F, ld, ld * ld, &beta, z, CUDA_R_32F, ld, ld * ld,
                                                        batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
              };
              multiply(device[0], device[1], device[2]);
              CUDA_CHECK(cudaMemcpy(host.data(), device[2], elements * sizeof(float), cudaMemcpyDeviceToHost));
              if (kept == 2) {  // the product has overwritten it
                CUDA_CHECK(cudaMemcpy(device[2], managed[2], elements * sizeof(float), cudaMemcpyDefault));
              }
              const auto place = [&](int i) { return kept == i ? device[i] : managed[i]; };
              multiply(place(0), place(1), place(2));
              std::vector<float> got(elements);
              CUDA_CHECK(cudaMemcpy(got.data(), place(2), elements * sizeof(float), cudaMemcpyDefault));
              if (beta != 0)
                for (int i = 0; i < elements; ++i) got[i] = std::fabs(got[i] - host[i]) < 1e-5f ? host[i] : got[i];
              ASSERT_EQ(host, got) << kept << a << b << " beta " << beta << " depth " << depth << " batch " << batch;
            }
  for (int i = 0; i < 3; ++i) {
    CUDA_CHECK(cudaFree(device[i]));
    CUDA_CHECK(cudaFree(managed[i]));
  }
}

TEST_F(HostBlas, HandlesAreCounted) {
  {
    const oomlab::CublasHandle one(nullptr), two(nullptr);
    EXPECT_EQ(host::live().blas_handles, 2u);
  }
  EXPECT_EQ(host::live().blas_handles, 0u);
  EXPECT_EQ(cublasDestroy(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasCreate(nullptr), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(HostBlas, EveryCallCanBeMadeToFail) {
  const Value a(2), b(3), c(0);
  const oomlab::CublasHandle blas(nullptr);
  const float one = 1, zero = 0;
  const struct {
    const char* site;
    cublasStatus_t injected;
    std::function<cublasStatus_t()> call;
  } cases[] = {
      {"cublasSetStream", CUBLAS_STATUS_INTERNAL_ERROR, [&] { return cublasSetStream(blas, nullptr); }},
      {"cublasSetWorkspace", CUBLAS_STATUS_INTERNAL_ERROR, [&] { return cublasSetWorkspace(blas, nullptr, 0); }},
      {"cublasSetMathMode", CUBLAS_STATUS_INTERNAL_ERROR, [&] { return cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH); }},
      {"cublasSgemm", CUBLAS_STATUS_EXECUTION_FAILED, [&] { return multiply(blas, a.data, b.data, c.data); }},
      {"cublasGemmEx", CUBLAS_STATUS_EXECUTION_FAILED,
       [&] {
         return cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data, CUDA_R_16F, 1, b.data, CUDA_R_16F,
                             1, &zero, c.data, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
       }},
      {"cublasGemmStridedBatchedEx", CUBLAS_STATUS_EXECUTION_FAILED,
       [&] {
         return cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data, CUDA_R_32F, 1, 0,
                                           b.data, CUDA_R_32F, 1, 0, &zero, c.data, CUDA_R_32F, 1, 1, 1,
                                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
       }},
  };
  for (const auto& one_case : cases) {
    const float before = c.get();
    host::arm_fault(1, false);
    EXPECT_EQ(one_case.call(), one_case.injected) << one_case.site;
    EXPECT_STREQ(host::fault_site(), one_case.site);
    host::disarm_fault();
    EXPECT_EQ(c.get(), before) << one_case.site << " worked although it failed";
    host::arm_fault(0, false);
    EXPECT_EQ(one_case.call(), CUBLAS_STATUS_SUCCESS) << one_case.site;
    EXPECT_EQ(host::fault_calls(), 1u) << one_case.site << " counts what it calls itself";
    host::disarm_fault();
  }
}

TEST_F(HostBlas, FailedCreateLeavesNothingAndFailedDestroyDestroys) {
  cublasHandle_t handle = nullptr;
  host::arm_fault(1, false);
  EXPECT_EQ(cublasCreate(&handle), CUBLAS_STATUS_ALLOC_FAILED);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(host::live().blas_handles, 0u);
  host::disarm_fault();
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  host::arm_fault(1, false);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_STREQ(host::fault_site(), "cublasDestroy");
  EXPECT_EQ(host::live().blas_handles, 0u);
}

TEST_F(HostBlas, PlanModeChecksAndComputesNothing) {
  host::set_planning(true);
  const oomlab::CublasHandle blas(nullptr);
  const float one = 1, zero = 0;
  // A product of 100,000 by 100,000: touching any of it would end this program.
  const int n = 100000;
  __half* big = nullptr;
  CUDA_CHECK(cudaMalloc(&big, std::size_t{2} * n * n));
  EXPECT_EQ(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, big, CUDA_R_16F, n, big, CUDA_R_16F, n, &zero,
                         big, CUDA_R_16F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, big, CUDA_R_16F, n - 1, big, CUDA_R_16F, n,
                         &zero, big, CUDA_R_16F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, big, CUDA_R_16F, n, big, CUDA_R_16BF, n, &zero,
                         big, CUDA_R_16F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_NOT_SUPPORTED);
  CUDA_CHECK(cudaFree(big));
}

TEST_F(HostBlas, DeferredWorkRunsWhenTheStreamIsDrained) {
  host::Machine machine = initial;
  machine.deferred = true;
  host::configure(machine);
  const oomlab::Stream stream;
  const oomlab::CublasHandle blas(stream);
  const Value a(2), b(3), c(-1), d(-1);
  CUBLAS_CHECK(multiply(blas, a.data, b.data, c.data, 10));
  CUBLAS_CHECK(multiply(blas, c.data, b.data, d.data));
  EXPECT_EQ(*c.data, -1.0f) << "ran before anything waited for it";
  EXPECT_EQ(*d.data, -1.0f);
  stream.synchronize();
  EXPECT_EQ(c.get(), 60.0f);
  EXPECT_EQ(d.get(), 180.0f);
}

TEST_F(HostBlas, DeferredWorkOutlivesItsHandle) {
  host::Machine machine = initial;
  machine.deferred = true;
  host::configure(machine);
  const oomlab::Stream stream;
  const Value a(2), b(3), c(-1);
  {
    const oomlab::CublasHandle blas(stream);
    CUBLAS_CHECK(multiply(blas, a.data, b.data, c.data));
  }
  stream.synchronize();
  EXPECT_EQ(c.get(), 6.0f);
}

TEST_F(HostBlas, Int8TakesAnySizeAndWrapsAround) {
  std::int8_t *a = nullptr, *b = nullptr;
  std::int32_t* c = nullptr;
  CUDA_CHECK(cudaMalloc(&a, 64));
  CUDA_CHECK(cudaMalloc(&b, 64));
  CUDA_CHECK(cudaMalloc(&c, 64));
  const std::vector<std::int8_t> lowest(64, -128);
  CUDA_CHECK(cudaMemcpy(a, lowest.data(), 64, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(b, lowest.data(), 64, cudaMemcpyHostToDevice));
  const oomlab::CublasHandle blas(nullptr);
  const std::int32_t alpha = 65536, beta = 0;
  CUBLAS_CHECK(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 3, 3, 3, &alpha, a, CUDA_R_8I, 4, b, CUDA_R_8I, 4, &beta, c,
                            CUDA_R_32I, 3, CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT));
  std::vector<std::int32_t> got(9);
  CUDA_CHECK(cudaMemcpy(got.data(), c, 36, cudaMemcpyDeviceToHost));
  EXPECT_EQ(got, std::vector<std::int32_t>(9, static_cast<std::int32_t>(65536u * 3 * 128 * 128)));
  CUDA_CHECK(cudaFree(a));
  CUDA_CHECK(cudaFree(b));
  CUDA_CHECK(cudaFree(c));
}

}  // namespace
