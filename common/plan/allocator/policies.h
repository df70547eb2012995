#pragma once
// What other allocators would do with the same requests: their published rules on a simulated device, no CUDA call. A
// policy sees allocations and frees by number, and says what it holds. Each is written from its project's documentation
// and documented constants, for comparison; none of their code is here.

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oomlab::bench {

inline constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * 1024;
constexpr std::uint64_t up(std::uint64_t bytes, std::uint64_t step) { return (bytes + step - 1) / step * step; }

class Policy {
 public:
  virtual ~Policy() = default;
  /// False: out of memory under its budget.
  virtual bool allocate(std::uint64_t id, std::uint64_t bytes, std::uint64_t stream) = 0;
  virtual void free(std::uint64_t id) = 0;
  /// Bytes held from the device.
  std::uint64_t reserved() const { return reserved_; }

 protected:
  explicit Policy(std::uint64_t budget) : budget_(budget) {}
  bool take(std::uint64_t bytes) {
    if (bytes > budget_ - std::min(budget_, reserved_)) return false;
    reserved_ += bytes;
    return true;
  }
  std::uint64_t budget_, reserved_ = 0;
};

// ------------------------------------------------------------------------------------------------------------- PyTorch

/// PyTorch's caching allocator: best fit per stream, 512-byte rounding; requests up to 1 MiB come from the small pool,
/// in segments of 2 MiB; up to 10 MiB from segments of 20 MiB; larger ones get a segment of their own, rounded to 2
/// MiB. A block of the large pool is cut only when more than 1 MiB remains. Out of memory: whole free segments go back,
/// and it is tried once more. Expandable: one segment a pool and stream that grows by pages (2 MiB small, 20 MiB
/// large), cut to 512 bytes; out of memory: whole free pages go back.
class PyTorchPolicy final : public Policy {
 public:
  PyTorchPolicy(std::uint64_t budget, bool expandable) : Policy(budget), expandable_(expandable) {}

  bool allocate(std::uint64_t id, std::uint64_t bytes, std::uint64_t stream) override {
    const std::uint64_t size = std::max<std::uint64_t>(512, up(bytes, 512));
    Pool& pool = pools_[{stream, size <= kMiB}];
    Iterator block;
    if (!find(pool, size, block) && !grow(pool, size, size <= kMiB, block)) {
      release_cached();
      if (!grow(pool, size, size <= kMiB, block)) return false;
    }
    pool.free.erase(key(block));
    const std::uint64_t rest = block->size - size;
    if (expandable_ || size <= kMiB ? rest >= 512 : rest > kMiB) {
      const Iterator next = block->segment->blocks.insert(std::next(block), *block);
      next->size = rest;
      next->place += size;
      block->size = size;
      pool.free.insert({key(next), next});
    }
    block->state = State::used;
    allocated_ += block->size;
    live_[id] = block;
    return true;
  }
  void free(std::uint64_t id) override {
    const auto found = live_.find(id);
    Iterator block = found->second;
    live_.erase(found);
    allocated_ -= block->size;
    block->state = State::free;
    merge(block);
  }
  /// Bytes of the blocks that are used: of the large pool up to 1 MiB more than was asked for.
  std::uint64_t allocated() const { return allocated_; }

 private:
  enum class State { used, free, unmapped };
  struct Segment;
  struct Block {
    std::uint64_t size, place;  // place: address, unique over all segments
    State state;
    Segment* segment;
  };
  using Iterator = std::list<Block>::iterator;
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // size, place
  struct Pool {
    std::map<Key, Iterator> free;
    std::list<Segment> segments;
  };
  struct Segment {
    Pool* pool;
    std::uint64_t page;  // expandable: what it grows by
    std::list<Block> blocks;
  };
  static Key key(Iterator b) { return {b->size, b->place}; }

  // A block that has just become free grows together with free neighbours, and can be found.
  void merge(Iterator& block) {
    auto& blocks = block->segment->blocks;
    auto& free = block->segment->pool->free;
    if (const Iterator next = std::next(block); next != blocks.end() && next->state == State::free) {
      free.erase(key(next));
      block->size += next->size;
      blocks.erase(next);
    }
    if (block != blocks.begin() && std::prev(block)->state == State::free) {
      const Iterator before = std::prev(block);
      free.erase(key(before));
      before->size += block->size;
      blocks.erase(block);
      block = before;
    }
    free.insert({key(block), block});
  }

  static std::uint64_t can_become(Iterator b) {
    const Iterator next = std::next(b);
    return b->size + (next != b->segment->blocks.end() && next->state == State::unmapped ? next->size : 0);
  }
  bool find(Pool& pool, std::uint64_t size, Iterator& block) {
    auto found = pool.free.lower_bound({size, 0});
    if (found == pool.free.end()) return false;
    if (expandable_)  // a block that can still grow is worth as much as it can grow to
      for (auto next = std::next(found);
           next != pool.free.end() && can_become(next->second) < can_become(found->second);)
        found = next++;
    block = found->second;
    return true;
  }

  bool grow(Pool& pool, std::uint64_t size, bool small, Iterator& block) {
    if (expandable_) return expand(pool, size, small, block);
    const std::uint64_t segment = small ? 2 * kMiB : size < 10 * kMiB ? 20 * kMiB : up(size, 2 * kMiB);
    if (!take(segment)) return false;
    pool.segments.push_back({&pool, 0, {}});
    auto& made = pool.segments.back();
    made.blocks.push_back({segment, next_place_, State::free, &made});
    next_place_ += segment;
    block = made.blocks.begin();
    pool.free.insert({key(block), block});
    return true;
  }

  // The first place, by address, where free and unmapped blocks in a row are large enough; then pages from left to
  // right.
  bool expand(Pool& pool, std::uint64_t size, bool small, Iterator& block) {
    if (pool.segments.empty()) {
      pool.segments.push_back({&pool, small ? 2 * kMiB : 20 * kMiB, {}});
      auto& made = pool.segments.back();
      constexpr std::uint64_t kAddresses = std::uint64_t(1) << 44;
      made.blocks.push_back({kAddresses, next_place_, State::unmapped, &made});
      next_place_ += kAddresses;
    }
    auto& blocks = pool.segments.front().blocks;
    for (Iterator b = blocks.begin(); b != blocks.end(); ++b) {
      if (b->state != State::unmapped) continue;
      const Iterator start = b != blocks.begin() && std::prev(b)->state == State::free ? std::prev(b) : b;
      std::uint64_t room = 0;
      for (Iterator c = start; c != blocks.end() && c->state != State::used && room < size; ++c) room += c->size;
      if (room < size) continue;
      block = start;
      if (block->state == State::unmapped && !map(block, std::min(size, block->size))) return false;
      while (block->size < size) {
        Iterator next = std::next(block);
        if (!map(next, std::min(size - block->size, next->size))) return false;
        block = next;
      }
      return true;
    }
    return false;
  }
  // Maps pages at the front of an unmapped block, which becomes free, and part of its neighbours.
  bool map(Iterator& block, std::uint64_t bytes) {
    auto& segment = *block->segment;
    const std::uint64_t mapped = std::min(block->size, up(bytes, segment.page));
    if (!take(mapped)) return false;
    if (mapped < block->size) {
      const Iterator rest = segment.blocks.insert(std::next(block), *block);
      rest->size -= mapped;
      rest->place += mapped;
      block->size = mapped;
    }
    block->state = State::free;
    merge(block);
    return true;
  }

  void release_cached() {
    for (auto& [which, pool] : pools_)
      for (auto segment = pool.segments.begin(); segment != pool.segments.end();) {
        const auto now = segment++;
        if (expandable_) {
          unmap_free_pages(*now);
        } else if (now->blocks.size() == 1 && now->blocks.front().state == State::free) {
          reserved_ -= now->blocks.front().size;
          pool.free.erase(key(now->blocks.begin()));
          pool.segments.erase(now);
        }
      }
  }
  void unmap_free_pages(Segment& segment) {
    const std::uint64_t base = segment.blocks.front().place;
    for (Iterator b = segment.blocks.begin(); b != segment.blocks.end(); ++b) {
      if (b->state != State::free) continue;
      const std::uint64_t first = up(b->place - base, segment.page) + base;
      const std::uint64_t last = (b->place + b->size - base) / segment.page * segment.page + base;
      if (first >= last) continue;
      segment.pool->free.erase(key(b));
      const std::uint64_t end = b->place + b->size;
      if (first > b->place) {
        const Iterator front = segment.blocks.insert(b, {first - b->place, b->place, State::free, &segment});
        segment.pool->free.insert({key(front), front});
      }
      b->place = first;
      b->size = last - first;
      b->state = State::unmapped;
      reserved_ -= b->size;
      if (end > last) {
        const Iterator back = segment.blocks.insert(std::next(b), {end - last, last, State::free, &segment});
        segment.pool->free.insert({key(back), back});
      }
    }
    for (Iterator b = segment.blocks.begin(); std::next(b) != segment.blocks.end();)
      if (const Iterator next = std::next(b); b->state == State::unmapped && next->state == State::unmapped) {
        b->size += next->size;
        segment.blocks.erase(next);
      } else {
        b = next;
      }
  }

  bool expandable_;
  std::uint64_t allocated_ = 0;
  std::map<std::pair<std::uint64_t, bool>, Pool> pools_;
  std::unordered_map<std::uint64_t, Iterator> live_;
  std::uint64_t next_place_ = 0;
};

// ---------------------------------------------------------------------------------------------- one or more regions

/// Blocks in regions, found by size, cut and grown together: what TensorFlow's BFC and RMM's pool have in common.
class RegionPolicy : public Policy {
 public:
  bool allocate(std::uint64_t id, std::uint64_t bytes, std::uint64_t) override {
    const std::uint64_t size = std::max<std::uint64_t>(256, up(bytes, 256));
    auto found = find(size);
    if (found == free_.end()) {
      if (!extend(size)) return false;
      found = find(size);
      if (found == free_.end()) return false;
    }
    const std::uint64_t place = found->second;
    Block& block = blocks_[place];
    free_.erase(found);
    if (cuts(block.size, size)) {
      blocks_[place + size] = {block.size - size, block.region, false};
      free_.insert({block.size - size, place + size});
      block.size = size;
    }
    block.used = true;
    live_[id] = place;
    return true;
  }
  void free(std::uint64_t id) override {
    auto block = blocks_.find(live_.at(id));
    live_.erase(id);
    block->second.used = false;
    const auto joins = [&](auto other) {
      return other != blocks_.end() && !other->second.used && other->second.region == block->second.region;
    };
    if (const auto next = std::next(block); joins(next)) {
      free_.erase({next->second.size, next->first});
      block->second.size += next->second.size;
      blocks_.erase(next);
    }
    if (block != blocks_.begin())
      if (const auto before = std::prev(block); joins(before)) {
        free_.erase({before->second.size, before->first});
        before->second.size += block->second.size;
        blocks_.erase(block);
        block = before;
      }
    free_.insert({block->second.size, block->first});
  }

 protected:
  using Policy::Policy;
  using Free = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // size, place
  virtual Free::iterator find(std::uint64_t size) { return free_.lower_bound({size, 0}); }
  virtual bool extend(std::uint64_t size) = 0;
  virtual bool cuts(std::uint64_t block, std::uint64_t size) const { return block > size; }
  bool add_region(std::uint64_t size) {
    if (!take(size)) return false;
    blocks_[next_place_] = {size, next_place_, false};
    free_.insert({size, next_place_});
    next_place_ += size + 256;
    return true;
  }
  Free free_;

 private:
  struct Block {
    std::uint64_t size, region;
    bool used;
  };
  std::map<std::uint64_t, Block> blocks_;
  std::unordered_map<std::uint64_t, std::uint64_t> live_;
  std::uint64_t next_place_ = 0;
};

/// TensorFlow's BFC with memory growth: 256-byte rounding; bins by powers of two, within which the smallest chunk that
/// fits is taken; cut when twice the request, or 128 MiB, would remain whole otherwise; regions start at 2 MiB and
/// double. Regions are never given back. (Chunks of one size class are ordered by size, then address, so this is best
/// fit.)
class TensorFlowPolicy final : public RegionPolicy {
 public:
  explicit TensorFlowPolicy(std::uint64_t budget) : RegionPolicy(budget) {}

 private:
  bool cuts(std::uint64_t block, std::uint64_t size) const override {
    return block >= 2 * size || block - size >= 128 * kMiB;
  }
  bool extend(std::uint64_t size) override {
    const std::uint64_t left = (budget_ - std::min(budget_, reserved_)) & ~std::uint64_t(255);
    if (size > left) return false;
    bool doubled = false;
    for (; next_region_ < size; next_region_ *= 2) doubled = true;
    if (!add_region(std::min(next_region_, left))) return false;
    if (!doubled) next_region_ *= 2;
    return true;
  }
  std::uint64_t next_region_ = 2 * kMiB;
};

/// RMM's pool: best fit, 256-byte alignment, always cut. Grows by as much as it has (under a limit: by half of what is
/// left), or by just enough. Memory is never given back, and blocks of two growths never grow together.
class RmmPolicy final : public RegionPolicy {
 public:
  explicit RmmPolicy(std::uint64_t budget) : RegionPolicy(budget) {}

 private:
  bool extend(std::uint64_t size) override {
    if (budget_ == UINT64_MAX) return add_region(std::max(size, reserved_));
    const std::uint64_t left = (budget_ - reserved_) & ~std::uint64_t(255);
    return size <= left && add_region(std::max(size, (left / 2) & ~std::uint64_t(255)));
  }
};

}  // namespace oomlab::bench
