#pragma once
// Only for a lesson compiled by a C++ compiler: what kernel<<<grid, block, shared, stream>>>(a, b) becomes there,
//   kernel ->* ::oomlab::lesson::Shape(grid, block, shared, stream)(a, b)
// (cmake/rewrite_lesson.cmake). As on a GPU a launch that is refused returns nothing and sets the last error.
//
// A kernel's __shared__ float sums[64]; becomes auto& sums = ::oomlab::lesson::shared<float[64], 1>(); in the dynamic shared
// memory of the block, the next one's number is 2. Each has a place of its own there, whichever kernel it belongs to; extern
// __shared__ float more[]; begins behind all of them.

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>
#include <utility>

namespace oomlab::lesson {

inline std::size_t static_shared_bytes = 0;  // of all variables

/// Where a variable of so many bytes begins, a multiple of 16.
inline std::size_t place_shared(std::size_t bytes) {
  const std::size_t place = static_shared_bytes;
  static_shared_bytes += (bytes + 15) / 16 * 16;
  return place;
}
template <class Variable, int number>
inline const std::size_t shared_place = place_shared(sizeof(Variable));  // before main() begins

template <class Variable, int number>
Variable& shared() {
  std::byte* const memory = static_cast<std::byte*>(host::detail::block_shared());
  return *reinterpret_cast<Variable*>(memory + shared_place<Variable, number>);
}
template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(static_cast<std::byte*>(host::detail::block_shared()) + static_shared_bytes);
}

template <class... Arguments>
struct Launch {
  cudaLaunchConfig_t config;
  std::tuple<Arguments&&...> arguments;
};

struct Shape {
  cudaLaunchConfig_t config;
  Shape(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr)
      : config{grid, block, static_shared_bytes + shared_bytes, stream, nullptr, 0} {}
  template <class... Arguments>
  Launch<Arguments...> operator()(Arguments&&... arguments) const {
    return {config, {std::forward<Arguments>(arguments)...}};
  }
};

template <class... Parameters, class... Arguments>
void operator->*(void (*kernel)(Parameters...), Launch<Arguments...> launch) {
  std::apply(
      [&](auto&&... arguments) {
        (void)cudaLaunchKernelEx(&launch.config, kernel, std::forward<Arguments>(arguments)...);
      },
      launch.arguments);
}

}  // namespace oomlab::lesson
