#pragma once
// The kernels that go to the formats of plan/quantised/format.h and back, how kernels find what is stored there, and the
// choice between the formats: a new one is known here, and in format.h and format.cpp.
//
// A matrix [out, in] is one row after the other, and groups and blocks are cut from that line as it comes. Where they
// divide `in`, none of them crosses rows. Every rounding is to the nearest, so a weight is off by half a step at most:
// half a scale, or in NF4 half the distance of two values of the code, times the absmax. For that, scales that are
// themselves rounded are rounded up: no weight is beyond the last code.

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "../11_inference/row_products.h"
#include "memory/context.h"
#include "nn/ops/kernel.h"
#include "plan/quantised/format.h"

namespace oomlab::quantisation {

using namespace quantised;
using inference::RowsOf;

/// NF4's code: -1, 0 and 1, and between them quantiles of the normal distribution, divided by the largest: 7 of them
/// negative, 7 positive (bitsandbytes, create_normal_map).
inline constexpr float kNf4Code[16] = {
    -1.0f,       -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
    0.07958030f, 0.16093020f,  0.24611230f,  0.33791524f,  0.44070983f,  0.56261700f,  0.72295684f,  1.0f};
// As constants of their own: device code has no array of the host's.
template <std::size_t k>
inline constexpr float kNf4At = kNf4Code[k];
template <std::size_t k>
inline constexpr float kNf4Middle = (kNf4Code[k] + kNf4Code[k + 1]) / 2;

__host__ __device__ inline void copy_nf4(float* to) {
  [&]<std::size_t... k>(std::index_sequence<k...>) { ((to[k] = kNf4At<k>), ...); }
  (std::make_index_sequence<16>{});
}
/// The place in the code that is nearest to x.
__host__ __device__ inline unsigned nearest_nf4(float x) {
  return [&]<std::size_t... k>(std::index_sequence<k...>) { return (0u + ... + (x > kNf4Middle<k> ? 1u : 0u)); }
  (std::make_index_sequence<15>{});
}

/// largest / levels. A denormal that was rounded down would leave the largest weight beyond the last code: up, then.
__host__ __device__ inline float step_of(float largest, float levels = 127.0f) {
  float step = largest / levels;
  if (step < FLT_MIN && step * levels < largest) {
    std::uint32_t bits;
    memcpy(&bits, &step, sizeof bits);
    ++bits;
    memcpy(&step, &bits, sizeof step);
  }
  return step;
}
/// x / step to the nearest, in -127...127; 0 where there is no step.
__host__ __device__ inline std::int8_t int8_code(float x, float step) {
  if (!(step > 0.0f)) return 0;
  const float q = rintf(x / step);
  return static_cast<std::int8_t>(q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q);
}

/// The upper half of a float that is not negative: the next BF16 that is at least as large.
__host__ __device__ inline std::uint16_t bf16_up(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0xffff) >> 16);
}
__host__ __device__ inline float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/// Scale and zero of a group whose weights are between -below and above.
struct Int4Group {
  std::uint16_t scale;
  std::uint8_t zero;
};
__host__ __device__ inline Int4Group int4_group(float below, float above) {
  const std::uint16_t scale = bf16_up(below / 15.0f + above / 15.0f);
  const float step = from_bf16(scale), zero = step > 0.0f ? rintf(below / step) : 0.0f;
  return {scale, static_cast<std::uint8_t>(zero > 15.0f ? 15.0f : zero)};
}
// As a compiler vectorises it; fmaxf() asks about NaN first.
__host__ __device__ inline float larger(float a, float b) { return a < b ? b : a; }

// --------------------------------------------------------------------------------------------------------------- views

// A matrix as a kernel finds it. value(i, table) is weight i; what comes from Table::make() is a block's own.

struct NoTable {};

struct Int8View {
  const std::int8_t* codes;
  const float* scales;
  std::size_t width;  // of a row
  bool per_row;
  using Table = NoTable;
  static constexpr std::size_t shared_bytes = 0;
  static __device__ Table table() { return {}; }
  __device__ float factor(std::size_t row) const { return scales[per_row ? row : 0]; }
  __device__ float value(std::size_t i, Table) const { return factor(i / width) * static_cast<float>(codes[i]); }
};

/// Where code i is, of four bits; and how far it is shifted there.
__host__ __device__ inline std::size_t byte_of(std::size_t i) { return i / kPair * (kPair / 2) + i % (kPair / 2); }
__host__ __device__ inline unsigned shift_of(std::size_t i) { return i % kPair < kPair / 2 ? 0 : 4; }
__device__ inline unsigned nibble(const std::uint8_t* codes, std::size_t i) {
  return codes[byte_of(i)] >> shift_of(i) & 15;
}

struct Int4View {
  const std::uint8_t* codes;
  const std::uint16_t* scales;
  const std::uint8_t* zeros;
  std::size_t group;
  int group_log2;  // or negative
  using Table = NoTable;
  static constexpr std::size_t shared_bytes = 0;
  static __device__ Table table() { return {}; }
  __device__ std::size_t group_of(std::size_t i) const {
    return group_log2 < 0 ? i / group : i >> group_log2;  // a division costs more than what it is for
  }
  __device__ float scale_of(std::size_t of) const { return from_bf16(scales[of]); }
  __device__ int zero_of(std::size_t of) const { return zeros[of / 2] >> (of % 2 * 4) & 15; }
  __device__ float value(std::size_t i, Table) const {
    const std::size_t of = group_of(i);
    return scale_of(of) * static_cast<float>(static_cast<int>(nibble(codes, i)) - zero_of(of));
  }
  /// Of weight i, which is x.
  __device__ unsigned code(std::size_t i, float x) const {
    const float step = scale_of(group_of(i)), q = step > 0.0f ? rintf(x / step) : 0.0f;
    const float code = q + static_cast<float>(zero_of(group_of(i)));
    return static_cast<unsigned>(code < 0.0f ? 0.0f : code > 15.0f ? 15.0f : code);
  }
};

struct Nf4View {
  const std::uint8_t* codes;
  const std::int8_t* absmax;
  const float *scales, *mean;
  using Table = const float*;
  static constexpr std::size_t shared_bytes = 16 * sizeof(float);
  /// The code, in shared memory: each thread looks up another place of it.
  static __device__ Table table() {
    float* const code = dynamic_shared<float>();
    for ([[maybe_unused]] std::size_t once : block_range(1)) copy_nf4(code);
    __syncthreads();
    return code;
  }
  /// Never below 0, and never below the absmax that it stands for, but for the rounding of a sum.
  __device__ float absmax_of(std::size_t block) const {
    const float most = fmaf(scales[block / kBlocks], static_cast<float>(absmax[block]), *mean);
    return most < 0.0f ? 0.0f : most;
  }
  __device__ float value(std::size_t i, Table code) const { return absmax_of(i / kBlock) * code[nibble(codes, i)]; }
  /// Of weight i, which is x.
  __device__ unsigned code(std::size_t i, float x) const {
    const float most = absmax_of(i / kBlock);
    return nearest_nf4(most > 0.0f ? x / most : 0.0f);
  }
};

// ------------------------------------------------------------------------------------------------------------- kernels

/// Rows of `width` values in INT8, each with a scale. Of weights when a model is loaded, of activations when they come.
template <class T>
__global__ void encode_int8_rows_kernel(RowsOf<T> from, std::int8_t* codes, float* scales, std::size_t rows,
                                        std::size_t width) {
  for (std::size_t row : row_range(rows)) {
    const T* const x = from.data + row * from.stride;
    float largest = 0.0f;
    for (std::size_t i : block_range(width)) {
      const float v = fabsf(static_cast<float>(x[i]));
      largest = largest < v ? v : largest;
    }
    const float step = step_of(block_max(largest));
    for (std::size_t i : block_range(width)) codes[row * width + i] = int8_code(static_cast<float>(x[i]), step);
    for ([[maybe_unused]] std::size_t once : block_range(1)) scales[row] = step;
  }
}

/// largest[b] = max |from[i]| over block b of kBlock values; the last one may be shorter.
inline __global__ void largest_of_blocks_kernel(const float* from, float* largest, std::size_t count) {
  for (std::size_t block : grid_range((count + kBlock - 1) / kBlock)) {
    const std::size_t first = block * kBlock, end = first + kBlock < count ? first + kBlock : count;
    float most = 0.0f;
    for (std::size_t i = first; i < end; ++i) most = larger(most, fabsf(from[i]));
    largest[block] = most;
  }
}
/// One block: the scale of a matrix.
inline __global__ void int8_scale_kernel(const float* largest, std::size_t blocks, float* scale) {
  float most = 0.0f;
  for (std::size_t b : block_range(blocks)) most = larger(most, largest[b]);
  most = block_max(most);
  for ([[maybe_unused]] std::size_t once : block_range(1)) *scale = step_of(most);
}
inline __global__ void encode_int8_kernel(const float* from, const float* scale, std::int8_t* codes,
                                          std::size_t count) {
  const float step = *scale;
  for (std::size_t i : grid_range(count)) codes[i] = int8_code(from[i], step);
}

/// Scales and zeros. Two groups at a time: their zeros share a byte. `count` is a multiple of the group.
inline __global__ void int4_groups_kernel(const float* from, std::size_t count, std::size_t group,
                                          std::uint16_t* scales, std::uint8_t* zeros) {
  const std::size_t groups = count / group;
  for (std::size_t pair : row_range((groups + 1) / 2)) {
    Int4Group of[2] = {};
    for (std::size_t g = 0; g < 2 && 2 * pair + g < groups; ++g) {
      float below = 0.0f, above = 0.0f;  // how far it reaches below 0, and above
      for (std::size_t i : block_range(group)) {
        const float x = from[(2 * pair + g) * group + i];
        below = larger(below, -x), above = larger(above, x);
      }
      of[g] = int4_group(block_max(below), block_max(above));
    }
    for ([[maybe_unused]] std::size_t once : block_range(1)) {
      for (std::size_t g = 0; g < 2 && 2 * pair + g < groups; ++g) scales[2 * pair + g] = of[g].scale;
      zeros[pair] = static_cast<std::uint8_t>(of[0].zero | of[1].zero << 4);
    }
  }
}
/// Codes of four bits. `from` are the weights of the view from `first` on, a multiple of kPair, and as many as `count`.
template <class View>
__global__ void encode_nibbles_kernel(const float* from, View view, std::uint8_t* codes, std::size_t first,
                                      std::size_t count) {
  for (std::size_t b : grid_range((count + kPair - 1) / kPair * (kPair / 2))) {
    const std::size_t low = b / (kPair / 2) * kPair + b % (kPair / 2), high = low + kPair / 2;
    const unsigned below = low < count ? view.code(first + low, from[low]) : 0,
                   above = high < count ? view.code(first + high, from[high]) : 0;
    codes[first / 2 + b] = static_cast<std::uint8_t>(below | above << 4);
  }
}

/// One block: the mean of all blocks' absmax.
inline __global__ void absmax_mean_kernel(const float* largest, std::size_t blocks, float* mean) {
  const float share = 1.0f / static_cast<float>(blocks);  // of each: the sum of huge ones would be too large
  const float sum = nn::block_sum_over<float>(blocks, [&](auto count, std::size_t i, float* sums) {
    for (std::size_t k = 0; k < decltype(count)::value; ++k) sums[k] = fmaf(largest[i + k], share, sums[k]);
  });
  for ([[maybe_unused]] std::size_t once : block_range(1)) *mean = sum;
}
/// absmax less the mean in 8 bits, rounded up, kBlocks of them with one scale.
inline __global__ void encode_absmax_kernel(const float* largest, std::size_t blocks, const float* mean, float* scales,
                                            std::int8_t* absmax) {
  for (std::size_t row : row_range((blocks + kBlocks - 1) / kBlocks)) {
    const std::size_t first = row * kBlocks, here = blocks - first < kBlocks ? blocks - first : kBlocks;
    float most = 0.0f;
    for (std::size_t i : block_range(here)) most = larger(most, fabsf(largest[first + i] - *mean));
    const float step = step_of(block_max(most));
    for (std::size_t i : block_range(here)) {
      const float q = step > 0.0f ? ceilf((largest[first + i] - *mean) / step) : 0.0f;
      absmax[first + i] = static_cast<std::int8_t>(q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q);
    }
    for ([[maybe_unused]] std::size_t once : block_range(1)) scales[row] = step;
  }
}
/// to[i] = weight first + i.
template <class View>
__global__ void dequantise_kernel(View view, std::size_t first, float* to, std::size_t count) {
  const auto table = View::table();
  for (std::size_t i : grid_range(count)) to[i] = view.value(first + i, table);
}
/// In another type.
template <class From, class To>
__global__ void cast_kernel(const From* from, To* to, std::size_t count) {
  for (std::size_t i : grid_range(count)) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

// -------------------------------------------------------------------------------------------------------------- choice

/// A matrix in fewer bits on the device.
struct Stored {
  Format format;
  std::size_t width = 0;           ///< of a row
  std::array<std::byte*, 4> at{};  ///< of Parts
  template <class P>
  P* part(std::size_t p) const noexcept {
    return reinterpret_cast<P*>(at[p]);
  }
};
inline Int8View int8_view(const Stored& m) {
  return {m.part<std::int8_t>(kCodes), m.part<float>(kScales), m.width, m.format.scheme == Scheme::int8_row};
}
inline Int4View int4_view(const Stored& m) {
  return {m.part<std::uint8_t>(kCodes), m.part<std::uint16_t>(kScales), m.part<std::uint8_t>(kSmall), m.format.group,
          std::has_single_bit(m.format.group) ? std::countr_zero(m.format.group) : -1};
}
inline Nf4View nf4_view(const Stored& m) {
  return {m.part<std::uint8_t>(kCodes), m.part<std::int8_t>(kSmall), m.part<float>(kScales), m.part<float>(kMean)};
}
/// f(the view of its format). Nothing for what is stored as it is.
template <class F>
void with_view(const Stored& m, F f) {
  switch (m.format.scheme) {
    case Scheme::as_is: return;
    case Scheme::int8_tensor:
    case Scheme::int8_row: return f(int8_view(m));
    case Scheme::int4: return f(int4_view(m));
    case Scheme::nf4: return f(nf4_view(m));
  }
}

/// Stores `count` weights. each(use) brings them to `from` in pieces of whole rows, groups and blocks, and calls
/// use(first, here) after each of them; `largest` has room for a float of every block, where loading_bytes() says so.
template <class Each>
void encode_weights(const Stored& m, std::size_t count, const float* from, float* largest, cudaStream_t stream,
                    Each each) {
  const std::size_t blocks = (count + kBlock - 1) / kBlock;
  const auto run = [&](auto kernel, const LaunchShape& shape, auto... arguments) {
    launch(kernel, shape, stream, arguments...);
  };
  const auto of_blocks = [&](std::size_t first, std::size_t here) {
    run(largest_of_blocks_kernel, shape_for_items((here + kBlock - 1) / kBlock), from, largest + first / kBlock, here);
  };
  switch (m.format.scheme) {
    case Scheme::as_is: return;
    case Scheme::int8_tensor:
      each(of_blocks);
      run(int8_scale_kernel, shape_for_rows(1), largest, blocks, m.part<float>(kScales));
      return each([&](std::size_t first, std::size_t here) {
        run(encode_int8_kernel, shape_for_items(here), from, m.part<float>(kScales),
            m.part<std::int8_t>(kCodes) + first, here);
      });
    case Scheme::int8_row:
      return each([&](std::size_t first, std::size_t here) {
        run(encode_int8_rows_kernel<float>, shape_for_rows(here / m.width), RowsOf<float>{from, m.width},
            m.part<std::int8_t>(kCodes) + first, m.part<float>(kScales) + first / m.width, here / m.width, m.width);
      });
    case Scheme::int4:
      return each([&](std::size_t first, std::size_t here) {
        const std::size_t group = m.format.group, groups = here / group;
        run(int4_groups_kernel, nn::shape_for_short_rows((groups + 1) / 2, group), from, here, group,
            m.part<std::uint16_t>(kScales) + first / group, m.part<std::uint8_t>(kSmall) + first / group / 2);
        run(encode_nibbles_kernel<Int4View>, shape_for_items(here), from, int4_view(m), m.part<std::uint8_t>(kCodes),
            first, here);
      });
    case Scheme::nf4:
      each(of_blocks);
      run(absmax_mean_kernel, shape_for_rows(1), largest, blocks, m.part<float>(kMean));
      run(encode_absmax_kernel, shape_for_rows((blocks + kBlocks - 1) / kBlocks), largest, blocks, m.part<float>(kMean),
          m.part<float>(kScales), m.part<std::int8_t>(kSmall));
      return each([&](std::size_t first, std::size_t here) {
        run(encode_nibbles_kernel<Nf4View>, shape_for_items(here), from, nf4_view(m), m.part<std::uint8_t>(kCodes),
            first, here);
      });
  }
}

}  // namespace oomlab::quantisation
