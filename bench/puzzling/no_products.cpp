// Puzzles have no matrix products of cuBLAS. With this in place of the library's, none is loaded, which takes longer than most puzzles run.

#include <cstdlib>

#include "runtime.h"

void oomlab::host::sgemm(bool, bool, int, int, int, float, const float*, int, const float*, int, float, float*, int) {
  std::abort();
}
