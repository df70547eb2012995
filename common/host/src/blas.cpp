// cuBLAS over OpenBLAS. FP32 goes to sgemm as it is. Shorter types are converted tile by tile into a bounded FP32
// scratch, multiplied by sgemm, summed over k in FP32 (int8: in int32) and rounded once.

#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "cublas_v2.h"
#include "oomlab_host.h"

#ifdef _OPENMP
#include <omp.h>
#define OOMLAB_OMP(directive) _Pragma(#directive)
#else  // check mode
#define OOMLAB_OMP(directive)
#endif

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};

namespace {

namespace host = oomlab::host;

/// Edge of a tile of A, B and C: 512² floats are 1 MiB. Sums of 512 products of int8 are below 2^24, so exact in FP32.
constexpr int kTile = 512;
static_assert(kTile * 128 * 128 < (1 << 24));

struct Matrix {
  const void* data;
  cudaDataType type;
  int ld;
  long long stride;  ///< elements from one problem of a batch to the next
  bool transposed = false;
};

struct Gemm {
  int m, n, k, batch;
  Matrix a, b, c;
  union Scalar {
    float real;
    std::int32_t integer;
  } alpha, beta;
};

int threads() {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

int thread_index() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

template <class T>
float to_float(T value) {
  return static_cast<float>(value);
}

/// each(0)…each(n-1), by several threads when `workers` > 1. (A parallel region of one thread still costs as much as
/// a small GEMM.)
template <class Each>
void for_each(int n, int workers, Each each) {
  if (workers > 1) {
    OOMLAB_OMP(omp parallel for schedule(static) num_threads(workers))
    for (int i = 0; i < n; ++i) each(i);
  } else {
    for (int i = 0; i < n; ++i) each(i);
  }
}

/// A dense FP32 copy of a rows × columns tile.
template <class T>
void load_tile(const T* from, std::ptrdiff_t ld, int rows, int columns, float* to) {
  for_each(columns, rows * columns < kTile * kTile / 4 ? 1 : threads(), [=](int column) {
    const T* in = from + column * ld;
    float* out = to + std::ptrdiff_t{column} * rows;
    for (int row = 0; row < rows; ++row) out[row] = to_float(in[row]);
  });
}

/// c = alpha·sum + beta·c for one column; c is not read when beta is 0. Integers wrap around.
template <class Out, class Sum, class Scalar>
void store_column(const Sum* sum, Scalar alpha, Scalar beta, int rows, Out* c) {
  if constexpr (std::is_integral_v<Out>) {
    for (int row = 0; row < rows; ++row) {
      const std::uint32_t kept = beta == 0 ? 0u : std::uint32_t(beta) * std::uint32_t(c[row]);
      c[row] = static_cast<Out>(std::uint32_t(alpha) * std::uint32_t(sum[row]) + kept);
    }
  } else if (beta == 0) {
    for (int row = 0; row < rows; ++row) c[row] = Out(alpha * sum[row]);
  } else {
    for (int row = 0; row < rows; ++row) c[row] = Out(alpha * sum[row] + beta * to_float(c[row]));
  }
}

CBLAS_TRANSPOSE blas_op(const Matrix& matrix) { return matrix.transposed ? CblasTrans : CblasNoTrans; }

/// One problem: C (Out) = alpha·op(A)·op(B) + beta·C with A and B of type In. Does not read A and B when k is 0.
template <class In, class Out, class Scalar>
void multiply(const Gemm& g, const In* a, const In* b, Out* c, Scalar alpha, Scalar beta, float* scratch) {
  if constexpr (std::is_same_v<In, float>) {
    cblas_sgemm(CblasColMajor, blas_op(g.a), blas_op(g.b), g.m, g.n, g.k, alpha, a, g.a.ld, b, g.b.ld, beta, c, g.c.ld);
  } else {
    // The largest tiles that occur; plan() sized the scratch by the same ones.
    const int tile_m = std::min(g.m, kTile), tile_n = std::min(g.n, kTile), tile_k = std::min(g.k, kTile);
    float* const tile_a = scratch;
    float* const tile_b = tile_a + std::ptrdiff_t{tile_m} * tile_k;
    float* const tile_c = tile_b + std::ptrdiff_t{tile_k} * tile_n;
    auto* const integers = reinterpret_cast<std::int32_t*>(tile_c + std::ptrdiff_t{tile_m} * tile_n);
    for (int j = 0; j < g.n; j += kTile) {
      const int columns = std::min(kTile, g.n - j);
      for (int i = 0; i < g.m; i += kTile) {
        const int rows = std::min(kTile, g.m - i);
        const int elements = rows * columns;
        if (g.k == 0) std::fill_n(tile_c, elements, 0.0f);
        if constexpr (std::is_integral_v<In>) std::fill_n(integers, elements, 0);
        for (int p = 0; p < g.k; p += kTile) {
          const int depth = std::min(kTile, g.k - p);
          const std::ptrdiff_t lda = g.a.ld, ldb = g.b.ld;
          const int ld_a = g.a.transposed ? depth : rows, ld_b = g.b.transposed ? columns : depth;
          if (g.a.transposed) load_tile(a + p + i * lda, lda, depth, rows, tile_a);
          else load_tile(a + i + p * lda, lda, rows, depth, tile_a);
          if (i == 0 || g.k > kTile) {  // else it is still there
            if (g.b.transposed) load_tile(b + j + p * ldb, ldb, columns, depth, tile_b);
            else load_tile(b + p + j * ldb, ldb, depth, columns, tile_b);
          }
          const float keep = std::is_integral_v<In> || p == 0 ? 0.0f : 1.0f;
          cblas_sgemm(CblasColMajor, blas_op(g.a), blas_op(g.b), rows, columns, depth, 1.0f, tile_a, ld_a, tile_b,
                      ld_b, keep, tile_c, rows);
          if constexpr (std::is_integral_v<In>)
            for (int e = 0; e < elements; ++e) integers[e] += static_cast<std::int32_t>(tile_c[e]);
        }
        for (int column = 0; column < columns; ++column) {
          Out* const out = c + i + (j + column) * std::ptrdiff_t{g.c.ld};
          const std::ptrdiff_t first = std::ptrdiff_t{column} * rows;
          if constexpr (std::is_integral_v<In>) store_column(integers + first, alpha, beta, rows, out);
          else store_column(tile_c + first, alpha, beta, rows, out);
        }
      }
    }
  }
}

/// How a batch is spread, and the scratch that takes (at most four tiles: A, B, C, and C in int32), decided when the
/// call is made, so that queued work cannot fail.
struct Plan {
  int workers = 1;
  std::size_t floats_each = 0;
};

Plan plan(const Gemm& g) {
  Plan plan;
  if (g.a.type != CUDA_R_32F) {
    const std::size_t m = std::min(g.m, kTile), n = std::min(g.n, kTile), k = std::min(g.k, kTile);
    plan.floats_each = m * k + k * n + m * n * (g.a.type == CUDA_R_8I ? 2 : 1);
  }
  // Small problems gain nothing from threads inside sgemm, so the batch is spread instead. A stride of 0 in C
  // means that problems overwrite each other: in order, then.
  const double work = double(g.m) * g.n * g.k;
  const bool many = g.batch >= 2 * threads() || work <= 64.0 * 64 * 64;
  if (g.batch > 1 && g.c.stride != 0 && many && work * g.batch >= 32.0 * 32 * 32 &&
      plan.floats_each <= std::size_t{kTile} * kTile)
    plan.workers = std::min(g.batch, threads());
  return plan;
}

template <class In, class Out, class Scalar>
void run(const Gemm& g, const Plan& plan, Scalar alpha, Scalar beta, float* scratch) {
  const auto* const a = static_cast<const In*>(g.a.data);
  const auto* const b = static_cast<const In*>(g.b.data);
  auto* const c = static_cast<Out*>(const_cast<void*>(g.c.data));
  for_each(g.batch, plan.workers, [&](int i) {
    float* const own = plan.workers > 1 ? scratch + plan.floats_each * thread_index() : scratch;
    multiply(g, a + i * g.a.stride, b + i * g.b.stride, c + i * g.c.stride, alpha, beta, own);
  });
}

void run(const Gemm& g, const Plan& plan, float* scratch) {
  const bool wide = g.c.type == CUDA_R_32F;
  const float alpha = g.alpha.real, beta = g.beta.real;
  switch (g.a.type) {
    case CUDA_R_32F: return run<float, float>(g, plan, alpha, beta, scratch);
    case CUDA_R_16F:
      return wide ? run<__half, float>(g, plan, alpha, beta, scratch) : run<__half, __half>(g, plan, alpha, beta, scratch);
    case CUDA_R_16BF:
      return wide ? run<__nv_bfloat16, float>(g, plan, alpha, beta, scratch)
                  : run<__nv_bfloat16, __nv_bfloat16>(g, plan, alpha, beta, scratch);
    default: return run<std::int8_t, std::int32_t>(g, plan, g.alpha.integer, g.beta.integer, scratch);
  }
}

bool is_operation(cublasOperation_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C; }

bool supported(const Gemm& g, cublasComputeType_t compute) {
  if (g.a.type != g.b.type) return false;
  const cudaDataType in = g.a.type, out = g.c.type;
  switch (compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return (in == CUDA_R_32F && out == in) || (in == CUDA_R_16F && (out == in || out == CUDA_R_32F)) ||
             (in == CUDA_R_16BF && (out == in || out == CUDA_R_32F));
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32: return in == CUDA_R_32F && out == in;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC: {
      const auto aligned = [](const Matrix& matrix) {
        return matrix.ld % 4 == 0 && matrix.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(matrix.data) % 4 == 0;
      };
      return in == CUDA_R_8I && out == CUDA_R_32I && aligned(g.a) && aligned(g.b);
    }
  }
  return false;
}

/// Every GEMM comes through here. Checks in cuBLAS's order, then queues the work.
cublasStatus_t gemm(const char* call, cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                    const void* alpha, const void* beta, Gemm g, cublasComputeType_t compute) noexcept {
  if (host::fault_point(call)) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!is_operation(transa) || !is_operation(transb)) return CUBLAS_STATUS_INVALID_VALUE;
  g.a.transposed = transa != CUBLAS_OP_N;
  g.b.transposed = transb != CUBLAS_OP_N;
  if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0 || g.a.ld < std::max(1, g.a.transposed ? g.k : g.m) ||
      g.b.ld < std::max(1, g.b.transposed ? g.n : g.k) || g.c.ld < std::max(1, g.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(g, compute)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (g.m == 0 || g.n == 0 || g.batch == 0) return CUBLAS_STATUS_SUCCESS;
  if (g.a.type == CUDA_R_8I) {
    g.alpha.integer = *static_cast<const std::int32_t*>(alpha);
    g.beta.integer = *static_cast<const std::int32_t*>(beta);
    if (g.alpha.integer == 0) g.k = 0;
  } else {
    g.alpha.real = *static_cast<const float*>(alpha);
    g.beta.real = *static_cast<const float*>(beta);
    if (g.alpha.real == 0) g.k = 0;
  }
  if (!g.c.data || (g.k > 0 && (!g.a.data || !g.b.data))) return CUBLAS_STATUS_INVALID_VALUE;
  if (host::planning()) return CUBLAS_STATUS_SUCCESS;

  const host::RuntimeScope scope;
  try {
    const Plan how = plan(g);
    std::shared_ptr<float[]> scratch;
    if (how.floats_each) scratch = std::make_shared_for_overwrite<float[]>(how.floats_each * how.workers);
    const cudaError_t queued = host::enqueue(handle->stream, [g, how, scratch] {
      const host::RuntimeScope inner;
      run(g, how, scratch.get());
    });
    if (queued == cudaErrorMemoryAllocation) return CUBLAS_STATUS_ALLOC_FAILED;
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  } catch (const std::bad_alloc&) {
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (host::fault_point("cublasCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  const host::RuntimeScope scope;
#ifdef OOMLAB_HOST_CHECK
  openblas_set_num_threads(1);  // its own threads are unknown to the sanitizers
#endif
  *handle = new (std::nothrow) cublasContext;
  if (!*handle) return CUBLAS_STATUS_ALLOC_FAILED;
  host::count_blas_handle(+1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  const bool failed = host::fault_point("cublasDestroy");
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  host::count_blas_handle(-1);
  return failed ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) {
  if (host::fault_point("cublasGetVersion")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!version) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (host::fault_point("cublasSetStream")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  if (host::fault_point("cublasGetStream")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!stream) return CUBLAS_STATUS_INVALID_VALUE;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t) {
  if (host::fault_point("cublasSetWorkspace")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  return reinterpret_cast<std::uintptr_t>(workspace) % 256 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (host::fault_point("cublasSetMathMode")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const int base = mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  if (base != CUBLAS_DEFAULT_MATH && base != CUBLAS_PEDANTIC_MATH && base != CUBLAS_TF32_TENSOR_OP_MATH)
    return CUBLAS_STATUS_INVALID_VALUE;
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  if (host::fault_point("cublasGetMathMode")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!mode) return CUBLAS_STATUS_INVALID_VALUE;
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
#define OOMLAB_STATUS(name) \
  case name: return #name
    OOMLAB_STATUS(CUBLAS_STATUS_SUCCESS);
    OOMLAB_STATUS(CUBLAS_STATUS_NOT_INITIALIZED);
    OOMLAB_STATUS(CUBLAS_STATUS_ALLOC_FAILED);
    OOMLAB_STATUS(CUBLAS_STATUS_INVALID_VALUE);
    OOMLAB_STATUS(CUBLAS_STATUS_ARCH_MISMATCH);
    OOMLAB_STATUS(CUBLAS_STATUS_MAPPING_ERROR);
    OOMLAB_STATUS(CUBLAS_STATUS_EXECUTION_FAILED);
    OOMLAB_STATUS(CUBLAS_STATUS_INTERNAL_ERROR);
    OOMLAB_STATUS(CUBLAS_STATUS_NOT_SUPPORTED);
    OOMLAB_STATUS(CUBLAS_STATUS_LICENSE_ERROR);
#undef OOMLAB_STATUS
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the handle was not created";
    case CUBLAS_STATUS_ALLOC_FAILED: return "cuBLAS could not allocate memory for itself";
    case CUBLAS_STATUS_INVALID_VALUE: return "an argument is not valid";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "this device lacks a feature that the call needs";
    case CUBLAS_STATUS_MAPPING_ERROR: return "device memory could not be accessed";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the computation failed on the device";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "an operation inside cuBLAS failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "this combination of types or parameters is not supported";
    case CUBLAS_STATUS_LICENSE_ERROR: return "the licence was not found";
  }
  return "unknown cuBLAS status";
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float* alpha, const float* A, int lda, const float* B, int ldb,
                           const float* beta, float* C, int ldc) {
  return gemm("cublasSgemm", handle, transa, transb, alpha, beta,
              {m, n, k, 1, {A, CUDA_R_32F, lda, 0}, {B, CUDA_R_32F, ldb, 0}, {C, CUDA_R_32F, ldc, 0}, {}, {}},
              CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float* alpha, const float* A, int lda,
                                         long long strideA, const float* B, int ldb, long long strideB,
                                         const float* beta, float* C, int ldc, long long strideC, int batchCount) {
  return gemm("cublasSgemmStridedBatched", handle, transa, transb, alpha, beta,
              {m, n, k, batchCount, {A, CUDA_R_32F, lda, strideA}, {B, CUDA_R_32F, ldb, strideB},
               {C, CUDA_R_32F, ldc, strideC}, {}, {}},
              CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C, cudaDataType Ctype, int ldc,
                            cublasComputeType_t computeType, cublasGemmAlgo_t) {
  return gemm("cublasGemmEx", handle, transa, transb, alpha, beta,
              {m, n, k, 1, {A, Atype, lda, 0}, {B, Btype, ldb, 0}, {C, Ctype, ldc, 0}, {}, {}}, computeType);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void* alpha, const void* A, cudaDataType Atype,
                                          int lda, long long strideA, const void* B, cudaDataType Btype, int ldb,
                                          long long strideB, const void* beta, void* C, cudaDataType Ctype, int ldc,
                                          long long strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t) {
  return gemm("cublasGemmStridedBatchedEx", handle, transa, transb, alpha, beta,
              {m, n, k, batchCount, {A, Atype, lda, strideA}, {B, Btype, ldb, strideB}, {C, Ctype, ldc, strideC}, {}, {}},
              computeType);
}
