#pragma once
// One contract (memory/resource.h), every resource: those of common/memory, and a chapter's own allocators.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/raii.h"
#include "memory/resource.h"

#include "blocks.h"

namespace oomlab {

/// How a resource is made: specialised where it needs others below it. Members are destroyed in reverse order, the top
/// of the stack first.
template <class Resource>
struct Stack {
  explicit Stack(cudaStream_t) {}
  Resource top;
};

template <class Resource>
class ResourceContract : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "an error was left behind";
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  Stream stream_;
  Stack<Resource> stack_{stream_};
  MemoryResource& memory_ = stack_.top;
};

TYPED_TEST_SUITE_P(ResourceContract);

TYPED_TEST_P(ResourceContract, NoBytesAreNoBlock) {
  const std::size_t reserved = this->memory_.reserved_bytes();
  EXPECT_EQ(this->memory_.allocate(0, this->stream_), nullptr);
  this->memory_.deallocate(nullptr, 0, this->stream_);
  this->memory_.deallocate(nullptr, 100, this->stream_);
  EXPECT_EQ(this->memory_.reserved_bytes(), reserved);
}

TYPED_TEST_P(ResourceContract, BlocksAreAlignedAndApart) {
  const std::vector<std::size_t> sizes = {1, 511, 512, 513, 4096, 100'000, kMiB, kMiB + 1};
  std::vector<std::pair<std::uintptr_t, std::size_t>> blocks;
  for (const std::size_t bytes : sizes) {
    void* address = this->memory_.allocate(bytes, this->stream_);
    ASSERT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0u) << bytes << " bytes";
    blocks.emplace_back(reinterpret_cast<std::uintptr_t>(address), bytes);
  }
  EXPECT_GE(this->memory_.reserved_bytes(), std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i)
    EXPECT_LE(blocks[i - 1].first + round_to_granule(blocks[i - 1].second), blocks[i].first);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  for (const auto& [address, bytes] : blocks)
    this->memory_.deallocate(reinterpret_cast<void*>(address), bytes, this->stream_);
}

TYPED_TEST_P(ResourceContract, BlocksHoldWhatIsWritten) {
  constexpr std::size_t kBytes = 10'000;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(this->memory_.allocate(kBytes, this->stream_));
    CUDA_CHECK(cudaMemsetAsync(blocks.back(), i + 1, kBytes, this->stream_));
  }
  for (int i = 0; i < 8; ++i) {
    std::vector<unsigned char> back(kBytes);
    CUDA_CHECK(cudaMemcpyAsync(back.data(), blocks[i], kBytes, cudaMemcpyDefault, this->stream_));
    this->stream_.synchronize();
    EXPECT_EQ(std::count(back.begin(), back.end(), i + 1), static_cast<std::ptrdiff_t>(kBytes));
    this->memory_.deallocate(blocks[i], kBytes, this->stream_);
  }
}

TYPED_TEST_P(ResourceContract, QueuedWorkMayStillUseAFreedBlock) {
  std::vector<unsigned char> back(kMiB);
  for (int i = 1; i < 20; ++i) {
    void* address = this->memory_.allocate(kMiB / 2, this->stream_);
    CUDA_CHECK(cudaMemsetAsync(address, i, kMiB / 2, this->stream_));
    CUDA_CHECK(cudaMemcpyAsync(back.data(), address, kMiB / 2, cudaMemcpyDefault, this->stream_));
    this->memory_.deallocate(address, kMiB / 2, this->stream_);
    this->stream_.synchronize();
    ASSERT_EQ(back[0], i);
    ASSERT_EQ(back[kMiB / 2 - 1], i);
  }
}

TYPED_TEST_P(ResourceContract, WhatCannotBeServedChangesNothing) {
  void* before = this->memory_.allocate(4096, this->stream_);
  const std::size_t reserved = this->memory_.reserved_bytes();
  constexpr std::size_t kImpossible = std::size_t(1) << 60;
  try {
    (void)this->memory_.allocate(kImpossible, this->stream_);
    ADD_FAILURE() << "served";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.report().requested, kImpossible);
    EXPECT_EQ(std::string(error.what()).rfind("CUDA out of memory. Tried to allocate 1024.00 PiB", 0), 0u)
        << error.what();
  } catch (const CudaError&) {  // some drivers call such a size invalid
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(this->memory_.reserved_bytes(), reserved);
  void* after = this->memory_.allocate(4096, this->stream_);
  EXPECT_NE(after, nullptr);
  this->memory_.deallocate(before, 4096, this->stream_);
  this->memory_.deallocate(after, 4096, this->stream_);
}

TYPED_TEST_P(ResourceContract, ASizeThatCannotBeRoundedIsRefused) {
  EXPECT_THROW((void)this->memory_.allocate(SIZE_MAX, this->stream_), std::length_error);
}

REGISTER_TYPED_TEST_SUITE_P(ResourceContract, NoBytesAreNoBlock, BlocksAreAlignedAndApart, BlocksHoldWhatIsWritten,
                            QueuedWorkMayStillUseAFreedBlock, WhatCannotBeServedChangesNothing,
                            ASizeThatCannotBeRoundedIsRefused);

}  // namespace oomlab
