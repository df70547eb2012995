#pragma once
// A budget that several processes share, and how to wait for others to give something back.
//
// A device does not divide itself among the processes that use it: whoever comes first gets what it asks for. What a
// program can do is to ask somebody before it asks the device. Here that is a number in memory which a process and
// those forked from it have in common.

#include <pthread.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "memory/resource.h"

namespace oomlab {

/// Bytes that processes take from one budget, each under its number (place). In memory that this process shares with
/// those that it forks after making one. Survives any process that is killed, at whatever moment: its mutex is robust,
/// and a place's bytes are one store. What a dead process had is given back by whoever sees it end, with give_all().
class SharedBudget {
 public:
  static constexpr int kPlaces = 16;

  /// Throws std::bad_alloc where there is no memory to share.
  explicit SharedBudget(std::size_t limit_bytes = kUnlimited);
  SharedBudget(const SharedBudget&) = delete;
  SharedBudget& operator=(const SharedBudget&) = delete;

  /// Starts over: another limit, and nothing taken, nor ever was.
  void reset(std::size_t limit_bytes) noexcept;
  /// Takes bytes for a place, if all places together then have no more than the limit. All of them or none.
  [[nodiscard]] bool take(int place, std::size_t bytes) noexcept;
  /// Gives bytes of a place back; no more than it has.
  void give(int place, std::size_t bytes) noexcept;
  /// The same for all it has. For a process that has ended.
  void give_all(int place) noexcept { give(place, kUnlimited); }

  std::size_t limit_bytes() const noexcept;
  /// Bytes that all places have now, and that one has.
  std::size_t used_bytes() const noexcept;
  std::size_t used_bytes(int place) const noexcept;
  /// The most that all of them had together at one time, and that one had.
  std::size_t peak_bytes() const noexcept;
  std::size_t peak_bytes(int place) const noexcept;

 private:
  struct Books;
  class Lock;
  struct Unmap {
    void operator()(Books* books) const noexcept;
  };
  std::unique_ptr<Books, Unmap> books_;
};

/// One process's part of a shared budget: takes from it before it asks upstream, and refuses what is not there. Bytes
/// are rounded to the granule. Put a LimitingResource on top for a cap of this process's own.
class SharedLimitResource final : public MemoryResource {
 public:
  SharedLimitResource(MemoryResource& upstream, SharedBudget& budget, int place)
      : upstream_(upstream), budget_(budget), place_(place) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override;
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override;
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t largest_free_block() const override { return upstream_.largest_free_block(); }
  bool releases_cache() const override { return upstream_.releases_cache(); }
  bool would_refuse(std::size_t bytes) const override;

 private:
  MemoryResource& upstream_;
  SharedBudget& budget_;
  int place_;
};

/// What a shared budget says when it refuses `bytes`: by_limit, with what others have of it.
OutOfMemoryReport refusal_of(const SharedBudget& budget, int place, std::size_t bytes);

/// How long somebody waits: pauses that double from the first to the longest one, until they add up to `in_all`.
struct Patience {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  Milliseconds first{1}, longest{64}, in_all{10'000};
  /// How a pause is made. Empty: the thread sleeps. Tests, and plans, in which no time passes, have others.
  std::function<void(Milliseconds)> pause = {};
};
/// Asks `done` until it says true, with a pause before each time but the first. No busy loop, and an end: false when
/// patience is over. `waited` receives the sum of the pauses.
bool wait_with_backoff(const Patience& patience, const std::function<bool()>& done, Patience::Milliseconds& waited);

/// Waits where upstream has no memory, because another process may give some back, and tries again. When patience is
/// over, upstream's OutOfMemory comes out, and its report says how long this has waited. Whoever waits keeps what it
/// has: two that wait for each other both wait until the first one's patience is over, and it gives its memory back.
/// Take everything in one request, or nothing, and that cannot happen.
class WaitingResource final : public MemoryResource {
 public:
  explicit WaitingResource(MemoryResource& upstream, Patience patience = {})
      : upstream_(upstream), patience_(std::move(patience)) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override;
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    upstream_.deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return upstream_.reserved_bytes(); }
  std::size_t largest_free_block() const override { return upstream_.largest_free_block(); }
  bool releases_cache() const override { return upstream_.releases_cache(); }
  /// All pauses so far.
  Patience::Milliseconds waited() const noexcept { return waited_; }

 private:
  MemoryResource& upstream_;
  Patience patience_;
  Patience::Milliseconds waited_{0};
};

}  // namespace oomlab
