#include "memory/shared_budget.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <thread>
#include <utility>

namespace oomlab {

// -------------------------------------------------------------------------------------------------------- SharedBudget

struct SharedBudget::Books {
  pthread_mutex_t mutex;
  std::size_t limit, peak;
  struct Place {
    std::size_t used, peak;
  } places[kPlaces];

  std::size_t used() const noexcept {
    std::size_t sum = 0;
    for (const Place& place : places) sum += place.used;
    return sum;
  }
};

class SharedBudget::Lock {
 public:
  // Asks again and again: who waits to be woken sleeps for ever where the process that had it was killed when it had
  // given it back, and not woken anybody yet. And one that is stopped with it keeps all others waiting.
  explicit Lock(Books& books) : books_(books) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::seconds kPatience{60};
    int taken = pthread_mutex_trylock(&books.mutex);
    if (taken == EBUSY)
      for (const auto end = Clock::now() + kPatience; taken == EBUSY; taken = pthread_mutex_trylock(&books.mutex)) {
        usleep(50);
        if (Clock::now() > end) give_up();
      }
    if (taken == EOWNERDEAD) pthread_mutex_consistent(&books.mutex);
  }
  ~Lock() { pthread_mutex_unlock(&books_.mutex); }

 private:
  // Nobody can be told: these calls do not fail.
  [[noreturn]] static void give_up() {
    std::fputs("oomlab: a process has kept the shared budget locked for a minute; it is stopped, or hangs\n", stderr);
    std::_Exit(1);
  }
  Books& books_;
};

void SharedBudget::Unmap::operator()(Books* books) const noexcept { munmap(books, sizeof(Books)); }

SharedBudget::SharedBudget(std::size_t limit_bytes) {
  void* const memory = mmap(nullptr, sizeof(Books), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  books_.reset(new (memory) Books{});
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&books_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  books_->limit = limit_bytes;
}

void SharedBudget::reset(std::size_t limit_bytes) noexcept {
  const Lock lock(*books_);
  books_->limit = limit_bytes;
  books_->peak = 0;
  std::ranges::fill(books_->places, Books::Place{});
}

bool SharedBudget::take(int place, std::size_t bytes) noexcept {
  const Lock lock(*books_);
  const std::size_t used = books_->used();
  if (bytes > books_->limit - used) return false;
  Books::Place& mine = books_->places[place];
  mine.used += bytes;
  mine.peak = std::max(mine.peak, mine.used);
  books_->peak = std::max(books_->peak, used + bytes);
  return true;
}

void SharedBudget::give(int place, std::size_t bytes) noexcept {
  const Lock lock(*books_);
  std::size_t& used = books_->places[place].used;
  used -= std::min(used, bytes);
}

std::size_t SharedBudget::limit_bytes() const noexcept { return books_->limit; }
std::size_t SharedBudget::used_bytes() const noexcept {
  const Lock lock(*books_);
  return books_->used();
}
std::size_t SharedBudget::used_bytes(int place) const noexcept {
  const Lock lock(*books_);
  return books_->places[place].used;
}
std::size_t SharedBudget::peak_bytes() const noexcept {
  const Lock lock(*books_);
  return books_->peak;
}
std::size_t SharedBudget::peak_bytes(int place) const noexcept {
  const Lock lock(*books_);
  return books_->places[place].peak;
}

// ------------------------------------------------------------------------------------------------- SharedLimitResource

OutOfMemoryReport refusal_of(const SharedBudget& budget, int place, std::size_t bytes) {
  OutOfMemoryReport report;
  report.requested = bytes;
  report.requested_rounded = round_to_granule(bytes);
  report.limit = budget.limit_bytes();
  report.limit_used = budget.used_bytes();
  report.limit_used_by_others = report.limit_used - std::min(report.limit_used, budget.used_bytes(place));
  report.live = report.live_requested = report.limit_used - report.limit_used_by_others;
  report.by_limit = true;
  return report;
}

bool SharedLimitResource::would_refuse(std::size_t bytes) const {
  return round_to_granule(bytes) > budget_.limit_bytes() - budget_.used_bytes() || upstream_.would_refuse(bytes);
}

void* SharedLimitResource::allocate(std::size_t bytes, cudaStream_t stream) {
  const std::size_t rounded = round_to_granule(bytes);
  if (rounded == 0) return nullptr;
  if (!budget_.take(place_, rounded)) throw OutOfMemory(refusal_of(budget_, place_, bytes));
  try {
    return upstream_.allocate(bytes, stream);
  } catch (...) {
    budget_.give(place_, rounded);
    throw;
  }
}

void SharedLimitResource::deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept {
  if (!address) return;
  upstream_.deallocate(address, bytes, stream);
  budget_.give(place_, round_to_granule(bytes));
}

// ------------------------------------------------------------------------------------------------------------- Waiting

bool wait_with_backoff(const Patience& patience, const std::function<bool()>& done, Patience::Milliseconds& waited) {
  waited = {};
  for (Patience::Milliseconds next = patience.first; !done(); next = std::min(2 * next, patience.longest)) {
    if (waited >= patience.in_all) return false;
    next = std::min(next, patience.in_all - waited);
    patience.pause ? patience.pause(next) : std::this_thread::sleep_for(next);
    waited += next;
  }
  return true;
}

void* WaitingResource::allocate(std::size_t bytes, cudaStream_t stream) {
  void* address = nullptr;
  std::optional<OutOfMemoryReport> refused;
  Patience::Milliseconds waited{0};
  const bool served = wait_with_backoff(
      patience_,
      [&] {
        if (refused && upstream_.would_refuse(bytes)) return false;  // and nothing is thrown in vain
        try {
          address = upstream_.allocate(bytes, stream);
          return true;
        } catch (const OutOfMemory& error) {
          refused = error.report();
          return false;
        }
      },
      waited);
  waited_ += waited;
  if (served) return address;
  refused->waited_ms = waited.count();
  throw OutOfMemory(std::move(*refused));
}

}  // namespace oomlab
