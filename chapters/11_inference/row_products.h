#pragma once
// Linear layers whose result for a row is the same whatever other rows are in the batch. A library's product chooses
// its way, and with it the order of its sums, by the shape of the whole matrix: the same request then gets other last
// bits when others come or go, and now and then another token. Here the order over the inputs is one and the same for
// one row and for a thousand. It is the whole reason why schedules can be compared bit by bit.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "memory/context.h"
#include "nn/layers/linear.h"
#include "nn/ops/kernel.h"

namespace oomlab::inference {

using nn::RowsOf;

/// A block reads this many rows of weights at once, and multiplies each with up to kRowsAtOnce rows of x.
inline constexpr std::size_t kOutputsAtOnce = 4, kRowsAtOnce = 4;
/// More threads of a block would not have the registers for the sums of a tile.
inline constexpr unsigned kProductThreads = 512;

/// The sums of a tile, written out one by one: an array that is indexed in a loop would not become registers.
template <std::size_t kRows>
struct Cells {
  static constexpr std::size_t size = kRows * kOutputsAtOnce;
};

/// y[r, o] = Σ x[r, i] · weight[o, i] (+ bias[o]) (+ y[r, o]). For any kRows the sum of a row and an output is made by
/// the same operations in the same order: written out as fmaf, so that no compiler contracts one form and not another.
template <std::size_t kRows, bool kPacks, class T, class Out>
__global__ void __launch_bounds__(kProductThreads)
    row_products_kernel(RowsOf<T> x, const T* __restrict__ weight, const T* __restrict__ bias, Out* y, std::size_t rows,
                        std::size_t in, std::size_t out, bool add) {
  constexpr std::size_t step = nn::kLanes<T>, lanes = kRowLanes;
  const std::size_t row_tiles = (rows + kRows - 1) / kRows, tiles = (out + kOutputsAtOnce - 1) / kOutputsAtOnce;
  for (std::size_t tile : row_range(tiles * row_tiles)) {  // neighbours have the same weights
    const std::size_t first_out = tile / row_tiles * kOutputsAtOnce, first_row = tile % row_tiles * kRows;
    const T *w[kOutputsAtOnce], *v[kRows];  // behind the last one, that one again
    for (std::size_t o = 0; o < kOutputsAtOnce; ++o)
      w[o] = weight + (first_out + o < out ? first_out + o : out - 1) * in;
    for (std::size_t r = 0; r < kRows; ++r)
      v[r] = x.data + (first_row + r < rows ? first_row + r : rows - 1) * x.stride;
    float sum[kRows][kOutputsAtOnce][lanes] = {};
    for (std::size_t i : block_range(in / step)) {
      float from_w[kOutputsAtOnce][step], from_x[step];
      for (std::size_t o = 0; o < kOutputsAtOnce; ++o) nn::load_floats<kPacks, step>(from_w[o], w[o] + i * step);
      for (std::size_t r = 0; r < kRows; ++r) {
        nn::load_floats<kPacks, step>(from_x, v[r] + i * step);
        for (std::size_t o = 0; o < kOutputsAtOnce; ++o)
          for (std::size_t k = 0; k < step; ++k)
            sum[r][o][k % lanes] = fmaf(from_w[o][k], from_x[k], sum[r][o][k % lanes]);
      }
    }
    float all[kRows][kOutputsAtOnce] = {};
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t o = 0; o < kOutputsAtOnce; ++o)
        for (std::size_t k = 0; k < lanes; ++k) all[r][o] += sum[r][o][k];
    for (std::size_t i : block_range(in % step)) {
      const std::size_t at = in / step * step + i;
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t o = 0; o < kOutputsAtOnce; ++o)
          all[r][o] = fmaf(static_cast<float>(w[o][at]), static_cast<float>(v[r][at]), all[r][o]);
    }
    nn::each_lane<Cells<kRows>>([&](std::size_t cell) {
      const std::size_t r = cell / kOutputsAtOnce, o = cell % kOutputsAtOnce;
      float total = block_sum(all[r][o]);
      if (threadIdx.x != 0 || first_row + r >= rows || first_out + o >= out) return;
      Out& to = y[(first_row + r) * out + first_out + o];
      if (bias) total += static_cast<float>(bias[first_out + o]);
      to = static_cast<Out>(add ? static_cast<float>(to) + total : total);
    });
  }
}

/// y[rows, out] = x · weight[out, in]ᵀ + bias[out], added up in FP32; with `add`, that is added to what y holds. bias
/// may be null. A row's bits depend on that row, on `in` and on the threads of a block alone. Every weight is read once
/// for kRowsAtOnce rows. T and Out: float, __half or __nv_bfloat16.
template <class T, class Out>
void row_products(Context& context, RowsOf<T> x, const T* weight, const std::type_identity_t<T>* bias, Out* y,
                  std::size_t rows, std::size_t in, std::size_t out, bool add = false) {
  const bool packs = in % Pack<T>::size == 0 && nn::packs_fit<T>(x.stride, x.data, weight);
  const std::size_t out_tiles = (out + kOutputsAtOnce - 1) / kOutputsAtOnce;
  const auto start = [&](auto kernel, std::size_t row_tiles) {
    const std::size_t tiles = checked_product(out_tiles, row_tiles);
    LaunchShape shape = at_most(kProductThreads, nn::shape_for_short_rows(tiles, in / nn::kLanes<T>));
    // On the host a small product takes less time than its threads take to begin.
    shape.grid.x = std::min(shape.grid.x, blocks_for_items(tiles * std::max<std::size_t>(1, in / 8), 1));
    launch(kernel, shape, context.stream(), x, weight, bias, y, rows, in, out, add);
  };
  if (rows == 1)
    start(packs ? row_products_kernel<1, true, T, Out> : row_products_kernel<1, false, T, Out>, 1);
  else
    start(packs ? row_products_kernel<kRowsAtOnce, true, T, Out> : row_products_kernel<kRowsAtOnce, false, T, Out>,
          (rows + kRowsAtOnce - 1) / kRowsAtOnce);
  context.count_flops(2 * std::uint64_t(rows) * in * out);
}
// Compiled once, in kernels.cu.
extern template void row_products(Context&, RowsOf<float>, const float*, const float*, float*, std::size_t, std::size_t,
                                  std::size_t, bool);
extern template void row_products(Context&, RowsOf<__half>, const __half*, const __half*, __half*, std::size_t,
                                  std::size_t, std::size_t, bool);
extern template void row_products(Context&, RowsOf<__half>, const __half*, const __half*, float*, std::size_t,
                                  std::size_t, std::size_t, bool);
extern template void row_products(Context&, RowsOf<__nv_bfloat16>, const __nv_bfloat16*, const __nv_bfloat16*,
                                  __nv_bfloat16*, std::size_t, std::size_t, std::size_t, bool);
extern template void row_products(Context&, RowsOf<__nv_bfloat16>, const __nv_bfloat16*, const __nv_bfloat16*, float*,
                                  std::size_t, std::size_t, std::size_t, bool);

}  // namespace oomlab::inference
