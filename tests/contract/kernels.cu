// Ranges, reductions, shared memory and launches, at every kind of block size.

#include <algorithm>
#include <memory>
#include <numeric>

#include "contract.h"
#include "cuda/launch.h"

namespace {

using namespace oomlab;

__global__ void count_grid(unsigned* visits, std::size_t n) {
  for (std::size_t i : grid_range(n)) visits[i] += 1;
}
__global__ void count_rows(unsigned* visits, std::size_t rows) {
  for (std::size_t row : row_range(rows)) atomicAdd(&visits[row], 1u);
}
__global__ void count_block(unsigned* visits, std::size_t n, unsigned* threads) {
  for (std::size_t i : block_range(n)) atomicAdd(&visits[i], 1u);
  if (threadIdx.x == 0) threads[blockIdx.x] = blockDim.x;
}

// Sum and maximum of each row, several times in a row, so that a reduction that is still being read is written again.
__global__ void reduce_rows(const float* x, float* sums, float* maxima, std::size_t rows, std::size_t columns) {
  for (std::size_t row : row_range(rows)) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      float sum = 0, most = -1e30f;
      for (std::size_t c : block_range(columns)) {
        sum += x[row * columns + c] + static_cast<float>(repeat);
        most = x[row * columns + c] > most ? x[row * columns + c] : most;
      }
      sum = block_sum(sum);
      most = block_max(most);
      if (threadIdx.x == 0) {
        sums[row * 3 + static_cast<std::size_t>(repeat)] = sum;
        maxima[row * 3 + static_cast<std::size_t>(repeat)] = most;
      }
    }
  }
}
// All threads get the result, not only the first.
__global__ void sum_to_all(float* y, std::size_t n) {
  float mine = 0;
  for (std::size_t i : block_range(n)) mine += static_cast<float>(i + 1);
  const float total = block_sum(mine);
  for (std::size_t i : block_range(n)) y[i] = total;
}
__global__ void sum_doubles(double* y) {
  double mine = 0;
  for (std::size_t i : block_range(1000)) mine += 1.0 / static_cast<double>(i + 1);
  mine = block_sum(mine);
  if (threadIdx.x == 0) y[blockIdx.x] = mine;
}

// Turns every row around through shared memory.
__global__ void reverse_rows(float* y, std::size_t rows, std::size_t columns) {
  float* row_copy = dynamic_shared<float>();
  for (std::size_t row : row_range(rows)) {
    for (std::size_t c : block_range(columns)) row_copy[c] = y[row * columns + c];
    __syncthreads();
    for (std::size_t c : block_range(columns)) y[row * columns + c] = row_copy[columns - 1 - c];
    __syncthreads();
  }
}
__global__ void write_alignment(std::size_t* y) {
  if (threadIdx.x == 0) y[blockIdx.x] = reinterpret_cast<std::size_t>(dynamic_shared<float>()) % 16;
}

struct Big {
  float value[100];
};
__global__ void use_arguments(float* y, Big big, char c, double d, const float* nothing) {
  for (std::size_t i : grid_range(100)) y[i] = big.value[i] + c + static_cast<float>(d) + (nothing ? 1 : 0);
}
__global__ void one_of_each(unsigned* u, int* i, float* f) {
  for ([[maybe_unused]] std::size_t k : grid_range(1000)) {
    atomicAdd(u, 1u);
    atomicAdd(i, -1);
    atomicAdd(f, 0.5f);
  }
}
__global__ void do_nothing() {}

class Kernels : public Contract, public testing::WithParamInterface<unsigned> {
 protected:
  unsigned threads() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Threads, Kernels, testing::ValuesIn(kDistinctBlockThreads));

TEST_P(Kernels, GridRangeVisitsEachIndexOnce) {
  for (const std::size_t n : {0ul, 1ul, 15ul, 17ul, 1000ul, 4097ul}) {
    for (const unsigned grid : {1u, 2u, 3u, 64u, blocks_for_items(n, threads())}) {
      Values<unsigned> visits(std::vector<unsigned>(n + 1, 0));
      launch(count_grid, {grid, threads(), 0}, nullptr, visits.data(), n);
      std::vector<unsigned> expected(n + 1, 1);
      expected[n] = 0;
      ASSERT_EQ(expected, visits.get()) << n << " items, " << grid << " blocks";
    }
  }
}

TEST_P(Kernels, RowRangeGivesARowToAllThreadsOfOneBlock) {
  for (const std::size_t rows : {1ul, 7ul, 130ul}) {
    for (const unsigned grid : {1u, 2u, 5u, blocks_for_rows(rows)}) {
      Values<unsigned> visits(std::vector<unsigned>(rows, 0)), width(1);
      launch(count_rows, {grid, threads(), 0}, nullptr, visits.data(), rows);
      Values<unsigned> once(std::vector<unsigned>(1, 0));
      launch(count_block, {1, threads(), 0}, nullptr, once.data(), std::size_t(1), width.data());
      ASSERT_EQ(std::vector<unsigned>(rows, width.get()[0]), visits.get());  // once by each thread
    }
  }
}

TEST_P(Kernels, BlockRangeVisitsEachIndexOnceABlock) {
  for (const std::size_t n : {1ul, 2ul, 31ul, 1025ul}) {
    const unsigned grid = 3;
    Values<unsigned> visits(std::vector<unsigned>(n, 0)), width(grid);
    launch(count_block, {grid, threads(), 0}, nullptr, visits.data(), n, width.data());
    ASSERT_EQ(std::vector<unsigned>(n, grid), visits.get());
  }
}

TEST_P(Kernels, ReductionsMayFollowEachOther) {
  const std::size_t rows = 9, columns = 321;
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 7919 % 512) - 256);
  Values<float> input(x), sums(rows * 3), maxima(rows * 3);
  launch(reduce_rows, {blocks_for_rows(rows), threads(), 0}, nullptr, input.data(), sums.data(), maxima.data(), rows,
         columns);
  const auto got_sums = sums.get(), got_maxima = maxima.get();
  for (std::size_t row = 0; row < rows; ++row) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(row * columns), last = first + columns;
    for (std::size_t repeat = 0; repeat < 3; ++repeat) {
      // integers below 2^24, so any order of summation is exact
      EXPECT_EQ(std::accumulate(first, last, 0.0f) + static_cast<float>(repeat * columns), got_sums[row * 3 + repeat]);
      EXPECT_EQ(*std::max_element(first, last), got_maxima[row * 3 + repeat]);
    }
  }
}

TEST_P(Kernels, ReductionsReachAllThreads) {
  Values<float> y(1025);
  launch(sum_to_all, {1, threads(), 0}, nullptr, y.data(), std::size_t(1025));
  EXPECT_EQ(std::vector<float>(1025, 1025.0f * 1026 / 2), y.get());
}

TEST_P(Kernels, ReductionsOfDoubles) {
  Values<double> y(2);
  launch(sum_doubles, {2, threads(), 0}, nullptr, y.data());
  double expected = 0;
  for (int i = 1; i <= 1000; ++i) expected += 1.0 / i;
  for (const double got : y.get()) EXPECT_NEAR(expected, got, 1e-12);
}

TEST_P(Kernels, DynamicSharedMemory) {
  for (const std::size_t columns : {1ul, 33ul, 12288ul}) {  // the last is 48 KiB, what any kernel may have
    const std::size_t rows = 5;
    std::vector<float> x(rows * columns);
    std::iota(x.begin(), x.end(), 0.0f);
    Values<float> y(x);
    launch(reverse_rows, {3, threads(), columns * sizeof(float)}, nullptr, y.data(), rows, columns);
    for (std::size_t row = 0; row < rows; ++row)
      std::reverse(x.begin() + static_cast<std::ptrdiff_t>(row * columns),
                   x.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
    ASSERT_EQ(x, y.get()) << columns;
  }
}

TEST_P(Kernels, DynamicSharedMemoryIsAligned) {
  Values<std::size_t> y(4);
  launch(write_alignment, {4, threads(), 20}, nullptr, y.data());
  EXPECT_EQ(std::vector<std::size_t>(4, 0), y.get());
}

TEST_P(Kernels, ArgumentsAreCopiedAndConverted) {
  Values<float> y(100);
  auto big = std::make_unique<Big>();
  for (int i = 0; i < 100; ++i) big->value[i] = static_cast<float>(i);
  launch(use_arguments, {2, threads(), 0}, nullptr, y.data(), *big, 1, 2, nullptr);
  *big = {};
  big.reset();
  std::vector<float> expected(100);
  std::iota(expected.begin(), expected.end(), 3.0f);
  EXPECT_EQ(expected, y.get());
}

TEST_P(Kernels, Atomics) {
  Values<unsigned> u(std::vector<unsigned>{0});
  Values<int> i(std::vector<int>{0});
  Values<float> f(std::vector<float>{0});
  launch(one_of_each, {7, threads(), 0}, nullptr, u.data(), i.data(), f.data());
  EXPECT_EQ(1000u, u.get()[0]);
  EXPECT_EQ(-1000, i.get()[0]);
  EXPECT_EQ(500.0f, f.get()[0]);
}

class Launch : public Contract {
 protected:
  static cudaError_t start(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream = nullptr) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, do_nothing);
  }
};

TEST_F(Launch, RefusesImpossibleShapes) {
  EXPECT_CUDA(cudaSuccess, start(1, 1, 0));
  EXPECT_CUDA(cudaSuccess, start(100000, 1024, 0));
  // CUDA's documents and the host runtime say cudaErrorInvalidConfiguration; CUDA 13.0 on an H100 says
  // cudaErrorInvalidValue.
  const auto refused = [](dim3 grid, dim3 block) {
    const cudaError_t error = start(grid, block, 0);
    EXPECT_TRUE(error == cudaErrorInvalidConfiguration || error == cudaErrorInvalidValue) << error;
    EXPECT_EQ(error, cudaGetLastError());
  };
  for (const dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1, 65536)}) refused(grid, 32);
  for (const dim3 block : {dim3(0), dim3(1025), dim3(1, 0), dim3(1, 1, 65)}) refused(1, block);
  CUDA_CHECK(cudaDeviceSynchronize());
}

TEST_F(Launch, SharedMemoryBeyondTheDefaultIsRefused) {
  EXPECT_CUDA(cudaSuccess, start(1, 1, 48 << 10));
  EXPECT_NE(cudaSuccess, start(1, 1, 64 << 10)) << "a kernel would have to ask for it, which none here does";
  EXPECT_NE(cudaSuccess, cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
}

TEST_F(Launch, OnAStream) {
  Stream stream;
  EXPECT_CUDA(cudaSuccess, start(1, 32, 0, stream));
  EXPECT_CUDA(cudaSuccess, start(1, 32, 0, nullptr));
  stream.synchronize();
}

TEST_F(Launch, ThrowsAndLeavesNoErrorBehind) {
  EXPECT_THROW(launch(do_nothing, {0, 1, 0}, nullptr), CudaError);
  EXPECT_CUDA(cudaSuccess, cudaPeekAtLastError());
}

}  // namespace
