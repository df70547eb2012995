// nvcc -o lesson lesson.cu -lcublas
//
// Inference. A layer computes h and y from its input x, and y is the next layer's x:
//     h = x W      y = x + silu(h)      silu(h) = h / (1 + e^-h)      (x, h and y: rows by width)
// A backward pass begins at the last layer, and asks every layer for its x and its h. So training keeps them all: this
// is the graph. In inference nothing comes after the output. Once a layer has its y, nobody asks for its x or h again.
// So y goes where h was, and the next layer's h goes where x was. Two buffers take turns, however many layers there
// are. The kernels are the same, and so are the bits. With u = 4 bytes * rows * width = 256 KiB for an x:
//     weights                                        4 bytes * width * width * layers     0.50 MiB for 32 layers
//     training: x and h of each layer, the output    (2 * layers + 1) u                  16.25 MiB
//     inference: two buffers                         2 u                                  0.50 MiB
// Outputs of many batches, collected on the device, take u more after each. They can wait on the host.
// The price: no backward pass can follow, and each batch has one copy to the host.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int rows = 1024;              // of a batch
constexpr int width = 64;               // numbers of a row
constexpr int count = rows * width;     // numbers of an x, an h or a y
constexpr int w_count = width * width;  // weights of a layer
constexpr size_t bytes = count * sizeof(float);
constexpr int blocks = 64;
constexpr int threads = 256;

void require(bool good, const char* what, const char* where = "expected") {
  if (good) return;
  std::printf("FAIL: %s: %s\n", where, what);
  std::exit(1);
}
void check(cudaError_t code, const char* call) { require(code == 0, cudaGetErrorString(code), call); }
void check(cublasStatus_t code, const char* call) { require(code == 0, cublasGetStatusString(code), call); }
#define CHECK(call) check(call, #call)  // 0 is cudaSuccess, and CUBLAS_STATUS_SUCCESS

__global__ void add_silu(const float* x, const float* h, float* y) {  // y may be h: a number is read, then written
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    y[i] = x[i] + h[i] / (1 + expf(-h[i]));
}

cublasHandle_t cublas;
size_t live_bytes;  // counted by allocate() and release()
size_t peak_bytes;  // the maximum of live_bytes
float* allocate(size_t n) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, n * sizeof(float)));
  live_bytes += n * sizeof(float);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return p;
}
void release(float* p, size_t n) {
  CHECK(cudaFree(p));  // waits for kernels that still use p
  live_bytes -= n * sizeof(float);
}
void matmul(const float* x, const float* w, float* h) {  // h = x @ w; cuBLAS is column-major: h^T = w^T x^T
  const float one = 1;
  const float zero = 0;
  CHECK(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, width, rows, width, &one, w, width, x, width, &zero, h, width));
}

// Takes over buffer x, returns one with the output. What a backward pass would read goes to the graph, if there is one.
float* forward(float* x, const float* weights, int layers, std::vector<float*>* graph) {
  float* spare = nullptr;
  for (int l = 0; l < layers; ++l) {
    float* h = spare ? spare : allocate(count);
    float* y = graph ? allocate(count) : h;  // without a graph y goes where h was
    matmul(x, weights + l * w_count, h);
    add_silu<<<blocks, threads>>>(x, h, y);
    CHECK(cudaGetLastError());
    if (graph) graph->insert(graph->end(), {x, h});
    if (!graph) spare = x;  // THE MITIGATION: nobody reads x again, so the next layer's h goes there
    x = y;
  }
  if (spare) release(spare, count);
  return x;
}

__global__ void fill(float* p, int n, float scale, unsigned seed) {  // pseudo-random, between -scale and scale
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned hash = (unsigned(i) + (seed << 20) + 1) * 2654435761u;
    p[i] = scale * ((hash ^ (hash >> 15)) * 2246822519u / 2147483648.0f - 1.0f);
  }
}
struct Run {
  size_t peak = 0;
  std::vector<size_t> live;   // bytes before the first batch, and after each
  std::vector<float> result;  // of all batches
};
Run measure(int layers, unsigned batches, bool training, bool collect) {  // collect: all outputs on the device
  Run run;
  peak_bytes = live_bytes;
  std::vector<float*> graph;
  std::vector<float*> outputs;
  const auto to_host = [&] {
    for (float* y : outputs) {
      const size_t first = run.result.size();
      run.result.resize(first + count);
      CHECK(cudaMemcpy(&run.result[first], y, bytes, cudaMemcpyDeviceToHost));
      release(y, count);
    }
    outputs.clear();
  };
  float* weights = allocate(layers * w_count);
  run.live = {live_bytes};
  fill<<<blocks, threads>>>(weights, layers * w_count, 0.1f, 0);
  CHECK(cudaGetLastError());
  for (unsigned batch = 1; batch <= batches; ++batch) {
    float* x = allocate(count);
    fill<<<blocks, threads>>>(x, count, 1.0f, batch);
    CHECK(cudaGetLastError());
    outputs.push_back(forward(x, weights, layers, training ? &graph : nullptr));
    for (float* p : graph) release(p, count);  // as a backward pass would, which is left out here
    graph.clear();
    if (!collect) to_host();  // THE MITIGATION: the outputs of one batch at most are on the device
    run.live.push_back(live_bytes);
  }
  to_host();
  release(weights, layers * w_count);
  run.peak = peak_bytes;
  return run;
}
double MiB(size_t n) { return n / 1048576.0; }
void print(const char* where, const Run& run) {
  std::printf("  outputs %-22s", where);
  for (size_t live : run.live) std::printf(" %5.2f", MiB(live));
  std::printf("  %5.2f MiB\n", MiB(run.peak));
}

int main(int argc, char** argv) {
  const bool with = argc < 2 || !std::strcmp(argv[1], "--with");
  const bool without = argc < 2 || !std::strcmp(argv[1], "--without");
  require(with || without, "--with, --without, or neither to see both");
  CHECK(cublasCreate(&cublas));
  std::printf("%d rows of width %d, FP32: %.2f MiB a buffer\n", rows, width, MiB(bytes));
  std::puts("  layers    weights         training, peak      inference, peak  ratio  outputs");
  for (int layers : {16, 32, 64}) {
    const size_t weights = layers * w_count * sizeof(float);
    std::printf("  %6d  %5.2f MiB", layers, MiB(weights));
    Run kept;
    Run freed;
    size_t kept_buffers = 0;
    size_t freed_buffers = 0;
    if (without) {
      kept = measure(layers, 1, true, false);
      kept_buffers = (kept.peak - weights) / bytes;
      std::printf("  %3zu buffers %5.2f MiB", kept_buffers, MiB(kept.peak));
    }
    if (with) {
      freed = measure(layers, 1, false, false);
      freed_buffers = (freed.peak - weights) / bytes;
      std::printf("  %zu buffers %5.2f MiB", freed_buffers, MiB(freed.peak));
    }
    const bool equal = with && without && kept.result == freed.result &&
                       !std::memcmp(kept.result.data(), freed.result.data(), bytes);  // == takes -0 for 0
    if (with && without) std::printf(" %6.1f  %s", double(kept.peak) / freed.peak, equal ? "bit-equal" : "different");
    std::puts("");
    if (without) require(kept_buffers == 2 * size_t(layers) + 1, "x and h of each layer, and the output");
    if (with) require(freed_buffers == 2, "two buffers in inference, whatever the depth");
    require(equal || !with || !without, "the same outputs");
  }
  std::printf("32 layers, live after batch       none     1     2     3     4     5     6       peak\n");
  Run device;
  Run host;
  if (without) {
    device = measure(32, 6, false, true);
    print("stay on the device", device);
    require(device.live.back() - device.live[0] == 6 * bytes, "six outputs on the device, if they are collected there");
  }
  if (with) {
    host = measure(32, 6, false, false);
    print("go to the host", host);
    require(host.live.back() == host.live[0], "no growth from batch to batch on the device");
  }
  CHECK(cublasDestroy(cublas));
  if (with && without) require(device.result == host.result, "the same outputs");
  std::puts("PASS");
}
