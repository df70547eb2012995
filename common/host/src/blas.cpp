// cuBLAS over a library's sgemm. FP32 goes to it as it is, from managed memory as a copy of whole matrices. Shorter
// types, and TF32, are converted tile by tile into a bounded FP32 scratch, multiplied by sgemm, summed over k in FP32
// (int8: in int32) and rounded once.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include "cublas_v2.h"
#include "runtime.h"

#ifdef _OPENMP
#include <omp.h>
#define OOMLAB_OMP(directive) _Pragma(#directive)
#else  // check mode
#define OOMLAB_OMP(directive)
#endif

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

namespace host = oomlab::host;

/// Largest edge of a tile of A, B and C: at most 2.25 MiB of scratch a thread. Sums of kTile products of int8
/// are below 2^24, so exact in FP32.
constexpr int kTile = 384;
static_assert(kTile * 128 * 128 < (1 << 24));

struct Matrix {
  const void* data;
  cudaDataType type;
  int ld;
  long long stride;  ///< elements from one problem of a batch to the next
  bool transposed = false;
};

struct Plan;
struct Gemm {
  int m, n, k, batch;
  Matrix a, b, c;
  union Scalar {
    float real;
    std::int32_t integer;
  } alpha = {}, beta = {};
  void (*run)(const Gemm& g, const Plan& plan, float* scratch) = nullptr;
};

#ifdef _OPENMP
int threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }
int thread_index() { return omp_get_thread_num(); }
#else
int threads() { return 1; }
int thread_index() { return 0; }
#endif

template <class T>
float to_float(T value) {
  return static_cast<float>(value);
}

/// An FP32 operand of a product in TF32: 10 bits of mantissa, here rounded to nearest even.
struct Tf32 {
  float value;
};
float to_float(Tf32 x) {
  if (!std::isfinite(x.value)) return x.value;
  const auto bits = std::bit_cast<std::uint32_t>(x.value);
  return std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t(0x1fff));
}

/// A dense FP32 copy of a rows × columns tile.
template <class T>
void load_tile(const T* from, std::ptrdiff_t ld, int rows, int columns, float* to) {
  for (int column = 0; column < columns; ++column, from += ld, to += rows)
    for (int row = 0; row < rows; ++row) to[row] = to_float(from[row]);
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

/// How a call is cut into items that threads take, and the scratch of each thread. Decided when the call is
/// made, so that queued work cannot fail, and from the sizes alone, so that the same call gives the same
/// bits.
struct Plan {
  int tile_m, tile_n, tile_k;  ///< FP32 is not cut: one item is one problem of the batch
  int across, items;           ///< items along m; in all
  int workers = 1;
  std::size_t floats = 0;  ///< scratch of a worker; none for FP32 outside managed memory
};

template <class In, class Out>
void run(const Gemm& g, const Plan& plan, float* scratch);

Plan plan(const Gemm& g) {
  Plan p{g.m, g.n, g.k, 1, g.batch};
  const double work = double(g.m) * g.n * g.k * g.batch;
  // Below this, waking threads costs more than it gains, and much more on a busy machine.
  const int useful = work < 128.0 * 128 * 128 ? 1 : threads();
  // Products of managed memory work on copies, too: a page may fault, and a library's kernel may use the stack pointer
  // for something else (oneDNN's do), so that no fault can be handled there.
  const bool fp32 = g.run == run<float, float>;
  if (!fp32 || host::managed_holds(g.a.data) || host::managed_holds(g.b.data) || host::managed_holds(g.c.data)) {
    const auto cut = [&](int edge) {
      p.tile_m = std::min(g.m, edge), p.tile_n = std::min(g.n, edge);
      p.across = (g.m - 1) / p.tile_m + 1;
      p.items = g.batch * p.across * ((g.n - 1) / p.tile_n + 1);
    };
    int edge = fp32 ? std::numeric_limits<int>::max() : kTile;
    for (cut(edge); !fp32 && p.items < useful && edge > kTile / 8; cut(edge)) edge /= 2;
    p.tile_k = std::min(g.k, fp32 ? g.k : kTile);
    const std::size_t m = p.tile_m, n = p.tile_n, k = p.tile_k;
    p.floats = m * k + k * n + m * n * (g.a.type == CUDA_R_8I ? 2 : 1);
  }
  // Few and large: sgemm has threads of its own.
  if (fp32 && g.batch < 2 * useful && g.batch % useful != 0 && work > g.batch * 64.0 * 64 * 64) return p;
  // With a stride of 0 the problems of a batch overwrite each other: in order, then.
  if (g.batch == 1 || g.c.stride != 0) p.workers = std::min(p.items, useful);
  return p;
}

/// C = alpha·op(A)·op(B) + beta·C for one item. Does not read A and B when k is 0.
template <class In, class Out>
void multiply(const Gemm& g, const Plan& plan, int item, float* scratch) {
  constexpr bool integral = std::is_integral_v<In>;
  using Scalar = std::conditional_t<integral, std::int32_t, float>;
  const auto alpha = std::bit_cast<Scalar>(g.alpha), beta = std::bit_cast<Scalar>(g.beta);
  const int tiles = plan.items / g.batch, problem = item / tiles, tile = item % tiles;
  const In* const a = static_cast<const In*>(g.a.data) + problem * g.a.stride;
  const In* const b = static_cast<const In*>(g.b.data) + problem * g.b.stride;
  Out* const c = static_cast<Out*>(const_cast<void*>(g.c.data)) + problem * g.c.stride;
  const std::ptrdiff_t lda = g.a.ld, ldb = g.b.ld, ldc = g.c.ld;
  if constexpr (std::is_same_v<In, float>)
    if (!plan.floats)
      return host::sgemm(g.a.transposed, g.b.transposed, g.m, g.n, g.k, alpha, a, g.a.ld, b, g.b.ld, beta, c, g.c.ld);
  const int i = tile % plan.across * plan.tile_m, rows = std::min(plan.tile_m, g.m - i);
  const int j = tile / plan.across * plan.tile_n, columns = std::min(plan.tile_n, g.n - j);
  const std::ptrdiff_t elements = std::ptrdiff_t(rows) * columns;
  float* const tile_a = scratch;
  float* const tile_b = tile_a + std::ptrdiff_t(rows) * plan.tile_k;
  float* const tile_c = tile_b + std::ptrdiff_t(plan.tile_k) * columns;
  auto* const integers = reinterpret_cast<std::int32_t*>(tile_c + elements);
  if (integral)
    std::fill_n(integers, elements, 0);
  else if (g.k == 0)
    std::fill_n(tile_c, elements, 0.0f);
  for (int p = 0; p < g.k; p += plan.tile_k) {
    const int depth = std::min(plan.tile_k, g.k - p);
    const int ld_a = g.a.transposed ? depth : rows, ld_b = g.b.transposed ? columns : depth;
    load_tile(g.a.transposed ? a + p + i * lda : a + i + p * lda, lda, ld_a, rows + depth - ld_a, tile_a);
    load_tile(g.b.transposed ? b + j + p * ldb : b + p + j * ldb, ldb, ld_b, columns + depth - ld_b, tile_b);
    host::sgemm(g.a.transposed, g.b.transposed, rows, columns, depth, 1.0f, tile_a, ld_a, tile_b, ld_b,
                integral || p == 0 ? 0.0f : 1.0f, tile_c, rows);
    if (integral)
      for (std::ptrdiff_t e = 0; e < elements; ++e) integers[e] += static_cast<std::int32_t>(tile_c[e]);
  }
  for (std::ptrdiff_t column = 0; column < columns; ++column) {
    Out* const out = c + i + (j + column) * ldc;
    if constexpr (integral)
      store_column(integers + column * rows, alpha, beta, rows, out);
    else
      store_column(tile_c + column * rows, alpha, beta, rows, out);
  }
}

template <class In, class Out>
void run(const Gemm& g, const Plan& plan, float* scratch) {
  if (plan.workers == 1) {  // a parallel region of one thread costs as much as a small GEMM
    for (int item = 0; item < plan.items; ++item) multiply<In, Out>(g, plan, item, scratch);
    return;
  }
  OOMLAB_OMP(omp parallel for schedule(static) num_threads(plan.workers))
  for (int item = 0; item < plan.items; ++item)
    multiply<In, Out>(g, plan, item, scratch + plan.floats * thread_index());
}

struct Combination {
  cublasComputeType_t compute;
  cudaDataType in, out;
  decltype(Gemm::run) run;
};
constexpr Combination combinations[] = {
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, run<float, float>},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, run<Tf32, float>},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_32F, run<__half, float>},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F, run<__half, __half>},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F, run<__nv_bfloat16, float>},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, run<__nv_bfloat16, __nv_bfloat16>},
    {CUBLAS_COMPUTE_32I, CUDA_R_8I, CUDA_R_32I, run<std::int8_t, std::int32_t>},
};

decltype(Gemm::run) find_run(const Gemm& g, cublasComputeType_t compute) {
  for (const Matrix& matrix : {g.a, g.b})
    if (matrix.type == CUDA_R_8I &&
        (matrix.ld % 4 || matrix.stride % 4 || reinterpret_cast<std::uintptr_t>(matrix.data) % 4))
      return nullptr;
  for (const Combination& c : combinations)
    if (c.compute == compute && c.in == g.a.type && c.in == g.b.type && c.out == g.c.type) return c.run;
  return nullptr;
}

/// The frame of every call: the fault seam, the handle, the runtime's scope, exceptions.
template <class Work>
cublasStatus_t blas_entry(const char* call, cublasStatus_t fault, cublasHandle_t handle, Work&& work) noexcept {
  if (host::fault_point(call)) return fault;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const host::RuntimeScope scope;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
}

/// Every GEMM comes through here. Checks in cuBLAS's order, then queues the work.
cublasStatus_t gemm(const char* call, cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                    const void* alpha, const void* beta, Gemm g, cublasComputeType_t compute) {
  return blas_entry(call, CUBLAS_STATUS_EXECUTION_FAILED, handle, [&] {
    for (const cublasOperation_t op : {transa, transb})
      if (op != CUBLAS_OP_N && op != CUBLAS_OP_T) return CUBLAS_STATUS_INVALID_VALUE;
    g.a.transposed = transa == CUBLAS_OP_T;
    g.b.transposed = transb == CUBLAS_OP_T;
    if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0 || g.a.ld < std::max(1, g.a.transposed ? g.k : g.m) ||
        g.b.ld < std::max(1, g.b.transposed ? g.n : g.k) || g.c.ld < std::max(1, g.m) || !alpha || !beta)
      return CUBLAS_STATUS_INVALID_VALUE;
    g.run = find_run(g, compute);
    if (!g.run) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (g.m == 0 || g.n == 0 || g.batch == 0) return CUBLAS_STATUS_SUCCESS;
    std::memcpy(&g.alpha, alpha, sizeof g.alpha);
    std::memcpy(&g.beta, beta, sizeof g.beta);
    if (g.a.type == CUDA_R_8I ? g.alpha.integer == 0 : g.alpha.real == 0) g.k = 0;
    if (!g.c.data || (g.k > 0 && (!g.a.data || !g.b.data))) return CUBLAS_STATUS_INVALID_VALUE;
    host::count_gemm(2 * std::uint64_t(g.m) * std::uint64_t(g.n) * std::uint64_t(g.k) * std::uint64_t(g.batch));
    if (host::planning()) return CUBLAS_STATUS_SUCCESS;

    const Plan how = plan(g);
    std::shared_ptr<float[]> scratch;
    if (how.floats) scratch = std::make_shared_for_overwrite<float[]>(how.floats * how.workers);
    const cudaError_t queued = host::enqueue(handle->stream, [g, how, scratch] {
      const host::RuntimeScope inner;
      g.run(g, how, scratch.get());
    });
    if (queued == cudaErrorMemoryAllocation) return CUBLAS_STATUS_ALLOC_FAILED;
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}

// Is checked, and makes no difference.
cublasStatus_t setting(const char* call, cublasHandle_t handle, bool valid) {
  return blas_entry(call, CUBLAS_STATUS_INTERNAL_ERROR, handle,
                    [&] { return valid ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE; });
}

struct Status {
  cublasStatus_t status;
  const char *name, *text;
};
constexpr Status statuses[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the handle was not created"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS could not allocate memory for itself"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an argument is not valid"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH", "this device lacks a feature that the call needs"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the computation failed on the device"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an operation inside cuBLAS failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED",
     "this combination of types or parameters is not supported"},
};
const Status& find_status(cublasStatus_t status) {
  static constexpr Status unknown{CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_UNKNOWN", "unknown cuBLAS status"};
  const auto found = std::ranges::find(statuses, status, &Status::status);
  return found == std::end(statuses) ? unknown : *found;
}

}  // namespace

const char* cublasGetStatusName(cublasStatus_t status) { return find_status(status).name; }
const char* cublasGetStatusString(cublasStatus_t status) { return find_status(status).text; }

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (host::fault_point("cublasCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  const host::RuntimeScope scope;
  *handle = new (std::nothrow) cublasContext;
  if (!*handle) return CUBLAS_STATUS_ALLOC_FAILED;
  host::count_live(&host::Live::blas_handles, +1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  const bool failed = host::fault_point("cublasDestroy");
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  host::count_live(&host::Live::blas_handles, -1);
  return failed ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  return blas_entry("cublasSetStream", CUBLAS_STATUS_INTERNAL_ERROR, handle, [&] {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t) {
  return setting("cublasSetWorkspace", handle, reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0);
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return setting("cublasSetMathMode", handle,
                 mode == CUBLAS_DEFAULT_MATH || mode == CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float* alpha, const float* A, int lda, const float* B, int ldb,
                           const float* beta, float* C, int ldc) {
  return gemm("cublasSgemm", handle, transa, transb, alpha, beta,
              {m, n, k, 1, {A, CUDA_R_32F, lda, 0}, {B, CUDA_R_32F, ldb, 0}, {C, CUDA_R_32F, ldc, 0}},
              CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C, cudaDataType Ctype, int ldc,
                            cublasComputeType_t computeType, cublasGemmAlgo_t) {
  return gemm("cublasGemmEx", handle, transa, transb, alpha, beta,
              {m, n, k, 1, {A, Atype, lda, 0}, {B, Btype, ldb, 0}, {C, Ctype, ldc, 0}}, computeType);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void* alpha, const void* A, cudaDataType Atype,
                                          int lda, long long strideA, const void* B, cudaDataType Btype, int ldb,
                                          long long strideB, const void* beta, void* C, cudaDataType Ctype, int ldc,
                                          long long strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t) {
  return gemm("cublasGemmStridedBatchedEx", handle, transa, transb, alpha, beta,
              {m, n, k, batchCount, {A, Atype, lda, strideA}, {B, Btype, ldb, strideB}, {C, Ctype, ldc, strideC}},
              computeType);
}
