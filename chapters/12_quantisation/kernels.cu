// The kernels that take long to compile, once: for the program and its tests.

#include "matrix.h"
#include "products.h"

namespace oomlab::quantisation {

template void Matrix<float>::encode(Context&, Loading&, const Fill&);
template void Matrix<float>::decode(Context&, std::size_t, std::size_t, float*) const;
template void Matrix<__nv_bfloat16>::encode(Context&, Loading&, const Fill&);
template void Matrix<__nv_bfloat16>::decode(Context&, std::size_t, std::size_t, float*) const;

void int8_product(Context& context, const std::int8_t* x, const std::int8_t* w, std::int32_t* sums, std::size_t rows,
                  std::size_t in, std::size_t out) {
  check_interrupt();
  context.count_flops(2 * std::uint64_t(rows) * in * out);
  if (library_takes(rows, in, out)) {  // by columns: sums^T = w x^T, w and x as they lie are their own transposes
    const std::int32_t one = 1, zero = 0;
    const int m = static_cast<int>(out), n = static_cast<int>(rows), k = static_cast<int>(in);
    constexpr cudaDataType codes = data_type_of(DType::int8);
    const cublasStatus_t status =
        cublasGemmEx(context.blas(), CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, w, codes, k, x, codes, k, &zero, sums,
                     data_type_of(DType::int32), m, CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) {  // some shapes it refuses: the kernel below takes any
      CUBLAS_CHECK(status);
      return;
    }
  }
  const bool packs = kRowLanes == 1 && nn::packs_fit<std::int8_t>(in, x, w);  // on the host plain loops are faster
  const auto start = [&](auto kernel, std::size_t row_tiles) {
    const std::size_t tiles = checked_product((out + kOutputs - 1) / kOutputs, row_tiles);
    LaunchShape shape = at_most(kThreads, nn::shape_for_short_rows(tiles, in / (packs ? 16 : kIntegers)));
    shape.grid.x = std::min(shape.grid.x, blocks_for_items(tiles * std::max<std::size_t>(1, in / 16), 1));
    launch(kernel, shape, context.stream(), x, w, sums, rows, in, out);
  };
  if (rows == 1)
    start(packs ? int8_product_kernel<1, true> : int8_product_kernel<1, false>, 1);
  else
    start(packs ? int8_product_kernel<2, true> : int8_product_kernel<2, false>, (rows + 1) / 2);
}

template void multiply(Context&, const Matrix<float>&, RowsOf<float>, const float*, float*, std::size_t, bool,
                       DynamicScratch&);
template void multiply(Context&, const Matrix<__nv_bfloat16>&, RowsOf<__nv_bfloat16>, const __nv_bfloat16*,
                       __nv_bfloat16*, std::size_t, bool, DynamicScratch&);

}  // namespace oomlab::quantisation
