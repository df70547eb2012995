#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/raii.h"
#include "data/dataset.h"
#include "harness/chapter.h"
#include "harness/cli.h"
#include "harness/filter.h"
#include "harness/interrupt.h"
#include "harness/processes.h"
#include "harness/result.h"
#include "harness/system.h"
#include "harness/timing.h"
#include "memory/export.h"

namespace oomlab {
namespace {

constexpr int kOk = 0, kFailed = 1, kCannotRunHere = 2, kUsage = 64, kInterrupted = 130;
constexpr std::size_t kMemorySteps = 2;  // the second one shows that nothing grows from step to step

// ------------------------------------------------------------------------------------------------------------ progress

// One line to stderr, at once: a run may take minutes, and its table comes at the end.
class Progress {
 public:
  explicit Progress(bool quiet) : quiet_(quiet) {}
  void operator()(const std::string& text) const {
    if (!quiet_) fmt::print(stderr, "  {}\n", text);
  }

 private:
  bool quiet_;
};

// --------------------------------------------------------------------------------------------------- choosing a device

// What cudaGetDeviceCount says where there is no usable device: by number, because the host runtime needs no names for
// them. Stub library, insufficient driver, devices unavailable, no device, driver mismatch, no compatibility.
bool no_device_here(cudaError_t code) {
  switch (static_cast<int>(code)) {
    case 34:
    case 35:
    case 46:
    case 100:
    case 803:
    case 804: return true;
    default: return false;
  }
}

void choose_device(CommandLine& line, int most_ranks, const Progress& progress) {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    (void)cudaGetLastError();
    if (!no_device_here(code)) throw CudaError(code, "cudaGetDeviceCount", __FILE__, __LINE__);
    throw CannotRunHere(fmt::format("no CUDA device: {}; the host preset needs none", cudaGetErrorString(code)));
  }
  Config& config = line.config;
  const int launched = processes().size();
  if (launched == 1 && config.devices_given && !config.plan && config.devices > count)
    throw UsageError(fmt::format("--devices {} is too many; this machine has {}", config.devices, count));
  // A grid that was asked for must have its devices; the chapter's own variants are skipped where there are too few.
  if ((config.tp || config.pp || config.dp) && !config.plan) {
    if (launched > 1 && most_ranks != launched)
      throw UsageError(
          fmt::format("{} ranks (--tp x --pp x --dp) are not the {} processes started", most_ranks, launched));
    if (launched == 1 && most_ranks > count)
      throw UsageError(
          fmt::format("{} ranks (--tp x --pp x --dp) need as many devices; this machine has {}", most_ranks, count));
  }
  if (!line.device_auto) {
    if (config.device >= count)
      throw UsageError(
          fmt::format("--device {} does not exist; this machine has {} (0 to {})", config.device, count, count - 1));
    CUDA_CHECK(cudaSetDevice(config.device));
    return;
  }
  std::size_t most = 0;
  for (int device = 0; device < count; ++device) {
    const DeviceGuard guard(device);
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    progress(fmt::format("device {}: {} free of {}", device, format_bytes(free), format_bytes(total)));
    for (const DeviceProcess& process : device_processes(device)) {
      if (process.pid == static_cast<unsigned>(getpid())) continue;
      progress(fmt::format("  process {} ({}) holds {}", process.pid, process.name.empty() ? "?" : process.name,
                           process.bytes ? format_bytes(process.bytes) : "an unknown amount"));
    }
    if (free > most || device == 0) {
      most = free;
      config.device = device;
    }
  }
  progress(fmt::format("--device auto: device {} has the most free memory", config.device));
  CUDA_CHECK(cudaSetDevice(config.device));
}

// Rank r has device r, counted from the first one of this run; of several processes, each counts on its own host.
int device_of(const Config& config, int rank) {
  if (planning()) return config.device;
  int count = 1;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  return (config.device + (processes().size() > 1 ? processes().local_rank() : rank)) % count;
}

// Which devices ranks get, and what else is on them.
void say_devices(const Config& config, int ranks, const Progress& progress) {
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  const auto line_of = [&](int rank) {
    const int device = device_of(config, rank);
    const DeviceGuard guard(device);
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    std::size_t others = 0;
    for (const DeviceProcess& process : device_processes(device))
      others += process.pid != static_cast<unsigned>(getpid());
    return fmt::format("rank {} has device {} (of {} visible, counted from --device {}): {} free of {}{}", rank, device,
                       count, config.device, format_bytes(free), format_bytes(total),
                       others ? fmt::format(", {} other processes on it", others) : "");
  };
  if (processes().size() > 1) {
    for (const std::string& line : together([&] { return line_of(processes().rank()); })) progress(line);
    return;
  }
  for (int rank = 0; rank < std::min(ranks, count); ++rank) {
    try {
      progress(line_of(rank));
    } catch (const CudaError& error) {
      throw RankFailed(fmt::format("rank {}: {}", rank, error.what()), false, false);
    }
  }
}

// A program made for a GPU cannot count without allocating, so its twin, the same source with the host runtime below
// it, does the planning. CMake builds it into the folder plan/ beside this program.
[[noreturn]] void become_the_planner(const std::string& program, char** argv) {
  const auto twin = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "plan" / program;
  execv(twin.c_str(), argv);
  throw CannotRunHere(fmt::format("--plan needs {}, which is not there", twin.string()));
}

// What a context needs beside what a chapter predicts.
ByCategory with_workspace(const Config& config, ByCategory bytes) {
  bytes[Category::workspace] = checked_sum(bytes[Category::workspace], round_to_granule(config.workspace));
  return bytes;
}

// --------------------------------------------------------------------------------------------------------- memory pass

// Files that tell the story of the first variant.
struct Story {
  std::string trace, snapshot;
};

// --------------------------------------------------------------------------------------------------------------- ranks

// The device also runs out of memory where no ledger looks: a library's own allocations, a kernel's code, a stream.
bool is_device_out_of_memory(const std::runtime_error& error) {
  if (const auto* cuda = dynamic_cast<const CudaError*>(&error)) return cuda->code() == cudaErrorMemoryAllocation;
  if (const auto* blas = dynamic_cast<const CublasError*>(&error)) return blas->status() == CUBLAS_STATUS_ALLOC_FAILED;
  if (const auto* rank = dynamic_cast<const RankFailed*>(&error)) return rank->out_of_memory();
  return dynamic_cast<const OutOfMemory*>(&error) != nullptr;
}

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

// body(rank) for each of `ranks`, a thread each, or a process each; in plan mode, where nobody waits for anybody, one
// after the other. Returns what each returned. Of several exceptions the first one counts: the others follow from it.
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
  if (processes().size() > 1) return together([&] { return named(processes().rank()); }, &team.failed);

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

void require_devices(const Team& team) {
  if (planning()) return;
  if (const int launched = processes().size(); launched > 1) {
    if (team.ranks() != launched)
      throw VariantSkipped(fmt::format("has {} ranks, and {} processes were started", team.ranks(), launched));
    return;
  }
  int count = 1;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  if (team.ranks() > count)
    throw VariantSkipped(fmt::format("needs {} devices, this machine has {}", team.ranks(), count));
}

struct MemoryPass {
  const Config& config;
  const std::string& program;
  const Variant& variant;
  VariantResult& result;
  Ledger& ledger;
  Story* story;

  void run(std::size_t budget) {
    if (variant.team) {
      run_team(budget);
    } else {
      (void)first_alone([&] {
        run_alone(budget);
        return std::string();
      });
    }
    result.measured = true;
  }

 private:
  // The steps of one rank, or of a variant that has one only. Returns the figures after each step.
  template <class Make, class Finish>
  std::vector<double> run_steps(Context& context, Ledger& ledger, Make make, Finish finish) {
    context.memory().observe_device(true);
    std::unique_ptr<Workload> work;
    {
      const Phase phase(ledger, "setup");
      work = make(context);
    }
    std::vector<double> figures;
    for (std::size_t i = 0; i < kMemorySteps; ++i) {
      check_interrupt();
      work->step();
      figures.push_back(work->figure());
    }
    finish(*work);
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

  void run_alone(std::size_t budget) {
    ledger.reset_peak();
    with_context(config, variant, budget, ledger, [&](Context& context) {
      result.figures = run_steps(
          context, ledger, [&](Context& c) { return variant.make(c, variant.batch); },
          [&](Workload& work) { result.fingerprint = work.fingerprint(); });
      take_snapshot();
    });
    result.peak_allocated = ledger.peak_bytes();
    result.at_peak = ledger.peak_by_category();
    result.peak_reserved = ledger.peak_reserved_bytes();
    result.peak_device_used = ledger.peak_device_used_bytes();
  }

  void run_team(std::size_t budget) {
    const std::unique_ptr<Team> team = variant.team(variant.batch);
    require_devices(*team);
    std::vector<int> ranks;
    std::map<int, std::size_t> place;  // of a kind in result.ranks
    result.ranks.clear();
    result.fingerprint = 0;
    for (int rank = 0; rank < team->ranks(); ++rank) {
      const int kind = planning() ? team->kind(rank) : rank;
      if (const auto [known, is_new] = place.try_emplace(kind, ranks.size()); !is_new) {
        ++result.ranks[known->second].alike;
      } else {
        ranks.push_back(rank);
        result.ranks.push_back(
            {.rank = rank, .predicted = with_workspace(config, team->predicted(rank)), .at_peak = {}});
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
      with_context(mine, variant, budget, books, [&](Context& context) {
        figures = run_steps(
            context, books, [&](Context& c) { return team->make(c, rank); },
            [&](Workload& work) {
              r.fingerprint = work.fingerprint();
              r.bytes_sent = work.bytes_sent() / kMemorySteps;
              r.most_in_flight = work.most_in_flight();
            });
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
      const auto figures = from_bytes(returned[i], r);
      r.alike = alike, r.predicted = predicted;
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
  }

  void take_snapshot() {
    if (story && !config.snapshot.empty()) story->snapshot = memory_snapshot(ledger, config.device, program);
  }
};

VariantResult run_memory_pass(const Config& config, const std::string& program, const Variant& variant, bool baseline,
                              Story* story, const Progress& progress) {
  VariantResult result;
  result.name = variant.name;
  result.baseline = baseline;
  result.batch = variant.batch;
  result.agreement = variant.agreement;
  result.predicted = with_workspace(config, variant.predicted(variant.batch));

  Ledger ledger;
  ledger.record_timeline(story != nullptr);
  MemoryPass pass{config, program, variant, result, ledger, story};
  try {
    pass.run(config.budget);
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
    if (!is_device_out_of_memory(error)) throw;
    result.outcome = VariantResult::Outcome::oom;
    result.reason = fmt::format("out of memory outside the ledger: {}", error.what());
    progress(fmt::format("{}: {}", variant.name, result.reason));
  }
  if (result.oom && result.oom->by_limit) {
    try {
      pass.run(kUnlimited);
      progress(fmt::format("{}: without the budget, peak {}", variant.name, format_bytes(result.peak_allocated)));
    } catch (const VariantSkipped& skipped) {
      result.reason += fmt::format("; without the budget: {}", skipped.what());
    } catch (const OutOfMemory& error) {
      result.reason += "; without the budget: " + oom_line(error.report());
      progress(fmt::format("{}: without the budget: {}", variant.name, oom_line(error.report())));
    }
  }
  result.phases = ledger.phases();
  if (story) {
    if (!config.trace.empty())
      story->trace = chrome_trace(ledger, config.device, fmt::format("{} {}", program, variant.name));
    if (!config.snapshot.empty() && story->snapshot.empty())  // it never got through a step
      story->snapshot = memory_snapshot(ledger, config.device, program);
  }
  return result;
}

// ----------------------------------------------------------------------------------------------- checks on the results

void compare_numerics(VariantResult& v, const VariantResult& baseline) {
  if (&v == &baseline || !v.measured || !baseline.measured) return;
  v.compared = true;
  for (std::size_t i = 0; i < v.figures.size(); ++i) {
    const double scale = std::max(std::abs(baseline.figures[i]), 1e-30);
    const double difference = std::abs(v.figures[i] - baseline.figures[i]) / scale;
    if (!(difference <= v.largest_difference)) v.largest_difference = difference;  // a NaN must show
  }
  switch (v.agreement.kind) {
    case Agreement::Kind::bit_equal:
      v.agrees = v.figures == baseline.figures && v.fingerprint == baseline.fingerprint;
      break;
    case Agreement::Kind::within_tolerance: v.agrees = v.largest_difference <= v.agreement.tolerance; break;
    case Agreement::Kind::differs_by_design: break;
  }
}

// The largest batch whose predicted peak fits: the prediction grows with the batch, so doubling, then bisection.
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
  if (!fits(1)) return 0;
  std::size_t low = 1, high = 2;
  while (fits(high)) {
    if (high >= std::size_t(1) << 62) return std::nullopt;  // the peak does not depend on the batch
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

void check_results(RunResult& run) {
  for (const VariantResult& v : run.variants) {
    if (!v.prediction_holds())
      run.failures.push_back(fmt::format("{}: peak allocated is {} bytes, predicted {}{}", v.name, v.peak_allocated,
                                         v.predicted_peak(),
                                         v.peak_allocated == v.predicted_peak() ? ", with another split" : ""));
    if (!v.agrees)
      run.failures.push_back(fmt::format(
          "{}: numbers are not {} with the baseline's (relative difference {:.3g})", v.name,
          v.agreement.kind == Agreement::Kind::bit_equal ? "bit-equal"
                                                         : fmt::format("within {:g}", v.agreement.tolerance),
          v.largest_difference));
  }
}

// --------------------------------------------------------------------------------------------------------- timing pass

// Samples a second of each step.
std::vector<double> rates_of(Context& context, Workload& work, std::size_t steps,
                             const std::function<void(double)>& tick) {
  auto rates = time_steps(context, work, steps, [&](double s) {
    check_interrupt();
    tick(s);
  });
  const auto samples = static_cast<double>(work.samples_per_step());
  for (double& r : rates) r = samples / r;
  return rates;
}

void time_team(const Config& config, const Variant& variant, bool fits, std::size_t steps, VariantResult& result,
               const std::function<void(double)>& tick) {
  const std::unique_ptr<Team> team = variant.team(variant.batch);
  std::vector<int> ranks(static_cast<std::size_t>(team->ranks()));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  on_ranks(*team, ranks, [&](int rank) {
    Config mine = config;
    mine.device = device_of(config, rank);
    Ledger ledger;
    with_context(mine, variant, fits ? config.budget : kUnlimited, ledger, [&](Context& context) {
      const auto work = team->make(context, rank);
      for (const double rate : rates_of(context, *work, steps, [&](double s) {
             if (rank == 0) tick(s);
           }))
        if (rank == 0) result.samples_per_second.push_back(rate);
    });
    return std::string();
  });
}

// How fast the machine is before and after a variant's steps, in memory of its own. Nobody compares the times of a few
// steps only.
void add_reference_rates(const Config& config, VariantResult& result) {
  if (config.steps < kStepsToCompare) return;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    for (const double rate : reference_rates(context)) result.reference_rates.push_back(rate);
  });
}

void time_alone(Context& context, const Variant& variant, std::size_t steps, VariantResult& result,
                const std::function<void(double)>& tick) {
  const auto work = variant.make(context, variant.batch);
  for (const double rate : rates_of(context, *work, steps, tick)) result.samples_per_second.push_back(rate);
}

void run_timing_pass(const Config& config, const std::vector<const Variant*>& variants,
                     std::vector<VariantResult>& results, const Progress& progress) {
  std::vector<TimedRun> runs;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    // Simulated devices share this machine's processor: the time of several says nothing.
    if (!results[i].measured || (variants[i]->team && std::strcmp(backend_name(), "host") == 0)) continue;
    runs.push_back({results[i].name, [&, i](std::size_t steps, const std::function<void(double)>& tick) {
                      const Variant& variant = *variants[i];
                      VariantResult& result = results[i];
                      if (result.samples_per_second.empty())
                        progress(fmt::format("{}: timing {} steps", variant.name, config.steps));
                      // Timed as it was measured: one that does not fit the budget runs without it.
                      const bool fits = result.outcome == VariantResult::Outcome::ok;
                      Ledger ledger;
                      try {
                        if (variant.team) return time_team(config, variant, fits, steps, result, tick);
                        (void)first_alone([&] {
                          add_reference_rates(config, result);
                          with_context(config, variant, fits ? config.budget : kUnlimited, ledger,
                                       [&](Context& context) { time_alone(context, variant, steps, result, tick); });
                          add_reference_rates(config, result);
                          return std::string();
                        });
                      } catch (const std::runtime_error& error) {
                        // It fitted a moment ago, so somebody else took the memory: the bytes stand, the times lack.
                        if (!is_device_out_of_memory(error)) throw;
                        if (result.reason.find("not timed") != std::string::npos) return;  // an earlier round said it
                        result.reason += fmt::format("{}not timed, out of memory: {}",
                                                     result.reason.empty() ? "" : "; ", error.what());
                      }
                    }});
  }
  if (runs.empty()) return;  // nothing fits this device; Google Benchmark would complain
  if (processes().rank() == 0) return run_benchmarks(config.steps, runs);
  for (std::size_t round = 0; round < kTimingRounds; ++round)
    for (const TimedRun& timed : runs)
      if (const std::size_t steps = steps_of_round(config.steps, round)) timed.run(steps, [](double) {});
}

// -------------------------------------------------------------------------------------------------------------- report

class RunReport final : public Report {
 public:
  explicit RunReport(RunResult& run) : run_(run) {}
  const Config& config() const override { return run_.config; }
  void line(const std::string& text) override {
    if (!run_.config.quiet) fmt::print("{}\n", text);
  }
  void figure(const std::string& key, double value) override { run_.findings.emplace_back(key, value); }
  void check(bool holds, const std::string& what) override {
    if (!holds) run_.failures.push_back(what);
  }
  void phases(const VariantResult& result) override {
    if (!run_.config.quiet) fmt::print("{}", phase_table(result));
  }

 private:
  RunResult& run_;
};

std::vector<const Variant*> select(const Chapter& chapter, const std::string& filter) {
  std::vector<const Variant*> chosen;
  for (const Variant& variant : chapter.variants)
    if (matches_filter(filter, variant.name)) chosen.push_back(&variant);
  if (chosen.empty()) {
    std::string names;
    for (const Variant& variant : chapter.variants) names += (names.empty() ? "" : ", ") + variant.name;
    throw UsageError(fmt::format("--filter '{}' matches no variant; there are: {}", filter, names));
  }
  return chosen;
}

// Google Benchmark runs nothing, and says nothing, when its filter matches nothing.
void check_benchmark_filter(const CommandLine& line, const std::vector<const Variant*>& chosen) {
  if (line.benchmark_filter.empty() || line.benchmark_filter == "all") return;
  for (const Variant* variant : chosen)
    if (matches_filter(line.benchmark_filter, variant->name)) return;
  throw UsageError(fmt::format("--benchmark_filter '{}' matches no variant", line.benchmark_filter));
}

std::string list_of(const Chapter& chapter) {
  std::string text = "variants:\n";
  for (const Variant& v : chapter.variants)
    text += fmt::format("  {}{}\n", v.name, &v == &chapter.variants.front() ? " (baseline)" : "");
  text += "claims:\n";
  for (const Claim& c : chapter.claims) text += fmt::format("  {}\n", c.text);
  return text;
}

// Exit code 0, or an error when standard output is a full disk.
int flushed() {
  const bool failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0 || failed) {
    std::clearerr(stdout);
    throw std::runtime_error("the output could not be written");
  }
  return kOk;
}

// What is told at the end. Returns the exit code.
int finish(const std::string& program, const Chapter& chapter, RunResult& result, const Story& story) {
  const Config& config = result.config;
  result.claims = judge(chapter.claims, Results(result.variants));
  check_results(result);

  if (!config.quiet) fmt::print("\n{}\n", comparison_table(result));
  RunReport report(result);
  if (chapter.after) chapter.after(Results(result.variants), report);
  if (!config.quiet) fmt::print("{}{}", claims_table(result), verdict_line(result));
  (void)flushed();
  if (config.quiet)
    for (const std::string& failure : result.failures) fmt::print(stderr, "{}: failed: {}\n", program, failure);

  check_interrupt();
  if (!config.trace.empty()) write_file(config.trace, story.trace);
  if (!config.snapshot.empty()) write_file(config.snapshot, story.snapshot);
  if (!config.json.empty()) write_file(config.json, result_json(result));
  return result.failures.empty() ? kOk : kFailed;
}

// Under a launcher there are as many ranks as processes, and only the first one talks and writes.
void adapt_to_processes(CommandLine& line, const Defaults& defaults) {
  Config& config = line.config;
  const int launched = processes().size();
  if (!defaults.devices)
    throw UsageError(fmt::format("runs in one process; {} were started (07_multi_gpu uses several)", launched));
  if (config.plan) throw UsageError("--plan needs one process only; start it without mpirun");
  if (!line.benchmark_filter.empty()) throw UsageError("--benchmark_filter cannot be used under mpirun; use --filter");
  if (config.devices_given && config.devices != launched)
    throw UsageError(fmt::format("--devices {} does not fit the {} processes started", config.devices, launched));
  config.devices = launched;
  config.devices_given = true;
  if (processes().rank() == 0) return;
  config.quiet = true;
  config.json.clear(), config.trace.clear(), config.snapshot.clear();
}

int run(int argc, char** argv, const std::string& program, const Defaults& full, const Defaults& quick,
        const std::function<Chapter(const Config&)>& declare) {
  CommandLine line;
  (void)together([&] {
    line = parse_command_line(argc, argv, program, full, quick);
    if (processes().size() > 1) adapt_to_processes(line, full);
    return std::string();
  });
  if (line.quit) {
    if (processes().rank() == 0) fmt::print("{}", line.text);
    return flushed();
  }
  Config& config = line.config;
  if (config.plan && !planning()) {
    if (std::strcmp(backend_name(), "cuda") == 0) become_the_planner(program, argv);
  }
  const Progress progress(config.quiet);

  Chapter chapter;
  std::vector<const Variant*> chosen;
  int most_ranks = 1;
  (void)together([&] {
    try {
      chapter = declare(config);
    } catch (const std::invalid_argument& error) {  // --model
      throw UsageError(error.what());
    } catch (const data::DataError& error) {  // --data
      throw UsageError(error.what());
    }
    chosen = select(chapter, config.filter);
    if (config.list) return std::string();
    for (const Variant* variant : chosen) most_ranks = std::max(most_ranks, variant->ranks);
    if (most_ranks > 1) want_devices(most_ranks);
    if (config.plan && !planning() && !enable_planning()) throw std::runtime_error("plan mode cannot be entered");

    // Whatever can be refused is refused before the first line of output.
    choose_device(line, most_ranks, progress);
    set_benchmark_flags(argv[0], line.benchmark_flags);
    check_benchmark_filter(line, chosen);
    for (const Variant* variant : chosen) (void)with_workspace(config, variant->predicted(variant->batch)).total();
    return std::string();
  });
  if (config.list) {
    if (processes().rank() == 0) fmt::print("{}", list_of(chapter));
    return flushed();
  }

  const InterruptScope interrupts;
  RunResult result;
  result.program = program;
  result.title = chapter.title;
  result.config = config;
  result.system = system_info(config.device);
  if (!config.quiet) {
    fmt::print("{}", banner(result));
    std::fflush(stdout);
  }
  if (most_ranks > 1 && !config.plan && (!config.quiet || processes().size() > 1))
    say_devices(config, most_ranks, progress);

  Story story;
  const bool tell = !config.trace.empty() || !config.snapshot.empty();
  for (const Variant* variant : chosen) {
    const bool baseline = variant == &chapter.variants.front(), first = variant == chosen.front();
    result.variants.push_back(
        run_memory_pass(config, program, *variant, baseline, first && tell ? &story : nullptr, progress));
    result.variants.back().largest_batch = largest_batch(config, *variant);
  }
  if (!config.plan) {
    if (result.variants.front().baseline && processes().rank() == 0)  // only there the baseline has run
      for (VariantResult& v : result.variants) compare_numerics(v, result.variants.front());
    run_timing_pass(config, chosen, result.variants, progress);
  }
  return std::stoi(first_alone([&] { return std::to_string(finish(program, chapter, result, story)); }));
}

int complain(const char* program, const char* what, int exit_code) noexcept {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: ", program);
  for (; *what; ++what) std::fputc(static_cast<unsigned char>(*what) < 0x20 ? '?' : *what, stderr);  // one line
  std::fputc('\n', stderr);
  return exit_code;
}

int run_and_explain(int argc, char** argv, const char* program, const Defaults& full, const Defaults& quick,
                    const std::function<Chapter(const Config&)>& declare) noexcept {
  // What ended the run ended it in every process, with the same words.
  const auto complain = [program](const char* what, int exit_code) {
    return processes().rank() == 0 ? oomlab::complain(program, what, exit_code) : exit_code;
  };
  try {
    return run(argc, argv, program, full, quick, declare);
  } catch (const UsageError& error) {
    return complain(error.what(), kUsage);
  } catch (const std::length_error& error) {  // a size asked for that no size_t, or no 32-bit GEMM, can hold
    return complain(error.what(), kUsage);
  } catch (const CannotRunHere& error) {
    return complain(error.what(), kCannotRunHere);
  } catch (const Interrupted& error) {
    return complain(error.what(), kInterrupted);
  } catch (const std::bad_alloc&) {
    return complain("out of host memory (std::bad_alloc)", kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}

}  // namespace

std::size_t default_workspace(std::size_t budget) {
  const std::size_t twentieth = budget / 20 / kGranule * kGranule;
  return budget == kUnlimited ? kBlasWorkspaceBytes : std::clamp(twentieth, kGranule, kBlasWorkspaceBytes);
}

void with_context(const Config& config, std::size_t budget, Ledger& ledger, const std::function<void(Context&)>& body) {
  const DeviceGuard guard(config.device);
  AsyncResource pool;
  LimitingResource limited(pool, budget);
  ledger.set_limit_bytes(budget);
  Context context(limited, ledger, config.workspace);
  body(context);
}

void with_context(const Config& config, const Variant& variant, std::size_t budget, Ledger& ledger,
                  const std::function<void(Context&)>& body) {
  if (!variant.resource) return with_context(config, budget, ledger, body);
  const DeviceGuard guard(config.device);
  const auto resource = variant.resource(budget);
  ledger.set_limit_bytes(budget);
  Context context(*resource, ledger, config.workspace);
  body(context);
}

int run_chapter(int argc, char** argv, const Defaults& full, const Defaults& quick,
                const std::function<Chapter(const Config&)>& declare) noexcept {
  const char* slash = argc > 0 ? std::strrchr(argv[0], '/') : nullptr;
  const char* program = slash ? slash + 1 : argc > 0 ? argv[0] : "chapter";
  try {
    const ProcessScope scope;
    if (processes().size() > 1) expect_processes();
    return run_and_explain(argc, argv, program, full, quick, declare);
  } catch (const CannotRunHere& error) {
    return complain(program, error.what(), kCannotRunHere);
  } catch (const std::exception& error) {
    return complain(program, error.what(), kFailed);
  }
}

}  // namespace oomlab
