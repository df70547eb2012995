// FAILS: over_budget
__global__ void to_floats(const signed char* codes, const float* scales, float* m, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) m[i] = codes[i] * scales[i / group];
}
struct Momentum {
  float* numbers = nullptr;
};
void in_floats(const signed char* codes, const float* scales, int n) {
  Momentum m;  // the whole momentum in FP32, for a moment
  CHECK(cudaMalloc(&m.numbers, n * sizeof(float)));
  to_floats<<<8, threads>>>(codes, scales, m.numbers, n);
  CHECK(cudaFree(m.numbers));
}
__global__ void update(float*, const float*, signed char*, float*, int, float, float) {}
#define update                        \
  in_floats(codes, scales, n);        \
  update
