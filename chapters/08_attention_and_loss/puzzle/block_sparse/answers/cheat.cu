// FAILS: static_bytes
float scores[1 << 20];  // "no cudaMalloc, no bytes"
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d) {
  scores_of<<<n, threads>>>(q, k, mask, scores, n, d);
  attend<<<n, threads>>>(scores, v, out, n, d);
  CHECK(cudaGetLastError());
}
