#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

#include "cuda/backend.h"
#include "harness/benchmark_flags.h"
#include "harness/chapter.h"
#include "harness/chinese.h"
#include "harness/cli.h"
#include "harness/devices.h"
#include "harness/filter.h"
#include "harness/interrupt.h"
#include "harness/memory_pass.h"
#include "harness/processes.h"
#include "harness/result.h"
#include "harness/system.h"
#include "harness/timing.h"
#include "harness/timing_pass.h"
#include "memory/files.h"
#include "memory/text.h"
#include "plan/text.h"

namespace oomlab {
namespace {

constexpr int kOk = 0, kFailed = 1, kCannotRunHere = 2, kUsage = 64, kInterrupted = 130;

// A program made for a GPU cannot count without allocating, so its twin, the same source with the host runtime below
// it, does the planning. CMake builds it into the folder plan/ beside this program.
[[noreturn]] void become_the_planner(const std::string& program, char** argv) {
  const auto twin = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "plan" / program;
  execv(twin.c_str(), argv);
  throw CannotRunHere(fmt::format("--plan needs {}, which is not there", twin.string()));
}

// ---------------------------------------------------------------------------------------------- checks on the results

void compare_numerics(VariantResult& v, const VariantResult& baseline) {
  if (&v == &baseline || !v.measured || !baseline.measured) return;
  v.compared = true;
  // A tolerance is for these steps: as training goes on, any difference in rounding grows.
  const std::size_t steps = v.agreement.kind == Agreement::Kind::within_tolerance
                                ? std::min(kMemorySteps, v.figures.size())
                                : v.figures.size();
  for (std::size_t i = 0; i < steps; ++i) {
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

// The least time that a card needs rests on them. (A GPU's are counted by a profiler, not here.)
void check_operations(RunResult& run, const std::string& who, const std::optional<double>& predicted,
                      const std::optional<DeviceWork>& work) {
  if (!predicted || !work || *predicted == static_cast<double>(work->gemm_flops)) return;
  run.failures.push_back(
      fmt::format("{}: matrix products of {} operations in a step, predicted {}", who, work->gemm_flops, *predicted));
}

void check_results(RunResult& run) {
  for (const VariantResult& v : run.variants) {
    if (!v.prediction_holds())
      run.failures.push_back(fmt::format("{}: peak allocated is {} bytes, predicted {}{}", v.name, v.peak_allocated,
                                         v.predicted_peak(),
                                         v.peak_allocated == v.predicted_peak() ? ", with another split" : ""));
    if (!v.prediction_holds_on_host())
      run.failures.push_back(fmt::format(
          "{}: host memory is {} bytes at its peak, predicted {}{}", v.name, v.on_host.total(),
          v.predicted_on_host.total(), v.on_host.total() == v.predicted_on_host.total() ? ", with another split" : ""));
    check_operations(run, v.name, v.ranks.empty() ? v.flops : std::nullopt, v.work);
    for (const RankResult& r : v.ranks)
      check_operations(run, fmt::format("{}: rank {}", v.name, r.rank), r.flops, r.work);
    if (!v.agrees)
      run.failures.push_back(fmt::format(
          "{}: numbers are not {} with the baseline's (relative difference {:.3g})", v.name,
          v.agreement.kind == Agreement::Kind::bit_equal ? "bit-equal"
                                                         : fmt::format("within {:g}", v.agreement.tolerance),
          v.largest_difference));
  }
}

// ------------------------------------------------------------------------------------------------------------- report

class RunReport final : public Report {
 public:
  explicit RunReport(RunResult& run) : run_(run) {}
  const Config& config() const override { return run_.config; }
  void table(const Table& table) override {
    run_.tables.push_back(table);
    if (run_.config.quiet) return;
    Table shown = table;
    if (run_.config.chinese) shown.title = in_chinese(table.title);
    put(stdout, text_of(shown) + "\n");
  }
  void line(const std::string& text) override {
    if (!run_.config.quiet) put(stdout, (run_.config.chinese ? in_chinese(text) : text) + "\n");
  }
  void figure(const std::string& key, double value) override { run_.findings.emplace_back(key, value); }
  void check(bool holds, const std::string& what) override {
    if (!holds) run_.failures.push_back(what);
  }
  void phases(const VariantResult& result) override {
    if (!run_.config.quiet) put(stdout, phase_table(result, run_.config.chinese));
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
  for (const Variant* variant : chosen)
    if (matches_benchmark_filter(line.benchmark_filter, variant->name)) return;
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

bool keeps_on_host(const Variant* variant) {
  return variant->predicted_on_host && variant->predicted_on_host(variant->batch).total() > 0;
}

// All that is printed of a run that ends here.
int print_all(const std::string& text) {
  if (processes().rank() == 0) put(stdout, text);
  flush_output();
  return kOk;
}

// Whatever becomes of one of them, the others are written.
void write_files(const Config& config, const RunResult& result, const TimelineFiles& files) {
  std::exception_ptr failure;
  const auto write = [&](const std::string& path, const auto& contents) {
    if (path.empty()) return;
    try {
      write_file(path, contents());
    } catch (const std::exception&) {
      if (!failure) failure = std::current_exception();
    }
  };
  write(config.json, [&] { return result_json(result); });
  write(config.trace, [&] { return files.trace; });
  write(config.snapshot, [&] { return files.snapshot; });
  if (failure) std::rethrow_exception(failure);
}

// A device that is full, or too small or too old for every variant: nothing was found out, so nothing has passed.
void require_something_measured(const RunResult& result) {
  for (const VariantResult& v : result.variants)
    if (v.measured) return;
  const VariantResult& first = result.variants.front();
  throw CannotRunHere(fmt::format("no variant can run here: {}: {}", first.name, first.reason));
}

// What is told at the end. Returns the exit code.
int finish(const std::string& program, const Chapter& chapter, RunResult& result, const TimelineFiles& files) {
  const Config& config = result.config;
  if (!config.no_claims) result.claims = judge(chapter.claims, Results(result.variants));
  check_results(result);

  if (!config.quiet)
    put(stdout, fmt::format("\n{}{}\n{}", comparison_table(result), growth_lines(result), least_time_table(result)));
  RunReport report(result);
  if (chapter.after) chapter.after(Results(result.variants), report);
  if (!config.quiet) put(stdout, claims_table(result) + verdict_line(result));
  if (config.quiet)
    for (const std::string& failure : result.failures)
      put(stderr, fmt::format("{}: failed: {}\n", one_line(program), one_line(failure)));

  check_interrupt();
  write_files(config, result, files);  // first: standard output may be a full disk
  flush_output();
  require_something_measured(result);
  return result.failures.empty() ? kOk : kFailed;
}

// Under a launcher there are as many ranks as processes, and only the first one talks and writes.
void adapt_to_processes(CommandLine& line, const Defaults& defaults) {
  Config& config = line.config;
  const int launched = processes().size();
  if (!defaults.devices)
    throw UsageError(
        fmt::format("runs in one process; {} were started (07_multi_gpu and 16_capstone use several)", launched));
  if (config.plan) throw UsageError("--plan needs one process only; start it without mpirun");
  if (!line.benchmark_filter.empty()) throw UsageError("--benchmark_filter cannot be used under mpirun; use --filter");
  if (config.devices_given && config.devices != launched)
    throw UsageError(fmt::format("--devices {} does not fit the {} processes started", config.devices, launched));
  config.devices = launched;
  config.devices_given = true;
  if (processes().rank() == 0) return;
  config.quiet = true, config.watch = false, config.series = false;
  config.json.clear(), config.trace.clear(), config.snapshot.clear();
}

int run(int argc, char** argv, const std::string& program, const Defaults& full, const Defaults& quick,
        const std::function<Chapter(const Config&)>& declare) {
  CommandLine line;
  (void)on_all_processes([&] {
    line = parse_command_line(argc, argv, program, full, quick);
    if (processes().size() > 1) adapt_to_processes(line, full);
    return std::string();
  });
  if (line.quit) return print_all(line.text);
  Config& config = line.config;
  if (config.plan && !planning()) {
    if (std::strcmp(backend_name(), "cuda") == 0) become_the_planner(program, argv);
  }
  if (full.devices > 1 && !config.devices_given && !config.plan) config.devices = devices_by_default(config.devices);
  const Progress progress(config.quiet);

  Chapter chapter;
  std::vector<const Variant*> chosen;
  int most_ranks = 1;
  (void)on_all_processes([&] {
    try {
      chapter = declare(config);
      chosen = select(chapter, config.filter);
      if (config.list) return std::string();
      for (const Variant* variant : chosen) most_ranks = std::max(most_ranks, variant->ranks);
      if (most_ranks > 1) want_devices(most_ranks);
      if (config.plan && !planning() && !enable_planning()) throw std::runtime_error("plan mode cannot be entered");

      // Whatever can be refused is refused before the first line of output.
      set_benchmark_flags(argv[0], line.benchmark_flags);
      check_benchmark_filter(line, chosen);
      if (config.host_memory != kUnlimited && std::ranges::none_of(chosen, keeps_on_host))
        throw UsageError("--host-memory: no variant keeps anything in the host's memory; leave it out");
      for (const Variant* variant : chosen) (void)with_workspace(config, variant->predicted(variant->batch)).total();
      choose_device(line, most_ranks, chapter.ranks_asked_with, progress);
    } catch (const std::invalid_argument& error) {  // --model, or what it makes impossible
      throw UsageError(error.what());
    }
    return std::string();
  });
  if (config.list) return print_all(list_of(chapter));

  const InterruptScope interrupts;
  RunResult result;
  result.program = program;
  result.title = chapter.title;
  result.config = config;
  result.system = system_info(config.device);
  if (config.tf32 && result.system.backend == "cuda" && result.system.compute_major < 8)
    throw CannotRunHere(fmt::format("--tf32 needs compute capability 8.0, and {} has {}.{}", result.system.device_name,
                                    result.system.compute_major, result.system.compute_minor));
  if (config.plan) {
    result.card = config.card;
  } else if (result.system.backend == "cuda") {
    result.card = card_of_device(result.system.device_name, result.system.device_total);
  }
  if (!config.quiet) {
    put(stdout, banner(result));
    // Where nobody sees the table and no file is asked for, the work would be for nothing.
    const bool to_files = !config.json.empty() || !config.trace.empty() || !config.snapshot.empty();
    if (std::fflush(stdout) != 0 && !to_files) flush_output();
  }
  if (most_ranks > 1 && !config.plan && (!config.quiet || processes().size() > 1))
    say_devices(config, most_ranks, progress);

  TimelineFiles files;
  const bool tell = !config.trace.empty() || !config.snapshot.empty();
  for (const Variant* variant : chosen) {
    const bool baseline = variant == &chapter.variants.front(), first = variant == chosen.front();
    result.variants.push_back(
        run_memory_pass(config, program, *variant, baseline, first && tell ? &files : nullptr, progress));
    result.variants.back().largest_batch = largest_batch(config, *variant);
  }
  if (!config.plan) {
    if (result.variants.front().baseline && processes().rank() == 0)  // only there the baseline has run
      for (VariantResult& v : result.variants) compare_numerics(v, result.variants.front());
    run_timing_pass(config, chosen, result.variants, progress);
  }
  return std::stoi(on_first_process([&] { return std::to_string(finish(program, chapter, result, files)); }));
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
  } catch (const BadFile& error) {  // --weights, --text, --data and their like
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

int run_chapter(int argc, char** argv, const Defaults& full, const Defaults& quick,
                const std::function<Chapter(const Config&)>& declare) noexcept {
  const char* slash = argc > 0 ? std::strrchr(argv[0], '/') : nullptr;
  const char* program = slash ? slash + 1 : argc > 0 ? argv[0] : "chapter";
  open_standard_descriptors();
  try {
    const ProcessScope scope;
    return run_and_explain(argc, argv, program, full, quick, declare);
  } catch (const CannotRunHere& error) {
    return complain(program, error.what(), kCannotRunHere);
  } catch (const std::exception& error) {
    return complain(program, error.what(), kFailed);
  }
}

}  // namespace oomlab
