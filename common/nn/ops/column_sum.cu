#include "nn/ops/column_sum.h"

#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

template <class T, bool kPacks>
struct ColumnsOf {
  const T* x;
  std::size_t width;
  __device__ float at(std::size_t row, std::size_t column) const { return static_cast<float>(x[row * width + column]); }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    float v[kCell];
    load_floats<kPacks, kCell>(v, x + row * width + column);
    for (std::size_t k = 0; k < kCell; ++k) sum[k] += v[k];
  }
};

}  // namespace

template <class T>
void column_sum(Context& context, const T* x, std::type_identity_t<T>* sums, std::size_t rows, std::size_t width,
                bool accumulate) {
  if (packs_fit<T>(width, x))
    launch_column_sum(context, ColumnsOf<T, true>{x, width}, sums, rows, width, accumulate);
  else
    launch_column_sum(context, ColumnsOf<T, false>{x, width}, sums, rows, width, accumulate);
}

#define OOMLAB_INSTANCES(T) template void column_sum<T>(Context&, const T*, T*, std::size_t, std::size_t, bool);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
