#include "nn/ops/matmul.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/ops/column_sum.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"
#include "plan/interrupt.h"

namespace oomlab::nn {

template <class T, class Out>
void gemm_strided(Context& context, bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
                  float alpha, Strided<const T> a, Strided<const T> b, float beta, Strided<std::type_identity_t<Out>> c,
                  std::size_t count) {
  check_interrupt();
  context.count_flops(2 * std::uint64_t(m) * n * k * count);
  if (std::max({m, n, k, a.row_stride, b.row_stride, c.row_stride, count}) > INT_MAX) {
    if (planning()) return;
    throw std::length_error("matrix product " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                            std::to_string(k) + " exceeds the 32-bit sizes of cuBLAS");
  }
  if (m == 0 || n == 0 || count == 0) return;
  const auto stride = [](std::size_t elements) { return static_cast<long long>(elements); };
  constexpr cudaDataType of_factors = data_type_of(kDTypeOf<T>);
  constexpr cudaDataType of_sums = data_type_of(kDTypeOf<Out>);
  const bool tf32 = kDTypeOf<T> == DType::fp32 && context.tf32();
  // cuBLAS is column-major, and a row-major matrix read so is its transpose: Cᵀ = op(B)ᵀ op(A)ᵀ.
  CUBLAS_CHECK(cublasGemmStridedBatchedEx(
      context.blas(), transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
      static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &alpha, b.data, of_factors,
      static_cast<int>(b.row_stride), stride(b.matrix_stride), a.data, of_factors, static_cast<int>(a.row_stride),
      stride(a.matrix_stride), &beta, c.data, of_sums, static_cast<int>(c.row_stride), stride(c.matrix_stride),
      static_cast<int>(count), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

namespace {

template <class T>
__global__ void repeat_row_kernel(const T* __restrict__ row, T* __restrict__ y, std::size_t rows, std::size_t width,
                                  bool packs) {
  for (std::size_t r : row_range(rows)) {
    T* const line = y + r * width;
    for_packs<T>(BlockRange{}, width, packs, [=](auto v, std::size_t i) { store(line, i, load<decltype(v)>(row, i)); });
  }
}

}  // namespace

template <class T>
void repeat_row(Context& context, const T* row, T* y, std::size_t rows, std::size_t width) {
  launch(repeat_row_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), row, y, rows, width,
         packs_fit<T>(width, row, y));
}

template <class T>
void linear_backward_weight(Context& context, const T* dy, const T* x, T* dweight, std::type_identity_t<T>* dbias,
                            std::size_t batch, std::size_t in, std::size_t out, bool accumulate) {
  gemm(context, true, false, out, in, batch, 1.0f, dy, x, accumulate ? 1.0f : 0.0f, dweight);
  if (dbias) column_sum(context, dy, dbias, batch, out, accumulate);
}

#define OOMLAB_INSTANCES(T)                                                                                            \
  template void gemm_strided<T, T>(Context&, bool, bool, std::size_t, std::size_t, std::size_t, float,                 \
                                   Strided<const T>, Strided<const T>, float, Strided<T>, std::size_t);                \
  template void repeat_row<T>(Context&, const T*, T*, std::size_t, std::size_t);                                       \
  template void linear_backward_weight<T>(Context&, const T*, const T*, T*, T*, std::size_t, std::size_t, std::size_t, \
                                          bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)
#define OOMLAB_WIDER(T)                                                                                    \
  template void gemm_strided<T, float>(Context&, bool, bool, std::size_t, std::size_t, std::size_t, float, \
                                       Strided<const T>, Strided<const T>, float, Strided<float>, std::size_t);
OOMLAB_WIDER(__half)
OOMLAB_WIDER(__nv_bfloat16)
#undef OOMLAB_WIDER

}  // namespace oomlab::nn
