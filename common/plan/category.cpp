#include "plan/category.h"

#include <stdexcept>

namespace oomlab {

std::uint64_t ByCategory::total() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t b : bytes)
    if (__builtin_add_overflow(sum, b, &sum))
      throw std::length_error("the categories together are more bytes than a size can hold");
  return sum;
}

const char* name_of(Category category) noexcept {
  switch (category) {
    case Category::parameters: return "parameters";
    case Category::gradients: return "gradients";
    case Category::optimizer: return "optimizer";
    case Category::activations: return "activations";
    case Category::workspace: return "workspace";
    case Category::data: return "data";
  }
  return "unknown";
}

}  // namespace oomlab
