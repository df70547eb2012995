#pragma once
// 2:4 sparsity: of every four weights that lie side by side in a row two are kept, those with the largest magnitudes
// (Mishra et al., 2021, arXiv:2104.08378). Packed, a matrix [out, in] of FP16 weights is
//
//   values   [out, in / 2]   __half, the kept weights in order                2 bytes · in / 2 for each row
//   places   [out, in / 32]  words, 2 bits for each of them: its place 0…3    4 bytes · ⌈in / 32⌉ for each row
//
// together 9/16 of the dense matrix's 2 bytes · in, exactly so where `in` is divisible by 32. Sparse tensor cores read
// the same values and bits in an order of their own. The kernels here are portable ones: they multiply half as often.
//
// A product from the packed form has the bits of the dense product of the same weights with zeros between them. Sums
// are taken in the same order, in FP32, where a product of two FP16 numbers is exact; and a sum that begins with +0
// stays as it is when a zero is added. That holds for finite x: a dense product also multiplies 0 by ∞.

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "memory/context.h"
#include "nn/ops/kernel.h"

namespace oomlab::lighter_models {

/// Four weights side by side, two of which stay, as one value of 8 bytes; and those two.
struct alignas(8) FourHalves {
  __half value[4];
};
struct alignas(4) TwoHalves {
  __half value[2];
};
inline constexpr std::size_t kGroupsOfWord = 8;   ///< groups of four whose places fill a word: 4 bits each
inline constexpr std::size_t kRowsOfProduct = 4;  ///< rows of x that a block multiplies with a weight that it has read

/// Throws std::invalid_argument, with one line, when rows are not whole groups of four.
inline void require_groups_of_four(std::size_t in) {
  if (in % 4 != 0 || in == 0)
    throw std::invalid_argument("2:4 sparsity keeps 2 of every 4 weights; " + std::to_string(in) +
                                " inputs are not divisible by 4");
}
/// Kept weights, and words of places, of a matrix [out, in].
inline std::size_t kept_values(std::size_t out, std::size_t in) { return checked_product(out, in / 2); }
inline std::size_t words_of_row(std::size_t in) { return (in / 4 + kGroupsOfWord - 1) / kGroupsOfWord; }
/// Bytes of the packed form, two buffers rounded to the granule (category parameters).
inline std::size_t two_of_four_bytes(std::size_t out, std::size_t in) {
  require_groups_of_four(in);
  return round_to_granule(checked_product(kept_values(out, in), sizeof(__half))) +
         round_to_granule(checked_product(checked_product(out, words_of_row(in)), sizeof(std::uint32_t)));
}

// ------------------------------------------------------------------------------------------------------------- kernels

/// The place-th of four, without an address of its own.
__device__ inline float pick(const FourHalves& four, unsigned place) {
  std::uint64_t all;
  memcpy(&all, &four, sizeof all);
  const std::uint16_t bits = static_cast<std::uint16_t>(all >> (16 * place));
  __half one;
  memcpy(static_cast<void*>(&one), &bits, sizeof one);
  return static_cast<float>(one);
}

/// Packs: each thread the groups of a word. Of equal magnitudes the lower place stays; a NaN is larger than any number.
__global__ inline void prune_two_of_four_kernel(const __half* __restrict__ dense, __half* __restrict__ values,
                                                std::uint32_t* __restrict__ places, std::size_t out, std::size_t groups,
                                                std::size_t words) {
  for (std::size_t word : grid_range(out * words)) {
    const std::size_t row = word / words, first = word % words * kGroupsOfWord;
    std::uint32_t bits = 0;
    for (std::size_t g = 0; g < kGroupsOfWord && first + g < groups; ++g) {
      const std::size_t group = row * groups + first + g;
      const FourHalves four = nn::load<FourHalves>(dense, group);
      std::uint16_t magnitude[4];
      memcpy(magnitude, &four, sizeof magnitude);
      for (std::uint16_t& m : magnitude) m &= 0x7fff;
      TwoHalves two;
      unsigned kept = 0;
      for (unsigned p = 0; p < 4; ++p) {
        unsigned larger = 0;
        for (unsigned q = 0; q < 4; ++q)
          larger += magnitude[q] > magnitude[p] || (magnitude[q] == magnitude[p] && q < p);
        if (larger >= 2) continue;
        (kept == 0 ? two.value[0] : two.value[1]) = four.value[p];
        bits |= p << (4 * g + 2 * kept++);
      }
      nn::store(values, group, two);
    }
    places[word] = bits;
  }
}

/// The dense matrix again, zeros where a weight was not kept.
__global__ inline void unpack_two_of_four_kernel(const __half* __restrict__ values,
                                                 const std::uint32_t* __restrict__ places, __half* __restrict__ dense,
                                                 std::size_t out, std::size_t groups, std::size_t words) {
  for (std::size_t group : grid_range(out * groups)) {
    const std::size_t g = group % groups;
    const unsigned bits = places[group / groups * words + g / kGroupsOfWord] >> (4 * (g % kGroupsOfWord));
    const TwoHalves two = nn::load<TwoHalves>(values, group);
    FourHalves four;
    for (unsigned p = 0; p < 4; ++p)
      four.value[p] = p == (bits & 3) ? two.value[0] : p == (bits >> 2 & 3) ? two.value[1] : static_cast<__half>(0.0f);
    nn::store(dense, group, four);
  }
}

/// A row of weights as a product reads them: add(sum, x, group) adds to each sum[r] what x[r], four numbers of a row of
/// x, and the row's group-th four weights make, place by place.
struct DenseWeights {
  const __half* weight;
  __device__ void add(float (&sum)[kRowsOfProduct], const FourHalves (&x)[kRowsOfProduct], std::size_t row,
                      std::size_t group, std::size_t groups) const {
    const FourHalves w = nn::load<FourHalves>(weight, row * groups + group);
    for (unsigned p = 0; p < 4; ++p) {
      const float value = static_cast<float>(w.value[p]);
      for (std::size_t r = 0; r < kRowsOfProduct; ++r) sum[r] += value * static_cast<float>(x[r].value[p]);
    }
  }
};
struct PackedWeights {
  const __half* values;
  const std::uint32_t* places;
  std::size_t words;
  __device__ void add(float (&sum)[kRowsOfProduct], const FourHalves (&x)[kRowsOfProduct], std::size_t row,
                      std::size_t group, std::size_t groups) const {
    const TwoHalves w = nn::load<TwoHalves>(values, row * groups + group);
    const unsigned bits = places[row * words + group / kGroupsOfWord] >> (4 * (group % kGroupsOfWord));
    for (unsigned k = 0; k < 2; ++k) {
      const float value = static_cast<float>(w.value[k]);
      for (std::size_t r = 0; r < kRowsOfProduct; ++r) sum[r] += value * pick(x[r], bits >> (2 * k) & 3);
    }
  }
};

/// y[batch, out] = x[batch, in] · weightsᵀ. A block makes some rows' outputs from one row of weights; its threads share
/// the groups of four, in the same way for any Weights, so that sums have one order.
template <class Weights, class Out>
__global__ void product_kernel(const __half* __restrict__ x, Weights weights, Out* __restrict__ y, std::size_t batch,
                               std::size_t groups, std::size_t out) {
  const std::size_t tiles = (batch + kRowsOfProduct - 1) / kRowsOfProduct;
  for (std::size_t tile : row_range(out * tiles)) {
    const std::size_t row = tile / tiles, first = tile % tiles * kRowsOfProduct;
    float sum[kRowsOfProduct] = {};
    for (std::size_t group : block_range(groups)) {
      FourHalves at[kRowsOfProduct];
      for (std::size_t r = 0; r < kRowsOfProduct; ++r)  // behind the last row, that row again
        at[r] = nn::load<FourHalves>(x, (first + r < batch ? first + r : batch - 1) * groups + group);
      weights.add(sum, at, row, group, groups);
    }
    for (std::size_t r = 0; r < kRowsOfProduct; ++r) {
      const float all = block_sum(sum[r]);
      if (threadIdx.x == 0 && first + r < batch) y[(first + r) * out + row] = static_cast<Out>(all);
    }
  }
}
template <class Weights, class Out>
void multiply(Context& context, const __half* x, const Weights& weights, Out* y, std::size_t batch, std::size_t in,
              std::size_t out) {
  const std::size_t tiles = (batch + kRowsOfProduct - 1) / kRowsOfProduct;
  launch(product_kernel<Weights, Out>, nn::shape_for_short_rows(checked_product(out, tiles), in / 4), context.stream(),
         x, weights, y, batch, in / 4, out);
}

// ----------------------------------------------------------------------------------------------------------- interface

/// y[batch, out] = x[batch, in] · weight[out, in]ᵀ, added up in FP32, stored as Out (float or __half): what the packed
/// product is compared with. `in` must be divisible by 4 (std::invalid_argument), x and weight aligned to 8 bytes.
template <class Out>
void multiply_dense(Context& context, const __half* x, const __half* weight, Out* y, std::size_t batch, std::size_t in,
                    std::size_t out) {
  require_groups_of_four(in);
  multiply(context, x, DenseWeights{weight}, y, batch, in, out);
  context.count_flops(2 * std::uint64_t(batch) * in * out);
}

/// A matrix [out, in] of which two of every four weights in a row are kept.
class TwoOfFour {
 public:
  /// From dense[out, in] on the device, aligned to 8 bytes, which is not needed afterwards. Allocates
  /// two_of_four_bytes() (category parameters, tags "<name> values" and "<name> places"). Throws std::invalid_argument
  /// unless `in` is divisible by 4, and OutOfMemory.
  TwoOfFour(Context& context, const __half* dense, std::size_t out, std::size_t in, const std::string& name)
      : TwoOfFour(context, out, in, name) {
    pack_rows(context, dense, 0, out);
  }
  /// The same without contents: pack_rows() makes them, so that never all of the dense matrix has to be there.
  TwoOfFour(Context& context, std::size_t out, std::size_t in, const std::string& name)
      : out_(out), in_((require_groups_of_four(in), in)) {
    values_ = context.buffer<__half>(kept_values(out, in), Category::parameters, name + " values");
    places_ = context.buffer<std::uint32_t>(out * words_of_row(in), Category::parameters, name + " places");
  }
  /// Rows first … first + rows − 1, at most out() − 1, from dense[rows, in], aligned to 8 bytes. Throws
  /// std::invalid_argument when the matrix has fewer rows.
  void pack_rows(Context& context, const __half* dense, std::size_t first, std::size_t rows) {
    if (rows > out_ || first > out_ - rows) throw std::invalid_argument("a matrix has no such rows to pack");
    const std::size_t words = words_of_row(in_);
    launch(prune_two_of_four_kernel, shape_for_items(rows * words), context.stream(), dense,
           values_.data() + kept_values(first, in_), places_.data() + first * words, rows, in_ / 4, words);
  }

  std::size_t out() const noexcept { return out_; }
  std::size_t in() const noexcept { return in_; }
  /// Bytes of values and places: 9/16 of the dense matrix's, where `in` is divisible by 32.
  std::size_t bytes() const noexcept { return values_.bytes() + places_.bytes(); }
  const DeviceBuffer<__half>& values() const noexcept { return values_; }
  const DeviceBuffer<std::uint32_t>& places() const noexcept { return places_; }

  /// dense[out, in] = the matrix with zeros where a weight was not kept.
  void unpack(Context& context, __half* dense) const {
    launch(unpack_two_of_four_kernel, shape_for_items(out_ * (in_ / 4)), context.stream(), values_.data(),
           places_.data(), dense, out_, in_ / 4, words_of_row(in_));
  }

  /// y[batch, out] = x[batch, in] · this matrixᵀ, from the packed form: the bits of multiply_dense() with what unpack()
  /// makes, for finite x. Bias and activation: nn::bias_activation().
  template <class Out>
  void multiply(Context& context, const __half* x, Out* y, std::size_t batch) const {
    lighter_models::multiply(context, x, PackedWeights{values_.data(), places_.data(), words_of_row(in_)}, y, batch,
                             in_, out_);
    context.count_flops(std::uint64_t(batch) * in_ * out_);
  }

 private:
  std::size_t out_, in_;
  DeviceBuffer<__half> values_;
  DeviceBuffer<std::uint32_t> places_;
};

}  // namespace oomlab::lighter_models
