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

constexpr int tokens = 1024;           // T
constexpr int depth = 32;              // D
constexpr int count = tokens * depth;  // numbers of Q, of K, of V and of the output
constexpr int tile = 16;               // keys and values that a block has at a time
constexpr int threads = 64;            // of each block, and queries that it has at a time
constexpr int blocks = tokens / threads;
static_assert(tokens % threads == 0 && tokens % tile == 0, "whole tiles");

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

__global__ void fill(float* p, int n) {  // pseudo-random numbers between -2 and 2
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned hash = unsigned(i + 1) * 2654435761u;
    p[i] = 2 * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}
// A thread has a query, and goes through its scores key by key. Scores are [keys, queries]: threads side by side have
// queries side by side, and their scores lie side by side. So a warp, 32 threads in step, reads 128 bytes at once.
__global__ void softmax(float* scores) {
  for (int query = blockIdx.x * blockDim.x + threadIdx.x; query < tokens; query += gridDim.x * blockDim.x) {
    float* score = scores + query;
    float largest = -INFINITY;
    float sum = 0;
    for (int key = 0; key < tokens; ++key) largest = fmaxf(largest, score[key * tokens]);
    for (int key = 0; key < tokens; ++key) sum += expf(score[key * tokens] - largest);
    for (int key = 0; key < tokens; ++key) score[key * tokens] = expf(score[key * tokens] - largest) / sum;
  }
}
// A block has a query for each of its threads, and copies keys and values into shared memory once for all of them. With
// one thread for each query most of a GPU is idle; FlashAttention gives a query's work to many, and uses tensor cores.
// q and out are [depth, tokens], so that here, too, threads side by side read numbers side by side.
__global__ void attention(const float* q, const float* k, const float* v, float* out, float scale) {
  __shared__ float keys[tile][depth];
  __shared__ float values[tile][depth];
  for (int first = blockIdx.x * blockDim.x; first < tokens; first += gridDim.x * blockDim.x) {
    const int token = first + threadIdx.x;
    const bool mine = token < tokens;  // true here; with other threads some get here for __syncthreads() only
    float query[depth];
    for (int d = 0; d < depth; ++d) query[d] = mine ? scale * q[d * tokens + token] : 0;
    float largest = -INFINITY;
    float sum = 0;
    float total[depth] = {};
    for (int key = 0; key < tokens; key += tile) {
      __syncthreads();  // all are done with the last tile
      for (int i = threadIdx.x; i < tile * depth; i += blockDim.x) {
        keys[i / depth][i % depth] = k[key * depth + i];
        values[i / depth][i % depth] = v[key * depth + i];
      }
      __syncthreads();    // all of this tile is there
      float score[tile];  // all that there ever is of a query's scores
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
    for (int d = 0; d < depth && mine; ++d) out[d * tokens + token] = total[d] / sum;
  }
}
cublasHandle_t cublas;
size_t live;  // bytes, counted by allocate() and release()
size_t peak;  // the maximum of live
float* allocate(size_t n) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, n * sizeof(float)));
  live += n * sizeof(float);
  peak = std::max(peak, live);
  return p;
}
void release(float* p, size_t n) {
  CHECK(cudaFree(p));  // waits for kernels that still use p
  live -= n * sizeof(float);
}
// C[m, n] = alpha op(A) op(B) + beta C, row-major. cuBLAS is column-major: C^T = op(B)^T op(A)^T, so B comes first.
void matmul(bool ta, bool tb, int m, int n, int k, float alpha, const float* A, const float* B, float beta, float* C) {
  CHECK(cublasSgemm(cublas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B,
                    tb ? k : n, A, ta ? m : k, &beta, C, n));
}
void textbook(const float* q, const float* k, const float* v, float* out, float scale) {
  float* scores = allocate(size_t(tokens) * tokens);
  matmul(false, false, tokens, tokens, depth, scale, k, q, 0, scores);  // [keys, queries]: q is Q^T, so K @ q
  softmax<<<blocks, threads>>>(scores);
  CHECK(cudaGetLastError());
  matmul(true, false, depth, tokens, tokens, 1, v, scores, 0, out);  // [depth, tokens], as q is: V^T @ weights
  release(scores, size_t(tokens) * tokens);
}

struct Run {
  size_t peak = 0;  // bytes
  std::vector<float> out = std::vector<float>(count);
};
Run run(const char* what, bool tiled) {
  Run result;
  peak = 0;
  float* q = allocate(3 * count);
  float* k = q + count;
  float* v = k + count;
  float* out = allocate(count);
  CHECK(cudaMemset(out, 0xff, count * sizeof(float)));  // NaN: what nobody writes is found below
  fill<<<blocks, threads>>>(q, 3 * count);
  CHECK(cudaGetLastError());
  const float scale = 1 / std::sqrt(float(depth));
  if (!tiled) textbook(q, k, v, out, scale);
  if (tiled) attention<<<blocks, threads>>>(q, k, v, out, scale);  // THE MITIGATION: of scores only score[tile]
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(result.out.data(), out, count * sizeof(float), cudaMemcpyDeviceToHost));
  release(q, 3 * count);
  release(out, count);
  result.peak = peak;
  std::printf("  %-36s peak %4.2f MiB\n", what, result.peak / 1048576.0);
  const size_t scores = tiled ? 0 : size_t(tokens) * tokens;
  require(peak == (4 * size_t(count) + scores) * sizeof(float), "the bytes of the tensors that the way needs");
  for (const float x : result.out) require(std::fabs(x) <= 2, "a mean of values, which are all between -2 and 2");
  return result;
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  std::printf("attention of %d tokens, one head of %d, FP32\n", tokens, depth);
  Run stored;
  Run tiled;
  if (without) stored = run("textbook: every score in memory", false);
  if (with) tiled = run("tiled: a running maximum and sum", true);
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    double difference = 0;
    double largest = 0;
    for (int i = 0; i < count; ++i) {
      difference = std::max(difference, std::fabs(double(stored.out[i]) - tiled.out[i]));
      largest = std::max(largest, std::fabs(double(stored.out[i])));
    }
    std::printf("  largest difference: %.0e of the largest output (the same sums in another order)\n",
                difference / largest);
    require(difference <= 1e-5 * largest, "the same outputs");
    require(stored.peak - tiled.peak == sizeof(float) * tokens * tokens, "exactly the scores saved");
  }
  std::puts("PASS");
}
