#pragma once
// A repeating step asks for the same memory in the same order. So record one step, solve for a placement of all its
// buffers at leisure, and from then on an allocation is an addition: base + offset.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "memory/resource.h"

namespace oomlab::caching_allocator {

/// A buffer of a plan: `bytes`, needed from event `begin` up to, not including, event `end`.
struct Lifetime {
  std::size_t begin, end, bytes;
};
struct Placement {
  std::vector<std::size_t> offsets;  ///< bytes, one a lifetime
  std::size_t peak = 0;              ///< bytes of the arena
};
/// The most that is live at one time, in bytes: no placement is below it.
inline std::size_t live_peak(const std::vector<Lifetime>& lifetimes) {
  std::map<std::size_t, std::ptrdiff_t> change;
  for (const Lifetime& l : lifetimes) {
    change[l.begin] += static_cast<std::ptrdiff_t>(l.bytes);
    change[l.end] -= static_cast<std::ptrdiff_t>(l.bytes);
  }
  std::ptrdiff_t live = 0, peak = 0;
  for (const auto& [event, bytes] : change) peak = std::max(peak, live += bytes);
  return static_cast<std::size_t>(peak);
}

/// Dynamic storage allocation, offline: buffers that live at the same time must not overlap. Keeps a skyline, the
/// height that is taken at each moment, and always fills its lowest stretch: with the buffer of the highest priority
/// that fits between the stretch's two moments, or, when none does, with nothing up to the lower neighbour's height (as
/// Sekiyama et al. 2018). Priorities are weighted products of bytes and lifetime; the best of several is then improved
/// by up to `rounds` random changes, until the peak is within half a percent of the live peak. The same input gives the
/// same plan.
class Planner {
 public:
  explicit Planner(const std::vector<Lifetime>& lifetimes) : lifetimes_(lifetimes) {}

  Placement solve(std::size_t rounds) {
    const std::size_t n = lifetimes_.size();
    const double enough = 1.005 * double(live_peak(lifetimes_));
    Placement best;
    std::vector<double> best_priority(n), priority(n);
    for (const double by_length : {0.0, 0.5, 1.0, 2.0})
      for (const double by_bytes : {0.0, 0.5, 1.0, 2.0}) {
        for (std::size_t i = 0; i < n; ++i)
          priority[i] = by_length * std::log(double(lifetimes_[i].end - lifetimes_[i].begin)) +
                        by_bytes * std::log(double(lifetimes_[i].bytes));
        Placement p = place(priority);
        if (best.offsets.empty() || p.peak < best.peak) best = std::move(p), best_priority = priority;
      }
    std::uint64_t random = 0x9E3779B97F4A7C15ull;
    const auto next_random = [&](std::size_t below) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      return static_cast<std::size_t>(random % below);
    };
    std::vector<double> current = best_priority;
    std::size_t current_peak = best.peak;
    for (std::size_t round = 0; round<rounds&& double(best.peak)> enough; ++round) {
      priority = current;
      for (std::size_t i = 1 + next_random(3); i > 0; --i)
        priority[next_random(n)] += (double(next_random(2001)) - 1000) / 250;
      Placement p = place(priority);
      if (p.peak <= current_peak || next_random(300) == 0) current = priority, current_peak = p.peak;
      if (p.peak < best.peak) best = std::move(p), best_priority = priority;
      if (round % 3000 == 2999) current = best_priority, current_peak = best.peak;
    }
    return best;
  }

 private:
  struct Stretch {
    std::size_t begin, end, height;
  };

  Placement place(const std::vector<double>& priority) {
    const std::size_t n = lifetimes_.size();
    Placement p;
    p.offsets.assign(n, 0);
    std::vector<std::size_t> waiting(n);  // by falling priority
    std::iota(waiting.begin(), waiting.end(), std::size_t(0));
    std::stable_sort(waiting.begin(), waiting.end(),
                     [&](std::size_t a, std::size_t b) { return priority[a] > priority[b]; });
    std::size_t first = SIZE_MAX, last = 0;
    for (const Lifetime& l : lifetimes_) first = std::min(first, l.begin), last = std::max(last, l.end);
    std::vector<Stretch> skyline{{first, last, 0}};
    while (!waiting.empty()) {
      const auto low = std::min_element(skyline.begin(), skyline.end(),
                                        [](const Stretch& a, const Stretch& b) { return a.height < b.height; });
      const auto fits = std::find_if(waiting.begin(), waiting.end(), [&](std::size_t i) {
        return lifetimes_[i].begin >= low->begin && lifetimes_[i].end <= low->end;
      });
      if (fits == waiting.end()) {
        std::size_t height = SIZE_MAX;
        if (low != skyline.begin()) height = std::prev(low)->height;
        if (std::next(low) != skyline.end()) height = std::min(height, std::next(low)->height);
        low->height = height;
      } else {
        const Lifetime& l = lifetimes_[*fits];
        const Stretch old = *low;
        p.offsets[*fits] = old.height;
        p.peak = std::max(p.peak, old.height + l.bytes);
        waiting.erase(fits);
        *low = {l.begin, l.end, old.height + l.bytes};
        auto at = static_cast<std::ptrdiff_t>(low - skyline.begin());
        if (old.begin < l.begin) skyline.insert(skyline.begin() + at++, {old.begin, l.begin, old.height});
        if (l.end < old.end) skyline.insert(skyline.begin() + at + 1, {l.end, old.end, old.height});
      }
      for (std::size_t i = 0; i + 1 < skyline.size();)
        if (skyline[i].height == skyline[i + 1].height) {
          skyline[i].end = skyline[i + 1].end;
          skyline.erase(skyline.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        } else {
          ++i;
        }
    }
    return p;
  }

  const std::vector<Lifetime>& lifetimes_;
};

/// Serves a step from a plan. The first step is recorded while another resource serves it. Afterwards a request that is
/// the recorded one, by number, bytes and stream, gets its place; any other, and the rest of that step, is served by
/// the other resource again. So is what outlives its step: it is no part of the plan. A plan that would need more than
/// kWorthwhile times the live peak is not used at all: then the other resource, which can move pages, does better. And
/// the arena is given up when the other resource is out of memory and nothing is in it.
class PlannedResource final : public MemoryResource {
 public:
  explicit PlannedResource(MemoryResource& upstream) : upstream_(upstream) {}
  ~PlannedResource() override { upstream_.deallocate(arena_, plan_.peak, stream_); }

  /// Marks where a step begins and ends. end_step() after the recorded step solves the plan, and takes the arena.
  /// When there is no room for it, steps are served as before.
  void begin_step() {
    in_step_ = true;
    next_ = 0;
    deviated_ = false;
    if (!arena_) recorded_.clear(), open_.clear(), events_ = 0;
  }
  void end_step() {
    in_step_ = false;
    if (arena_ || refused_ || recorded_.empty()) return;
    std::vector<Lifetime> lifetimes;
    for (Request& request : recorded_)
      if (request.end != 0 && request.stream == recorded_.front().stream) {
        request.in_plan = lifetimes.size();
        lifetimes.push_back({request.begin, request.end, request.bytes});
      }
    if (lifetimes.empty()) return;
    plan_ = Planner(lifetimes).solve(200);
    if (double(plan_.peak) > kWorthwhile * double(live_peak(lifetimes))) {
      refused_ = true;
      return;
    }
    live_.assign(lifetimes.size(), false);
    overlaps_.assign(lifetimes.size(), {});
    for (std::size_t i = 0; i < lifetimes.size(); ++i)
      for (std::size_t j = 0; j < lifetimes.size(); ++j)
        if (i != j && plan_.offsets[i] < plan_.offsets[j] + lifetimes[j].bytes &&
            plan_.offsets[j] < plan_.offsets[i] + lifetimes[i].bytes)
          overlaps_[i].push_back(j);
    stream_ = recorded_.front().stream;
    try {
      arena_ = static_cast<std::byte*>(upstream_.allocate(plan_.peak, stream_));
    } catch (const OutOfMemory&) {
      refused_ = true;
    }
  }

  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    const std::size_t rounded = round_to_granule(bytes);
    if (rounded == 0) return nullptr;
    if (in_step_ && arena_ && !deviated_) {
      const bool same =
          next_ < recorded_.size() && recorded_[next_].bytes == rounded && recorded_[next_].stream == stream;
      if (same) {
        const std::size_t place = recorded_[next_++].in_plan;
        if (place == kNotPlanned) return allocate_upstream(rounded, stream);
        const auto is_live = [&](std::size_t other) { return live_[other]; };
        if (!live_[place] && std::none_of(overlaps_[place].begin(), overlaps_[place].end(), is_live)) {
          live_[place] = true;
          ++planned_;
          return arena_ + plan_.offsets[place];
        }
      }
      deviated_ = true;
      ++deviations_;
    }
    if (in_step_ && !arena_ && !refused_) recorded_.reserve(recorded_.size() + 1);
    void* const address = allocate_upstream(rounded, stream);
    if (in_step_ && !arena_ && !refused_) {
      try {
        open_[address] = recorded_.size();
      } catch (...) {
        upstream_.deallocate(address, rounded, stream);
        throw;
      }
      recorded_.push_back({rounded, ++events_, 0, kNotPlanned, stream});
    }
    return address;
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    if (!address) return;
    const auto* const byte = static_cast<std::byte*>(address);
    if (arena_ && byte >= arena_ && byte < arena_ + plan_.peak) {
      if (stream != stream_) report_if_failed(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      const std::size_t offset = static_cast<std::size_t>(byte - arena_);
      for (std::size_t i = 0; i < live_.size(); ++i)
        if (live_[i] && plan_.offsets[i] == offset) live_[i] = false;
      return;
    }
    if (in_step_ && !arena_ && !refused_)
      if (const auto open = open_.find(address); open != open_.end()) {
        recorded_[open->second].end = ++events_;
        open_.erase(open);
      }
    upstream_.deallocate(address, round_to_granule(bytes), stream);
  }
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t largest_free_block() const override { return upstream_.largest_free_block(); }
  bool releases_cache() const override { return upstream_.releases_cache(); }

  static constexpr double kWorthwhile = 1.02;
  std::size_t arena_bytes() const { return arena_ ? plan_.peak : 0; }
  std::size_t planned() const { return planned_; }        ///< requests served from the plan
  std::size_t deviations() const { return deviations_; }  ///< steps that left it

 private:
  // Where memory is short and nothing is in the arena, the arena is worth more as memory.
  void* allocate_upstream(std::size_t bytes, cudaStream_t stream) {
    try {
      return upstream_.allocate(bytes, stream);
    } catch (const OutOfMemory&) {
      if (!arena_ || std::find(live_.begin(), live_.end(), true) != live_.end()) throw;
    }
    upstream_.deallocate(std::exchange(arena_, nullptr), plan_.peak, stream_);
    refused_ = true;
    return upstream_.allocate(bytes, stream);
  }

  static constexpr std::size_t kNotPlanned = SIZE_MAX;
  struct Request {
    std::size_t bytes, begin, end, in_plan;
    cudaStream_t stream;
  };
  MemoryResource& upstream_;
  std::vector<Request> recorded_;
  std::map<void*, std::size_t> open_;
  Placement plan_;
  std::vector<bool> live_;
  std::vector<std::vector<std::size_t>> overlaps_;
  std::byte* arena_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::size_t next_ = 0, events_ = 0, planned_ = 0, deviations_ = 0;
  bool in_step_ = false, deviated_ = false, refused_ = false;
};

}  // namespace oomlab::caching_allocator
