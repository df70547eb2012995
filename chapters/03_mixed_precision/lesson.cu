// nvcc -o lesson lesson.cu -lcublas
//
// The problem: "use FP16, it halves the memory". Half of which bytes? And what does a 16-bit number not hold?
//
//                             FP32           FP16
//   activation                4 bytes        2 bytes            here 2 x 4096 x 128 of them: 4 MiB become 2 MiB
//   weight, gradient, master  4 + 4 + 0      2 + 2 + 4 bytes    here 128 x 128: 128 KiB in both
// The idea: store 16 bits, compute sums in 32, and make up for what 16 bits lose. Near 0.001 FP16 numbers are 1e-6
// apart, so smaller updates vanish: the optimizer updates an FP32 copy of each weight, its master, and rounds that for
// the model. Below 3e-8 all is 0, as many gradients are: the loss is multiplied by a scale, and so are all gradients;
// the update divides by it. If a gradient overflows, the step is skipped and the scale halved, on the device.
// The price: one more pass over the gradients, for overflows. In return tensor cores make 16-bit products faster.
#include <cublas_v2.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <random>
#include <vector>

constexpr int width = 128;                    // numbers of a row, in and out
constexpr int rows = 4096;                    // of the batch
constexpr int weights = width * width;        // numbers; gradients and masters have as many
constexpr int activations = rows * width;     // numbers of the input, and of the output
constexpr int updates = 12;                   // that the training makes
constexpr int spare = 4;                      // steps for those that are skipped: the host does not know how many
constexpr size_t rounding = size_t(1) << 16;  // bytes by which the pool may count more than was asked for
constexpr int blocks = 32;                    // of each kernel
constexpr int threads = 256;                  // of each block

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

cudaMemPool_t pool;  // a run has its own, which keeps the record: the most bytes that were in use
void make_pool() {
  cudaMemPoolProps properties = {};  // location.id is 0: the first device
  properties.allocType = cudaMemAllocationTypePinned;  // it stays where it is made: on the device, by the next line
  properties.location.type = cudaMemLocationTypeDevice;
  CHECK(cudaMemPoolCreate(&pool, &properties));
}
template <class T, class From>
T* upload(const std::vector<From>& values) {
  const std::vector<T> rounded(values.begin(), values.end());
  const size_t bytes = rounded.size() * sizeof(T);
  void* p;
  CHECK(cudaMallocFromPoolAsync(&p, bytes, pool, 0));
  CHECK(cudaMemcpy(p, rounded.data(), bytes, cudaMemcpyHostToDevice));
  return static_cast<T*>(p);
}
std::vector<float> numbers(int count, float scale) {  // pseudo-random, between -scale and scale
  std::vector<float> values(count);
  std::minstd_rand random;
  for (float& value : values) value = scale * (2.0f * random() / random.max() - 1);
  return values;
}

struct State {  // on the device
  float scale;
  int found_inf;  // not 0: a gradient of this step has overflowed
  int good;       // steps without an overflow; the first `updates` of them change the weights
};
template <class T>
__global__ void loss_gradient(T* y, const State* state) {  // of the mean of y^2 / 2, times the scale
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < activations; i += gridDim.x * blockDim.x)
    y[i] = T(float(y[i]) * (state->scale / activations));
}
template <class T>
__global__ void find_overflow(const T* g, State* state) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x)
    if (!std::isfinite(float(g[i]))) atomicAdd(&state->found_inf, 1);  // infinite, or NaN; many threads may find one
}
template <class T>
__global__ void update(T* w, float* master, const T* g, const State* state) {
  if (state->good >= updates) return;  // a spare step
  if (state->found_inf) return;        // THE MITIGATION, 4: a step that overflowed is skipped
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < weights; i += gridDim.x * blockDim.x) {
    const float old = master ? master[i] : float(w[i]);
    const float updated = old - 0.05f * float(g[i]) / state->scale;  // SGD; the learning rate is 0.05
    if (master) master[i] = updated;
    w[i] = T(updated);
  }
}
__global__ void next_scale(State* state) {  // one thread; frameworks also double it after 2000 good steps
  if (state->found_inf) state->scale /= 2;
  if (!state->found_inf) ++state->good;
  state->found_inf = 0;
}

cublasHandle_t cublas;
// C[m, n] = op(A) B, row-major, sums in FP32; ta: transpose. cuBLAS is column-major: C^T = B^T op(A)^T, B first.
template <class T>
void matmul(bool ta, int m, int n, int k, const T* A, const T* B, T* C) {
  const cudaDataType type = sizeof(T) == 2 ? CUDA_R_16F : CUDA_R_32F;
  const float one = 1;
  const float zero = 0;
  CHECK(cublasGemmEx(cublas, CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, B, type, n, A, type,
                     ta ? m : k, &zero, C, type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

struct Result {
  std::vector<float> change;  // what training did to each weight
  State state = {};
  size_t peak = 0;  // bytes
};
template <class T>
Result train(const char* what) {
  Result r;
  r.state.scale = 1;
  make_pool();
  const std::vector<float> start = numbers(weights, 0.002f);
  std::vector<T> end(weights);
  T* w = upload<T>(start);
  T* g = upload<T>(numbers(weights, 0));
  T* x = upload<T>(numbers(activations, 1));
  T* y = upload<T>(numbers(activations, 0));
  float* master = nullptr;
  if (sizeof(T) == 2) master = upload<float>(start);   // THE MITIGATION, 2: FP32 master weights
  if (sizeof(T) == 2) r.state.scale = 68719476736.0f;  // THE MITIGATION, 3: a loss scale, 2^36: it comes down
  State* state = upload<State>(std::vector<State>{r.state});
  for (int step = 0; step < updates + spare; ++step) {
    matmul<T>(false, rows, width, width, x, w, y);    // y = x @ w
    loss_gradient<T><<<blocks, threads>>>(y, state);  // its gradient stands in its place
    matmul<T>(true, width, width, rows, x, y, g);     // g = x.T @ dy
    find_overflow<T><<<blocks, threads>>>(g, state);  // each kernel sees what those before it wrote
    update<T><<<blocks, threads>>>(w, master, g, state);
    next_scale<<<1, 1>>>(state);
    CHECK(cudaGetLastError());
  }
  CHECK(cudaMemcpy(end.data(), w, weights * sizeof(T), cudaMemcpyDeviceToHost));
  r.change.assign(end.begin(), end.end());
  if (master) CHECK(cudaMemcpy(r.change.data(), master, weights * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < weights; ++i) r.change[i] -= start[i];
  CHECK(cudaMemcpy(&r.state, state, sizeof(State), cudaMemcpyDeviceToHost));
  for (void* p : std::initializer_list<void*>{w, g, x, y, state}) CHECK(cudaFreeAsync(p, 0));
  if (master) CHECK(cudaFreeAsync(master, 0));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &r.peak));
  CHECK(cudaMemPoolDestroy(pool));
  std::printf("  %s  peak %5.3f MiB  %d updates, %d skipped, loss scale 2^%.0f\n", what, double(r.peak) / (1 << 20),
              std::min(r.state.good, updates), updates + spare - r.state.good, std::log2(r.state.scale));
  require(r.peak <= 2 * sizeof(T) * activations + 8 * weights + rounding, "activations, and 8 bytes for each weight");
  require(r.state.good >= updates, "steps are skipped only until the scale is right");
  return r;
}
double norm(const std::vector<float>& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  CHECK(cublasSetMathMode(cublas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));  // sums in FP32, always
  std::printf("a layer of %d x %d, %d rows, %d updates\n", width, width, rows, updates);
  Result fp32;
  Result fp16;
  auto training = train<float>;  // its other form is chosen below; with 16 bits come masters and a scale
  if (without) fp32 = training("FP32");
  training = train<__half>;  // THE MITIGATION, 1: 16 bits for weights, gradients and activations
  if (with) fp16 = training("FP16");
  CHECK(cublasDestroy(cublas));
  if (with && without) {
    for (int i = 0; i < weights; ++i) fp16.change[i] -= fp32.change[i];
    const double off = norm(fp16.change) / norm(fp32.change);
    std::printf("  what training changed in the weights: %.2f %% apart\n", 100 * off);
    const size_t saved = 2 * size_t(activations) * 2;  // 2 arrays, x and y, 2 bytes for each of their numbers
    require(fp16.peak + saved <= fp32.peak + rounding, "2 bytes less for each activation");
    require(off < 0.01, "masters and scale keep the training as it is in FP32");
  }
  std::puts("PASS");
}
