// nvcc -o lesson lesson.cu
//
// One GPU, two processes. A device does not divide itself: it gives to whoever asks first, until nothing is left.
// Whoever comes last is out of memory, though his own job would fit. Here the neighbour comes first. Its job is over,
// nothing of it is in use, and yet more than half of the device is gone. (Run this on a GPU that nobody else uses: it
// takes six tenths of it.)
//     its context       what the driver keeps for a process that has touched the device at all
//     its cache         what it freed, and its allocator keeps, to be faster the next time
// Nobody else can take a cached byte. Only its owner can give it back: cudaMemPoolTrimTo(), or in PyTorch
// torch.cuda.empty_cache(). Then our job fits.
//     free = total - contexts - all that processes hold, in use or cached
// The price: what was trimmed, the neighbour's next request gets from the driver again, which is slow.
// Two processes must not share what CUDA has set up in one of them, so the neighbour is forked before the first call.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

int to_neighbour[2];    // a pipe: an order is a letter
int from_neighbour[2];  // a pipe: the same letter is the answer
bool ours = true;       // this process is not the neighbour

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s, %s: %s\n", ours ? "we" : "the neighbour", where, what);
  std::fflush(stdout);
  std::_Exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)

__global__ void fill(float* x, int n, float value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = value + i % 7;
}

size_t total;         // bytes of the device, read back
long long most_used;  // differences are signed, because other programs take and free memory, too
long long used(long long before = 0) {  // more than `before`
  size_t free_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  const long long in_use = static_cast<long long>(total - free_bytes);
  most_used = std::max(most_used, in_use);
  return in_use - before;
}

void neighbour() {
  cudaMemPool_t pool = nullptr;
  void* p = nullptr;
  char order = 0;
  while (read(to_neighbour[0], &order, 1) == 1) {
    if (order == 'c') CHECK(cudaFree(nullptr));  // the usual way to make a context, and nothing else
    if (order == 'w') {                          // works: takes six tenths of the device, uses some, and frees them
      uint64_t keep_all = UINT64_MAX;
      CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
      CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
      (void)used();  // reads total
      CHECK(cudaMallocAsync(&p, total / 10 * 6, 0));
      fill<<<4, 128>>>(static_cast<float*>(p), 1 << 20, 1);  // the first 4 MiB
      CHECK(cudaGetLastError());
      CHECK(cudaFreeAsync(p, 0));
      CHECK(cudaDeviceSynchronize());
    }
    if (order == 't') {
      CHECK(cudaMemPoolTrimTo(pool, 0));  // THE MITIGATION: what is only cached goes back to the device
    }
    require(write(from_neighbour[1], &order, 1) == 1, "the other process reads the answer");
  }
}
void tell(char order) {
  char answer = 0;
  require(write(to_neighbour[1], &order, 1) == 1 && read(from_neighbour[0], &answer, 1) == 1, "the neighbour answers");
}

// Our job: half of the device. Whether it had the memory, and then its result.
bool job(double* sum) {
  float* x = nullptr;
  const cudaError_t code = cudaMalloc(&x, total / 2);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // read, so that it is nobody else's error
    return false;
  }
  CHECK(code);
  static float values[1 << 20];
  fill<<<4, 128>>>(x, 1 << 20, 2);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(values, x, sizeof values, cudaMemcpyDeviceToHost));
  (void)used();  // while x is there: the peak
  CHECK(cudaFree(x));
  *sum = 0;
  for (const float value : values) *sum += value;
  return true;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  require(pipe(to_neighbour) == 0 && pipe(from_neighbour) == 0, "pipes");
  const pid_t child = fork();  // before any CUDA call
  require(child >= 0, "a second process");
  ours = child > 0;
  close(to_neighbour[ours ? 0 : 1]);  // the ends that the other process uses
  close(from_neighbour[ours ? 1 : 0]);
  if (!ours) {
    neighbour();
    return 0;
  }

  constexpr double MiB = 1 << 20;
  const long long before = used();
  if (before > static_cast<long long>(total / 10 * 3)) {
    std::puts("others use this device: it cannot be shown here");
    return 2;
  }
  tell('c');
  const long long contexts = used();
  std::printf("a device of %.0f MiB, two processes\n", total / MiB);
  std::printf("  a context of the neighbour's costs     %8.0f MiB\n", (contexts - before) / MiB);
  double alone = 0;
  require(job(&alone), "half of the device, where the neighbour has only its context");
  std::printf("  we are alone: peak of the device       %8.0f MiB\n", most_used / MiB);
  tell('w');
  std::printf("  the neighbour has worked, and keeps    %8.0f MiB\n", used(contexts) / MiB);
  const bool full = used() > static_cast<long long>(total / 2);  // less is left than our job needs
  double sum = 0;
  bool fits_beside_cache = false;  // our job had its memory
  bool fits_after_trim = false;
  if (without) {
    fits_beside_cache = job(&sum);
    std::printf("  our job, %.0f MiB: %s, peak  %8.0f MiB\n", total / 2 / MiB,
                fits_beside_cache ? "done" : "out of memory", most_used / MiB);
  }
  if (with) {
    most_used = 0;
    tell('t');
    const long long kept = std::max(used(contexts), 0LL);  // others may have freed more than it keeps
    std::printf("  the neighbour keeps after it trimmed   %8.0f MiB\n", kept / MiB);
    fits_after_trim = job(&sum);
    std::printf("  our job, %.0f MiB: %s, peak           %8.0f MiB\n", total / 2 / MiB,
                fits_after_trim ? "done" : "out of memory", most_used / MiB);
  }
  if (full && fits_beside_cache) {
    std::puts("this driver lends a full device the host's memory, as WSL's does: here nothing is refused, only slow");
    return 2;  // cannot be shown here
  }
  if (without) require(!fits_beside_cache, "out of memory beside the cache, and only there");
  if (with) require(fits_after_trim && sum == alone, "the same result, once the cache is given back");
  close(to_neighbour[1]);  // the neighbour reads the end, and ends
  int status = 1;
  require(waitpid(child, &status, 0) == child && status == 0, "a neighbour that ends well");
  std::puts("PASS");
}
