// to [count, inner] = the rows of from that `kept` names
__global__ void keep_rows(const float* from, const int* kept, float* to, int count, int inner) {
  for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < count * inner; p += gridDim.x * blockDim.x)
    to[p] = from[kept[p / inner] * inner + p % inner];
}
// to [rows, count, 3] = of from [rows, middle, 3] what `kept` names
__global__ void keep_inputs(const float* from, const int* kept, float* to, int rows, int count, int middle) {
  for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < rows * count * 3; p += gridDim.x * blockDim.x) {
    const int row = p / (count * 3), c = p / 3 % count;
    to[p] = from[(row * middle + kept[c]) * 3 + p % 3];
  }
}

void pruned(const float* x, const float* w1, const float* w2, float* y, int in, int middle, int out, int length, const std::vector<int>& kept) {
  const int count = int(kept.size());
  int* numbers = nullptr;
  float* small1 = nullptr;
  float* small2 = nullptr;
  float* h = nullptr;
  CHECK(cudaMalloc(&numbers, count * sizeof(int)));
  CHECK(cudaMalloc(&small1, size_t(count) * in * 3 * sizeof(float)));
  CHECK(cudaMalloc(&small2, size_t(out) * count * 3 * sizeof(float)));
  CHECK(cudaMalloc(&h, size_t(count) * length * sizeof(float)));
  CHECK(cudaMemcpy(numbers, kept.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  keep_rows<<<blocks, threads>>>(w1, numbers, small1, count, in * 3);
  keep_inputs<<<blocks, threads>>>(w2, numbers, small2, out, count, middle);
  convolve<<<blocks, threads>>>(x, small1, h, in, count, length, true);
  convolve<<<blocks, threads>>>(h, small2, y, count, out, length, false);
  CHECK(cudaGetLastError());
  CHECK(cudaFree(numbers));
  CHECK(cudaFree(small1));
  CHECK(cudaFree(small2));
  CHECK(cudaFree(h));
}
