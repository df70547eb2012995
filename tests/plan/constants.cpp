#include "constants.h"

#include <cstring>

namespace oomlab::test {

std::vector<std::uint64_t> two_of_four() { return {7, 7, 0, 0}; }
std::vector<std::uint32_t> four_of_eight() { return {7, 7, 7, 7, 0, 0, 0, 0}; }
std::vector<std::uint64_t> two_of_eight() { return {7, 7, 0, 0, 0, 0, 0, 0}; }
std::vector<double> two_of_four_real() { return {7, 7, 0, 0}; }

void copy_if(bool copies, FourNumbers& to) {
  const FourNumbers table[2] = {{{7, 7, 0, 0}}, {{9, 9, 0, 0}}};
  if (copies) std::memcpy(&to, table, sizeof to);
}

Name sixteen_letters() { return {"AAAAAAAAAAAAAAAA"}; }

}  // namespace oomlab::test
