#include "plan/category.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

namespace oomlab {
namespace {

TEST(ByCategory, NamesItsCategories) {
  EXPECT_STREQ(name_of(Category::parameters), "parameters");
  EXPECT_STREQ(name_of(Category::gradients), "gradients");
  EXPECT_STREQ(name_of(Category::optimizer), "optimizer");
  EXPECT_STREQ(name_of(Category::activations), "activations");
  EXPECT_STREQ(name_of(Category::workspace), "workspace");
  EXPECT_STREQ(name_of(Category::data), "data");
}

TEST(ByCategory, RefusesASumThatDoesNotFit) {
  ByCategory bytes;
  bytes[Category::parameters] = UINT64_MAX;
  EXPECT_EQ(bytes.total(), UINT64_MAX);
  bytes[Category::data] = 1;
  EXPECT_THROW(bytes.total(), std::length_error);
}

}  // namespace
}  // namespace oomlab
