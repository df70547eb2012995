// nvcc -o lesson lesson.cu
//
// One sequence that is too long for one device. In causal attention a token's output is the mean of the values up to
// its own, weighted by e^(query . key). Chapter 08 stores no scores. Queries, keys, values and outputs are left, T x D
// numbers each. N devices can share them out, but the queries of a part need the keys and values of all parts before.
// So keys and values go round (ring attention): in each of N rounds a device works with the block that it has, and
// hands it on. Of one block a query gets a mean of values, and the sum of their weights, kept as its logarithm (the
// log-sum-exp). From these, two means merge into the mean of both. No device ever has more than two blocks.
//
// The peak of each device, with T = 2048 and D = 32, in FP32:
//     one device      4 (4 T D + T)        1032 KiB    with a log-sum-exp for each token
//     N devices       4 (6 T D + T) / N     772 KiB    with N = 2; 6, because another block arrives
// The price: every round but the last copies 2 T D / N numbers from each device, beside the kernel.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int tokens = 2048;  // T
constexpr int depth = 32;     // D
constexpr int tile = 16;      // keys and values that a thread block has at a time
constexpr int threads = 64;   // of each thread block, and queries that it has at a time
void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == cudaSuccess, cudaGetErrorString(code), call); }
#define CHECK(call) check(call, #call)
__host__ __device__ float number(unsigned index) {  // pseudo-random, between -2 and 2
  const unsigned hash = (index + 1) * 2654435761u;
  return 2 * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
}
// Numbers depend on the token, not on the device. Queries and outputs are [depth, rows], so that threads side by side
// read numbers side by side. Keys and values are [rows, depth], and stand one behind the other.
__global__ void fill(float* q, float* kv, float* lse, int rows, int first) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * depth; i += gridDim.x * blockDim.x) {
    q[i] = number(i / rows * tokens + first + i % rows);
    kv[i] = number((tokens + first) * depth + i);
    kv[rows * depth + i] = number((2 * tokens + first) * depth + i);
    if (i < rows) lse[i] = -INFINITY;  // the logarithm of no weight
  }
}
// Chapter 08's attention, of one block of keys and values. The first query is `ahead` tokens behind the first key.
__global__ void attention(const float* q, const float* kv, float* out, float* lse, int rows, int ahead) {
  __shared__ float keys[tile][depth];
  __shared__ float values[tile][depth];
  for (int first = blockIdx.x * blockDim.x; first < rows; first += gridDim.x * blockDim.x) {
    const int row = first + threadIdx.x;
    const bool mine = row < rows;  // others get here for __syncthreads() only
    float query[depth];
    for (int d = 0; d < depth; ++d) query[d] = mine ? q[d * rows + row] / sqrtf(depth) : 0;
    float largest = -INFINITY;
    float sum = 0;
    float total[depth] = {};
    const int seen = first + int(blockDim.x) + ahead;  // keys up to the last query of the thread block
    for (int key = 0; key < rows && key < seen; key += tile) {
      __syncthreads();  // all are done with the last tile
      for (int i = threadIdx.x; i < tile * depth; i += blockDim.x) {
        keys[i / depth][i % depth] = kv[key * depth + i];
        values[i / depth][i % depth] = kv[(rows + key) * depth + i];
      }
      __syncthreads();  // all of this tile is there
      for (int i = 0; i < tile && key + i <= row + ahead; ++i) {  // up to the query's own token
        float score = 0;
        for (int d = 0; d < depth; ++d) score += query[d] * keys[i][d];
        const float now = fmaxf(largest, score);
        const float shrink = expf(largest - now);
        const float weight = expf(score - now);
        largest = now;
        sum = sum * shrink + weight;
        for (int d = 0; d < depth; ++d) total[d] = total[d] * shrink + weight * values[i][d];
      }
    }
    if (!mine) continue;
    const float before = lse[row];  // of earlier rounds
    const float here = largest + logf(sum);
    const float both = fmaxf(before, here) + log1pf(expf(-fabsf(before - here)));  // log(e^before + e^here)
    const float old_share = expf(before - both);  // 0 in the first round
    const float share = expf(here - both);
    for (int d = 0; d < depth; ++d) out[d * rows + row] = old_share * out[d * rows + row] + share * (total[d] / sum);
    lse[row] = both;
  }
}
struct Device {
  size_t bytes = 0;  // that it has allocated; it frees nothing before the end, so this is the peak
  float* q = nullptr;
  float* out = nullptr;
  float* lse = nullptr;
  float* block = nullptr;  // keys and values, at first of its own tokens
  float* arriving = nullptr;
  cudaStream_t copies = nullptr;  // for copies; kernels have the default stream
};
float* allocate(Device& device, int count) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, count * sizeof(float)));
  CHECK(cudaMemset(p, 0, count * sizeof(float)));
  device.bytes += count * sizeof(float);
  return p;
}
std::vector<float> attend(int devices) {
  std::vector<Device> ring(devices);
  int rows = tokens;
  rows = tokens / devices;  // THE MITIGATION: each device has a part of the tokens
  const size_t bytes = 2 * rows * depth * sizeof(float);  // of a block
  const int blocks = (rows + threads - 1) / threads;
  for (int rank = 0; rank < devices; ++rank) {
    Device& device = ring[rank];
    CHECK(cudaSetDevice(rank));
    CHECK(cudaStreamCreateWithFlags(&device.copies, cudaStreamNonBlocking));
    device.q = allocate(device, rows * depth);
    device.out = allocate(device, rows * depth);
    device.lse = allocate(device, rows);
    device.block = allocate(device, 2 * rows * depth);
    if (devices > 1) device.arriving = allocate(device, 2 * rows * depth);
    fill<<<blocks, threads>>>(device.q, device.block, device.lse, rows, rank * rows);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  }
  for (int round = 0; round < devices; ++round) {
    for (int rank = 0; rank < devices; ++rank) {
      const Device& device = ring[rank];
      const Device& next = ring[(rank + 1) % devices];
      CHECK(cudaSetDevice(rank));
      if (round + 1 < devices) {  // through the host; from GPU to GPU after cudaDeviceEnablePeerAccess()
        CHECK(cudaMemcpyAsync(next.arriving, device.block, bytes, cudaMemcpyDefault, device.copies));  // THE MITIGATION
      }
      if (round > rank) continue;  // this block has gone round the end: all its tokens are later ones
      attention<<<blocks, threads>>>(device.q, device.block, device.out, device.lse, rows, round * rows);
      CHECK(cudaGetLastError());
    }
    for (int rank = 0; rank < devices; ++rank) {
      CHECK(cudaSetDevice(rank));
      CHECK(cudaDeviceSynchronize());  // its kernel and its copy are done before the next round
      std::swap(ring[rank].block, ring[rank].arriving);
    }
  }
  std::vector<float> all(tokens * depth);  // [depth, tokens]
  for (int rank = 0; rank < devices; ++rank) {
    const Device& device = ring[rank];
    for (int d = 0; d < depth; ++d)
      CHECK(cudaMemcpy(&all[d * tokens + rank * rows], device.out + d * rows, rows * sizeof(float), cudaMemcpyDefault));
    for (float* p : {device.q, device.out, device.lse, device.block, device.arriving}) CHECK(cudaFree(p));
    CHECK(cudaStreamDestroy(device.copies));
  }
  for (int d = 0; d < depth; ++d) require(all[d * tokens] == number(2 * tokens * depth + d), "token 0 sees itself");
  std::printf("  devices: %d, tokens on each: %4d, peak %4zu KiB\n", devices, rows, ring[0].bytes / 1024);
  const size_t expected = sizeof(float) * (tokens / devices) * (devices > 1 ? 6 * depth + 1 : 4 * depth + 1);
  for (const Device& device : ring) require(device.bytes == expected, "two blocks of keys and values, never more");
  return all;
}
int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2 || tokens % (devices * tile) != 0) {  // whole tiles on each
    std::printf("this needs 2, 4, 8, ... or %d devices, and sees %d\n", tokens / tile, devices);
    return 2;
  }
  std::printf("causal attention of %d tokens, one head of %d, FP32; on each device:\n", tokens, depth);
  std::vector<float> one(tokens * depth);
  std::vector<float> ring(tokens * depth);
  if (without) one = attend(1);
  if (with) ring = attend(devices);
  if (with && without) {
    const int first = tokens / devices;  // tokens whose keys are all in the own block of their device
    float off = 0;
    for (int i = 0; i < tokens * depth; ++i) {
      const float difference = std::fabs(ring[i] - one[i]);
      require(difference <= (i % tokens < first ? 0 : 1e-5f), "the same outputs, and the same bits without a merge");
      off = std::max(off, difference);
    }
    std::printf("  outputs of the first %d tokens are bit-equal, all are equal to %.0e\n", first, off);
  }
  std::puts("PASS");
}
