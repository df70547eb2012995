// nvcc -o lesson lesson.cu -lcublas
//
// The problem: "use FP16, it halves the memory". Half of which bytes? And what does a 16-bit number not hold?
//
//                             FP32           FP16
//   activation                4 bytes        2 bytes            here 2 x 4096 x 128 of them: 4 MiB become 2 MiB
//   weight, gradient, master  4 + 4 + 0      2 + 2 + 4 bytes    here 128 x 128: 128 KiB in both
// The idea: store 16 bits, compute sums in 32, and mend two losses. Near 0.001 FP16 numbers are 1e-6 apart, so updates
// below half of that vanish: the optimizer updates an FP32 copy of each weight, its master, and rounds that for the
// model. What is below 3e-8 becomes 0, as many gradients do: the loss is multiplied by a scale, which multiplies all
// gradients, and the update divides. If one overflows, the step is skipped and the scale halved, all on the device.
// The price: one pass more over the gradients, to find overflows. Products in 16 bits are faster than in 32.
#include <cublas_v2.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

constexpr int width = 128, rows = 4096, updates = 12, blocks = 32, threads = 256;
constexpr size_t weights = size_t(width) * width, n = size_t(rows) * width;

void require(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL: expected: %s (%s)\n", what, cudaGetErrorName(cudaPeekAtLastError()));
  std::exit(1);
}
#define CHECK(call) require(int(call) == 0, #call)  // cudaSuccess and CUBLAS_STATUS_SUCCESS are 0

template <class T, class From>
T* upload(const std::vector<From>& values) {  // into memory of the device's pool, which records the peak
  const std::vector<T> rounded(values.begin(), values.end());
  T* p;
  CHECK(cudaMallocAsync(&p, rounded.size() * sizeof(T), 0));
  CHECK(cudaMemcpy(p, rounded.data(), rounded.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
std::vector<float> numbers(size_t count, float largest) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = largest * (int(i * 7919 % 1021) - 510) / 510;
  return values;
}

struct State {  // on the device
  float scale;
  float overflow;
  float done;     // updates
  float skipped;  // updates
};
template <class T>
__global__ void loss_gradient(T* y, const State* state) {  // of the mean of y^2 / 2, times the scale
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = T(float(y[i]) * (state->scale / n));
}
template <class T>
__global__ void find_overflow(const T* g, State* state) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x)
    if (!(fabsf(float(g[i])) < INFINITY)) atomicAdd(&state->overflow, 1.0f);  // or NaN
}
template <class T>
__global__ void update(T* w, float* master, const T* g, const State* state) {
  if (state->done == updates) return;  // a spare step, see train()
  if (state->overflow > 0) return;     // THE MITIGATION, 4: a step that overflowed is skipped
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
    const float old = master ? master[i] : float(w[i]);
    const float updated = old - 0.05f * float(g[i]) / state->scale;
    if (master) master[i] = updated;
    w[i] = T(updated);
  }
}
__global__ void next_scale(State* state) {  // one thread; frameworks also double it after 2000 good steps
  const bool overflow = state->overflow > 0;
  if (overflow) state->scale /= 2;
  if (overflow && state->done < updates) ++state->skipped;
  if (!overflow && state->done < updates) ++state->done;
  state->overflow = 0;
}

struct Result {
  std::vector<float> change;  // what training did to each weight
  State state = {};
  uint64_t peak = 0;
};
template <class T>
Result train(cublasHandle_t cublas, cudaMemPool_t pool, const char* what) {
  const cudaDataType type = sizeof(T) == 2 ? CUDA_R_16F : CUDA_R_32F;
  const float one = 1;
  const float zero = 0;
  Result r{{}, {1, 0, 0, 0}, 0};  // the scale is 1
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &r.peak));  // starts the record anew
  const std::vector<float> start = numbers(weights, 0.002f);
  std::vector<T> end(weights);
  T* w = upload<T>(start);
  T* g = upload<T>(numbers(weights, 0));
  T* x = upload<T>(numbers(n, 1));
  T* y = upload<T>(numbers(n, 0));
  float* master = nullptr;
  if (sizeof(T) == 2) master = upload<float>(start);  // THE MITIGATION, 2: FP32 master weights
  if (sizeof(T) == 2) r.state.scale = 0x1p32f;        // THE MITIGATION, 3: a loss scale (too large, it comes down)
  State* state = upload<State>(std::vector<State>{r.state});
  for (int step = 0; step < updates + 4; ++step) {  // 4 to spare, as the host does not know how many are skipped
    CHECK(cublasGemmEx(cublas, CUBLAS_OP_N, CUBLAS_OP_N, width, rows, width, &one, w, type, width, x, type, width,
                       &zero, y, type, width, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    loss_gradient<T><<<blocks, threads>>>(y, state);
    CHECK(cublasGemmEx(cublas, CUBLAS_OP_N, CUBLAS_OP_T, width, width, rows, &one, y, type, width, x, type, width,
                       &zero, g, type, width, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    find_overflow<T><<<blocks, threads>>>(g, state);
    update<T><<<blocks, threads>>>(w, master, g, state);
    next_scale<<<1, 1>>>(state);
  }
  CHECK(cudaPeekAtLastError());
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &r.peak));
  CHECK(cudaMemcpy(end.data(), w, weights * sizeof(T), cudaMemcpyDeviceToHost));
  r.change.assign(end.begin(), end.end());
  if (master) CHECK(cudaMemcpy(r.change.data(), master, weights * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < weights; ++i) r.change[i] -= start[i];
  CHECK(cudaMemcpy(&r.state, state, sizeof(State), cudaMemcpyDeviceToHost));
  for (void* p : std::initializer_list<void*>{w, g, x, y, state}) CHECK(cudaFreeAsync(p, 0));
  if (master) CHECK(cudaFreeAsync(master, 0));
  std::printf("  %s  peak %5.3f MiB  %.0f updates, %.0f skipped, loss scale 2^%.0f\n", what, double(r.peak) / (1 << 20),
              r.state.done, r.state.skipped, std::log2(r.state.scale));
  return r;
}
void compare(const Result& fp32, const Result& fp16) {
  double difference = 0;
  double all = 0;
  for (size_t i = 0; i < weights; ++i) {
    difference += std::pow(fp16.change[i] - fp32.change[i], 2);
    all += std::pow(fp32.change[i], 2);
  }
  const double off = std::sqrt(difference / all);
  std::printf("  what training changed in the weights: %.2f %% apart\n", 100 * off);
  const size_t saved = 2 * n * 2;   // 2 arrays, x and y, of n numbers, 2 bytes each
  const size_t rounding = 1 << 16;  // of the pool
  require(fp16.peak + saved <= fp32.peak + rounding, "2 bytes less for each activation");
  require(fp16.state.done == updates, "steps are skipped only until the scale is right");
  require(off < 0.01, "masters and scale keep the training as it is in FP32");
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  cudaMemPool_t pool;
  cublasHandle_t cublas;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cublasCreate(&cublas));
  CHECK(cublasSetMathMode(cublas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));  // sums in FP32, always
  std::printf("a layer of %d x %d, %d rows, %d updates\n", width, width, rows, updates);
  Result fp32;
  Result fp16;
  auto training = train<float>;
  if (without) fp32 = training(cublas, pool, "FP32");
  training = train<__half>;  // THE MITIGATION, 1: 16 bits for weights, gradients and activations
  if (with) fp16 = training(cublas, pool, "FP16");
  CHECK(cublasDestroy(cublas));
  if (with && without) compare(fp32, fp16);
  std::puts("PASS");
}
