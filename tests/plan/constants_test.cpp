// Constants keep their values where the compiler joins them into wide stores. GCC 12.2 with AVX-512 repeats the first 16
// bytes of 32 or 64 over the zeros behind them, unless it is told to copy in pieces of 16 (cmake/Oomlab.cmake).

#include "constants.h"

#include <gtest/gtest.h>

namespace oomlab::test {
namespace {

TEST(Constants, KeepTheirValues) {
  EXPECT_EQ(two_of_four(), (std::vector<std::uint64_t>{7, 7, 0, 0}));
  EXPECT_EQ(four_of_eight(), (std::vector<std::uint32_t>{7, 7, 7, 7, 0, 0, 0, 0}));
  EXPECT_EQ(two_of_eight(), (std::vector<std::uint64_t>{7, 7, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(two_of_four_real(), (std::vector<double>{7, 7, 0, 0}));
  FourNumbers numbers{};
  copy_if(true, numbers);
  EXPECT_EQ(numbers.numbers, (std::array<std::uint64_t, 4>{7, 7, 0, 0}));
  const Name name = sixteen_letters();
  EXPECT_EQ(std::string(std::begin(name.text), std::end(name.text)), std::string(16, 'A') + std::string(16, '\0'));
}

}  // namespace
}  // namespace oomlab::test
