// nvcc -std=c++20 -o launches launches.cu
// What a launch in a lesson may look like. nvcc compiles it as it stands, and the rewriting for the host must
// understand it. A comment may have kernel<<<1, 1>>>(p), a lone <<<, or >>> in it; "quotes", 'apostrophes' and
// [brackets; too.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <vector>

__global__ void add(int* sum, int value) { atomicAdd(sum, value); }
__global__ void put(int* sum) { atomicAdd(sum, 1); }
template <class T, int N>
__global__ void add_times(int* sum, T value) {
  atomicAdd(sum, int(value) * N);
}
// Each of `total` threads, or one for all of them, hands its number to the thread at the other end.
__global__ void reverse(int* sum) {
  constexpr int total = 6;
  __shared__ int pairs[total][2];
  __shared__ float other[3];  // a place of its own
  for (int i = threadIdx.x; i < total; i += blockDim.x) pairs[i][1] = i;
  if (threadIdx.x == 0) other[0] = 100;
  __syncthreads();
  for (int i = threadIdx.x; i < total; i += blockDim.x) atomicAdd(sum, pairs[total - 1 - i][1] * i);
  if (threadIdx.x == 0) atomicAdd(sum, int(other[0]));
}
// All forms of a declaration, on one thread or several.
// clang-format off
__global__ void forms(int* sum) {
  __shared__ int one, pair[2];
	__shared__	unsigned char narrow[3];
  static __shared__ unsigned wide;
  __shared__ alignas(16) float   // a comment, and a line more
      tile[4][4 + 1],
      last;
  extern __shared__ int asked_for[];
  if (threadIdx.x == 0) { one = 1; pair[1] = 20; narrow[2] = 200; wide = 1000; tile[3][4] = 30; last = 5; asked_for[9] = 10000; }
  __syncthreads();
  if (threadIdx.x == 0) *sum = one + pair[1] + narrow[2] + int(wide) + int(tile[3][4]) + int(last) + asked_for[9];
}
// clang-format on
namespace inner {
template <class A, class B>
__global__ void pair(int* sum, A a, B b) {
  atomicAdd(sum, int(a.size()) + int(b));
}
}  // namespace inner
template <int... N>
struct List {
  __host__ __device__ static constexpr int size() { return sizeof...(N); }
};
#define ADD_TWICE(p, n) add<<<1, 1>>>(p, n), add<<<1, 1>>>(p, n)

int failures = 0;
void expect(int line, int* sum, int expected) {
  int got = -1;
  if (cudaMemcpy(&got, sum, sizeof got, cudaMemcpyDeviceToHost) != cudaSuccess || got != expected) {
    std::printf("line %d: %d, expected %d\n", line, got, expected);
    ++failures;
  }
  if (cudaMemset(sum, 0, sizeof got) != cudaSuccess) std::exit(2);
}
int half(int n) { return n / 2; }

int main() {
  int* sum;
  cudaStream_t stream;
  if (cudaMalloc(&sum, sizeof *sum) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) return 2;
  if (cudaMemset(sum, 0, sizeof *sum) != cudaSuccess) return 2;
  const std::vector<std::vector<std::vector<int>>> nested(2);  // >>> without a launch
  const int blocks = 4, n = 10;

  add<<<1, 1>>>(sum, 3);
  expect(__LINE__, sum, 3);
  add<<<dim3(blocks), dim3(1)>>>(sum, 1), add<<<2, 1, 0>>>(sum, 10);  // two in a line; <<< here, too
  expect(__LINE__, sum, 24);
  put<<<1, 1, 0, stream>>>(sum);  // "a string <<<
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 2;
  expect(__LINE__, sum, 1);
  // What clang-format does not take for launches (so a lesson names its shapes).
  // clang-format off
  put<<<(n + 255) / 256, 1, n > 5 ? 16 : 0>>>(sum);
  put<<<half(half(8)), 1, (size_t(1) << 4) >> 1>>>(sum);
  put<<<std::get<0>(std::array<int, 2>{2, 3}), 1>>>(sum);
  expect(__LINE__, sum, 5);
  if (n < 5) put<<<1, 1>>>(sum);
  for (int i = 0; i < n; ++i) put<<<1, 1>>>(sum);
  expect(__LINE__, sum, 10);
  add_times<float, 3><<<1, 1>>>(sum, 2);  // converted to the kernel's types
  add_times<float, (4 > 3)><<<2, 1>>>(sum, half(int(nested.size())));
  expect(__LINE__, sum, 8);
  inner::pair<List<1, 2>, int><<<1, 1>>>(sum, List<1, 2>{}, (n - 1) * (2 + half(2)));
  expect(__LINE__, sum, 29);
  reverse<<<2, 6>>>(sum);
  expect(__LINE__, sum, 240);
  forms<<<1, 6, 10 * sizeof(int)>>>(sum);
  expect(__LINE__, sum, 11256);
  void (*kernel)(int*, int) = add;
  kernel<<<1,
           1>>>
      (sum,
       7);
  // clang-format on
  (n > 5 ? add : kernel)<<<1, 1>>>(sum, 1);
  ADD_TWICE(sum, 100);
  expect(__LINE__, sum, 208);
  add<<<0, 1>>>(sum, 1);  // refused, and says so as CUDA does: by one error or, from 13.0 on, by another
  if (cudaGetLastError() == cudaSuccess) ++failures;
  expect(__LINE__, sum, 0);
  static_assert(__LINE__ == 111, "lines are those of the .cu file");
  if (cudaStreamDestroy(stream) != cudaSuccess || cudaFree(sum) != cudaSuccess) return 2;
  return failures != 0;
}
