#pragma once
// A repeating step asks for the same memory in the same order. So record one step, solve for a placement of all its
// buffers at leisure, and from then on an allocation is an addition: base + offset.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "memory/resource.h"

namespace oomlab::caching_allocator {

/// A buffer of a plan: `bytes`, needed from event `begin` up to, not including, event `end`.
struct Lifetime {
  std::size_t begin, end, bytes;
  friend bool operator==(const Lifetime&, const Lifetime&) = default;
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

/// Lifetimes that wait for a place, by rank; finds the first in rank within two moments in about the logarithm of their
/// number. A tree of boxes (Bentley, "Multidimensional binary search trees", 1975) over begins and ends, each with the
/// best rank in it.
class Waiting {
 public:
  explicit Waiting(const std::vector<Lifetime>& lifetimes)
      : count_(lifetimes.size()), leaves_(std::bit_ceil(std::max<std::size_t>(count_, 1))), nodes_(2 * leaves_) {
    std::vector<std::size_t> order(count_);
    std::iota(order.begin(), order.end(), std::size_t(0));
    leaf_of_.resize(count_);
    split(1, 0, leaves_, lifetimes, order, false);
  }
  /// From now on all wait; by_rank: their numbers, the first one first.
  void all_wait(const std::vector<std::size_t>& by_rank) {
    for (Node& node : nodes_) node.rank = kNobody;
    for (std::size_t r = 0; r < by_rank.size(); ++r) nodes_[leaf_of_[by_rank[r]]].rank = r;
    for (std::size_t n = leaves_; n-- > 1;) nodes_[n].rank = std::min(nodes_[2 * n].rank, nodes_[2 * n + 1].rank);
  }
  /// The first rank of those that begin at `begin` or later and end by `end`; kNobody: none does.
  std::size_t first_within(std::size_t begin, std::size_t end) const {
    std::size_t best = kNobody;
    search(1, begin, end, best);
    return best;
  }
  /// This lifetime waits no more.
  void leave(std::size_t lifetime) {
    std::size_t n = leaf_of_[lifetime];
    nodes_[n].rank = kNobody;
    while ((n /= 2) > 0) nodes_[n].rank = std::min(nodes_[2 * n].rank, nodes_[2 * n + 1].rank);
  }
  static constexpr std::size_t kNobody = SIZE_MAX;

 private:
  struct Node {
    std::size_t rank = kNobody;
    std::size_t first_begin = SIZE_MAX, last_begin = 0, first_end = SIZE_MAX, last_end = 0;
  };
  // The leaves from `low` up to `high` are this node's: halved by begins, and their halves by ends.
  void split(std::size_t node, std::size_t low, std::size_t high, const std::vector<Lifetime>& lifetimes,
             std::vector<std::size_t>& order, bool by_ends) {
    const std::size_t last = std::min(high, count_), middle = low + (high - low) / 2;
    if (low >= last) return;
    Node& box = nodes_[node];
    for (std::size_t i = low; i < last; ++i) {
      const Lifetime& l = lifetimes[order[i]];
      box.first_begin = std::min(box.first_begin, l.begin), box.last_begin = std::max(box.last_begin, l.begin);
      box.first_end = std::min(box.first_end, l.end), box.last_end = std::max(box.last_end, l.end);
    }
    if (high - low == 1) return void(leaf_of_[order[low]] = node);
    const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
    if (middle < last)
      std::nth_element(at(low), at(middle), at(last), [&](std::size_t a, std::size_t b) {
        return by_ends ? lifetimes[a].end < lifetimes[b].end : lifetimes[a].begin < lifetimes[b].begin;
      });
    split(2 * node, low, middle, lifetimes, order, !by_ends);
    split(2 * node + 1, middle, high, lifetimes, order, !by_ends);
  }
  void search(std::size_t n, std::size_t begin, std::size_t end, std::size_t& best) const {
    const Node& node = nodes_[n];
    if (node.rank >= best || node.last_begin < begin || node.first_end > end) return;
    if (node.first_begin >= begin && node.last_end <= end) return void(best = node.rank);
    const bool swap = nodes_[2 * n + 1].rank < nodes_[2 * n].rank;
    search(2 * n + swap, begin, end, best);
    search(2 * n + !swap, begin, end, best);
  }

  std::size_t count_, leaves_;
  std::vector<Node> nodes_;  // 1 is the root, 2 n and 2 n + 1 are below n
  std::vector<std::size_t> leaf_of_;
};

/// Dynamic storage allocation, offline: buffers that live at the same time must not overlap. Keeps a skyline, the
/// height that is taken at each moment, and always fills its lowest stretch: with the buffer of the highest priority
/// that fits between the stretch's two moments, or, when none does, with nothing up to the lower neighbour's height (as
/// Sekiyama et al. 2018). Priorities are weighted products of bytes and lifetime; the best of several is then improved
/// by up to `rounds` random changes, until the peak is within half a percent of the live peak. The same input gives the
/// same plan.
class Planner {
 public:
  explicit Planner(const std::vector<Lifetime>& lifetimes) : lifetimes_(lifetimes), waiting_(lifetimes) {}

  Placement solve(std::size_t rounds) {
    const std::size_t n = lifetimes_.size(), lowest = live_peak(lifetimes_);
    const double enough = 1.005 * double(lowest);
    rounds = std::min(rounds, kMostPlacements / std::max<std::size_t>(n, 1));
    Placement best;
    std::vector<double> best_priority(n), priority(n);
    for (const double by_length : {0.0, 0.5, 1.0, 2.0})
      for (const double by_bytes : {0.0, 0.5, 1.0, 2.0}) {
        if (!best.offsets.empty() && best.peak == lowest) continue;  // there is no better one
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
  // The skyline: stretches by where they begin, no two neighbours of the same height; and by height.
  struct Stretch {
    std::size_t end, height;
  };
  using Skyline = std::map<std::size_t, Stretch>;
  struct Heights {
    Skyline skyline;
    std::set<std::pair<std::size_t, std::size_t>> by_height;  // height, begin
    void add(std::size_t begin, std::size_t end, std::size_t height) {
      if (const auto next = skyline.find(end); next != skyline.end() && next->second.height == height) {
        end = next->second.end;
        remove(next);
      }
      if (auto before = skyline.lower_bound(begin); before != skyline.begin())
        if (before = std::prev(before); before->second.end == begin && before->second.height == height) {
          begin = before->first;
          remove(before);
        }
      skyline[begin] = {end, height};
      by_height.insert({height, begin});
    }
    void remove(Skyline::iterator stretch) {
      by_height.erase({stretch->second.height, stretch->first});
      skyline.erase(stretch);
    }
  };

  Placement place(const std::vector<double>& priority) {
    const std::size_t n = lifetimes_.size();
    Placement p;
    p.offsets.assign(n, 0);
    std::vector<std::size_t> by_rank(n);  // by falling priority
    std::iota(by_rank.begin(), by_rank.end(), std::size_t(0));
    std::stable_sort(by_rank.begin(), by_rank.end(),
                     [&](std::size_t a, std::size_t b) { return priority[a] > priority[b]; });
    waiting_.all_wait(by_rank);
    std::size_t first = SIZE_MAX, last = 0;
    for (const Lifetime& l : lifetimes_) first = std::min(first, l.begin), last = std::max(last, l.end);
    Heights heights;
    heights.add(first, last, 0);
    for (std::size_t placed = 0; placed < n;) {
      const auto low = heights.skyline.find(heights.by_height.begin()->second);
      const auto [begin, stretch] = *low;
      const std::size_t rank = waiting_.first_within(begin, stretch.end);
      std::size_t height = SIZE_MAX;
      if (rank == Waiting::kNobody) {
        if (low != heights.skyline.begin()) height = std::prev(low)->second.height;
        if (std::next(low) != heights.skyline.end()) height = std::min(height, std::next(low)->second.height);
        heights.remove(low);
        heights.add(begin, stretch.end, height);
        continue;
      }
      const Lifetime& l = lifetimes_[by_rank[rank]];
      height = stretch.height + l.bytes;
      p.offsets[by_rank[rank]] = stretch.height;
      p.peak = std::max(p.peak, height);
      waiting_.leave(by_rank[rank]);
      ++placed;
      heights.remove(low);
      if (begin < l.begin) heights.add(begin, l.begin, stretch.height);
      heights.add(l.begin, l.end, height);
      if (l.end < stretch.end) heights.add(l.end, stretch.end, stretch.height);
    }
    return p;
  }

  // So many in all: of thousands of buffers there are fewer random changes.
  static constexpr std::size_t kMostPlacements = 1'000'000;

  const std::vector<Lifetime>& lifetimes_;
  Waiting waiting_;
};
/// Where PlannedResource has its plans from.
using Solve = std::function<Placement(const std::vector<Lifetime>&)>;
inline Placement solve_plan(const std::vector<Lifetime>& lifetimes) { return Planner(lifetimes).solve(200); }

/// Serves a step from a plan. The first step is recorded while another resource serves it. Afterwards a request that is
/// the recorded one, by number, bytes and stream, gets its place; any other, and the rest of that step, is served by
/// the other resource again. So is what outlives its step: it is no part of the plan. A plan that would need more than
/// kWorthwhile times the live peak is not used at all: then the other resource, which can move pages, does better. And
/// the arena is given up when the other resource is out of memory and nothing is in it.
class PlannedResource final : public MemoryResource {
 public:
  explicit PlannedResource(MemoryResource& upstream, Solve solve = solve_plan)
      : upstream_(upstream), solve_(std::move(solve)) {}
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
    plan_ = solve_(lifetimes);
    if (double(plan_.peak) > kWorthwhile * double(live_peak(lifetimes))) {
      refused_ = true;
      return;
    }
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
        const std::size_t begin = plan_.offsets[place], end = begin + rounded;
        if (nothing_lives_in(begin, end)) {
          live_[begin] = end;
          ++planned_;
          return arena_ + begin;
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
      live_.erase(static_cast<std::size_t>(byte - arena_));
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
      if (!arena_ || !live_.empty()) throw;
    }
    upstream_.deallocate(std::exchange(arena_, nullptr), plan_.peak, stream_);
    refused_ = true;
    return upstream_.allocate(bytes, stream);
  }

  bool nothing_lives_in(std::size_t begin, std::size_t end) const {
    const auto next = live_.lower_bound(begin);
    if (next != live_.end() && next->first < end) return false;
    return next == live_.begin() || std::prev(next)->second <= begin;
  }

  static constexpr std::size_t kNotPlanned = SIZE_MAX;
  struct Request {
    std::size_t bytes, begin, end, in_plan;
    cudaStream_t stream;
  };
  MemoryResource& upstream_;
  Solve solve_;
  std::vector<Request> recorded_;
  std::map<void*, std::size_t> open_;
  Placement plan_;
  std::map<std::size_t, std::size_t> live_;  // what is in the arena: begin and end
  std::byte* arena_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::size_t next_ = 0, events_ = 0, planned_ = 0, deviations_ = 0;
  bool in_step_ = false, deviated_ = false, refused_ = false;
};

}  // namespace oomlab::caching_allocator
