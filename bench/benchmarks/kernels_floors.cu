// The floors of a GPU, for bench_kernels.

#include "cuda/launch.h"
#include "kernels_by_hand.h"

namespace oomlab::bench {
namespace {

__global__ void scale_kernel(float* x, std::size_t n, float factor) {
  for (const std::size_t i : grid_range(n)) x[i] *= factor;
}

constexpr std::size_t kChains = 16;  // independent, and few enough to live in registers
__global__ void arithmetic_kernel(std::size_t rounds, float* result) {
  float chain[kChains];
  for (std::size_t k = 0; k < kChains; ++k) chain[k] = static_cast<float>(k + threadIdx.x);
  for (std::size_t i = 0; i < rounds; ++i)
    for (std::size_t k = 0; k < kChains; ++k) chain[k] = chain[k] * 0.999f + 0.001f;
  float total = 0;
  for (std::size_t k = 0; k < kChains; ++k) total += chain[k];
  if (total == 12345.0f) *result = total;  // never so; without a use there would be nothing to compute
}

}  // namespace

std::function<void()> by_hand(std::string_view, const KernelData&) { return nullptr; }

void copy(float* to, const float* from, std::size_t count, cudaStream_t stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
}
void scale(float* x, std::size_t count, float factor, cudaStream_t stream) {
  launch(scale_kernel, shape_for_items(count), stream, x, count, factor);
}
double arithmetic(std::size_t rounds, float* result, cudaStream_t stream) {
  int device = 0, processors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  constexpr unsigned kThreads = 256, kBlocks = 8;  // a multiprocessor: all the threads that it can have
  const auto blocks = static_cast<unsigned>(processors) * kBlocks;
  launch(arithmetic_kernel, {blocks, kThreads, 0}, stream, rounds, result);
  return 2.0 * static_cast<double>(rounds) * kChains * kThreads * blocks;
}

}  // namespace oomlab::bench
