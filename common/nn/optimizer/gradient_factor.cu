#include "nn/optimizer/gradient_factor.h"

#include <cuda_bf16.h>

#include <cfloat>

#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

constexpr std::size_t kOfPart = 65536;  // gradients whose squares one block adds up
template <class T>
__global__ void squares_kernel(const T* gradient, std::size_t count, float* parts) {
  for (std::size_t part : row_range((count + kOfPart - 1) / kOfPart)) {
    const T* const from = gradient + part * kOfPart;
    const std::size_t n = count - part * kOfPart < kOfPart ? count - part * kOfPart : kOfPart;
    const float sum = block_sum_over<T>(n, [&](auto some, std::size_t i, float* sums) {
      for (std::size_t k = 0; k < decltype(some)::value; ++k) {
        const auto g = static_cast<float>(from[i + k]);
        sums[k] = fmaf(g, g, sums[k]);
      }
    });
    for ([[maybe_unused]] std::size_t once : block_range(1)) parts[part] = sum;
  }
}
__global__ void factor_kernel(const float* parts, std::size_t count, float scale, float clip, float* factor) {
  float square = 0.0f;
  for (std::size_t i : block_range(count)) square += parts[i];
  square = block_sum(square);
  for ([[maybe_unused]] std::size_t once : block_range(1)) {
    const float norm = sqrtf(square) / scale;
    *factor = !(norm <= FLT_MAX) ? 0.0f : clip > 0.0f && norm > clip ? clip / norm / scale : 1.0f / scale;
  }
}

}  // namespace

std::size_t factor_parts(std::span<const TensorShape> shapes) {
  std::size_t parts = 0;
  for (const TensorShape& shape : shapes) parts += (shape.count() + kOfPart - 1) / kOfPart;
  return parts;
}
template <class T>
void gradient_factor(Context& context, std::span<const ParameterOf<T>> parameters, float scale, float clip,
                     float* parts, float* factor) {
  std::size_t count = 0;
  for (const ParameterOf<T>& p : parameters) {
    const std::size_t of_tensor = (p.count + kOfPart - 1) / kOfPart;
    launch(squares_kernel<T>, shape_for_rows(of_tensor), context.stream(), p.gradient, p.count, parts + count);
    count += of_tensor;
  }
  launch(factor_kernel, shape_for_rows(1), context.stream(), parts, count, scale, clip, factor);
}
template void gradient_factor<float>(Context&, std::span<const ParameterOf<float>>, float, float, float*, float*);
template void gradient_factor<__nv_bfloat16>(Context&, std::span<const ParameterOf<__nv_bfloat16>>, float, float,
                                             float*, float*);

}  // namespace oomlab::nn
