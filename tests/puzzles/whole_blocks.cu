// nvcc -std=c++20 -o whole_blocks whole_blocks.cu
// What a reader's kernel may rely on, and what bench/puzzle's builds therefore have to do as a GPU does: all threads of a block, in three
// dimensions, barriers, warps, shared memory in all forms. nvcc compiles it as it stands.
#include <cstdio>
#include <cstdlib>
#include <vector>

int failures = 0;
void expect(int line, bool good) {
  if (good) return;
  std::printf("line %d\n", line);
  ++failures;
}
template <class T>
struct Numbers {  // on the device, zeros at first
  T* p = nullptr;
  int count;
  explicit Numbers(int n) : count(n) {
    if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess || cudaMemset(p, 0, n * sizeof(T)) != cudaSuccess) std::exit(2);
  }
  ~Numbers() { (void)cudaFree(p); }
  std::vector<T> read() const {
    std::vector<T> values(count);
    if (cudaDeviceSynchronize() != cudaSuccess || cudaMemcpy(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost) != cudaSuccess) std::exit(2);
    return values;
  }
};

// One thread for each element, and no loop.
__global__ void number(int* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  x[i] = i;
}
// Some threads of each block write, all of them read; a barrier between, again and again.
__global__ void rotate(int* x, int rounds) {
  __shared__ int ring[1024];
  ring[threadIdx.x] = int(threadIdx.x);
  for (int r = 0; r < rounds; ++r) {
    __syncthreads();
    const int next = ring[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    ring[threadIdx.x] = next;
  }
  x[blockIdx.x * blockDim.x + threadIdx.x] = ring[threadIdx.x];
}
// Half of the threads leave before the barrier.
__global__ void early(int* sum) {
  __shared__ int written[64];
  if (threadIdx.x >= blockDim.x / 2) return;
  written[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned i = 0; i < blockDim.x / 2; ++i) atomicAdd(sum, written[i]);
}
// clang-format off
__global__ void forms(int* out) {
  __shared__ int one, pair[2];
	__shared__	unsigned char narrow[3];
  static __shared__ unsigned wide;
  __shared__ float   // a comment, and a line more
      tile[4][4 + 1],
      last;
  extern __shared__ int asked_for[];
  if (threadIdx.x == 0) { one = 1; pair[1] = 20; narrow[2] = 200; wide = 1000; tile[3][4] = 30; last = 5; asked_for[9] = 10000; }
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) *out = one + pair[1] + narrow[2] + int(wide) + int(tile[3][4]) + int(last) + asked_for[9];
}
// clang-format on
__global__ void places(int* x) {
  const int in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  x[block * int(blockDim.x * blockDim.y * blockDim.z) + in_block] += 1 + in_block + 100 * block;
}
// The warp's sum in every lane, by turns; lanes 0 to 7 of a warp of their own alone; what is voted.
__global__ void warps(int* sums, int* some, unsigned* votes) {
  int mine = int(threadIdx.x);
  for (int by = warpSize / 2; by > 0; by /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, by);
  sums[threadIdx.x] = mine;
  int down = int(threadIdx.x);
  for (int by = 16; by > 0; by /= 2) down += __shfl_down_sync(0xffffffffu, down, by);
  if (threadIdx.x % warpSize == 0) some[threadIdx.x / warpSize] = down;
  if (threadIdx.x < 8) {
    const int left = __shfl_up_sync(0xffu, int(threadIdx.x), 1), first = __shfl_sync(0xffu, int(threadIdx.x) + 50, 0);
    __syncwarp(0xffu);
    some[8 + threadIdx.x] = left + first;
  }
  const unsigned odd = __ballot_sync(0xffffffffu, threadIdx.x % 2);
  if (threadIdx.x == 0) votes[0] = odd, votes[1] = unsigned(__any_sync(1u, 0)), votes[2] = unsigned(__all_sync(1u, 1));
}
__global__ void largest_of(const float* x, int* bits, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicMax(bits, __float_as_int(x[i]));
}

int main() {
  const int n = 1000;
  Numbers<int> x(n);
  number<<<(n + 63) / 64, 64>>>(x.p, n);
  const std::vector<int> numbers = x.read();
  for (int i = 0; i < n; ++i) expect(__LINE__, numbers[i] == i);

  for (const int threads : {1, 3, 32, 1024}) {
    Numbers<int> ring(2 * threads);
    rotate<<<2, threads>>>(ring.p, 2);
    const std::vector<int> turned = ring.read();
    for (int i = 0; i < 2 * threads; ++i) expect(__LINE__, turned[i] == (i % threads + 2) % threads);
  }

  Numbers<int> sum(1), out(1);
  early<<<3, 64>>>(sum.p);
  expect(__LINE__, sum.read()[0] == 3 * 32);
  forms<<<1, 33, 10 * sizeof(int)>>>(out.p);
  expect(__LINE__, out.read()[0] == 11256);

  Numbers<int> place(2 * 3 * 2 * 24);
  places<<<dim3(2, 3, 2), dim3(4, 3, 2)>>>(place.p);
  const std::vector<int> visited = place.read();
  for (int i = 0; i < place.count; ++i) expect(__LINE__, visited[i] == 1 + i % 24 + 100 * (i / 24));

  Numbers<int> sums(64), some(16);
  Numbers<unsigned> votes(3);
  warps<<<1, 64>>>(sums.p, some.p, votes.p);
  const std::vector<int> all = sums.read(), part = some.read();
  for (int i = 0; i < 64; ++i) expect(__LINE__, all[i] == (i < 32 ? 496 : 1520));
  expect(__LINE__, part[0] == 496 && part[1] == 1520);
  for (int i = 0; i < 8; ++i) expect(__LINE__, part[8 + i] == (i ? i - 1 : 0) + 50);
  expect(__LINE__, votes.read() == std::vector<unsigned>({0xaaaaaaaau, 0, 1}));

  std::vector<float> values(300);
  for (int i = 0; i < 300; ++i) values[i] = float(i * 7 % 300) / 8;
  Numbers<float> given(300);
  Numbers<int> bits(1);
  if (cudaMemcpy(given.p, values.data(), 300 * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess) return 2;
  largest_of<<<3, 128>>>(given.p, bits.p, 300);
  expect(__LINE__, bits.read()[0] == 0x42158000);  // 299 / 8 = 37.375
  if (cudaGetLastError() != cudaSuccess) ++failures;
  return failures != 0;
}
