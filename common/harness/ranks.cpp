#include "harness/ranks.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <thread>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "harness/chapter.h"
#include "harness/processes.h"

namespace oomlab {

bool is_device_out_of_memory(const std::runtime_error& error) {
  if (const auto* cuda = dynamic_cast<const CudaError*>(&error)) return cuda->code() == cudaErrorMemoryAllocation;
  if (const auto* blas = dynamic_cast<const CublasError*>(&error)) return blas->status() == CUBLAS_STATUS_ALLOC_FAILED;
  if (const auto* rank = dynamic_cast<const RankFailed*>(&error)) return rank->out_of_memory();
  return dynamic_cast<const OutOfMemory*>(&error) != nullptr;
}

namespace {

// Throws what is on its way, with the rank's name, where it has a text to put it in. Of ranks that are alike any may be
// the first to run out of memory: the first of its kind is named.
[[noreturn]] void rethrow_with_rank(const Team& team, int rank) {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    OutOfMemoryReport report = error.report();
    int first = 0;
    while (team.kind(first) != team.kind(rank)) ++first;
    report.tag += fmt::format(", rank {}", first);
    throw OutOfMemory(std::move(report));
  } catch (const VariantSkipped&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw RankFailed(fmt::format("rank {}: {}", rank, error.what()), is_device_out_of_memory(error),
                     dynamic_cast<const AnotherRankFailed*>(&error) != nullptr);
  } catch (const std::bad_alloc&) {
    throw RankFailed(fmt::format("rank {}: out of host memory (std::bad_alloc)", rank), false, false);
  }
}

}  // namespace

std::vector<std::string> on_ranks(Team& team, const std::vector<int>& ranks,
                                  const std::function<std::string(int)>& body) {
  const auto named = [&](int rank) {
    try {
      return body(rank);
    } catch (...) {
      team.failed = true;
      rethrow_with_rank(team, rank);
    }
  };
  if (processes().size() > 1) return on_all_processes([&] { return named(processes().rank()); }, &team.failed);

  std::vector<std::string> returned(ranks.size());
  std::mutex mutex;
  std::exception_ptr first;
  bool only_follows = false;  // `first` does
  const auto run = [&](std::size_t i) noexcept {
    std::exception_ptr mine;
    bool follows = false;
    try {
      returned[i] = named(ranks[i]);
      return;
    } catch (const RankFailed& error) {
      follows = error.only_follows();
      mine = std::current_exception();
    } catch (...) {
      mine = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    if (first && !(only_follows && !follows)) return;
    only_follows = follows;
    first = mine;
  };
  if (planning()) {
    for (std::size_t i = 0; i < ranks.size() && !first; ++i) run(i);
  } else {
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    try {
      for (std::size_t i = 0; i < ranks.size(); ++i)
        threads.emplace_back([&, i] {
          share_processor(team.ranks());
          run(i);
        });
    } catch (...) {
      team.failed = true;
      for (std::thread& thread : threads) thread.join();
      throw;
    }
    for (std::thread& thread : threads) thread.join();
  }
  if (first) std::rethrow_exception(first);
  return returned;
}

void require_devices(int ranks) {
  if (planning()) return;
  if (const int launched = processes().size(); launched > 1) {
    if (ranks != launched)
      throw VariantSkipped(fmt::format("has {} ranks, and {} processes were started", ranks, launched));
    return;
  }
  int count = 1;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  if (ranks > count) throw VariantSkipped(fmt::format("needs {} devices, this machine has {}", ranks, count));
}

}  // namespace oomlab
