#pragma once
// Products with quantised weights: y = x W^T (+ bias) (+ y).
//
//   weight only   x is what it is. Each thread makes up to 32 weights of a row in registers, multiplies, and forgets
//                 them: no other part of W is there in more than its codes
//   dynamic       x is quantised, too, row by row when it comes (LLM.int8(); Dettmers et al., 2022). Then the sums are
//                 of whole numbers, exact in INT32 up to 133,000 inputs, and each is multiplied by two scales:
//                 y[r, o] = x_scale[r] * w_scale[o] * (sum of x_code * w_code)
//
// Few rows, as in generation, are limited by how fast weights are read: then a kernel of ours reads each of them once.
// Many rows are limited by arithmetic: from kRowsForLibrary rows on cuBLAS has the integer product, where its rules
// allow it: inputs and outputs in multiples of 4.

#include <cublas_v2.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "matrix.h"
#include "nn/layers/linear.h"

namespace oomlab::quantisation {

inline constexpr std::size_t kOutputs = 4;          ///< rows of weights that a block reads at a time
inline constexpr std::size_t kRowsOfTile = 4;       ///< rows of x that it multiplies them with
inline constexpr unsigned kThreads = 256;           ///< of a block, at most: more would not have the registers
inline constexpr std::size_t kRowsForLibrary = 16;  ///< from so many rows of x on cuBLAS multiplies INT8

// --------------------------------------------------------------------------------------------------------- weight only

/// Weights of a row that become floats together: 32, which is too long a loop for a compiler to write out before it
/// makes vectors of it; or all, where there are fewer.
template <std::size_t kStep>
inline constexpr std::size_t kPart = std::min<std::size_t>(kStep, 32);
/// Sums of one output side by side.
template <std::size_t kStep>
inline constexpr std::size_t kSums = kRowLanes == 1 ? 1 : kPart<kStep>;
/// `count` bytes. On a GPU 16 of them come in one access. A compiler for the host makes vectors by itself, but not of
/// bytes that have been a Pack.
template <std::size_t count, class Byte>
struct Bytes {
  static constexpr bool kWide = kRowLanes == 1 && count % 16 == 0;
  struct Packs {
    Pack<Byte> pack[count / 16 + 1];
  };
  std::conditional_t<kWide, Packs, const Byte*> bytes;
  __device__ explicit Bytes(const Byte* from) {
    if constexpr (kWide)
      for (std::size_t p = 0; p < count / 16; ++p) bytes.pack[p] = nn::load<Pack<Byte>>(from, p);
    else
      bytes = from;
  }
  __device__ Byte operator[](std::size_t k) const {
    if constexpr (kWide)
      return bytes.pack[k / 16][k % 16];
    else
      return bytes[k];
  }
};

// kStep weights of a row, which begin at element `at`, a multiple of kStep, and have one scale. code(j, k) is what the
// k-th of part j has to be multiplied with it. This one is right for every view; those below read codes in packs.
template <class View, std::size_t kStep>
struct Step {
  View view;
  std::size_t first;
  typename View::Table table;
  static constexpr bool kScaled = false;
  __device__ Step(const View& of, std::size_t at, typename View::Table values) : view(of), first(at), table(values) {}
  __device__ float code(std::size_t, std::size_t k) const { return view.value(first + k, table); }
  static __device__ float factor(const View&, std::size_t) { return 1.0f; }
};

template <std::size_t kStep>
struct Step<Int8View, kStep> {
  Bytes<kStep, std::int8_t> codes;
  static constexpr bool kScaled = false;  // but in the end, by factor()
  __device__ Step(const Int8View& view, std::size_t at, NoTable) : codes(view.codes + at) {}
  __device__ float code(std::size_t, std::size_t k) const { return static_cast<float>(codes[k]); }
  static __device__ float factor(const Int8View& view, std::size_t row) { return view.factor(row); }
};

// Of 64 codes of four bits, part 0 is the lower halves of 32 bytes, and part 1 the upper ones. Fewer codes are in one
// half of as many bytes.
template <std::size_t kStep>
struct HalfBytes {
  Bytes<kPart<kStep>, std::uint8_t> bytes;
  unsigned shift;
  __device__ HalfBytes(const std::uint8_t* codes, std::size_t at)
      : bytes(codes + (kStep == kPair ? at / 2 : byte_of(at))), shift(kStep == kPair ? 0 : shift_of(at)) {}
  __device__ int code(std::size_t j, std::size_t k) const {
    return bytes[k] >> (kStep == kPair ? 4 * static_cast<unsigned>(j) : shift) & 15;
  }
};

template <std::size_t kStep>
struct Step<Int4View, kStep> {
  static constexpr bool kScaled = true;
  HalfBytes<kStep> codes;
  float scale;
  int zero;
  __device__ Step(const Int4View& view, std::size_t at, NoTable) : codes(view.codes, at) {
    const std::size_t group = view.group_of(at);
    scale = view.scale_of(group);
    zero = view.zero_of(group);
  }
  __device__ float code(std::size_t j, std::size_t k) const {
    return static_cast<float>(static_cast<std::int8_t>(codes.code(j, k) - zero));
  }
  static __device__ float factor(const Int4View&, std::size_t) { return 1.0f; }
};

template <std::size_t kStep>
struct Step<Nf4View, kStep> {
  static constexpr bool kScaled = true;
  HalfBytes<kStep> codes;
  float scale;
  const float* table;
  __device__ Step(const Nf4View& view, std::size_t at, const float* values)
      : codes(view.codes, at), scale(view.absmax_of(at / kBlock)), table(values) {}
  __device__ float code(std::size_t j, std::size_t k) const { return table[codes.code(j, k)]; }
  static __device__ float factor(const Nf4View&, std::size_t) { return 1.0f; }
};

/// For nn::each_lane(): written out, so that arrays become registers.
template <std::size_t count>
struct Of {
  static constexpr std::size_t size = count;
};
/// Weights that are taken together, at most: those of 32 bytes, where codes have four bits.
template <class View>
inline constexpr std::size_t kPackOf = 32;
template <>
inline constexpr std::size_t kPackOf<Int4View> = kPair;
template <>
inline constexpr std::size_t kPackOf<Nf4View> = kPair;

/// y[r, o] = factor(o) * sum of x[r, i] * weight[o, i] (+ bias[o]) (+ y[r, o]), in FP32. kStep divides `in`, and the
/// groups.
template <std::size_t kStep, std::size_t kRows, class View, class T>
__global__ void __launch_bounds__(kThreads)
    weight_only_kernel(View view, RowsOf<T> x, const T* __restrict__ bias, T* y, std::size_t rows, std::size_t in,
                       std::size_t out, bool add) {
  static_assert(kOutputs == 4);
  constexpr std::size_t part = kPart<kStep>, lanes = kSums<kStep>;
  const auto table = View::table();
  const std::size_t row_tiles = (rows + kRows - 1) / kRows, tiles = (out + kOutputs - 1) / kOutputs;
  for (std::size_t tile : row_range(tiles * row_tiles)) {  // neighbours have the same weights
    const std::size_t first_out = tile / row_tiles * kOutputs, first_row = tile % row_tiles * kRows;
    std::size_t at[kOutputs];
    const T* v[kRows];  // behind the last one, that one again
    for (std::size_t o = 0; o < kOutputs; ++o) at[o] = (first_out + o < out ? first_out + o : out - 1) * in;
    for (std::size_t r = 0; r < kRows; ++r)
      v[r] = x.data + (first_row + r < rows ? first_row + r : rows - 1) * x.stride;
    float sum[kRows][kOutputs][lanes] = {};
    for (std::size_t i : block_range(in / kStep)) {
      const Step<View, kStep> step[kOutputs] = {{view, at[0] + i * kStep, table},
                                                {view, at[1] + i * kStep, table},
                                                {view, at[2] + i * kStep, table},
                                                {view, at[3] + i * kStep, table}};
      const auto multiply_row = [&](std::size_t r) {
        float from_x[kStep];
        nn::load_floats<(kStep >= 32), kStep>(from_x, v[r] + i * kStep);
        const auto multiply_output = [&](std::size_t o) {
          for (std::size_t k = 0; k < part; ++k) {
            float& to = sum[r][o][k % lanes];
            if constexpr (Step<View, kStep>::kScaled) {
              float product = step[o].code(0, k) * from_x[k];
              if constexpr (kStep > part) product = fmaf(step[o].code(1, k), from_x[part + k], product);
              to = fmaf(step[o].scale, product, to);
            } else {
              to = fmaf(step[o].code(0, k), from_x[k], to);
            }
          }
        };
        if constexpr (kRows == 1)
          for (std::size_t o = 0; o < kOutputs; ++o) multiply_output(o);
        else
          nn::each_lane<Of<kOutputs>>(multiply_output);
      };
      if constexpr (kRows == 1)
        multiply_row(0);
      else
        nn::each_lane<Of<kRows>>(multiply_row);
    }
    nn::each_lane<inference::Cells<kRows>>([&](std::size_t cell) {
      const std::size_t r = cell / kOutputs, o = cell % kOutputs;
      float total = 0.0f;
      for (std::size_t k = 0; k < lanes; ++k) total += sum[r][o][k];
      total = block_sum(total);
      if (threadIdx.x != 0 || first_row + r >= rows || first_out + o >= out) return;
      total *= Step<View, kStep>::factor(view, first_out + o);
      if (bias) total += static_cast<float>(bias[first_out + o]);
      T& to = y[(first_row + r) * out + first_out + o];
      to = static_cast<T>(add ? static_cast<float>(to) + total : total);
    });
  }
}

/// y[rows, out] = x W^T + bias, in FP32; with `add`, that is added to what y holds. bias may be null. Every code is
/// read once for kRowsOfTile rows.
template <class View, class T>
void weight_only_product(Context& context, View view, std::size_t group, RowsOf<T> x,
                         const std::type_identity_t<T>* bias, T* y, std::size_t rows, std::size_t in, std::size_t out,
                         bool add) {
  const auto start = [&](auto step) {
    constexpr std::size_t kStep = decltype(step)::value;
    const auto with = [&](auto kernel, std::size_t row_tiles) {
      const std::size_t tiles = checked_product((out + kOutputs - 1) / kOutputs, row_tiles);
      LaunchShape shape = at_most(kThreads, nn::shape_for_short_rows(tiles, in / kStep, View::shared_bytes));
      // On the host a small product takes less time than its threads take to begin.
      shape.grid.x = std::min(shape.grid.x, blocks_for_items(tiles * std::max<std::size_t>(1, in / 8), 1));
      launch(kernel, shape, context.stream(), view, x, bias, y, rows, in, out, add);
    };
    if (rows == 1)
      with(weight_only_kernel<kStep, 1, View, T>, 1);
    else
      // 64 weights at a time for several rows would not have the registers.
      with(weight_only_kernel<std::min<std::size_t>(kStep, 32), kRowsOfTile, View, T>,
           (rows + kRowsOfTile - 1) / kRowsOfTile);
  };
  constexpr std::size_t pack = kPackOf<View>;
  const auto fits = [&](std::size_t n) { return in % n == 0 && group % n == 0; };
  const bool packs = nn::packs_fit<T>(x.stride, x.data);
  if (packs && fits(pack))
    start(std::integral_constant<std::size_t, pack>{});
  else if (packs && fits(32))
    start(std::integral_constant<std::size_t, 32>{});
  else if (fits(4))
    start(std::integral_constant<std::size_t, 4>{});
  else
    start(std::integral_constant<std::size_t, 1>{});
  context.count_flops(2 * std::uint64_t(rows) * in * out);
}

// ------------------------------------------------------------------------------------------------------------- dynamic

/// Inputs that a thread takes at a time, where it does not take 16 as one access.
inline constexpr std::size_t kIntegers = 256;

/// sums[r, o] = sum of x[r, i] * w[o, i], exact in 32 bits.
// No launch bounds: with them a compiler keeps to 64 registers here, and the rest in memory.
template <std::size_t kRows, bool kPacks>
__global__ void int8_product_kernel(const std::int8_t* __restrict__ x, const std::int8_t* __restrict__ w,
                                    std::int32_t* sums, std::size_t rows, std::size_t in, std::size_t out) {
  const std::size_t row_tiles = (rows + kRows - 1) / kRows, tiles = (out + kOutputs - 1) / kOutputs;
  for (std::size_t tile : row_range(tiles * row_tiles)) {
    const std::size_t first_out = tile / row_tiles * kOutputs, first_row = tile % row_tiles * kRows;
    const std::int8_t *from_w[kOutputs], *from_x[kRows];
    for (std::size_t o = 0; o < kOutputs; ++o) from_w[o] = w + (first_out + o < out ? first_out + o : out - 1) * in;
    for (std::size_t r = 0; r < kRows; ++r) from_x[r] = x + (first_row + r < rows ? first_row + r : rows - 1) * in;
    std::int32_t sum[kRows][kOutputs] = {};
    if constexpr (kPacks) {
      for (std::size_t i : block_range(in / 16)) {
        Pack<std::int8_t> a[kOutputs];
        for (std::size_t o = 0; o < kOutputs; ++o) a[o] = nn::load<Pack<std::int8_t>>(from_w[o], i);
        for (std::size_t r = 0; r < kRows; ++r) {
          const auto b = nn::load<Pack<std::int8_t>>(from_x[r], i);
          for (std::size_t o = 0; o < kOutputs; ++o)
            for (std::size_t k = 0; k < 16; ++k) sum[r][o] += a[o][k] * b[k];
        }
      }
    } else {
      for (std::size_t i : block_range((in + kIntegers - 1) / kIntegers)) {
        const std::size_t first = i * kIntegers, count = in - first < kIntegers ? in - first : kIntegers;
        for (std::size_t r = 0; r < kRows; ++r)
          for (std::size_t o = 0; o < kOutputs; ++o) {
            const std::int8_t *const a = from_w[o] + first, *const b = from_x[r] + first;
            std::int32_t part = 0;
            for (std::size_t k = 0; k < count; ++k) part += a[k] * b[k];
            sum[r][o] += part;
          }
      }
    }
    nn::each_lane<inference::Cells<kRows>>([&](std::size_t cell) {
      const std::size_t r = cell / kOutputs, o = cell % kOutputs;
      const std::int32_t total = block_sum(sum[r][o]);
      if (threadIdx.x == 0 && first_row + r < rows && first_out + o < out)
        sums[(first_row + r) * out + first_out + o] = total;
    });
  }
}

/// Whether cuBLAS may have an INT8 product: its leading dimensions, and what it multiplies, in multiples of 4.
inline bool library_takes(std::size_t rows, std::size_t in, std::size_t out) {
  return rows >= kRowsForLibrary && in % 4 == 0 && out % 4 == 0;
}
/// sums[rows, out] = x[rows, in] w[out, in]^T in whole numbers.
void int8_product(Context& context, const std::int8_t* x, const std::int8_t* w, std::int32_t* sums, std::size_t rows,
                  std::size_t in, std::size_t out);

/// y = x_scale[row] * w_scale[output] * sums (+ bias) (+ y).
template <class T>
__global__ void scale_sums_kernel(const std::int32_t* sums, const float* x_scale, const float* w_scale, const T* bias,
                                  T* y, std::size_t rows, std::size_t out, bool add) {
  for (std::size_t row : row_range(rows))
    for (std::size_t o : block_range(out)) {
      float v = x_scale[row] * w_scale[o] * static_cast<float>(sums[row * out + o]);
      if (bias) v += static_cast<float>(bias[o]);
      T& to = y[row * out + o];
      to = static_cast<T>(add ? static_cast<float>(to) + v : v);
    }
}

/// What dynamic products need for up to `rows` rows (category workspace): codes of the widest input, a scale a row, and
/// sums of the widest output. Nothing for 0 rows: where no product is dynamic.
struct DynamicScratch {
  DeviceBuffer<std::int8_t> codes;
  DeviceBuffer<float> scales;
  DeviceBuffer<std::int32_t> sums;

  DynamicScratch(Context& context, std::size_t rows, std::size_t in, std::size_t out)
      : codes(context.buffer<std::int8_t>(checked_product(rows, in), Category::workspace, "activations in INT8")),
        scales(context.buffer<float>(rows, Category::workspace, "scales of activations")),
        sums(context.buffer<std::int32_t>(checked_product(rows, out), Category::workspace, "INT32 sums")) {}
};

/// y[rows, matrix.rows()] = x matrix^T (+ bias) (+ y), in the way that the matrix' format says.
template <class T>
void multiply(Context& context, const Matrix<T>& matrix, RowsOf<T> x, const std::type_identity_t<T>* bias, T* y,
              std::size_t rows, bool add, DynamicScratch& scratch) {
  const std::size_t in = matrix.width(), out = matrix.rows();
  if (matrix.format().dynamic) {
    const Int8View w = int8_view(matrix.stored());
    launch(encode_int8_rows_kernel<T>, nn::shape_for_short_rows(rows, in), context.stream(), x, scratch.codes.data(),
           scratch.scales.data(), rows, in);
    int8_product(context, scratch.codes.data(), w.codes, scratch.sums.data(), rows, in, out);
    launch(scale_sums_kernel<T>, nn::shape_for_short_rows(rows, out), context.stream(), scratch.sums.data(),
           scratch.scales.data(), w.scales, bias, y, rows, out, add);
    return;
  }
  matrix.visit([&](auto view) {
    using View = decltype(view);
    if constexpr (std::is_same_v<View, const T*>)
      inference::row_products<T>(context, x, view, bias, y, rows, in, out, add);
    else  // int8 has no groups
      weight_only_product(context, view, std::is_same_v<View, Int4View> ? matrix.format().group : kBlock, x, bias, y,
                          rows, in, out, add);
  });
}
// Compiled once, in kernels.cu.
extern template void multiply(Context&, const Matrix<float>&, RowsOf<float>, const float*, float*, std::size_t, bool,
                              DynamicScratch&);
extern template void multiply(Context&, const Matrix<__nv_bfloat16>&, RowsOf<__nv_bfloat16>, const __nv_bfloat16*,
                              __nv_bfloat16*, std::size_t, bool, DynamicScratch&);

/// The weights of an nn::Linear, stored in any format. Nothing is owned.
template <class T>
struct QuantisedWeights {
  using Value = T;
  const Matrix<T>* matrix;
  DynamicScratch* scratch;
  std::size_t in, out;

  void multiply(Context& context, RowsOf<T> x, const T* bias, T* y, std::size_t rows, bool add) const {
    quantisation::multiply(context, *matrix, x, bias, y, rows, add, *scratch);
  }
  template <class Visit>
  void each_part(Visit visit) const {
    if (matrix->format().scheme == Scheme::as_is) visit("weight", matrix->stored_bytes());
    for (const Part& part : matrix->layout())
      if (part.count) visit(part.name, part.bytes());
  }
};

}  // namespace oomlab::quantisation
