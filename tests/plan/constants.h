#pragma once
// Lists of constants as the plan has them. They are compiled as the plan is (constants.cpp), and looked at by a test that is not.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace oomlab::test {

struct FourNumbers {
  std::array<std::uint64_t, 4> numbers;
};
struct Name {
  char text[32];
};

std::vector<std::uint64_t> two_of_four();    ///< 7 7 0 0
std::vector<std::uint32_t> four_of_eight();  ///< 7 7 7 7 0 0 0 0
std::vector<std::uint64_t> two_of_eight();   ///< 7 7 0 0 0 0 0 0
std::vector<double> two_of_four_real();      ///< 7 7 0 0
void copy_if(bool copies, FourNumbers& to);  ///< 7 7 0 0 from a table
Name sixteen_letters();                      ///< 16 times A, and nothing behind them

}  // namespace oomlab::test
