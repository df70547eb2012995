// oneDNN makes its kernels for the processor at hand when they are first called.

#include <dnnl.h>

#include <cstdio>
#include <cstdlib>

#include "runtime.h"

void oomlab::host::sgemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float* a, int lda,
                         const float* b, int ldb, float beta, float* c, int ldc) {
  for (int column = 0; k == 0 && column < n; ++column)  // oneDNN would leave C alone
    for (float* at = c + std::size_t(column) * ldc; at < c + std::size_t(column) * ldc + m; ++at)
      *at = beta == 0 ? 0 : beta * *at;
  if (k == 0) return;
  // Row-major, so it computes the transposed product: op(B)ᵀ·op(A)ᵀ.
  const dnnl_status_t status =
      dnnl_sgemm(transpose_b ? 'T' : 'N', transpose_a ? 'T' : 'N', n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
  if (status == dnnl_success) return;
  std::fprintf(stderr, "oneDNN could not multiply %d x %d x %d: status %d\n", m, n, k, static_cast<int>(status));
  std::abort();  // queued work has nobody to tell
}
