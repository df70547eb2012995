#pragma once
// Only for a lesson compiled by a C++ compiler: what kernel<<<grid, block, shared, stream>>>(a, b) becomes there,
//   kernel ->* ::oomlab::lesson::Shape(grid, block, shared, stream)(a, b)
// (cmake/rewrite_lesson.cmake). As on a GPU a launch that is refused returns nothing and sets the last error.

#include <cuda_runtime.h>

#include <tuple>
#include <utility>

namespace oomlab::lesson {

template <class... Arguments>
struct Launch {
  cudaLaunchConfig_t config;
  std::tuple<Arguments&&...> arguments;
};

struct Shape {
  cudaLaunchConfig_t config;
  Shape(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr)
      : config{grid, block, shared_bytes, stream, nullptr, 0} {}
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
