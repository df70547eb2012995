#pragma once
// A caching allocator: freed blocks are kept for the next request, so the driver is asked rarely.
//
//   Search      by size class (block_map.h): a handful of instructions, however many blocks there are. Sizes are exact
//               to the granule; a block that is larger than needed is cut, and neighbours that are free grow together.
//   Growth      by single pages under one large range of addresses (page_range.h), next to what is free already.
//   Two regions blocks of less than half a page have addresses of their own: a small block that lives long pins the
//               page that it is in, so small blocks should share pages with each other.
//   Streams     memory freed on a stream is at once usable on that stream. Another stream gets it after an event: the
//               device waits where it must, the host never does.
//   Remapping   what fragments here is addresses, not memory: whole pages inside free blocks are unmapped and mapped
//               again where a large block is wanted, before more is taken from the device than slack allows. This waits for
//               the stream, once.
//
// The ladder, when nothing free fits: (1) free blocks of other streams; (2) new pages, as far as limit and slack allow;
// (3) free blocks of the other region; (4) what grows together when all free blocks belong to one stream; (5) free
// pages, moved, and new ones up to the limit; (6) the callbacks, which may free something, and all of it again; (7)
// OutOfMemory, and nothing has changed, except that free blocks may have changed streams, and that a driver that failed
// half-way may have been given free pages back.
//
// Streams must outlive the allocator, or be idle and never used again.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "block_map.h"
#include "cuda/backend.h"
#include "cuda/raii.h"
#include "memory/resource.h"
#include "page_range.h"

namespace oomlab::caching_allocator {

class CachingAllocator final : public MemoryResource {
 public:
  struct Options {
    std::size_t limit = kUnlimited;  ///< bytes it may hold from the device
    /// Beyond the peak of live bytes times (1 + slack), free pages are moved rather than new ones taken.
    double slack = 1.0 / 16;
  };
  /// Asked for help before OutOfMemory, with the bytes that are missing; true when it has freed something.
  using Callback = std::function<bool(std::size_t)>;

  CachingAllocator() : CachingAllocator(Options{}) {}
  /// On the current device. Throws CudaError.
  explicit CachingAllocator(Options options) : options_(options), range_(addresses(options)) {
    granules_a_page_ = static_cast<std::uint32_t>(range_.page_bytes() / kGranule);
    map_.make_room(4);
    const std::size_t small_pages = range_.pages() / 8;
    map_.append(page_start(small_pages), State::hole, 0);
    border_ = map_.append(granules_a_page_, State::lost, 0);
    map_.count_holes_behind(border_);
  }
  void on_out_of_memory(Callback callback) { callbacks_.push_back(std::move(callback)); }

  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    const std::size_t rounded = round_to_granule(bytes);
    if (rounded == 0) return nullptr;
    const std::size_t granules = rounded / kGranule;
    const std::uint16_t owner = owner_of(stream, granules < granules_a_page_ / 2);
    map_.make_room(4);
    BlockId id = kNoBlock;
    if (granules < kMostGranules) id = map_.find_free(owner, static_cast<std::uint32_t>(granules), false);
    if (id == kNoBlock) id = find_slowly(owner, bytes, granules);
    map_.use(id, static_cast<std::uint32_t>(granules));
    live_ += granules;
    peak_ = std::max(peak_, live_);
    return range_.address(std::size_t(map_[id].start) * kGranule);
  }

  void deallocate(void* address, std::size_t, cudaStream_t stream) noexcept override {
    if (!address) return;
    const BlockId id = map_.find(static_cast<std::uint32_t>(range_.offset(address) / kGranule));
    if (id == kNoBlock) {
      std::fprintf(stderr, "CachingAllocator: %p is not a live block\n", address);
      return;
    }
    const bool small = is_small(id);
    std::uint16_t owner = static_cast<std::uint16_t>(map_.owner(map_[id]) / 2 * 2 + small);
    try {
      owner = owner_of(stream, small);
    } catch (...) {  // no event for a new stream: wait for it, then the block is as good as the owner's
      report_if_failed(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }
    live_ -= map_[id].size;
    map_.change(id, State::free, owner);
  }

  std::size_t reserved_bytes() const override { return range_.mapped() * range_.page_bytes(); }
  std::size_t live_bytes() const { return live_ * kGranule; }
  bool releases_cache() const override { return true; }
  std::size_t largest_free_block() const override {
    std::uint32_t largest = 0;
    for_blocks([&](BlockId id) {
      if (map_[id].state() == State::free) largest = std::max(largest, map_[id].size);
    });
    return largest * kGranule;
  }

  /// Gives the free pages back to the device and returns their bytes. Live blocks stay where they are, and with each of
  /// them the page it is in. Waits for the streams. Throws CudaError, std::bad_alloc: nothing has changed, except that
  /// a page whose unmapping failed is quarantined (lost_bytes()).
  std::size_t empty_cache() {
    std::vector<std::size_t> pages = free_pages(0, 0);
    map_.make_room(2 * pages.size() + 2);
    for (const auto& stream : streams_) CUDA_CHECK(cudaStreamSynchronize(stream->stream));
    std::size_t given = 0;
    for (const std::size_t page : pages) given += take_page(page) ? (range_.give_back(range_.taken()), 1) : 0;
    while (map_.last() != kNoBlock && map_[map_.last()].state() == State::hole) map_.pop();
    if (given < pages.size()) report_lost_page();
    return given * range_.page_bytes();
  }

  /// A hash of which addresses are what: equal before and after a failed allocation.
  std::uint64_t state_hash() const {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };
    for_blocks([&](BlockId id) {
      mix(map_[id].start), mix(map_[id].size), mix(std::uint64_t(map_[id].state())), mix(map_.owner(map_[id]));
    });
    mix(range_.mapped());
    return hash;
  }
  /// Empty, or what is wrong with the books: blocks must tile the range, memory must be where they say.
  std::string inconsistency() const {
    std::uint32_t at = 0;
    std::size_t live = 0, mapped_seen = 0;
    std::string wrong;
    BlockId before = kNoBlock;
    for_blocks([&](BlockId id) {
      const BlockMap::Block& b = map_[id];
      if (b.start != at || b.size == 0 || b.before != before) wrong = "blocks do not tile the range";
      if (before != kNoBlock && map_[before].state() == b.state() &&
          (b.state() == State::hole || (b.state() == State::free && map_.owner(map_[before]) == map_.owner(b))))
        wrong = "two free neighbours have not grown together";
      if (b.state() == State::used) live += b.size;
      if (b.state() == State::used && map_.find(b.start) != id) wrong = "a live block cannot be found";
      for (std::size_t page = b.start / granules_a_page_; page * granules_a_page_ < b.end(); ++page) {
        const bool should = b.state() == State::used || b.state() == State::free;
        if (range_.is_mapped(page) != should) wrong = "memory is not where the books say";
        if (should && page * granules_a_page_ >= b.start) ++mapped_seen;  // counted where the page begins
      }
      at = b.end();
      before = id;
    });
    if (before != map_.last()) wrong = "the last block is not the last";
    if (live != live_) wrong = "live bytes are not the sum of the live blocks";
    if (mapped_seen + range_.lost_pages() != range_.mapped()) wrong = "mapped pages do not add up";
    return wrong;
  }
  std::size_t lost_bytes() const { return range_.lost_pages() * range_.page_bytes(); }

 private:
  using State = BlockMap::State;
  static constexpr std::size_t kMostGranules = std::size_t(1) << 31;
  struct StreamOf {
    cudaStream_t stream;
    Event event;
  };

  static std::size_t addresses(const Options& options) {
    constexpr std::size_t kMost = std::size_t(1) << 40;
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    if (planning()) return kMost;
    return std::min(kMost, 8 * std::min(options.limit, total) + (std::size_t(64) << 20));
  }
  template <class Visit>
  void for_blocks(Visit visit) const {
    for (BlockId id = map_.first(); id != kNoBlock; id = map_.after(map_[id])) visit(id);
  }
  // Free blocks belong to a stream and a region: twice the stream's number, and 1 for the region of small blocks.
  std::uint16_t owner_of(cudaStream_t stream, bool small) {
    for (std::size_t i = 0; i < streams_.size(); ++i)
      if (streams_[i]->stream == stream) return static_cast<std::uint16_t>(2 * i + small);
    streams_.reserve(streams_.size() + 1);
    auto made = std::make_unique<StreamOf>(StreamOf{stream, Event()});
    map_.add_owners(2 * (streams_.size() + 1));
    streams_.push_back(std::move(made));
    return static_cast<std::uint16_t>(2 * (streams_.size() - 1) + small);
  }
  bool is_small(BlockId id) const { return map_[id].start < map_[border_].start; }
  // Work queued on `owner`'s stream from now on runs after all that is queued on `other`'s.
  void wait_for(std::uint16_t other, std::uint16_t owner) {
    if (other / 2 == owner / 2) return;
    streams_[other / 2]->event.record(streams_[other / 2]->stream);
    CUDA_CHECK(cudaStreamWaitEvent(streams_[owner / 2]->stream, streams_[other / 2]->event));
  }

  BlockId find_slowly(std::uint16_t owner, std::size_t bytes, std::size_t granules) {
    for (bool helped = true; helped;) {
      if (granules < kMostGranules) {
        const auto size = static_cast<std::uint32_t>(granules);
        if (const BlockId id = map_.find_free(owner, size, true); id != kNoBlock) return id;
        if (const BlockId id = borrow(owner, size, owner % 2); id != kNoBlock) return id;
        if (const BlockId id = grow(owner, size, /*move=*/false); id != kNoBlock) return id;
        if (const BlockId id = borrow(owner, size, 1 - owner % 2); id != kNoBlock) return id;
        unite(owner);
        if (const BlockId id = map_.find_free(owner, size, true); id != kNoBlock) return id;
        if (const BlockId id = grow(owner, size, /*move=*/true); id != kNoBlock) return id;
      }
      helped = false;
      for (const Callback& callback : callbacks_) helped |= callback(bytes);
    }
    OutOfMemoryReport report;
    report.requested = bytes;
    report.requested_rounded = granules * kGranule;
    report.live = report.limit_used = report.live_requested = live_bytes();
    report.reserved = reserved_bytes();
    report.limit = options_.limit;
    report.by_limit = options_.limit != kUnlimited;
    report.largest_free_block = largest_free_block();
    throw OutOfMemory(std::move(report));
  }

  // A free block of a region, of whatever stream.
  BlockId borrow(std::uint16_t owner, std::uint32_t size, unsigned region) {
    BlockId best = kNoBlock;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const auto other = static_cast<std::uint16_t>(2 * i + region);
      const BlockId id = other == owner ? kNoBlock : map_.find_free(other, size, true);
      if (id != kNoBlock && (best == kNoBlock || map_[id].size < map_[best].size)) best = id;
    }
    if (best == kNoBlock) return kNoBlock;
    wait_for(map_.owner(map_[best]), owner);
    return map_.change(best, State::free, static_cast<std::uint16_t>(owner / 2 * 2 + region));
  }
  // All free blocks of all streams become this stream's, so that neighbours grow together.
  void unite(std::uint16_t owner) {
    std::vector<bool> waited(streams_.size());
    for_blocks([&](BlockId id) {
      const std::uint16_t other = map_.owner(map_[id]);
      if (map_[id].state() != State::free || waited[other / 2]) return;
      wait_for(other, owner);
      waited[other / 2] = true;
    });
    for (BlockId id = map_.first(); id != kNoBlock; id = map_.after(map_[id]))
      if (map_[id].state() == State::free && map_.owner(map_[id]) / 2 != owner / 2)
        id = map_.change(id, State::free, static_cast<std::uint16_t>(owner / 2 * 2 + is_small(id)));
  }

  // ---------------------------------------------------------------------------------------------------------- pages

  std::size_t first_page(std::uint32_t granule) const { return granule / granules_a_page_; }
  std::size_t end_page(std::uint32_t granule) const { return (granule + granules_a_page_ - 1) / granules_a_page_; }
  std::uint32_t page_start(std::size_t page) const { return static_cast<std::uint32_t>(page * granules_a_page_); }

  // Where a block of `size` would need the fewest new pages: a stretch of free blocks and holes, or beyond the end.
  struct Window {
    std::uint32_t start = 0;
    std::size_t needed = SIZE_MAX;
    BlockId gap = kNoBlock;  // where the stretch begins
  };
  Window best_window(std::uint16_t owner, std::uint32_t size) const {
    Window best;
    const bool small = owner % 2;
    const std::uint64_t range_end = std::uint64_t(range_.pages()) * granules_a_page_;
    const BlockId region_end = small ? border_ : kNoBlock;
    const auto consider = [&](std::uint64_t start, std::uint64_t gap_start, std::uint64_t gap_end) {
      if (start < gap_start || start + size > gap_end) return;
      std::size_t needed = 0;
      for (std::size_t page = start / granules_a_page_; page * granules_a_page_ < start + size; ++page)
        needed += !range_.is_mapped(page);
      if (needed < best.needed) best = {static_cast<std::uint32_t>(start), needed, static_cast<BlockId>(gap_start)};
    };
    const auto in_gap = [&](BlockId id) {
      return id != region_end &&
             (map_[id].state() == State::hole || (map_[id].state() == State::free && map_.owner(map_[id]) == owner));
    };
    std::uint64_t after_last = map_[map_.last()].end();
    BlockId from = small ? map_.first() : map_.after(map_[border_]);
    const BlockId tail = small ? map_[border_].before : map_.last();
    const std::size_t holes = small ? map_.holes() - map_.holes_behind() : map_.holes_behind();
    if (holes == (map_[tail].state() == State::hole)) {  // but at the end of the region there is none
      from = region_end;
      for (BlockId id = tail; id != kNoBlock && in_gap(id); id = map_[id].before) from = id;
    }
    for (BlockId id = from; id != region_end && best.needed > 1;) {
      if (!in_gap(id)) {
        id = map_.after(map_[id]);
        continue;
      }
      BlockId end = id;
      bool hole = false;
      for (; in_gap(end); end = map_.after(map_[end])) hole |= map_[end].state() == State::hole;
      const std::uint64_t gap_start = map_[id].start, gap_end = end == kNoBlock ? range_end : map_[end].start;
      if (end == kNoBlock) after_last = gap_start;
      if (hole && end != kNoBlock) {  // free blocks alone were found too small before
        consider(gap_start, gap_start, gap_end);
        if (gap_end >= size) consider(gap_end - size, gap_start, gap_end);
        for (BlockId b = id; b != end; b = map_.after(map_[b])) {
          if (map_[b].state() != State::free) continue;
          consider(map_[b].start, gap_start, gap_end);
          if (map_[b].end() >= size) consider(map_[b].end() - size, gap_start, gap_end);
        }
      }
      id = end;
    }
    if (!small) consider(after_last, after_last, range_end);
    return best;
  }

  // Whole pages inside free blocks, those of the largest blocks first, but none in pages [keep_first, keep_end).
  std::vector<std::size_t> free_pages(std::size_t keep_first, std::size_t keep_end) const {
    std::vector<BlockId> blocks;
    for_blocks([&](BlockId id) {
      if (map_[id].state() == State::free) blocks.push_back(id);
    });
    std::sort(blocks.begin(), blocks.end(), [&](BlockId a, BlockId b) {
      return map_[a].size != map_[b].size ? map_[a].size > map_[b].size : map_[a].start > map_[b].start;
    });
    std::vector<std::size_t> pages;
    for (const BlockId id : blocks)
      for (std::size_t page = end_page(map_[id].start); page_start(page + 1) <= map_[id].end(); ++page)
        if (page < keep_first || page >= keep_end) pages.push_back(page);
    return pages;
  }

  // The block that a page inside a free block or a hole becomes when it turns into something else. `near`: a block not
  // behind it, from which it is looked for.
  BlockId carve(std::size_t page, State state, std::uint16_t owner, BlockId near = kNoBlock) {
    BlockId id = map_.at(page_start(page), near);
    if (map_[id].start < page_start(page)) id = map_.cut(id, page_start(page) - map_[id].start);
    if (map_[id].size > granules_a_page_) map_.cut(id, granules_a_page_);
    return map_.change(id, state, owner);
  }
  // Unmaps a page of a free block. False: it is lost.
  bool take_page(std::size_t page) noexcept {
    const bool taken = range_.take(page);
    carve(page, taken ? State::hole : State::lost, 0);
    return taken;
  }

  // New pages until a free block of `size` is there: no more than slack allows, or, with `move`, which needs all free
  // blocks to be this stream's, free pages moved, and new ones up to the limit.
  BlockId grow(std::uint16_t owner, std::uint32_t size, bool move) {
    const Window window = best_window(owner, size);
    if (window.needed == SIZE_MAX) return kNoBlock;
    const std::size_t first = first_page(window.start), end = end_page(window.start + size);
    const std::size_t limit = options_.limit / range_.page_bytes(), mapped = range_.mapped();
    const std::size_t may_grow = limit > mapped ? limit - mapped : 0;
    // Small blocks always get a page of their own: in a gap between large ones they would pin it for as long as they
    // live.
    const double comfortable = double(std::max(peak_, live_ + size)) * (1 + options_.slack) / granules_a_page_ + 1;
    const std::size_t within_slack = comfortable > double(mapped) ? std::size_t(comfortable) - mapped : 0;
    const std::size_t new_pages = std::min({window.needed, may_grow, owner % 2 ? may_grow : within_slack});
    if (new_pages < window.needed && !move) return kNoBlock;
    std::vector<std::size_t> movable;
    if (new_pages < window.needed) movable = free_pages(first, end);
    if (movable.size() + may_grow < window.needed) return kNoBlock;
    // Books and lists first, so that nothing can fail for want of host memory once pages are on the move.
    range_.make_room(end);
    scratch_.reserve(window.needed);
    std::vector<CUmemGenericAllocationHandle> handles;
    handles.reserve(window.needed);
    const auto release_all = [&] {
      for (const auto handle : handles) range_.give_back(handle);
    };
    try {
      const std::size_t create = std::max(new_pages, window.needed - std::min(window.needed, movable.size()));
      while (handles.size() < create) {
        CUmemGenericAllocationHandle handle = 0;
        if (!range_.create(handle)) {  // the device has no more, whatever the limit says
          if (move && movable.empty()) movable = free_pages(first, end);
          break;
        }
        handles.push_back(handle);
      }
      map_.make_room(2 * (window.needed + movable.size()) + 4);
      const bool enough = handles.size() + movable.size() >= window.needed;
      if (enough && handles.size() < window.needed) CUDA_CHECK(cudaStreamSynchronize(streams_[owner / 2]->stream));
      if (!enough) movable.clear();
    } catch (...) {
      release_all();
      throw;
    }
    bool lost = false;
    for (const std::size_t page : movable) {
      if (handles.size() == window.needed || lost) break;
      lost = !take_page(page);
      if (!lost) handles.push_back(range_.taken());
    }
    if (handles.size() < window.needed || lost) {
      release_all();
      if (lost) report_lost_page();
      return kNoBlock;
    }
    extend_to(end);
    if (!put_pages(first, end, handles)) return kNoBlock;
    BlockId grown = kNoBlock, near = window.gap;
    for (std::size_t page = first; page < end; ++page) {
      near = map_.at(page_start(page), near);
      if (map_[near].state() == State::hole) near = grown = carve(page, State::free, owner, near);
    }
    return grown;
  }

  // The books are right, and the page is never used again; but the user should know.
  [[noreturn]] static void report_lost_page() {
    throw_cuda_error(cudaErrorUnknown, "cuMemUnmap: a page is quarantined", __FILE__, __LINE__);
  }
  // Appends a hole, so that the books reach to the end of a page.
  void extend_to(std::size_t end) {
    if (const std::uint32_t at = map_.last() == kNoBlock ? 0 : map_[map_.last()].end(); at < page_start(end))
      map_.change(map_.append(page_start(end) - at, State::hole, 0), State::hole);
  }

  // Maps `handles` under the pages of [first, end) that have no memory. On failure all of it is given back; false when
  // that was for want of memory. Throws CudaError.
  bool put_pages(std::size_t first, std::size_t end, const std::vector<CUmemGenericAllocationHandle>& handles) {
    std::vector<std::size_t>& put = scratch_;
    put.clear();
    CUresult result = CUDA_SUCCESS;
    for (std::size_t page = first; page < end && result == CUDA_SUCCESS; ++page) {
      if (range_.is_mapped(page)) continue;
      result = range_.put(page, handles[put.size()]);
      if (result == CUDA_SUCCESS) put.push_back(page);
    }
    for (std::size_t i = 0, run = 0; i < put.size() && result == CUDA_SUCCESS; i = run) {
      for (run = i + 1; run < put.size() && put[run] == put[run - 1] + 1;) ++run;
      result = range_.allow_access(put[i], run - i);
    }
    if (result == CUDA_SUCCESS) return true;
    for (std::size_t next = put.size(); next < handles.size(); ++next) range_.give_back(handles[next]);
    for (const std::size_t page : put)
      range_.take(page) ? range_.give_back(range_.taken()) : void(carve(page, State::lost, 0));
    while (map_.last() != kNoBlock && map_[map_.last()].state() == State::hole) map_.pop();
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    throw_cuda_error(static_cast<cudaError_t>(result), "cuMemMap, cuMemSetAccess", __FILE__, __LINE__);
  }

  Options options_;
  PageRange range_;
  std::uint32_t granules_a_page_ = 0;
  BlockMap map_;
  BlockId border_ = kNoBlock;  // between the small blocks' region and the others': a page that never has memory
  std::vector<std::unique_ptr<StreamOf>> streams_;  // by owner
  std::vector<Callback> callbacks_;
  std::vector<std::size_t> scratch_;
  std::size_t live_ = 0, peak_ = 0;  // granules
};

}  // namespace oomlab::caching_allocator
