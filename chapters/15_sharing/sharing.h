#pragma once
// The mitigations: who gets how much of a device that two processes share, and in which order.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cuda/backend.h"
#include "memory/resource.h"
#include "memory/shared_budget.h"
#include "neighbour.h"

namespace oomlab::sharing {

/// What two processes on one device agree on. The neighbour always comes first.
enum class Rule {
  first_come,     ///< nothing: the neighbour reserves three quarters
  cap,            ///< the neighbour has a cap of 40 %, and we have none
  equal_shares,   ///< each has a cap of a half
  wait,           ///< we take everything that we need in one request, and wait until it is there
  cache_kept,     ///< the neighbour had an evaluation that took three quarters, and keeps its cache
  cache_emptied,  ///< the same, and it empties its cache
  killed,         ///< the neighbour reserves three quarters, and is killed
};

/// Bytes, all multiples of the granule, of a budget and of what one run of ours needs at its peak.
struct Shares {
  std::size_t budget, ours;

  /// Of the whole budget; where there is none, of as much as we need.
  std::size_t part(std::size_t percent) const {
    const std::size_t whole = budget == kUnlimited ? ours : budget;
    return (whole / 100 * percent + whole % 100 * percent / 100) / kGranule * kGranule;
  }
  std::size_t wanted() const { return part(75); }  ///< by the neighbour: JAX reserves as much, unless it is told not to
  std::size_t cap(Rule rule) const {
    if (rule != Rule::cap && rule != Rule::equal_shares) return kUnlimited;
    return std::max(part(rule == Rule::cap ? 40 : 50), kGranule);
  }
};

/// What the processes of a run take from the budget, in closed form.
struct Taken {
  std::size_t neighbour_most = 0, neighbour_beside_us = 0;  ///< bytes: at most, and while we run
  std::size_t together = 0;                                 ///< both, at most
  bool neighbour_refused = false;                           ///< it asked for more than its cap
  friend bool operator==(const Taken&, const Taken&) = default;
};
/// `limited`: the run is under the budget. One that does not fit runs once more without it, beside the same neighbour.
inline Taken predicted(Rule rule, const Shares& shares, std::size_t ours, bool limited) {
  Taken t;
  t.neighbour_most = std::min(shares.wanted(), shares.cap(rule));
  t.neighbour_refused = t.neighbour_most < shares.wanted();
  const bool leaves = rule == Rule::cache_emptied || rule == Rule::killed ||
                      (rule == Rule::wait && limited && ours > shares.budget - t.neighbour_most);
  t.neighbour_beside_us = leaves ? 0 : t.neighbour_most;
  t.together = std::max(t.neighbour_most, t.neighbour_beside_us + ours);
  return t;
}

/// What was seen of them, in the first run to its end under a budget, or the first one without.
struct Seen {
  bool known = false;
  Taken taken = {};
  bool limited = false;
  double waited_ms = 0;
  std::size_t left_after_kill = 0;          ///< bytes of the budget that a killed neighbour still has
  std::optional<double> device_keeps = {};  ///< and of what the device had given it, the share that does not come back
};

/// The memory of one run of ours, with a neighbour beside it: cudaMallocAsync, below the shared budget, below our cap.
class Beside final : public MemoryResource {
 public:
  /// Starts the neighbour, and lets it take what it takes. `report` is filled in when the run is over; not by later
  /// runs that are like it, which are timed. Throws OutOfMemory when we wait in vain, or when the device itself has no
  /// memory for the neighbour.
  Beside(ForkServer& server, Rule rule, const Shares& shares, std::size_t limit_bytes, Seen& report)
      : budget_(server.budget()), rule_(rule), ours_(shares.ours), report_(report), share_(pool_, budget_, kOurs) {
    budget_.reset(limit_bytes);
    seen_.known = true;
    seen_.limited = limit_bytes != kUnlimited;
    neighbour_comes(server, shares);
    if (rule == Rule::wait) {
      take_all_or_wait();
      alone_.emplace(pool_, ours_);  // what was taken is ours: nobody needs to be asked any more
    } else if (rule == Rule::equal_shares && seen_.limited) {
      alone_.emplace(share_, shares.cap(rule));
    }
  }
  ~Beside() override {
    seen_.taken.together = budget_.peak_bytes();
    if (!report_.known || report_.limited != seen_.limited) report_ = seen_;
    if (rule_ == Rule::wait) budget_.give(kOurs, ours_);
  }
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    if (!settled_) seen_.taken.neighbour_beside_us = budget_.used_bytes(kNeighbours), settled_ = true;
    return top().allocate(bytes, stream);
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    top().deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return pool_.reserved_bytes(); }
  bool releases_cache() const override { return pool_.releases_cache(); }

 private:
  MemoryResource& top() { return alone_ ? static_cast<MemoryResource&>(*alone_) : share_; }

  void neighbour_comes(ForkServer& server, const Shares& shares) {
    const std::size_t cap = shares.cap(rule_);
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    if (planning())
      neighbour_ = std::make_unique<PlannedNeighbour>(budget_, cap);
    else
      neighbour_ = std::make_unique<NeighbourProcess>(server, device, cap);
    const bool evaluates = rule_ == Rule::cache_kept || rule_ == Rule::cache_emptied;
    const auto kind = evaluates ? Order::Kind::burst : Order::Kind::hold;
    const std::size_t before = device_free();
    Answer answer = neighbour_->ask({kind, 0, shares.wanted()});
    if (answer.kind == Answer::Kind::refused) {
      seen_.taken.neighbour_refused = true;
      answer = neighbour_->ask({kind, 0, cap});  // and not a byte more
    }
    if (rule_ == Rule::cache_emptied) answer = neighbour_->ask({Order::Kind::empty});
    if (rule_ == Rule::killed) {
      const std::size_t beside = device_free();
      neighbour_->kill();
      seen_.left_after_kill = budget_.used_bytes(kNeighbours);
      if (before > beside) seen_.device_keeps = wait_for_the_device(before, beside);
    }
    seen_.taken.neighbour_most = budget_.peak_bytes(kNeighbours);
  }

  static std::size_t device_free() {
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  }
  // A process that is killed is not over at once: on a busy machine it takes a while. Gives it a minute.
  static double wait_for_the_device(std::size_t before, std::size_t beside) {
    std::size_t now = beside;
    Patience::Milliseconds waited{0};
    const Patience minute{.first = Patience::Milliseconds(2), .in_all = Patience::Milliseconds(60'000)};
    std::this_thread::sleep_for(minute.first);
    (void)wait_with_backoff(
        minute, [&] { return (now = device_free()) >= before; }, waited);
    return now >= before ? 0 : double(before - now) / double(before - beside);
  }

  // One request for the whole run, so nobody waits while holding something that another one waits for.
  void take_all_or_wait() {
    bool told = false;
    Patience patience{.in_all = Patience::Milliseconds(240'000)};  // the neighbour ends when it is told, however busy
    patience.pause = [&](Patience::Milliseconds pause) {
      if (!std::exchange(told, true)) neighbour_->finish();  // it comes to its end, as it would have sooner or later
      check_interrupt();
      if (!planning()) std::this_thread::sleep_for(pause);
      neighbour_->look();
    };
    Patience::Milliseconds waited{0};
    const bool possible = ours_ <= budget_.limit_bytes();
    const bool taken = possible && wait_with_backoff(
                                       patience, [&] { return budget_.take(kOurs, ours_); }, waited);
    seen_.waited_ms = waited.count();
    if (taken) return;
    OutOfMemoryReport report = refusal_of(budget_, kOurs, ours_);
    report.tag = "all of the run";
    report.waited_ms = waited.count();
    throw OutOfMemory(std::move(report));
  }

  SharedBudget& budget_;
  Rule rule_;
  std::size_t ours_;
  Seen& report_;
  Seen seen_;
  AsyncResource pool_;
  SharedLimitResource share_;
  std::optional<LimitingResource> alone_;
  std::unique_ptr<Neighbour> neighbour_;
  bool settled_ = false;
};

}  // namespace oomlab::sharing
