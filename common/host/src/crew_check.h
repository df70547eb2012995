#pragma once
// Check mode: each thread of a block is a fiber of its own, and two blocks run at a time, so that ThreadSanitizer sees a missing
// __syncthreads() and a race between blocks.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>

#include "fibers.h"

namespace oomlab::host {

constexpr unsigned teams = 2;

// The fibers that play the blocks of one launch. Made when they are needed, and kept for the next. `Which`: a Team.
template <class Which>
class CheckCrew final : public Crew {
 public:
  /// Blocks of these threads, of as many dimensions.
  void run(dim3 grid, dim3 shape, std::size_t shared_bytes, const Kernel& kernel) {
    const RuntimeScope scope;
    const unsigned threads = unsigned(count(shape)),
                   playing = unsigned(std::min<std::size_t>(teams, count(grid))) * threads;
    job_ = {grid, count(grid), shared_bytes, &kernel};
    while (fibers_.size() < playing) fibers_.emplace_back().make(*this);
    for (unsigned i = 0; i < playing; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.number = i % threads;
      fiber.thread = place(fiber.number, shape);
      fiber.team = &team_[i / threads];
      fiber.next = &fibers_[(i + 1) % playing];
      fiber.before = &fibers_[(i + playing - 1) % playing];
    }
    for (Which& team : team_) team.reset(threads);
    blockDim = shape;
    gridDim = grid;
#ifdef __SANITIZE_THREAD__
    launcher_.known_as = __tsan_get_current_fiber();
#endif
    begun_.store(1, std::memory_order_release);
    start();
    (void)ended_.load(std::memory_order_acquire);
  }
  // Keeps nothing of the thread it runs on: the next launch may be another one's.
  void work(Fiber& me) override {
    for (;;) {
      (void)begun_.load(std::memory_order_acquire);
      play(me);
      ended_.fetch_add(1, std::memory_order_release);
      leave_ring(launcher_);
    }
  }

 private:
  struct Job {
    dim3 grid;
    std::size_t blocks;
    std::size_t shared_bytes;
    const Kernel* kernel;
  };

  OOMLAB_UNSEEN void start() {
    this_fiber = &launcher_;
    switch_to(fibers_[0]);
  }

  __attribute__((noinline)) void play(Fiber& me) {
    const Job& job = job_;
    Which& team = static_cast<Which&>(*me.team);
    for (std::size_t b = static_cast<std::size_t>(&team - team_); b < job.blocks; b += teams) {
      if (job.shared_bytes) {
        if (me.number == 0) std::memset(team.shared, 0xff, job.shared_bytes);
        team.end.wait();
      }
      enter(me, b);
      (*job.kernel)();
      team.leave(me.number);
      if (b + teams < job.blocks) team.end.wait();  // behind the last one all meet at the end of the launch
    }
  }
  OOMLAB_UNSEEN void enter(Fiber& me, std::size_t b) { blockIdx = me.block = place(b, job_.grid); }

  Which team_[teams];
  std::deque<Fiber> fibers_;
  Fiber launcher_;
  Job job_{};
  std::atomic<unsigned> begun_{0}, ended_{0};  // what orders a launch and its fibers
};

}  // namespace oomlab::host
