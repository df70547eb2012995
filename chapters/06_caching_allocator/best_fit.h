#pragma once
// The idea of a caching allocator in its simplest form, to be read first. caching_allocator.h is the one that wins.

#include <cstddef>
#include <map>
#include <tuple>

#include "cuda/check.h"
#include "memory/resource.h"

namespace oomlab::caching_allocator {

/// Takes segments from the device (20 MiB for requests below 10 MiB, larger ones just enough), cuts blocks from them,
/// and keeps what is freed. A request gets the smallest free block of its stream that is large enough; what is left
/// over stays free, and free neighbours grow together. When the device, or the limit, has no more, it takes just
/// enough, and then gives back the segments that are free as a whole and tries once more.
class BestFitAllocator final : public MemoryResource {
 public:
  /// Segments come from `upstream`, or from cudaMalloc.
  explicit BestFitAllocator(std::size_t limit_bytes = kUnlimited, MemoryResource* upstream = nullptr)
      : device_(upstream ? *upstream : cuda_), limit_(limit_bytes) {}
  ~BestFitAllocator() override { empty_cache(); }

  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    const std::size_t size = round_to_granule(bytes);
    if (size == 0) return nullptr;
    auto found = free_.lower_bound({stream, size, 0});
    if (found == free_.end() || std::get<0>(found->first) != stream) found = add_segment(size, stream);
    const auto block = found->second;
    if (block->second.size > size) {  // cut: the rest becomes a free block
      const auto rest = blocks_.insert({block->first + size, block->second}).first;
      rest->second.size -= size;
      rest->second.place += size;
      try {
        free_.insert({key(rest), rest});
      } catch (...) {
        blocks_.erase(rest);
        throw;
      }
      block->second.size = size;
    }
    free_.erase(found);
    block->second.free = false;
    return block->first;
  }

  void deallocate(void* address, std::size_t, cudaStream_t stream) noexcept override {
    if (!address) return;
    auto block = blocks_.find(static_cast<std::byte*>(address));
    if (stream != block->second.stream) report_if_failed(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    block->second.free = true;
    if (const auto after = std::next(block); grows_with(block, after)) merge(block, after);
    if (block != blocks_.begin())
      if (const auto before = std::prev(block); grows_with(before, block)) {
        merge(before, block);
        block = before;
      }
    try {
      free_.insert({key(block), block});
    } catch (const std::bad_alloc&) {  // the block is lost until its segment goes; nothing else is
    }
  }

  std::size_t reserved_bytes() const override { return device_.reserved_bytes(); }
  bool releases_cache() const override { return true; }
  std::size_t largest_free_block() const override {
    std::size_t largest = 0;
    for (const auto& [key, block] : free_) largest = std::max(largest, block->second.size);
    return largest;
  }

  /// Gives segments that are free as a whole back to the device.
  void empty_cache() noexcept {
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const auto now = block++;
      const Block& b = now->second;
      if (!b.free || b.size != b.segment_size) continue;
      free_.erase(key(now));
      device_.deallocate(now->first, b.size, b.stream);
      blocks_.erase(now);
    }
  }

 private:
  struct Block {
    std::size_t size;
    std::byte* segment;  // a block grows together only with neighbours of its own segment
    std::size_t segment_size;
    std::uint64_t place;  // orders blocks of a size: by segment, oldest first, whatever the driver's addresses are
    cudaStream_t stream;
    bool free;
  };
  using Blocks = std::map<std::byte*, Block>;
  using Key = std::tuple<cudaStream_t, std::size_t, std::uint64_t>;
  using Free = std::map<Key, Blocks::iterator>;
  static Key key(Blocks::iterator b) { return {b->second.stream, b->second.size, b->second.place}; }

  bool grows_with(Blocks::iterator a, Blocks::iterator b) const {
    return b != blocks_.end() && a->second.free && b->second.free && a->second.segment == b->second.segment;
  }
  void merge(Blocks::iterator a, Blocks::iterator b) noexcept {
    free_.erase(key(a));
    free_.erase(key(b));
    a->second.size += b->second.size;
    blocks_.erase(b);
  }

  Free::iterator add_segment(std::size_t size, cudaStream_t stream) {
    constexpr std::size_t kMiB = std::size_t(1) << 20;
    const std::size_t enough = checked_sum(size, 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    for (const std::size_t segment : {size < 10 * kMiB ? 20 * kMiB : enough, enough}) try {
        return take_segment(segment, stream);
      } catch (const OutOfMemory&) {
      }
    empty_cache();
    return take_segment(enough, stream);
  }

  Free::iterator take_segment(std::size_t segment, cudaStream_t stream) {
    if (segment > limit_ - std::min(limit_, reserved_bytes())) {
      OutOfMemoryReport report;
      report.requested = report.requested_rounded = segment;
      report.limit = limit_;
      report.limit_used = report.reserved = reserved_bytes();
      report.by_limit = true;
      report.largest_free_block = largest_free_block();
      throw OutOfMemory(std::move(report));
    }
    auto* const address = static_cast<std::byte*>(device_.allocate(segment, stream));
    auto block = blocks_.end();
    try {
      block = blocks_.insert({address, Block{segment, address, segment, next_place_, stream, true}}).first;
      const auto result = free_.insert({key(block), block}).first;
      next_place_ += segment;
      return result;
    } catch (...) {
      if (block != blocks_.end()) blocks_.erase(block);
      device_.deallocate(address, segment, stream);
      throw;
    }
  }

  CudaResource cuda_;
  MemoryResource& device_;
  std::size_t limit_;
  std::uint64_t next_place_ = 0;
  Blocks blocks_;
  Free free_;
};

}  // namespace oomlab::caching_allocator
