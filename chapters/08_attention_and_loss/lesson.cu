// nvcc -o lesson lesson.cu -lcublas
//
// Attention without its matrix. Each of T tokens has a query, a key and a value of D numbers. A token's output is the
// mean of all values, weighted by how well its query fits their keys:
//     scores = Q K^T / sqrt(D)      weights = softmax of each row      output = weights V
// The textbook stores the scores: T x T numbers, for one head of one sequence. Yet a softmax needs only two things of
// its row, the largest score and the sum of e^(score - largest), and both can be kept up to date while the keys come
// by, a few at a time. If a larger score turns up, what was added so far is scaled down once. No score has to stay.
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
#include <vector>

constexpr int tokens = 1024, depth = 32, tile = 4, blocks = 64, threads = 64;
constexpr size_t count = size_t(tokens) * depth;

const char* text(cudaError_t error) { return cudaGetErrorString(error); }
const char* text(cublasStatus_t status) { return cublasGetStatusString(status); }
#define CHECK(call) check((call), #call)
template <class Status>
void check(Status status, const char* call) {
  if (status != Status(0)) std::printf("FAIL: %s: %s\n", call, text(status)), std::exit(1);
}

__global__ void fill(float* p, size_t n, unsigned seed) {  // pseudo-random numbers between -2 and 2
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned hash = (unsigned(i) + seed) * 2654435761u;
    p[i] = 2 * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}

__global__ void softmax(float* scores) {  // each row in place, one thread a row
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < tokens; row += gridDim.x * blockDim.x) {
    float* s = scores + size_t(row) * tokens;
    float largest = s[0], sum = 0;
    for (int key = 1; key < tokens; ++key) largest = fmaxf(largest, s[key]);
    for (int key = 0; key < tokens; ++key) sum += s[key] = expf(s[key] - largest);
    for (int key = 0; key < tokens; ++key) s[key] /= sum;
  }
}

__global__ void attention(const float* q, const float* k, const float* v, float* out) {  // one thread a query
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < tokens; row += gridDim.x * blockDim.x) {
    float largest = -INFINITY, sum = 0, total[depth] = {}, score[tile];
    for (int first = 0; first < tokens; first += tile) {
      float now = largest;
      for (int i = 0; i < tile; ++i) {
        float dot = 0;
        for (int d = 0; d < depth; ++d) dot += q[row * depth + d] * k[(first + i) * depth + d];
        score[i] = dot / sqrtf(float(depth));
        now = fmaxf(now, score[i]);
      }
      float shrink = 1;  // what was summed under the old maximum counts less, once there is a larger one
      if (now > largest) shrink = expf(largest - now);  // THE MITIGATION
      for (int d = 0; d < depth; ++d) total[d] *= shrink;
      sum *= shrink, largest = now;
      for (int i = 0; i < tile; ++i) {
        const float weight = expf(score[i] - largest);
        sum += weight;
        for (int d = 0; d < depth; ++d) total[d] += weight * v[(first + i) * depth + d];
      }
    }
    for (int d = 0; d < depth; ++d) out[row * depth + d] = total[d] / sum;
  }
}

cublasHandle_t cublas;
size_t live_bytes, peak_bytes;  // counted by allocate() and release()

float* allocate(size_t n) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, n * sizeof(float)));
  peak_bytes = std::max(peak_bytes, live_bytes += n * sizeof(float));
  return p;
}
void release(float* p, size_t n) {
  CHECK(cudaFree(p));
  live_bytes -= n * sizeof(float);
}

size_t run(const char* way, bool textbook, std::vector<float>& result) {
  peak_bytes = 0;
  float *q = allocate(count), *k = allocate(count), *v = allocate(count), *out = allocate(count);
  for (float* p : {q, k, v}) fill<<<blocks, threads>>>(p, count, unsigned(p == q ? 1 : p == k ? 2 : 3) << 20);
  if (textbook) {
    const float scale = 1 / std::sqrt(float(depth)), one = 1, zero = 0;
    float* scores = allocate(size_t(tokens) * tokens);
    // cuBLAS stores by columns: what is a row here is a column there.
    CHECK(cublasSgemm(cublas, CUBLAS_OP_T, CUBLAS_OP_N, tokens, tokens, depth, &scale, k, depth, q, depth, &zero,
                      scores, tokens));
    softmax<<<blocks, threads>>>(scores);
    CHECK(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, depth, tokens, tokens, &one, v, depth, scores, tokens, &zero,
                      out, depth));
    release(scores, size_t(tokens) * tokens);
  } else {
    attention<<<blocks, threads>>>(q, k, v, out);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(result.data(), out, count * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* p : {q, k, v, out}) release(p, count);
  std::printf("  %-36s peak %4.2f MiB\n", way, peak_bytes / 1048576.0);
  return peak_bytes;
}

int main() {
  CHECK(cublasCreate(&cublas));
  std::printf("attention of %d tokens, one head of %d, FP32\n", tokens, depth);
  std::vector<float> a(count), b(count);
  const size_t stored = run("textbook: every score in memory", true, a);
  const size_t tiled = run("tiled: a running maximum and sum", false, b);
  double difference = 0, largest = 0;
  for (size_t i = 0; i < count; ++i)
    difference = std::max(difference, std::fabs(double(a[i]) - b[i])),
    largest = std::max(largest, std::fabs(double(a[i])));
  std::printf("  largest difference: %.0e of the largest output (the same sums in another order)\n",
              difference / largest);
  CHECK(cublasDestroy(cublas));
  if (!(difference <= 1e-5 * largest)) return std::puts("FAIL: the outputs differ"), 1;
  if (stored - tiled != sizeof(float) * tokens * tokens) return std::puts("FAIL: not exactly the scores were saved"), 1;
  return std::puts("PASS"), 0;
}
