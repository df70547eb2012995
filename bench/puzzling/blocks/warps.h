#pragma once
// The warps of a block that has all of its threads.

#include <atomic>
#include <bit>

#include "fibers.h"

namespace oomlab::host {

// Where the threads of a warp meet that a mask names. While some wait with one mask, others may meet with another: a mask has
// a group for itself as long as somebody waits there, and no more groups than threads are needed at a time.
class Warp {
 public:
  static constexpr unsigned size = 32;
  void reset(unsigned threads) { all_ = alive_ = threads < size ? (1u << threads) - 1 : ~0u; }
  void wait(unsigned mask) {
    Group& group = group_of(mask);
    const unsigned phase = group.phase.load(std::memory_order_acquire);
    group.arrived.fetch_add(1, std::memory_order_acq_rel);
    open_if_all(group);
    while (group.phase.load(std::memory_order_acquire) == phase) let_others_run();
  }
  void leave(unsigned lane) {  // a thread that returned from the kernel is not waited for, until all have
    const unsigned me = 1u << lane;
    if (alive_.fetch_and(~me, std::memory_order_acq_rel) == me) alive_.store(all_, std::memory_order_relaxed);
    for (Group& group : groups_)
      if (group.arrived.load(std::memory_order_acquire)) open_if_all(group);
  }

 private:
  struct Group {
    std::atomic<unsigned> mask{0}, arrived{0}, phase{0};
  };
  Group& group_of(unsigned mask) {
    Group* unused = nullptr;
    for (Group& group : groups_) {
      const bool waited_at = group.arrived.load(std::memory_order_relaxed) != 0;
      if (waited_at && group.mask.load(std::memory_order_relaxed) == mask) return group;
      if (!waited_at) unused = &group;
    }
    unused->mask.store(mask, std::memory_order_relaxed);
    return *unused;
  }
  void open_if_all(Group& group) {
    const unsigned awaited = group.mask.load(std::memory_order_relaxed) & alive_.load(std::memory_order_relaxed);
    if (group.arrived.load(std::memory_order_relaxed) < unsigned(std::popcount(awaited))) return;
    group.arrived.store(0, std::memory_order_relaxed);
    group.phase.fetch_add(1, std::memory_order_release);
  }
  unsigned all_ = 0;
  std::atomic<unsigned> alive_{0};
  Group groups_[size];
};

struct WarpTeam : Team {
  Warp warps[most_threads / Warp::size];

  void reset(unsigned threads) {
    Team::reset(threads);
    for (unsigned w = 0; w * Warp::size < threads; ++w) warps[w].reset(threads - w * Warp::size);
  }
  void leave(unsigned number) {
    warps[number / Warp::size].leave(number % Warp::size);
    Team::leave(number);
  }
};

}  // namespace oomlab::host
