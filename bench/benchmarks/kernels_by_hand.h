#pragma once
// What the kernels are measured against. Two implementations: kernels_by_hand.cpp for the host runtime, where device
// memory is this machine's, and kernels_floors.cu for a GPU.

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <string_view>

namespace oomlab::bench {

/// What all kernels work on, device memory: [rows, width] floats; images of 8 x 8 bytes.
struct KernelData {
  float *x, *y, *m, *v, *bias, *sums, *row_loss;
  int* labels;
  const unsigned char *images, *image_labels;
  std::size_t image_count, rows, width;
};

/// The arithmetic of the kernel of this name as the OpenMP loop that one would write for a processor: what portability
/// costs is measured against it. Empty on a GPU, for which the kernels are written: there the floors are the measure.
std::function<void()> by_hand(std::string_view kernel, const KernelData& data);

// Queued on `stream`, or done at once.
/// to[i] = from[i], and x[i] *= factor: what memory can do. A copy may have to read the lines that it writes.
void copy(float* to, const float* from, std::size_t count, cudaStream_t stream);
void scale(float* x, std::size_t count, float factor, cudaStream_t stream);
/// Multiplications and additions that touch no memory: what the cores can do. Writes a float to `result`, device
/// memory. Returns the operations.
double arithmetic(std::size_t rounds, float* result, cudaStream_t stream);

}  // namespace oomlab::bench
