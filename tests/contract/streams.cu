// Streams and events. Every program here is correctly synchronised, so it passes in any order that CUDA
// allows, the host runtime's deferred one included.

#include "contract.h"
#include "cuda/launch.h"

namespace {

using namespace oomlab;

__global__ void add(int* y, int value) {
  for (std::size_t i : grid_range(1000)) y[i] += value;
}
__global__ void twice(int* y) {
  for (std::size_t i : grid_range(1000)) y[i] *= 2;
}
__global__ void copy(int* to, const int* from) {
  for (std::size_t i : grid_range(1000)) to[i] = from[i];
}
constexpr unsigned threads = 64;

class Streams : public Contract {
 protected:
  static std::vector<int> all(int value) { return std::vector<int>(1000, value); }
};

TEST_F(Streams, AStreamIsAQueue) {
  Stream stream;
  Values<int> y(all(1));
  for (int i = 0; i < 5; ++i) {
    launch(add, {3, threads, 0}, stream, y.data(), 1);
    launch(twice, {2, threads, 0}, stream, y.data());
  }
  stream.synchronize();
  EXPECT_CUDA(cudaSuccess, cudaStreamQuery(stream));
  EXPECT_EQ(all(94), y.get());  // 1 -> 4 -> 10 -> 22 -> 46 -> 94
}

TEST_F(Streams, AnEventOrdersTwoStreams) {
  for (int round = 0; round < 10; ++round) {
    Stream first, second;
    Event done;
    Values<int> x(all(round)), y(all(0));
    launch(add, {2, threads, 0}, first, x.data(), 1);
    done.record(first);
    ASSERT_CUDA(cudaStreamWaitEvent(second, done, 0));
    launch(copy, {2, threads, 0}, second, y.data(), x.data());
    done.record(second);
    ASSERT_CUDA(cudaStreamWaitEvent(first, done, 0));
    launch(twice, {2, threads, 0}, first, x.data());
    second.synchronize();
    EXPECT_EQ(all(round + 1), y.get());
    EXPECT_EQ(all(2 * (round + 1)), x.get());
  }
}

TEST_F(Streams, TheDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  cudaStream_t a = nullptr, b = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&a));
  ASSERT_CUDA(cudaStreamCreate(&b));
  Values<int> y(all(1));
  for (int i = 0; i < 5; ++i) {
    launch(add, {2, threads, 0}, a, y.data(), 1);
    launch(twice, {2, threads, 0}, nullptr, y.data());
    launch(add, {2, threads, 0}, b, y.data(), -1);
    launch(twice, {2, threads, 0}, nullptr, y.data());
  }
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  int expected = 1;
  for (int i = 0; i < 5; ++i) expected = ((expected + 1) * 2 - 1) * 2;
  EXPECT_EQ(all(expected), y.get());
  EXPECT_CUDA(cudaSuccess, cudaStreamDestroy(a));
  EXPECT_CUDA(cudaSuccess, cudaStreamDestroy(b));
}

TEST_F(Streams, WorkOutlivesItsStream) {
  cudaStream_t stream = nullptr;
  Values<int> y(all(1));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launch(add, {2, threads, 0}, stream, y.data(), 1);
  EXPECT_CUDA(cudaSuccess, cudaStreamDestroy(stream));
  EXPECT_EQ(all(2), y.get());
}

TEST_F(Streams, FreeWaitsForTheDevice) {
  Stream stream;
  Values<int> y(all(1));
  int* x = nullptr;
  ASSERT_CUDA(cudaMalloc(&x, 4000));
  ASSERT_CUDA(cudaMemcpy(x, all(5).data(), 4000, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  launch(copy, {2, threads, 0}, stream, y.data(), x);
  EXPECT_CUDA(cudaSuccess, cudaFree(x));
  EXPECT_CUDA(cudaSuccess, cudaStreamQuery(stream)) << "cudaFree waits for all work of the device";
  EXPECT_EQ(all(5), y.get());
}

TEST_F(Streams, StreamOrderedMemoryIsReadyForItsStreamOnly) {
  Stream a, b;
  Event ready;
  Values<int> y(all(0));
  int* x = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&x, 4000, a));
  ASSERT_CUDA(cudaMemsetAsync(x, 0, 4000, a));
  launch(add, {2, threads, 0}, a, x, 3);
  ready.record(a);
  ASSERT_CUDA(cudaStreamWaitEvent(b, ready, 0));
  launch(copy, {2, threads, 0}, b, y.data(), x);
  ASSERT_CUDA(cudaFreeAsync(x, b));
  // the same memory, perhaps, while the copy may still be waiting: must not be overwritten before
  int* z = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&z, 4000, a));
  ASSERT_CUDA(cudaMemsetAsync(z, 0x77, 4000, a));
  ASSERT_CUDA(cudaFreeAsync(z, a));
  EXPECT_EQ(all(3), y.get());
}

TEST_F(Streams, EventsMeasureTime) {
  Stream stream;
  Event start, stop;
  Values<int> y(all(0));
  start.record(stream);
  for (int i = 0; i < 20; ++i) launch(add, {2, threads, 0}, stream, y.data(), 1);
  stop.record(stream);
  EXPECT_CUDA(cudaSuccess, cudaEventSynchronize(stop));
  float ms = -1;
  EXPECT_CUDA(cudaSuccess, cudaEventElapsedTime(&ms, start, stop));
  EXPECT_GE(ms, 0);
  EXPECT_CUDA(cudaSuccess, cudaEventElapsedTime(&ms, start, start));
  EXPECT_EQ(0, ms);
  EXPECT_CUDA(cudaSuccess, cudaEventElapsedTime(&ms, stop, start));
  EXPECT_LE(ms, 0);
}

TEST_F(Streams, EventsThatCannotMeasure) {
  Stream stream;
  Event recorded, fresh;
  recorded.record(stream);
  stream.synchronize();
  float ms = 0;
  EXPECT_CUDA_ERROR(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, recorded, fresh));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaEventElapsedTime(nullptr, recorded, recorded));
}

TEST_F(Streams, AnEventThatWasNeverRecordedIsDone) {
  Stream stream;
  Event event;
  EXPECT_CUDA(cudaSuccess, cudaEventSynchronize(event));
  EXPECT_CUDA(cudaSuccess, cudaStreamWaitEvent(stream, event, 0));
  EXPECT_CUDA(cudaSuccess, cudaStreamQuery(stream));
}

TEST_F(Streams, RefusesUnknownFlags) {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 77));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaStreamCreate(nullptr));
  EXPECT_CUDA_ERROR(cudaErrorInvalidValue, cudaEventCreate(static_cast<cudaEvent_t*>(nullptr)));
}

}  // namespace
