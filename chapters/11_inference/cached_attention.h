#pragma once
// Attention of single tokens over the keys and values that a KvCache holds, found block by block through the request's
// table. A token at position p reads those of positions 0…p: the recurrence of Milakov and Gimelshein (2018) over tiles
// of kKeysAtOnce positions. Which numbers are added in which order depends on p alone: not on the size of the cache's
// blocks, nor on where they lie, nor on the other tokens of the step.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kv_cache.h"
#include "nn/ops/kernel.h"

namespace oomlab::inference {

inline constexpr std::size_t kKeysAtOnce = 64;      ///< positions of a tile
inline constexpr std::size_t kSumLanes = 16;        ///< of a sum, side by side
inline constexpr unsigned kAttentionThreads = 256;  ///< of a block at most: more would not have the registers

/// Rows of a step and a layer of the cache, as a kernel finds them: the row's request has its blocks, in order, at
/// blocks[first[row]…].
struct CachedRows {
  std::byte* const* blocks;
  const int *first, *position;  // of each row
  std::size_t layer, kv_heads, depth, block_tokens, scales_at;

  // Where the key of a position is, counted in rows of `depth` values from the block's begin. Its value follows after
  // so many rows as the block has keys in a layer.
  __device__ std::size_t key_row(std::size_t head, std::size_t at) const {
    return (layer * 2 * kv_heads + head) * block_tokens + at % block_tokens;
  }
  __device__ std::size_t keys_of_layer() const { return kv_heads * block_tokens; }
  __device__ std::byte* block(std::size_t row, std::size_t at) const {
    return blocks[static_cast<std::size_t>(first[row]) + at / block_tokens];
  }
  __device__ float* scale(std::byte* block, std::size_t key_row) const {
    return reinterpret_cast<float*>(block + scales_at) + key_row;
  }
};

/// A value in 8 bits is scale · q, q in −127…127, scale = max |x| / 127 of the row: the error is at most half a scale.
__device__ inline std::int8_t quantised(float x, float scale) {
  return scale > 0.0f ? static_cast<std::int8_t>(rintf(x / scale)) : std::int8_t(0);
}

/// Writes the keys and values of each row of qkv [rows, (heads + 2 · kv_heads) · depth] to the place of its position.
template <class T, class Value>
__global__ void store_keys_and_values_kernel(const T* __restrict__ qkv, CachedRows cache, std::size_t rows,
                                             std::size_t heads, bool packs) {
  const std::size_t depth = cache.depth, per_row = 2 * cache.kv_heads;
  for (std::size_t i : row_range(rows * per_row)) {
    const std::size_t row = i / per_row, head = i % cache.kv_heads, at = static_cast<std::size_t>(cache.position[row]);
    const T* const from = qkv + (row * (heads + per_row) + heads + i % per_row) * depth;
    std::byte* const block = cache.block(row, at);
    const std::size_t to_row = cache.key_row(head, at) + (i % per_row < cache.kv_heads ? 0 : cache.keys_of_layer());
    Value* const to = reinterpret_cast<Value*>(block) + to_row * depth;
    if constexpr (std::is_same_v<Value, std::int8_t>) {
      float largest = 0.0f;
      for (std::size_t c : block_range(depth)) largest = fmaxf(largest, fabsf(static_cast<float>(from[c])));
      const float scale = block_max(largest) / 127.0f;
      for (std::size_t c : block_range(depth)) to[c] = quantised(static_cast<float>(from[c]), scale);
      for ([[maybe_unused]] std::size_t once : block_range(1)) *cache.scale(block, to_row) = scale;
    } else {
      nn::for_packs<T>(nn::BlockRange{}, depth, packs,
                       [&](auto v, std::size_t c) { nn::store(to, c, nn::load<decltype(v)>(from, c)); });
    }
  }
}

/// Running values side by side, which vectorise, are combined pair by pair at last: one order on any backend.
template <class Combine>
__device__ float combined(float (&lanes)[kSumLanes], Combine combine) {
  static_assert(kSumLanes == 16);
  for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + 8]);
  for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + 4]);
  return combine(combine(lanes[0], lanes[2]), combine(lanes[1], lanes[3]));
}
/// The sum, or the maximum, of `count` values, a multiple of kSumLanes.
template <class Combine>
__device__ float combined(const float* values, std::size_t count, Combine combine) {
  float lanes[kSumLanes];
  for (std::size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = values[lane];
  for (std::size_t i = kSumLanes; i < count; i += kSumLanes)
    for (std::size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = combine(lanes[lane], values[i + lane]);
  return combined(lanes, combine);
}
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Maximum {
  __device__ float operator()(float a, float b) const { return a < b ? b : a; }
};

/// Σ q[c] · k[c].
template <bool kPacks, class Value>
__device__ float dot(const float* q, const Value* k, std::size_t depth) {
  float lanes[kSumLanes] = {};
  std::size_t c = 0;
  for (; c + kSumLanes <= depth; c += kSumLanes) {
    float key[kSumLanes];
    nn::load_floats<kPacks, kSumLanes>(key, k + c);
    for (std::size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = fmaf(q[c + lane], key[lane], lanes[lane]);
  }
  float all = combined(lanes, Sum{});
  for (; c < depth; ++c) all = fmaf(q[c], static_cast<float>(k[c]), all);
  return all;
}

/// Bytes of shared memory of a block that has `group` query heads.
inline std::size_t attention_shared_bytes(std::size_t group, std::size_t depth) {
  return kKeysAtOnce * sizeof(void*) + (group * (2 * depth + kKeysAtOnce + 3) + 2 * kKeysAtOnce) * sizeof(float);
}

/// attended[row, heads · depth] from the queries of qkv and the cached keys and values. A block of threads has a row
/// and a key-value head, with the `group` query heads that share it.
template <class T, class Value, bool kPacks>
__global__ void cached_attention_kernel(const T* __restrict__ qkv, T* __restrict__ attended, CachedRows cache,
                                        std::size_t rows, std::size_t group, float factor) {
  constexpr bool kScaled = std::is_same_v<Value, std::int8_t>;
  constexpr std::size_t lanes = nn::kLanes<Value>;
  const std::size_t depth = cache.depth, heads = group * cache.kv_heads, stride = (heads + 2 * cache.kv_heads) * depth;
  const Value** const key = dynamic_shared<const Value*>();
  float* const query = reinterpret_cast<float*>(key + kKeysAtOnce);
  float *const out = query + group * depth, *const score = out + group * depth,
               *const largest = score + group * kKeysAtOnce;
  float *const sum = largest + group, *const shrink = sum + group;
  float *const key_scale = shrink + group, *const value_scale = key_scale + kKeysAtOnce;
  for (std::size_t i : row_range(rows * cache.kv_heads)) {
    const std::size_t row = i / cache.kv_heads, head = i % cache.kv_heads,
                      first_of_row = row * stride + head * group * depth;
    const std::size_t positions = static_cast<std::size_t>(cache.position[row]) + 1;
    for (std::size_t c : block_range(group * depth)) {
      query[c] = static_cast<float>(qkv[first_of_row + c]) * factor;
      out[c] = 0.0f;
    }
    for (std::size_t g : block_range(group)) {
      largest[g] = -INFINITY;
      sum[g] = 0.0f;
    }
    for (std::size_t first = 0; first < positions; first += kKeysAtOnce) {
      const std::size_t keys = positions - first < kKeysAtOnce ? positions - first : kKeysAtOnce;
      for (std::size_t k : block_range(keys)) {  // the table is looked up once a position
        std::byte* const block = cache.block(row, first + k);
        const std::size_t key_row = cache.key_row(head, first + k);
        key[k] = reinterpret_cast<const Value*>(block) + key_row * depth;
        if constexpr (kScaled) {
          key_scale[k] = *cache.scale(block, key_row);
          value_scale[k] = *cache.scale(block, key_row + cache.keys_of_layer());
        }
      }
      __syncthreads();
      for (std::size_t pair : block_range(kKeysAtOnce * group)) {
        const std::size_t k = pair / group, g = pair % group;
        float product = -INFINITY;  // behind the last position
        if (k < keys) product = dot<kPacks>(query + g * depth, key[k], depth) * (kScaled ? key_scale[k] : 1.0f);
        score[g * kKeysAtOnce + k] = product;
      }
      __syncthreads();
      for (std::size_t g : block_range(group)) {
        const float now = Maximum{}(largest[g], combined(score + g * kKeysAtOnce, kKeysAtOnce, Maximum{}));
        shrink[g] = largest[g] == -INFINITY ? 0.0f : nn::exp_of(largest[g] - now);
        largest[g] = now;
      }
      __syncthreads();
      for (std::size_t g = 0; g < group; ++g) {
        const float most = largest[g];
        float* const p = score + g * kKeysAtOnce;
        for (std::size_t k : block_range(kKeysAtOnce)) p[k] = nn::exp_of(p[k] - most);
      }
      __syncthreads();
      for (std::size_t i : block_range(group * (kKeysAtOnce - keys)))  // it is not quite 0
        score[i / (kKeysAtOnce - keys) * kKeysAtOnce + keys + i % (kKeysAtOnce - keys)] = 0.0f;
      __syncthreads();
      for (std::size_t g : block_range(group))
        sum[g] = fmaf(sum[g], shrink[g], combined(score + g * kKeysAtOnce, kKeysAtOnce, Sum{}));
      // out = out · shrink + Σ p · value, `count` columns at a time.
      const auto add_values = [&](auto count, std::size_t g, std::size_t column) {
        constexpr std::size_t n = decltype(count)::value;
        float total[n], value[n];
        for (std::size_t c = 0; c < n; ++c) total[c] = out[g * depth + column + c] * shrink[g];
        for (std::size_t k = 0; k < keys; ++k) {
          const float p = kScaled ? score[g * kKeysAtOnce + k] * value_scale[k] : score[g * kKeysAtOnce + k];
          nn::load_floats<kPacks, n>(value, key[k] + cache.keys_of_layer() * depth + column);
          for (std::size_t c = 0; c < n; ++c) total[c] = fmaf(p, value[c], total[c]);
        }
        for (std::size_t c = 0; c < n; ++c) out[g * depth + column + c] = total[c];
      };
      const std::size_t wide = depth / lanes, rest = depth % lanes;
      for (std::size_t j : block_range(group * wide))
        add_values(std::integral_constant<std::size_t, lanes>{}, j / wide, j % wide * lanes);
      for (std::size_t j : block_range(group * rest))
        add_values(std::integral_constant<std::size_t, 1>{}, j / rest, wide * lanes + j % rest);
      __syncthreads();  // the next tile comes to the same place
    }
    for (std::size_t c : block_range(group * depth))
      attended[row * heads * depth + head * group * depth + c] = static_cast<T>(out[c] / sum[c / depth]);
    __syncthreads();
  }
}

// ----------------------------------------------------------------------------------------------------------- interface

/// Both of them for the rows of a step in one layer: their keys and values go to the cache, and then each attends to
/// what its request has there, itself included. qkv [rows, (heads + 2 · kv_heads) · depth], turned by rotary positions;
/// attended [rows, heads · depth]. `positions` is the sum of position + 1 over the rows, for the count of operations.
/// Throws std::invalid_argument where so many query heads share a head that they do not fit into shared memory.
template <class T>
void attend_cached(Context& context, const T* qkv, T* attended, const CachedRows& cache, bool eight_bits,
                   std::size_t rows, std::size_t heads, std::uint64_t positions) {
  const std::size_t group = heads / cache.kv_heads, shared = attention_shared_bytes(group, cache.depth);
  if (shared > 48 * 1024)
    throw std::invalid_argument(std::to_string(group) + " heads of " + std::to_string(cache.depth) +
                                " values over one key-value head are too many for one block's shared memory");
  const float factor = 1.0f / std::sqrt(static_cast<float>(cache.depth));
  const auto run = [&]<class Value>(Value) {
    const bool packs = cache.depth % Pack<T>::size == 0 && cache.depth % Pack<Value>::size == 0;
    launch(store_keys_and_values_kernel<T, Value>, nn::shape_for_short_rows(rows * 2 * cache.kv_heads, cache.depth),
           context.stream(), qkv, cache, rows, heads, packs && nn::aligned_for_packs(qkv));
    launch(packs ? cached_attention_kernel<T, Value, true> : cached_attention_kernel<T, Value, false>,
           at_most(kAttentionThreads, shape_for_rows(rows * cache.kv_heads, shared)), context.stream(), qkv, attended,
           cache, rows, group, factor);
  };
  if (eight_bits)
    run(std::int8_t{});
  else
    run(T{});
  context.count_flops(4 * positions * heads * cache.depth);
}
// Compiled once, in kernels.cu.
extern template void attend_cached(Context&, const float*, float*, const CachedRows&, bool, std::size_t, std::size_t,
                                   std::uint64_t);
extern template void attend_cached(Context&, const __half*, __half*, const CachedRows&, bool, std::size_t, std::size_t,
                                   std::uint64_t);
extern template void attend_cached(Context&, const __nv_bfloat16*, __nv_bfloat16*, const CachedRows&, bool, std::size_t,
                                   std::size_t, std::uint64_t);

}  // namespace oomlab::inference
