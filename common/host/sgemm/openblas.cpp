// OpenBLAS has kernels for many processors; oneDNN's are faster where it has any.

#include <cblas.h>

#include "runtime.h"

void oomlab::host::sgemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float* a, int lda,
                         const float* b, int ldb, float beta, float* c, int ldc) {
#ifdef OOMLAB_HOST_CHECK  // its own threads are unknown to the sanitizers; OpenMP keeps a number for each that calls
  thread_local const bool alone = (openblas_set_num_threads(1), true);
  (void)alone;
#endif
  cblas_sgemm(CblasColMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, m, n, k,
              alpha, a, lda, b, ldb, beta, c, ldc);
}
