/// The one product that cuBLAS's host runtime leaves to a library; CMake chooses which.
#pragma once

namespace oomlab::host {

/// C [m, n] = alpha · op(A) [m, k] · op(B) [k, n] + beta · C, FP32, column-major with the given leading dimensions; C
/// is not read when beta is 0, nor A and B when k is 0. On OpenMP's threads, on one inside a parallel region.
struct Sgemm {
  bool a_transposed, b_transposed;
  int m, n, k;
  float alpha;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float beta;
  float* c;
  int ldc;
};
void sgemm(const Sgemm& product);

/// On the calling thread alone from now on: a sanitizer does not know a library's threads.
void sgemm_on_one_thread();

}  // namespace oomlab::host
