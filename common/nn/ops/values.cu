// Values of tensors as a whole: what they begin with, sums of two, and a hash of them.

#include "nn/ops/values.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/ops/hash.h"
#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

template <class T>
__global__ void fill_uniform_kernel(T* values, std::size_t count, float bound, std::uint64_t key) {
  for (std::size_t i : grid_range(count)) values[i] = static_cast<T>(uniform(key, i) * bound);
}

template <class T>
__global__ void fill_uniform_part_kernel(T* values, MatrixPart p, float bound, std::uint64_t key) {
  for (std::size_t i : grid_range(p.rows * p.columns)) {
    const std::size_t row = p.first_row + i / p.columns, column = p.first_column + i % p.columns;
    values[i] = static_cast<T>(uniform(key, row * p.all_columns + column) * bound);
  }
}

template <class T>
__global__ void fill_kernel(T* values, std::size_t count, float value, bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    each_lane<decltype(v)>([&](std::size_t k) { v[k] = static_cast<T>(value); });
    store(values, i, v);
  });
}

template <class T>
__global__ void combine_kernel(float a, const T* x, float b, const T* z, T* y, std::size_t count, bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    v = load<V>(x, i);
    const V w = load<V>(z, i);
    each_lane<V>(
        [&](std::size_t k) { v[k] = static_cast<T>(fmaf(a, static_cast<float>(v[k]), b * static_cast<float>(w[k]))); });
    store(y, i, v);
  });
}

}  // namespace

template <class T>
void fill_uniform(Context& context, T* values, std::size_t count, float bound, std::uint64_t seed,
                  std::uint64_t stream) {
  const std::uint64_t key = hash_key(seed, stream);
  launch(fill_uniform_kernel<T>, shape_for_items(count), context.stream(), values, count, bound, key);
}

template <class T>
void fill_uniform_part(Context& context, T* values, const MatrixPart& part, float bound, std::uint64_t seed,
                       std::uint64_t stream) {
  const std::size_t count = part.rows * part.columns;
  if (part.first_row == 0 && part.columns == part.all_columns)
    return fill_uniform(context, values, count, bound, seed, stream);
  const std::uint64_t key = hash_key(seed, stream);
  launch(fill_uniform_part_kernel<T>, shape_for_items(count), context.stream(), values, part, bound, key);
}

template <class T>
void fill(Context& context, T* values, std::size_t count, float value) {
  launch(fill_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), values, count, value,
         aligned_for_packs(values));
}

template <class T>
void combine(Context& context, float a, const T* x, float b, const T* z, T* y, std::size_t count) {
  launch(combine_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), a, x, b, z, y, count,
         aligned_for_packs(x, z, y));
}

std::uint64_t fingerprint(Context& context, const void* data, std::size_t bytes, std::uint64_t hash) {
  if (planning()) return 0;
  constexpr std::size_t kPiece = std::size_t(1) << 20;
  std::vector<std::uint32_t> words(std::min(kPiece, bytes) / sizeof(std::uint32_t) + 1);
  for (std::size_t first = 0; first < bytes; first += kPiece) {
    const std::size_t now = std::min(kPiece, bytes - first);
    CUDA_CHECK(cudaMemcpyAsync(words.data(), static_cast<const std::byte*>(data) + first, now, cudaMemcpyDefault,
                               context.stream()));
    context.synchronize();
    const std::size_t whole = now / sizeof(std::uint32_t);
    for (std::size_t i = 0; i < whole; ++i) hash = (hash ^ words[i]) * 0x100000001b3ull;
    unsigned char rest[sizeof(std::uint32_t)];
    const std::size_t left = now % sizeof(std::uint32_t);
    std::memcpy(rest, words.data() + whole, left);
    for (std::size_t i = 0; i < left; ++i) hash = (hash ^ rest[i]) * 0x100000001b3ull;
  }
  return hash;
}

#define OOMLAB_INSTANCES(T)                                                                                 \
  template void fill_uniform<T>(Context&, T*, std::size_t, float, std::uint64_t, std::uint64_t);            \
  template void fill_uniform_part<T>(Context&, T*, const MatrixPart&, float, std::uint64_t, std::uint64_t); \
  template void fill<T>(Context&, T*, std::size_t, float);                                                  \
  template void combine<T>(Context&, float, const T*, float, const T*, T*, std::size_t);
OOMLAB_FOR_EACH_TYPE(OOMLAB_INSTANCES)

}  // namespace oomlab::nn
