#pragma once
// Values of tensors as a whole: what they begin with, sums of two, and a hash of them.
// Queued on the context's stream, except fingerprint(), which waits.

#include <cstddef>
#include <cstdint>

#include "memory/context.h"

namespace oomlab::nn {

/// values[i] = bound · u, u uniform in [−1, 1), a hash of (seed, stream, i) alone: the same bits for any
/// launch shape and on any backend.
template <class T>
void fill_uniform(Context& context, T* values, std::size_t count, float bound, std::uint64_t seed,
                  std::uint64_t stream);
/// Some rows and columns of a matrix.
struct MatrixPart {
  std::size_t rows, columns;  ///< of this part
  std::size_t first_row = 0, first_column = 0;
  std::size_t all_columns;  ///< of the whole matrix
};
/// values[part.rows, part.columns] = those that fill_uniform() gives the whole matrix, of this part.
template <class T>
void fill_uniform_part(Context& context, T* values, const MatrixPart& part, float bound, std::uint64_t seed,
                       std::uint64_t stream);
/// values[i] = value.
template <class T>
void fill(Context& context, T* values, std::size_t count, float value);
/// y[i] = a · x[i] + b · z[i], rounded once; y may be x or z. A step of a sampler is one, and so is guidance: u + s ·
/// (c − u) = (1 − s) · u + s · c.
template <class T>
void combine(Context& context, float a, const T* x, float b, const T* z, T* y, std::size_t count);

inline constexpr std::uint64_t kFingerprintStart = 0xcbf29ce484222325ull;
/// FNV-1a over the 32-bit words of `bytes` bytes on the device (and the bytes of the rest), copied to the host in
/// pieces of at most 1 MiB (waits for the stream). `hash` continues one over several buffers. 0 in plan mode.
std::uint64_t fingerprint(Context& context, const void* data, std::size_t bytes,
                          std::uint64_t hash = kFingerprintStart);

}  // namespace oomlab::nn
