#pragma once
// Numbers that look random, and are a hash of (seed, stream, i) alone: the same bits for any launch shape and on any
// backend.

#include <cstddef>
#include <cstdint>

#include "cuda/launch.h"

namespace oomlab::nn {

/// The finaliser of SplitMix64: every input bit changes every output bit with probability one half.
__host__ __device__ inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
/// For uniform().
inline std::uint64_t hash_key(std::uint64_t seed, std::uint64_t stream) {
  return mix(mix(seed + 0x9e3779b97f4a7c15ull) + stream);
}
/// Number i: a multiple of 2^-23 in [−1, 1), exact.
__host__ __device__ inline float uniform(std::uint64_t key, std::size_t i) {
  const auto bits = static_cast<std::int32_t>(mix(key + i * 0x9e3779b97f4a7c15ull) >> 40);  // 24 bits
  return static_cast<float>(bits - (1 << 23)) * (1.0f / (1 << 23));
}

}  // namespace oomlab::nn
