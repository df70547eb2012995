// oneDNN makes its kernels for the processor at hand when they are first called.

#include <dnnl.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "sgemm.h"

namespace oomlab::host {

void sgemm(const Sgemm& p) {
  if (p.k == 0) {  // oneDNN leaves C alone
    for (int column = 0; column < p.n; ++column)
      for (int row = 0; row < p.m; ++row) {
        float& c = p.c[std::size_t(column) * p.ldc + row];
        c = p.beta == 0 ? 0 : p.beta * c;
      }
    return;
  }
  // Row-major, so it computes the transposed product: op(B)ᵀ·op(A)ᵀ.
  const dnnl_status_t status = dnnl_sgemm(p.b_transposed ? 'T' : 'N', p.a_transposed ? 'T' : 'N', p.n, p.m, p.k,
                                          p.alpha, p.b, p.ldb, p.a, p.lda, p.beta, p.c, p.ldc);
  if (status == dnnl_success) return;
  std::fprintf(stderr, "oneDNN could not multiply %d x %d x %d: status %d\n", p.m, p.n, p.k, static_cast<int>(status));
  std::abort();  // queued work has nobody to tell
}

void sgemm_on_one_thread() {}  // it has OpenMP's threads, and check mode has no OpenMP

}  // namespace oomlab::host
