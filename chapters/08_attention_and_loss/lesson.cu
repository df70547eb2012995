// nvcc -o lesson lesson.cu -lcublas
//
// Attention without its matrix. Each of T tokens has a query, a key and a value of D numbers. A token's output is the
// mean of all values, weighted by how well its query fits their keys:
//     scores = Q K^T / sqrt(D)      weights = softmax of each row      output = weights V
// The textbook stores the scores: T x T numbers, for one head of one sequence. Yet a softmax needs only two things of
// its row, the largest score and the sum of e^(score - largest), and both can be kept up to date while the keys come
// by, a tile at a time. If a larger score turns up, what was added so far is scaled down once. No score has to stay.
// The price: a few multiplications more, and in training the backward pass computes every score a second time.
//
// The peak, with T = 1024 and D = 32:
//     Q, K, V and the output     16 bytes * T * D      0.5 MiB
//     the scores, textbook        4 bytes * T * T      4.0 MiB    together 4.5 MiB, or 0.5 MiB without them
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int tokens = 1024, depth = 32, tile = 16, threads = 64, blocks = tokens / threads;
constexpr size_t count = size_t(tokens) * depth;
static_assert(tokens % threads == 0 && tokens % tile == 0, "whole tiles");

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)

__global__ void fill(float* p, size_t n, unsigned seed) {  // pseudo-random numbers between -2 and 2
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned hash = (unsigned(i) + seed) * 2654435761u;
    p[i] = 2 * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}

// All threads of a block bring a number, and all get the sum, or the largest. The upper half goes into the lower half.
enum Result { sum_of_all, largest_of_all };
__device__ float reduce(float value, float* shared, Result what) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned left = blockDim.x; left > 1; left = (left + 1) / 2) {
    const unsigned other = threadIdx.x + (left + 1) / 2;
    float& mine = shared[threadIdx.x];
    if (other < left) mine = what == sum_of_all ? mine + shared[other] : fmaxf(mine, shared[other]);
    __syncthreads();
  }
  value = shared[0];
  __syncthreads();  // the next numbers may come only when all have read these
  return value;
}
__global__ void softmax(float* scores) {  // each row in place, a block for each
  __shared__ float shared[threads];
  for (int row = blockIdx.x; row < tokens; row += gridDim.x) {
    float* score = scores + size_t(row) * tokens;
    float largest = -INFINITY;
    float sum = 0;
    for (int key = threadIdx.x; key < tokens; key += blockDim.x) largest = fmaxf(largest, score[key]);
    largest = reduce(largest, shared, largest_of_all);
    for (int key = threadIdx.x; key < tokens; key += blockDim.x) sum += expf(score[key] - largest);
    sum = reduce(sum, shared, sum_of_all);
    for (int key = threadIdx.x; key < tokens; key += blockDim.x) score[key] = expf(score[key] - largest) / sum;
  }
}

// A block has a tile of queries, one for each thread. It reads each key and each value once for all of them.
__global__ void attention(const float* q, const float* k, const float* v, float* out) {
  __shared__ float rows[threads][depth + 1];  // of queries, then of the output; + 1, so that no two share a bank
  __shared__ float keys[tile][depth];
  __shared__ float values[tile][depth];
  for (int first = blockIdx.x * blockDim.x; first < tokens; first += gridDim.x * blockDim.x) {
    const int left = tokens - first;
    const int queries = int(blockDim.x) < left ? int(blockDim.x) : left;
    for (int i = threadIdx.x; i < queries * depth; i += blockDim.x) rows[i / depth][i % depth] = q[first * depth + i];
    __syncthreads();
    float query[depth];
    for (int d = 0; d < depth; ++d) query[d] = rows[threadIdx.x][d] / sqrtf(float(depth));
    float largest = -INFINITY;
    float sum = 0;
    float total[depth] = {};
    for (int key = 0; key < tokens; key += tile) {
      __syncthreads();  // all are done with the last tile
      for (int i = threadIdx.x; i < tile * depth; i += blockDim.x) {
        keys[i / depth][i % depth] = k[key * depth + i];
        values[i / depth][i % depth] = v[key * depth + i];
      }
      __syncthreads();
      float score[tile];  // all that there ever is of a row of scores
      float now = largest;
      for (int i = 0; i < tile; ++i) {
        score[i] = 0;
        for (int d = 0; d < depth; ++d) score[i] += query[d] * keys[i][d];
        now = fmaxf(now, score[i]);
      }
      const float shrink = expf(largest - now);  // less than 1 if there is a larger score than those before
      largest = now;
      sum *= shrink;
      for (int d = 0; d < depth; ++d) total[d] *= shrink;
      for (int i = 0; i < tile; ++i) {
        const float weight = expf(score[i] - largest);
        sum += weight;
        for (int d = 0; d < depth; ++d) total[d] += weight * values[i][d];
      }
    }
    __syncthreads();
    for (int d = 0; d < depth; ++d) rows[threadIdx.x][d] = total[d] / sum;
    __syncthreads();
    for (int i = threadIdx.x; i < queries * depth; i += blockDim.x) out[first * depth + i] = rows[i / depth][i % depth];
    __syncthreads();
  }
}

cublasHandle_t cublas;
size_t live;  // bytes, counted by allocate() and release()
size_t peak;  // the most that they have been
float* allocate(size_t n) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, n * sizeof(float)));
  live += n * sizeof(float);
  peak = std::max(peak, live);
  return p;
}
void release(float* p, size_t n) {
  CHECK(cudaFree(p));
  live -= n * sizeof(float);
}

// cuBLAS stores by columns: what is a row here is a column there.
void textbook(const float* q, const float* k, const float* v, float* out) {
  const float scale = 1 / std::sqrt(float(depth));
  const float one = 1;
  const float zero = 0;
  float* scores = allocate(size_t(tokens) * tokens);
  CHECK(cublasSgemm(cublas, CUBLAS_OP_T, CUBLAS_OP_N, tokens, tokens, depth, &scale, k, depth, q, depth, &zero, scores,
                    tokens));
  softmax<<<tokens, threads>>>(scores);
  CHECK(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, depth, tokens, tokens, &one, v, depth, scores, tokens, &zero, out,
                    depth));
  release(scores, size_t(tokens) * tokens);
}
size_t run(const char* what, bool tiled, std::vector<float>& result) {
  peak = 0;
  float* q = allocate(count);
  float* k = allocate(count);
  float* v = allocate(count);
  float* out = allocate(count);
  fill<<<blocks, threads>>>(q, count, 1u << 20);
  fill<<<blocks, threads>>>(k, count, 2u << 20);
  fill<<<blocks, threads>>>(v, count, 3u << 20);
  if (tiled) {
    attention<<<blocks, threads>>>(q, k, v, out);  // THE MITIGATION: score[tile] is all that there is of the scores
  } else {
    textbook(q, k, v, out);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(result.data(), out, count * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {q, k, v, out}) release(p, count);
  std::printf("  %-36s peak %4.2f MiB\n", what, peak / 1048576.0);
  return peak;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  std::printf("attention of %d tokens, one head of %d, FP32\n", tokens, depth);
  std::vector<float> a(count);
  std::vector<float> b(count);
  size_t stored = 0;
  size_t tiled = 0;
  if (without) stored = run("textbook: every score in memory", false, a);
  if (with) tiled = run("tiled: a running maximum and sum", true, b);
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    double difference = 0;
    double largest = 0;
    for (size_t i = 0; i < count; ++i) {
      difference = std::max(difference, std::fabs(double(a[i]) - b[i]));
      largest = std::max(largest, std::fabs(double(a[i])));
    }
    std::printf("  largest difference: %.0e of the largest output (the same sums in another order)\n",
                difference / largest);
    require(difference <= 1e-5 * largest, "the same outputs");
    require(stored - tiled == sizeof(float) * tokens * tokens, "exactly the scores saved");
  }
  std::puts("PASS");
}
