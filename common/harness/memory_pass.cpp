#include "harness/memory_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "cuda/backend.h"
#include "harness/devices.h"
#include "harness/largest_batch.h"
#include "harness/processes.h"
#include "harness/ranks.h"
#include "harness/watch.h"
#include "memory/export.h"
#include "memory/repetition.h"
#include "plan/limits.h"

namespace oomlab {
namespace {

// Bytes of the device that are in use without being this run's: the context, what libraries and kernels take when they
// first work (so a product is made first), other processes. What the driver says is "used" has them in it.
std::size_t in_use_without_us(Context& context) {
  if (planning()) return 0;
  {
    CudaResource device;
    Ledger books;  // of their own: nothing of this is the variant's
    TrackingResource memory(device, books);
    constexpr int n = 16;
    DeviceBuffer<float> a(memory, context.stream(), n * n, Category::workspace, "first product"),
        c(memory, context.stream(), n * n, Category::workspace, "first product");
    const float one = 1, zero = 0;
    CUDA_CHECK(cudaMemsetAsync(a.data(), 0, a.bytes(), context.stream()));
    CUBLAS_CHECK(cublasSgemm(context.blas(), CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), n, a.data(), n, &zero,
                             c.data(), n));
    context.synchronize();
  }
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const std::size_t ours = context.memory().reserved_bytes();
  return total - free - std::min(total - free, ours);
}

struct MemoryPass {
  const Config& config;
  const std::string& program;
  const Variant& variant;
  VariantResult& result;
  Ledger& ledger;
  TimelineFiles* files;
  WatchLine* line;  // where it is told as it runs; null: nowhere
  std::mutex mutex = {};

  void run(const Budgets& budgets) {
    const NamedRange range((variant.name + ", memory").c_str());
    if (variant.team) {
      run_team(budgets);
    } else {
      (void)on_first_process([&] {
        run_alone(budgets);
        return std::string();
      });
    }
    result.measured = true;
  }

 private:
  // The steps of one rank, or of a variant that has one only. Returns the figures after each step, and puts into
  // `what` (a RankResult, or the VariantResult) what the last one asked of the device, and what was in use before.
  template <class Result, class Make, class Finish>
  std::vector<double> run_steps(Context& context, Ledger& books, int rank, Result& what, Make make, Finish finish) {
    std::optional<MemoryWatch> watch;
    if (config.watch || config.series || config.memory_steps >= kStepsForGrowth) {
      std::string name = variant.team ? fmt::format("{}, rank {}", variant.name, rank) : variant.name;
      watch.emplace(books, std::move(name), config.memory_steps, config.budget, &books == &ledger ? line : nullptr);
    }
    try {
      auto figures = run_steps(context, books, what, make, finish);
      if (watch) keep(*watch, books, rank);
      return figures;
    } catch (...) {
      if (watch) keep(*watch, books, rank);
      throw;
    }
  }

  // Ranks come in any order; of those in which memory grows the first one is shown.
  void keep(const MemoryWatch& watch, const Ledger& books, int rank) {
    auto growths = watch.growths();
    const std::lock_guard lock(mutex);
    if (&books == &ledger) result.steps = watch.steps();
    if (&books == &ledger && config.series && watch.steps_left_out() > 0)
      result.steps.resize(result.steps.size() + watch.steps_left_out(), StepMemory(result.steps.back()));
    if (growths.empty() || (!result.growths.empty() && result.growth_rank < rank)) return;
    result.growths = std::move(growths), result.growth_rank = rank;
  }

  template <class Result, class Make, class Finish>
  std::vector<double> run_steps(Context& context, Ledger& ledger, Result& what, Make make, Finish finish) {
    what.device_used_before = in_use_without_us(context);
    context.memory().observe_device(true);
    std::unique_ptr<Workload> work;
    {
      const Phase phase(ledger, "setup");
      work = make(context);
    }
    std::vector<double> figures;
    Loop loop(ledger, "step");
    Repetition steps(context, config.memory_steps);
    while (steps.next()) {
      check_interrupt();
      if (planning() && steps.done() > kMostPlannedSteps)
        throw UsageError(fmt::format("--memory-steps {}: of steps that do not repeat each other a plan counts up to {}",
                                     config.memory_steps, kMostPlannedSteps));
      const auto before = device_work();
      work->step();
      if (const auto after = device_work(); after && before) what.work = *after - *before;
      figures.push_back(work->figure());
      loop.end_round();
    }
    loop.leave_out(steps.left_out());
    finish(*work, steps.done());
    return figures;
  }

  // A rank's results, to be taken to the first process.
  static std::string bytes_of(const RankResult& r, const std::vector<double>& figures) {
    std::string bytes(sizeof r + figures.size() * sizeof(double), '\0');
    std::memcpy(bytes.data(), &r, sizeof r);
    std::memcpy(bytes.data() + sizeof r, figures.data(), figures.size() * sizeof(double));
    return bytes;
  }
  static std::vector<double> from_bytes(const std::string& bytes, RankResult& r) {
    std::memcpy(&r, bytes.data(), sizeof r);
    std::vector<double> figures((bytes.size() - sizeof r) / sizeof(double));
    std::memcpy(figures.data(), bytes.data() + sizeof r, figures.size() * sizeof(double));
    return figures;
  }

  void run_alone(const Budgets& budgets) {
    ledger.reset_peak();
    with_context(config, variant, {}, budgets, ledger, [&](Context& context) {
      result.figures = run_steps(
          context, ledger, 0, result, [&](Context& c) { return variant.make(c, variant.batch); },
          [&](Workload& work, std::size_t) { result.fingerprint = work.fingerprint(); });
      result.on_host = context.host_memory().peak();
      take_snapshot();
    });
    result.peak_allocated = ledger.peak_bytes();
    result.at_peak = ledger.peak_by_category();
    result.peak_reserved = ledger.peak_reserved_bytes();
    result.peak_device_used = ledger.peak_device_used_bytes();
  }

  void run_team(const Budgets& budgets) {
    require_devices(variant.ranks);  // first, or its communicators' ids would be made for nothing
    const std::unique_ptr<Team> team = variant.team(variant.batch);
    std::vector<int> ranks;
    std::map<int, std::size_t> place;  // of a kind in result.ranks
    result.ranks.clear();
    result.fingerprint = 0;
    result.on_host_of_all = 0;
    std::map<int, HostBytes> on_host;  // of a kind
    for (int rank = 0; rank < team->ranks(); ++rank) {
      const auto [known, is_new] = on_host.try_emplace(team->kind(rank));
      if (is_new) known->second = team->predicted_on_host(rank);
      result.on_host_of_all = checked_sum(result.on_host_of_all, known->second.total());
    }
    for (int rank = 0; rank < team->ranks(); ++rank) {
      const int kind = planning() ? team->kind(rank) : rank;
      if (const auto [known, is_new] = place.try_emplace(kind, ranks.size()); !is_new) {
        ++result.ranks[known->second].alike;
      } else {
        ranks.push_back(rank);
        result.ranks.push_back({.rank = rank,
                                .predicted = with_workspace(config, team->predicted(rank)),
                                .at_peak = {},
                                .flops = team->flops(rank),
                                .predicted_on_host = on_host.at(team->kind(rank)),
                                .on_host = {}});
        if (const auto flops = result.ranks.back().flops) result.flops = std::max(result.flops.value_or(0), *flops);
      }
    }
    const auto returned = on_ranks(*team, ranks, [&](int rank) {
      Config mine = config;
      mine.device = device_of(config, rank);
      Ledger of_its_own;
      Ledger& books = rank == ranks.front() ? ledger : of_its_own;
      RankResult r{.rank = rank, .predicted = {}, .at_peak = {}};
      std::vector<double> figures;
      books.reset_peak();
      Budgets of_rank = budgets;
      of_rank.host.of_others = result.on_host_of_all - on_host.at(team->kind(rank)).total();
      with_context(mine, variant, devices_of_team(config, team->ranks()), of_rank, books, [&](Context& context) {
        figures = run_steps(
            context, books, rank, r, [&](Context& c) { return team->make(c, rank); },
            [&](Workload& work, std::size_t steps) {
              r.fingerprint = work.fingerprint();
              r.bytes_sent = work.bytes_sent() / steps;
              r.most_in_flight = work.most_in_flight();
            });
        r.on_host = context.host_memory().peak();
        if (rank == ranks.front()) take_snapshot();
      });
      r.peak_allocated = books.peak_bytes();
      r.at_peak = books.peak_by_category();
      r.peak_reserved = books.peak_reserved_bytes();
      r.peak_device_used = books.peak_device_used_bytes();
      return bytes_of(r, figures);
    });
    for (std::size_t i = 0; i < returned.size(); ++i) {
      RankResult& r = result.ranks[i];
      const std::size_t alike = r.alike;
      const ByCategory predicted = r.predicted;
      const HostBytes predicted_on_host = r.predicted_on_host;
      const auto flops = r.flops;
      const auto figures = from_bytes(returned[i], r);
      r.alike = alike, r.predicted = predicted, r.flops = flops, r.predicted_on_host = predicted_on_host;
      if (i == 0) result.figures = figures;
      result.fingerprint = result.fingerprint * 0x100000001b3 ^ r.fingerprint;
    }
    // The row shows the rank that needs most; but one whose prediction fails must be seen.
    const RankResult* shown = &result.ranks.front();
    for (const RankResult& r : result.ranks)
      if (r.peak_allocated > shown->peak_allocated) shown = &r;
    for (const RankResult& r : result.ranks)
      if (r.at_peak != r.predicted) shown = &r;
    result.predicted = shown->predicted;
    result.peak_allocated = shown->peak_allocated;
    result.at_peak = shown->at_peak;
    result.peak_reserved = shown->peak_reserved;
    result.peak_device_used = shown->peak_device_used;
    result.device_used_before = shown->device_used_before;
    result.work = shown->work;
    const auto total_on_host = [](const RankResult& r) { return r.on_host.total(); };
    const RankResult& most = *std::ranges::max_element(result.ranks, {}, total_on_host);
    result.predicted_on_host = most.predicted_on_host;
    result.on_host = most.on_host;
  }

  void take_snapshot() {
    if (files && !config.snapshot.empty()) files->snapshot = memory_snapshot(ledger, config.device, program);
  }
};

// For example BF16 on a GPU from before it, or memory without an address where a GPU is shared out by a hypervisor.
bool is_beyond_the_device(const std::runtime_error& error) {
  if (const auto* const cuda = dynamic_cast<const CudaError*>(&error)) return cuda->code() == cudaErrorNotSupported;
  const auto* const blas = dynamic_cast<const CublasError*>(&error);
  return blas && (blas->status() == CUBLAS_STATUS_NOT_SUPPORTED || blas->status() == CUBLAS_STATUS_ARCH_MISMATCH);
}

}  // namespace

void require_countable(std::size_t held) {
  if (planning() && held > kMostHeld)
    throw VariantSkipped(
        fmt::format("{} forward passes wait for their backward passes, and a plan holds up to {}", held, kMostHeld));
}

ByCategory with_workspace(const Config& config, ByCategory bytes) {
  bytes[Category::workspace] = checked_sum(bytes[Category::workspace], round_to_granule(config.workspace));
  return bytes;
}

Budgets budgets_of(const Config& config) { return {config.budget, {.limit = config.host_memory}}; }

VariantResult run_memory_pass(const Config& config, const std::string& program, const Variant& variant, bool baseline,
                              TimelineFiles* files, const Progress& progress) {
  VariantResult result;
  result.name = variant.name;
  result.baseline = baseline;
  result.batch = variant.batch;
  result.agreement = variant.agreement;
  if (config.tf32) result.agreement.tolerance = std::max(result.agreement.tolerance, kTf32Tolerance);
  result.predicted = with_workspace(config, variant.predicted(variant.batch));
  if (variant.flops) result.flops = variant.flops(variant.batch);
  if (variant.predicted_on_host) result.predicted_on_host = variant.predicted_on_host(variant.batch);
  result.on_host_of_all = result.predicted_on_host.total();
  result.dtype = variant.dtype;

  Ledger ledger;
  ledger.record_timeline(files != nullptr);
  WatchLine line;
  MemoryPass pass{config, program, variant, result, ledger, files, config.watch ? &line : nullptr};
  try {
    pass.run(budgets_of(config));
    progress(fmt::format("{}: peak {}", variant.name, format_bytes(result.peak_allocated)));
  } catch (const VariantSkipped& skipped) {
    result.outcome = VariantResult::Outcome::skipped;
    result.reason = skipped.what();
    progress(fmt::format("{}: skipped: {}", variant.name, result.reason));
  } catch (const OutOfMemory& error) {
    result.outcome = VariantResult::Outcome::oom;
    result.oom = error.report();
    result.reason = oom_line(error.report());
    progress(fmt::format("{}: {}", variant.name, result.reason));
  } catch (const std::runtime_error& error) {
    if (is_beyond_the_device(error)) {
      result.outcome = VariantResult::Outcome::skipped;
      result.reason = fmt::format("this device cannot do it: {}", error.what());
      progress(fmt::format("{}: skipped: {}", variant.name, result.reason));
    } else {
      if (!is_device_out_of_memory(error)) throw;
      result.outcome = VariantResult::Outcome::oom;
      result.reason = fmt::format("out of memory outside the ledger: {}", error.what());
      progress(fmt::format("{}: {}", variant.name, result.reason));
    }
  }
  if (result.oom && result.oom->by_limit) {
    try {
      pass.run({});
      progress(fmt::format("{}: without the budget, peak {}", variant.name, format_bytes(result.peak_allocated)));
    } catch (const VariantSkipped& skipped) {
      result.reason += fmt::format("; without the budget: {}", skipped.what());
    } catch (const OutOfMemory& error) {
      result.reason += "; without the budget: " + oom_line(error.report());
      progress(fmt::format("{}: without the budget: {}", variant.name, oom_line(error.report())));
    } catch (const std::runtime_error& error) {
      if (!is_device_out_of_memory(error)) throw;
      result.reason += fmt::format("; without the budget: out of memory outside the ledger: {}", error.what());
      progress(fmt::format("{}: without the budget: out of memory outside the ledger", variant.name));
    }
  }
  result.phases = ledger.phases();
  result.growth_looked_for = result.measured && config.memory_steps >= kStepsForGrowth;
  if (files) {
    if (!config.trace.empty())
      files->trace = chrome_trace(ledger, config.device, fmt::format("{} {}", program, variant.name));
    if (!config.snapshot.empty() && files->snapshot.empty())  // it never got through a step
      files->snapshot = memory_snapshot(ledger, config.device, program);
  }
  return result;
}

std::optional<std::size_t> largest_batch(const Config& config, const Variant& variant) {
  const std::size_t budget = config.budget;
  if (budget == kUnlimited) return std::nullopt;
  const auto fits = [&](std::size_t batch) {
    try {
      return with_workspace(config, variant.predicted(batch)).total() <= budget;
    } catch (const std::length_error&) {  // more bytes than a size_t can count
      return false;
    }
  };
  const LargestBatch largest = find_largest_batch(std::size_t(1) << 62, fits);
  return largest.hit_limit ? std::nullopt : std::optional(largest.batch);  // else the peak does not depend on the batch
}

}  // namespace oomlab
