#pragma once
// Sixteen bytes as one value, so that a memory-bound kernel moves 16 bytes a thread and instruction.

#include <cuda_runtime.h>

#include <cstddef>

namespace oomlab {

/// 16 / sizeof(T) values of T, 16-byte aligned. Device buffers start 256-byte aligned, so a buffer's first
/// n / Pack<T>::size * Pack<T>::size elements can be walked as packs; the kernel handles the rest one by one.
template <class T>
struct alignas(16) Pack {
  static constexpr std::size_t size = 16 / sizeof(T);
  T value[size];
  __host__ __device__ T& operator[](std::size_t i) { return value[i]; }
  __host__ __device__ const T& operator[](std::size_t i) const { return value[i]; }
};

/// An array as packs; its address is a multiple of 16 bytes.
template <class T>
__device__ Pack<T>* as_packs(T* p) {
  return reinterpret_cast<Pack<T>*>(p);
}
template <class T>
__device__ const Pack<T>* as_packs(const T* p) {
  return reinterpret_cast<const Pack<T>*>(p);
}

}  // namespace oomlab
