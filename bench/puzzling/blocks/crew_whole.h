#pragma once
// All threads of a block, where nobody looks for races: they run one after the other on one fiber, and only one that waits at a
// barrier keeps its fiber. So a kernel without barriers costs one call for each thread, and a block with one as many switches
// as it has threads.

#include <cstring>
#include <deque>
#include <vector>

#include "warps.h"

namespace oomlab::host {

class WholeCrew final : public Crew {
 public:
  /// Plays the blocks from `first` to the one before `last`.
  void run(dim3 grid, dim3 block, std::size_t first, std::size_t last, std::size_t shared_bytes, const Kernel& kernel) {
    const RuntimeScope scope;
    grid_ = grid;
    block_ = block;
    threads_ = unsigned(count(block));
    last_ = last;
    shared_bytes_ = shared_bytes;
    kernel_ = &kernel;
    ASAN_POISON_MEMORY_REGION(team_.shared + shared_bytes, most_shared - shared_bytes);
    begin(first);
    start();
    ASAN_UNPOISON_MEMORY_REGION(team_.shared, most_shared);
  }
  /// One that begins with the next thread of the block; nullptr where all have begun.
  Fiber* recruit() override {
    if (begun_ == threads_) return nullptr;
    if (idle_.empty()) {
      fibers_.emplace_back().make(*this);
      fibers_.back().team = &team_;
      idle_.push_back(&fibers_.back());
    }
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    join_ring(*fiber, *this_fiber);
    return fiber;
  }

  // Keeps nothing of the thread it runs on: the next launch may be another one's.
  void work(Fiber& me) override {
    for (;;) {
      while (take(me)) {
        (*kernel_)();
        team_.leave(me.number);
      }
      idle_.push_back(&me);
      leave_ring(launcher_);
    }
  }

 private:
  OOMLAB_UNSEEN void start() {
    blockDim = block_;
    gridDim = grid_;
    launcher_.next = launcher_.before = &launcher_;
    this_fiber = &launcher_;
    Fiber& fiber = *recruit();
    fiber.next = fiber.before = &fiber;  // the launcher is in no ring
    switch_to(fiber);
  }
  /// The next thread, of this block or, where nobody is left in it, of the next one. False where there is none.
  OOMLAB_UNSEEN bool take(Fiber& me) {
    if (begun_ == threads_) {
      if (me.next != &me || block_number_ + 1 >= last_) return false;
      begin(block_number_ + 1);
    }
    me.number = begun_++;
    threadIdx = me.thread = place(me.number, block_);
    blockIdx = me.block = place_of_block_;
    return true;
  }
  void begin(std::size_t number) {
    block_number_ = number;
    place_of_block_ = place(number, grid_);
    begun_ = 0;
    team_.reset(threads_);
    std::memset(team_.shared, 0xff, shared_bytes_);  // of floats NaN: nobody has written there
  }

  dim3 grid_, block_;
  unsigned threads_ = 0, begun_ = 0;
  std::size_t last_ = 0, block_number_ = 0, shared_bytes_ = 0;
  uint3 place_of_block_{0, 0, 0};
  const Kernel* kernel_ = nullptr;
  WarpTeam team_;
  std::deque<Fiber> fibers_;
  std::vector<Fiber*> idle_;
  Fiber launcher_;
};

}  // namespace oomlab::host
