// FAILS: differs
void adamw(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay) {
  moments<<<blocks, threads>>>(g, m, v, n);
  divide<<<blocks, threads>>>(m, 1 - std::pow(b1, t), m, n);  // in place: the next step begins with the corrected one
  divide<<<blocks, threads>>>(v, 1 - std::pow(b2, t), v, n);
  apply<<<blocks, threads>>>(m, v, w, n, rate, decay);
  CHECK(cudaGetLastError());
}
