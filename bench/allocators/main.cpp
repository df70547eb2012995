// bench_allocators: the same requests, through several allocators. How much more than the live bytes does each need?
//
//   bench_allocators                      the traces that come with the course, and the speed table
//   bench_allocators --trace FILE …       RMM CSV, MiniMalloc CSV (sizes x 1024), or a PyTorch memory snapshot
//   bench_allocators --speed              the speed table alone
//   bench_allocators --check              the first tables alone; exit 1 where ours is not as good as chapter 06 says
//   bench_allocators --judge              the speed table alone, and rows for bench/benchmarks/run
//   bench_allocators --record DIR         writes traces of the course's own training steps
//   bench_allocators ... --json FILE      writes the tables of bytes, which every machine makes the same, to a file, too
//
// The first table: reserved peak / live peak without a budget; the second: the smallest budget that survives / live
// peak. Judge by the second: an allocator that gives cached memory back before it fails can look bad in the first and
// harm nobody. Policies of other projects are simulated (plan/allocator/policies.h); ours runs, over virtual memory
// calls: of the host runtime in plan mode, where memory is counted and not touched, so that every trace fits, or of a
// GPU, where traces that do not fit are left out, and the driver's own pool is in the speed table, too. Times are the
// processor's, whose work an allocator is; what the clock itself takes is taken off, so the floor is 0.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "../../chapters/06_caching_allocator/best_fit.h"
#include "../../chapters/06_caching_allocator/caching_allocator.h"
#include "../../chapters/06_caching_allocator/planned.h"
#include "../../chapters/06_caching_allocator/steps.h"
#include "harness/table.h"
#include "memory/files.h"
#include "memory/text.h"
#include "plan/allocator/policies.h"
#include "plan/json_writer.h"
#include "plan/text.h"
#include "speed.h"
#include "trace.h"

namespace {

using namespace oomlab;
using namespace oomlab::bench;
using namespace oomlab::caching_allocator;

// --------------------------------------------------------------------------------------------------------- replaying

/// What one replay came to: whether it survived, and what was held at most.
struct Replay {
  bool survived = true;
  std::size_t reserved_peak = 0;
};

Replay replay_policy(const Trace& trace, Policy& policy) {
  Replay result;
  for (const TraceEvent& e : trace.events) {
    if (!e.allocates) {
      policy.free(e.id);
    } else if (!policy.allocate(e.id, e.bytes, e.stream)) {
      result.survived = false;
      return result;
    }
    result.reserved_peak = std::max(result.reserved_peak, policy.reserved());
  }
  return result;
}

Replay replay_resource(const Trace& trace, MemoryResource& memory) {
  Replay result;
  std::vector<std::pair<void*, std::size_t>> live(trace.blocks);
  std::map<std::uint64_t, Stream> streams;
  for (const TraceEvent& e : trace.events) {
    const cudaStream_t stream = e.stream == 0 ? nullptr : cudaStream_t(streams[e.stream]);
    try {
      if (e.allocates)
        live[e.id] = {memory.allocate(e.bytes, stream), e.bytes};
      else
        memory.deallocate(std::exchange(live[e.id].first, nullptr), e.bytes, stream);
    } catch (const OutOfMemory&) {
      result.survived = false;
      break;
    }
    result.reserved_peak = std::max(result.reserved_peak, memory.reserved_bytes());
  }
  for (const auto& [address, bytes] : live) memory.deallocate(address, bytes, nullptr);
  return result;
}

using Run = std::function<Replay(const Trace&, std::size_t budget)>;

Replay replay_ours(const Trace& trace, std::size_t budget) {
  CachingAllocator memory({.limit = budget});
  return replay_resource(trace, memory);
}

// The plan of the lifetimes that were asked for last: the same under every budget that survives.
Placement plan_once(const std::vector<Lifetime>& lifetimes) {
  static std::vector<Lifetime> known;
  static Placement plan;
  if (known != lifetimes) plan = solve_plan(known = lifetimes);
  return plan;
}

// The whole trace as one step: recorded once, planned, and what the plan needs beside the blocks that outlive it.
Replay replay_planned(const Trace& trace, std::size_t budget) {
  CachingAllocator pages({.limit = budget});
  PlannedResource planned(pages, plan_once);
  planned.begin_step();
  Replay first = replay_resource(trace, planned);
  planned.end_step();
  if (!first.survived) return first;
  planned.begin_step();
  const Replay second = replay_resource(trace, planned);
  planned.end_step();
  first.survived = second.survived;
  return first;
}

std::size_t smallest_budget(const Trace& trace, const Run& run) {
  constexpr std::size_t kStep = 2 * kMiB;
  std::size_t low = trace.live_peak() / kStep, high = low + 1;
  if (low && run(trace, low * kStep).survived) return low * kStep;
  while (!run(trace, high * kStep).survived) {
    low = high, high = 2 * high;
    if (high * kStep / 64 > trace.live_peak()) throw std::runtime_error(trace.name + ": survives with no budget");
  }
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (run(trace, middle * kStep).survived ? high : low) = middle;
  }
  return high * kStep;
}

template <class P, class... Arguments>
Run policy(Arguments... arguments) {
  return [=](const Trace& trace, std::size_t budget) {
    P made(budget, arguments...);
    return replay_policy(trace, made);
  };
}

/// What each allocator came to with one trace, over the trace's live peak.
struct Ratios {
  std::vector<double> reserved, budget;  ///< without a budget; the smallest one that survives
};
using Allocators = std::vector<std::pair<std::string, Run>>;

Table of_traces(const char* name, const char* title, const Allocators& allocators, const std::vector<Trace>& traces,
                const std::vector<Ratios>& found, std::vector<double> Ratios::*which) {
  Table table{name, title, {{"trace"}, {"events", Unit::count}, {"live peak", Unit::bytes}}};
  for (const auto& [allocator, run] : allocators) table.columns.push_back({allocator, Unit::ratio, 4});
  for (std::size_t i = 0; i < traces.size(); ++i) {
    std::vector<Cell>& row = table.rows.emplace_back();
    row = {traces[i].name, traces[i].events.size(), traces[i].live_peak()};
    for (const double ratio : found[i].*which) row.emplace_back(ratio);
  }
  return table;
}

/// What the smallest budgets of an allocator are above the live peaks: the geometric mean of the excess.
double mean_excess(const std::vector<Ratios>& found, std::size_t allocator) {
  double sum = 0;
  for (const Ratios& of : found) sum += std::log(std::max(1e-4, of.budget[allocator] - 1));
  return std::exp(sum / double(found.size()));
}

/// "A caching allocator wastes a third of the memory", for each of them and every trace: of what it reserves at its
/// peak, and of the smallest budget that survives, how much is not live.
Table waste(const Allocators& allocators, const std::vector<Ratios>& found) {
  constexpr double kThird = 1.0 / 3;
  Table table{"waste",
              "claim \"a caching allocator wastes a third of the memory\"",
              {{"allocator"},
               {"of what it reserves, most", Unit::percent, 1},
               {"of the budget that it needs, most", Unit::percent, 1},
               {"that budget above the live peak, mean", Unit::percent},
               {"a third, or more"}}};
  for (std::size_t a = 0; a < allocators.size(); ++a) {
    double most_reserved = 0, most_needed = 0;
    std::size_t by_reserved = 0, by_needed = 0;
    for (const Ratios& of : found) {
      const double kept = 1 - 1 / of.reserved[a], needed = 1 - 1 / of.budget[a];
      most_reserved = std::max(most_reserved, kept);
      most_needed = std::max(most_needed, needed);
      by_reserved += kept >= kThird;
      by_needed += needed >= kThird;
    }
    const std::string verdict =
        by_needed     ? fmt::format("holds for {} of {} traces", by_needed, found.size())
        : by_reserved ? fmt::format("reserved for {} of {} traces, needed for none", by_reserved, found.size())
                      : "does not hold";
    table.rows.push_back(
        {allocators[a].first, 100 * most_reserved, 100 * most_needed, 100 * mean_excess(found, a), verdict});
  }
  return table;
}

/// The tables that are the same on every machine, and whether ours is as good as chapter 06 says.
struct Compared {
  std::vector<Table> tables;
  bool holds = true;
};

Compared compare(const std::vector<Trace>& traces, bool check) {
  const Allocators allocators = {{"PyTorch", policy<PyTorchPolicy>(false)},
                                 {"expandable", policy<PyTorchPolicy>(true)},
                                 {"TensorFlow", policy<TensorFlowPolicy>()},
                                 {"RMM pool", policy<RmmPolicy>()},
                                 {"ours", replay_ours},
                                 {"ours, planned", replay_planned}};
  std::vector<Ratios> found;
  for (const Trace& trace : traces) {
    const auto peak = double(trace.live_peak());
    Ratios& of = found.emplace_back();
    for (const auto& [name, run] : allocators) {
      of.reserved.push_back(double(run(trace, kUnlimited).reserved_peak) / peak);
      of.budget.push_back(double(smallest_budget(trace, run)) / peak);
    }
  }
  Compared compared{
      {of_traces("reserved", "reserved peak / live peak", allocators, traces, found, &Ratios::reserved),
       of_traces("budget", "smallest budget that survives / live peak", allocators, traces, found, &Ratios::budget),
       waste(allocators, found)}};
  for (const Table& table : compared.tables) fmt::print("{}\n", text_of(table));
  compared.holds =
      mean_excess(found, 4) <= mean_excess(found, 1) / 2 && mean_excess(found, 4) <= mean_excess(found, 0) / 4;
  if (!compared.holds && check)
    fmt::print("FAIL: the excess is above half of expandable's or a quarter of PyTorch's\n");
  for (std::size_t i = 0; i < traces.size(); ++i)
    for (const std::size_t other : {0, 1})
      if (found[i].budget[4] > found[i].budget[other] || found[i].budget[5] > found[i].budget[other]) {
        compared.holds = false;
        if (check) fmt::print("FAIL: {}: worse than {}\n", traces[i].name, allocators[other].first);
      }
  return compared;
}

std::string json_of(const std::vector<Table>& tables) {
  JsonWriter json;
  json.begin_object().key("tables").begin_array();
  for (const Table& table : tables) write_table(json, table);
  json.end_array().end_object();
  return json.text() + "\n";
}

// --------------------------------------------------------------------------------------------------------- recording

/// Notes what passes through it.
class Recorder final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    void* const address = device_.allocate(bytes, stream);
    if (address) {
      ids_[address] = trace.blocks;
      trace.events.push_back({true, trace.blocks++, bytes, 0});
    }
    return address;
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    if (!address) return;
    trace.events.push_back({false, ids_.at(address), bytes, 0});
    ids_.erase(address);
    device_.deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return device_.reserved_bytes(); }
  Trace trace;

 private:
  CudaResource device_;
  std::map<void*, std::size_t> ids_;
};

// One round of eight training steps, counted and not computed.
Trace record(const std::string& model, std::size_t batch, std::size_t seq, bool varying) {
  const nn::TransformerSpec spec = nn::parse_transformer(model);
  Recorder recorder;
  recorder.trace.name = fmt::format("{}, batch {}, seq {}{}", model, batch, varying ? "up to " : "", seq);
  Ledger ledger;
  {
    std::vector<data::TextSampler> text;
    for (std::size_t k = 0; k < kRound; ++k) text.push_back(text_for(spec, length_of(k, seq, varying), false));
    Context context(recorder, ledger);
    Rounds rounds(context, spec, text, batch);
    rounds.step();
  }
  return std::move(recorder.trace);
}

void record_all(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) throw UsageError("there is no folder '" + folder.string() + "'");
  if (!planning()) throw UsageError("--record needs the host build: it counts what no GPU may have room for");
  constexpr std::tuple<const char*, const char*, std::size_t, std::size_t, bool> kAll[] = {
      {"gpt2_varying.csv", "gpt2", 4, 1024, true},
      {"bert_large.csv", "bert-large", 2, 512, false},
      {"bert_base_varying.csv", "bert-base", 16, 384, true},
      {"bytes_gpt_varying.csv", "bytes-gpt", 32, 128, true}};
  for (const auto& [file, model, batch, seq, varying] : kAll)
    if (const std::string why = why_not_writable(folder / file); !why.empty()) throw UsageError("--record: " + why);
  for (const auto& [file, model, batch, seq, varying] : kAll)
    write_file(folder / file, rmm_csv(record(model, batch, seq, varying)));
}

// Where the course's own traces are: where this was built, unless a kit says where it has them.
std::string folder_of_traces() {
  const char* const named = std::getenv("OOMLAB_TRACES");
  return named && *named ? named : OOMLAB_TRACES;
}

// On a GPU memory is real, and an allocator may need half as much again as is live.
bool fits(const Trace& trace) {
  if (planning()) return true;
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (trace.live_peak() / 2 * 3 <= free) return true;
  fmt::print("{}: left out, its {} and half as much again are more than the {} that are free\n", trace.name,
             format_bytes(trace.live_peak()), format_bytes(free));
  return false;
}

int run(int argc, char** argv) {
  std::vector<std::string> files;
  std::string json;
  bool speed_only = false, judge = false, check = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool takes_value = word == "--trace" || word == "--record" || word == "--json";
    if (takes_value && i + 1 == argc) throw UsageError(word + " needs a value");
    if (word == "--trace") {
      files.push_back(argv[++i]);
    } else if (word == "--json") {
      json = argv[++i];
      if (const std::string why = why_not_writable(json); !why.empty()) throw UsageError("--json: " + why);
    } else if (word == "--record") {
      record_all(argv[++i]);
      return 0;
    } else if (word == "--speed" || word == "--judge") {
      speed_only = true;
      judge |= word == "--judge";
    } else if (word == "--check") {
      check = true;
    } else if (word == "--help" || word == "-h") {
      fmt::print("bench_allocators [--trace FILE]... [--speed] [--judge] [--check] [--record DIR] [--json FILE]\n");
      return 0;
    } else {
      throw UsageError("'" + word + "' is not an option; see --help");
    }
  }
  bool holds = true;
  const bool own_traces = files.empty();
  if (!speed_only) {
    if (own_traces)
      for (const char* name : {"gpt2_varying", "bert_large", "bert_base_varying", "bytes_gpt_varying"})
        files.push_back(folder_of_traces() + "/" + name + ".csv");
    std::vector<Trace> traces;
    for (const std::string& file : files) {
      Trace trace = read_trace(file);
      if (trace.live_peak() == 0) throw TraceError(trace.name + ": allocates nothing");
      trace.name = one_line(trace.name);  // it is printed
      if (fits(trace)) traces.push_back(std::move(trace));
    }
    if (!traces.empty()) {
      const Compared compared = compare(traces, check);
      holds = compared.holds;
      if (!json.empty()) write_file(json, json_of(compared.tables));
    }
  }
  if (own_traces && !check) compare_speed(judge);
  return holds || !check ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  constexpr const char* kProgram = "bench_allocators";
  try {
    (void)enable_planning();  // a GPU's memory is not only counted
    const int code = run(argc, argv);
    flush_output();
    return code;
  } catch (const CudaError& error) {
    return complain(kProgram, error.what(), 2);
  } catch (const UsageError& error) {
    return complain(kProgram, error.what(), 64);
  } catch (const BadFile& error) {
    return complain(kProgram, error.what(), 64);
  } catch (const std::bad_alloc&) {
    return complain(kProgram, "out of host memory", 1);
  } catch (const std::exception& error) {
    return complain(kProgram, error.what(), 1);
  }
}
