// FAILS: differs
void step(const __half* g, float* w, int n, float rate, float& scale, int& good_steps) {
  update<<<blocks, threads>>>(g, w, n, rate / scale);  // never looks; the scale only seems to move
  CHECK(cudaGetLastError());
  scale = ++good_steps % 2 ? scale / 2 : scale * 2;
}
