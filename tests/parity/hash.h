#pragma once
// Values that no fixture has to store, because generate.py computes the same.

#include <cstdint>

namespace oomlab::test {

/// The upper 24 bits of SplitMix64's finaliser over (seed, stream, index): hashes() of generate.py.
inline std::uint32_t hash(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  std::uint64_t z = index * 0x94d049bb133111eb + seed * 0x9e3779b97f4a7c15 + stream * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 40);
}

}  // namespace oomlab::test
