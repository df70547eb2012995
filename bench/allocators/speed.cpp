#include "speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <memory_resource>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../chapters/06_caching_allocator/caching_allocator.h"
#include "../benchmarks/judged.h"
#include "cuda/backend.h"

namespace oomlab::bench {
namespace {

using caching_allocator::CachingAllocator;

/// A best fit as one would write it first: free blocks in a std::set by size, all blocks in a std::map by address. On
/// one endless region, so that nothing but the bookkeeping is timed.
class SetBestFit final : public MemoryResource {
 public:
  SetBestFit() {
    blocks_[kStart] = {kEnd - kStart, true};
    free_.insert({kEnd - kStart, kStart});
  }
  void* allocate(std::size_t bytes, cudaStream_t) override {
    const std::size_t size = round_to_granule(bytes);
    const auto found = free_.lower_bound({size, 0});
    const auto [had, at] = *found;
    free_.erase(found);
    if (had > size) {
      blocks_[at + size] = {had - size, true};
      free_.insert({had - size, at + size});
    }
    blocks_[at] = {size, false};
    return reinterpret_cast<void*>(at);
  }
  void deallocate(void* address, std::size_t, cudaStream_t) noexcept override {
    auto block = blocks_.find(reinterpret_cast<std::size_t>(address));
    block->second.second = true;
    if (const auto next = std::next(block); next != blocks_.end() && next->second.second) {
      free_.erase({next->second.first, next->first});
      block->second.first += next->second.first;
      blocks_.erase(next);
    }
    if (block != blocks_.begin())
      if (const auto before = std::prev(block); before->second.second) {
        free_.erase({before->second.first, before->first});
        before->second.first += block->second.first;
        blocks_.erase(block);
        block = before;
      }
    free_.insert({block->second.first, block->first});
  }
  std::size_t reserved_bytes() const override { return 0; }

 private:
  static constexpr std::size_t kStart = kGranule, kEnd = std::size_t(1) << 46;
  std::map<std::size_t, std::pair<std::size_t, bool>> blocks_;  // size, free
  std::set<std::pair<std::size_t, std::size_t>> free_;
};

/// std::pmr's pool, which never cuts or grows blocks together: for speed only.
class PmrPool final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t) override { return pool_.allocate(bytes, 256); }
  void deallocate(void* address, std::size_t bytes, cudaStream_t) noexcept override {
    pool_.deallocate(address, bytes, 256);
  }
  std::size_t reserved_bytes() const override { return 0; }

 private:
  std::pmr::unsynchronized_pool_resource pool_;
};

struct Speed {
  double median, tail;  // ns an operation; p99.9
};

double quantile_of(std::vector<double>& values, double quantile) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(quantile * double(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// `blocks` are live; in each turn one of them, chosen at random, is freed and another allocated. Sizes are log-uniform,
// 512 bytes to 128 KiB. The clock's own time, measured the same way, is taken off.
Speed speed(MemoryResource& memory, std::size_t blocks) {
  using Clock = std::chrono::steady_clock;
  std::mt19937_64 random(1);
  const auto next_size = [&] { return std::size_t(512 * std::exp2(double(random() >> 11) * 0x1p-53 * 8)); };
  std::vector<std::pair<void*, std::size_t>> live(blocks);
  for (auto& [address, bytes] : live) address = memory.allocate(bytes = next_size(), nullptr);
  const std::size_t warm = 2 * blocks, turns = 50000;
  std::vector<double> times;
  times.reserve(2 * turns);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> plan(warm + turns);
  for (auto& [which, bytes] : plan) which = random() % blocks, bytes = static_cast<std::uint32_t>(next_size());
  for (std::size_t turn = 0; turn < warm + turns; ++turn) {
    auto& [address, bytes] = live[plan[turn].first];
    void* const freed = address;  // read before the clock starts: whoever frees a tensor has just had it at hand
    asm volatile("" ::"r"(freed));
    const auto start = Clock::now();
    memory.deallocate(freed, bytes, nullptr);
    const auto middle = Clock::now();
    address = memory.allocate(bytes = plan[turn].second, nullptr);
    const auto end = Clock::now();
    if (turn < warm) continue;
    times.push_back(std::chrono::duration<double, std::nano>(middle - start).count());
    times.push_back(std::chrono::duration<double, std::nano>(end - middle).count());
  }
  for (const auto& [address, bytes] : live) memory.deallocate(address, bytes, nullptr);
  std::vector<double> empty(10001);
  for (double& e : empty) {
    const auto start = Clock::now();
    e = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }
  const double clock = quantile_of(empty, 0.5);
  return {std::max(1.0, quantile_of(times, 0.5) - clock), std::max(1.0, quantile_of(times, 0.999) - clock)};
}

}  // namespace

void compare_speed(bool judge) {
  constexpr std::size_t kBlocks[] = {1000, 10000, 100000};
  std::vector<std::pair<std::string, std::function<std::unique_ptr<MemoryResource>()>>> allocators = {
      {"ours", [] { return std::make_unique<CachingAllocator>(); }},
      {"std::set best fit", [] { return std::make_unique<SetBestFit>(); }},
      {"std::pmr pool (never merges)", [] { return std::make_unique<PmrPool>(); }}};
  if (!planning()) allocators.push_back({"cudaMallocAsync", [] { return std::make_unique<AsyncResource>(); }});
  // Of five in turn, the best: a busy machine makes it only slower.
  std::vector<std::vector<Speed>> results(allocators.size(), std::vector<Speed>(std::size(kBlocks), Speed{1e9, 1e9}));
  for (int repeat = 0; repeat < 5; ++repeat)
    for (std::size_t which = 0; which < allocators.size(); ++which)
      for (std::size_t i = 0; i < std::size(kBlocks); ++i) {
        const auto memory = allocators[which].second();
        const Speed now = speed(*memory, kBlocks[i]);
        Speed& best = results[which][i];
        best = {std::min(best.median, now.median), std::min(best.tail, now.tail)};
      }
  fmt::print("{:<34}", "ns an operation: median (p99.9)");
  for (const std::size_t blocks : kBlocks) fmt::print(" {:>18}", fmt::format("{} live", blocks));
  for (std::size_t which = 0; which < allocators.size(); ++which) {
    fmt::print("\n{:<34}", allocators[which].first);
    for (const Speed& s : results[which]) fmt::print(" {:>18}", fmt::format("{:.0f} ({:.0f})", s.median, s.tail));
  }
  fmt::print("\n");
  if (!judge) return;
  for (std::size_t i = 0; i < std::size(kBlocks); ++i) {
    const Speed &ours = results[0][i], &plain = results[1][i];
    const std::string live = fmt::format("{} live, ", kBlocks[i]);
    judged("allocators", live + "an operation, ours / std::set best fit", ours.median / plain.median, Wanted::at_most,
           0.333);
    judged("allocators", live + "an operation of ours, p99.9 / median", ours.tail / ours.median, Wanted::at_most, 10);
  }
  judged("allocators", "an operation of ours, 100,000 live / 1,000 live", results[0][2].median / results[0][0].median,
         Wanted::at_most, 2);
}

}  // namespace oomlab::bench
