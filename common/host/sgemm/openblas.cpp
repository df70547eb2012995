// OpenBLAS has kernels for many processors; oneDNN's are faster where it has any.

#include <cblas.h>

#include "sgemm.h"

namespace oomlab::host {

void sgemm(const Sgemm& p) {
  cblas_sgemm(CblasColMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.b_transposed ? CblasTrans : CblasNoTrans,
              p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
}

void sgemm_on_one_thread() { openblas_set_num_threads(1); }

}  // namespace oomlab::host
