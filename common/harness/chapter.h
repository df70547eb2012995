#pragma once
// What a chapter declares, and what the harness finds out.
//
// A chapter is a list of variants of the same work (the first is the baseline, the others are mitigations; see
// variant.h), each with the peak bytes that theory predicts, and a list of claims (claim.h). run_chapter() does the
// rest: it runs every variant under the budget, those that ran out of memory once more without it, checks prediction
// and numerics, measures throughput in a separate pass, and reports.

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "harness/claim.h"
#include "harness/table.h"
#include "harness/variant.h"
#include "plan/blas_workspace.h"
#include "plan/interrupt.h"
#include "plan/option.h"
#include "plan/text.h"

namespace oomlab {

/// The program cannot run on this machine: one line. Exit code 2, which CTest counts as skipped.
class CannotRunHere : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by Variant::make: this variant cannot run on this device, the others can. One line; the row says it.
class VariantSkipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws VariantSkipped in plan mode when the variant has more forward passes wait for their backward passes than a
/// plan holds (kMostHeld in plan/limits.h). Its prediction stands all the same.
void require_countable(std::size_t held);

/// What a chapter runs when the user says nothing. (No std::string: main() makes one before anything can be caught.)
struct Defaults {
  const char* model = "";
  std::size_t batch = 0;   ///< samples a step
  std::size_t steps = 0;   ///< timed steps a variant
  std::size_t budget = 0;  ///< bytes
  int devices = 0;         ///< a chapter on several devices: how many
  /// The chapter's own options, named in the defaults of a full run. The others (of --quick, of published models) name
  /// only those for which they have another default.
  ChapterOptions options = {};
  const char* models = "mlp, mlp-small or mlp:512-1024-10";  ///< examples of --model, for --help
  /// Models that are published, and large: "gpt2 bert-large". Whoever names one means it at its own size, so then these
  /// values are the defaults instead (models and optional parts of theirs are ignored). They may name models of their
  /// own, larger still, and values for these.
  const char* published_models = "";
  const Defaults* published = nullptr;
};

/// Steps of the memory pass, unless the user says how many; the second one shows that the peak does not grow.
inline constexpr std::size_t kMemorySteps = 2;
/// From so many on it is looked for memory that grows.
inline constexpr std::size_t kStepsForGrowth = 10;

/// The command line, after parsing and checking.
struct Config {
  std::size_t budget = 0;                       ///< bytes; kUnlimited with --budget none
  std::size_t workspace = kBlasWorkspaceBytes;  ///< bytes of cuBLAS workspace that each context has, and counts
  std::size_t host_memory = kUnlimited;         ///< bytes that all ranks together may have of the host's memory
  bool tf32 = false;                            ///< products of FP32 matrices may round their operands to TF32
  int device = 0;
  int devices = 1;
  bool devices_given = false;  ///< --devices was
  std::string model;
  std::size_t batch = 0, steps = 0;
  std::size_t memory_steps = kMemorySteps;  ///< steps of the memory pass
  bool watch = false;                       ///< it is told as it runs
  bool series = false;                      ///< the result file has what each step held
  OptionValues options;                     ///< the chapter's own
  bool quick = false, plan = false, list = false, quiet = false, no_claims = false;
  bool chinese = false;               ///< of --lang: the report of an OOM, and what stands below tables
  const Card* card = nullptr;         ///< of --card: whose least times a plan shows
  std::string filter;                 ///< regular expression on variant names; empty: all
  std::string json, trace, snapshot;  ///< output files; empty: none
};

class Report;

/// A chapter, as its main.cu declares it.
struct Chapter {
  std::string title;
  std::vector<Variant> variants;
  std::vector<Claim> claims;
  /// Set when the user asked for just these ranks, to the options that did ("--tp x --pp x --dp"): then too few devices
  /// are a usage error. Otherwise a variant that has more ranks than there are devices is skipped.
  const char* ranks_asked_with = nullptr;
  /// Runs after the table: the chapter's own findings. What it tells the Report is printed and lands in the JSON.
  std::function<void(const Results&, Report&)> after;
};

/// Runs `body` with a fresh context under `budget` bytes on the device of `config`, and gives what it allocated back,
/// whatever happens. The ledger passed in keeps the figures. For chapters that search (a batch finder).
void with_context(const Config& config, std::size_t budget, Ledger& ledger, const std::function<void(Context&)>& body);
/// What a run, or one of its ranks, may have.
struct Budgets {
  std::size_t device = kUnlimited;  ///< bytes
  HostBudget host = {};
};
/// The same over a variant's own resource, where it has one. `peers`: devices that must reach the memory, too.
void with_context(const Config& config, const Variant& variant, const std::vector<int>& peers, const Budgets& budgets,
                  Ledger& ledger, const std::function<void(Context&)>& body);

/// An OutOfMemory in a few words: "OOM: asked for 128.00 MiB (layer 4 weight), had 31.00 MiB".
std::string oom_line(const OutOfMemoryReport& report, bool chinese = false);

/// The median of timings or rates. Throws std::invalid_argument when there are none.
double median(const std::vector<double>& values);

/// Fills `bytes` bytes at `data` by calling `make`. Of several processes (mpirun) the first one does, and all get what
/// it made; all must call this, in the same order.
void made_by_the_first_process(void* data, std::size_t bytes, const std::function<void()>& make);

/// Where a chapter's own findings go: printed below the table, and under "tables" and "findings" in the JSON.
class Report {
 public:
  virtual ~Report() = default;
  virtual const Config& config() const = 0;
  /// A table, printed, and under "tables" in the JSON. Throws std::invalid_argument when a row has more or fewer cells
  /// than there are columns.
  virtual void table(const Table& table) = 0;
  /// A line of text for the reader; figures belong into a table.
  virtual void line(const std::string& text) = 0;
  /// A figure for the JSON, by a snake_case key.
  virtual void figure(const std::string& key, double value) = 0;
  /// A condition that must hold; when it does not, the program ends with exit code 1 and says what.
  virtual void check(bool holds, const std::string& what) = 0;
  /// Allocated, reserved and device-used bytes of each phase of a variant, as a table.
  virtual void phases(const VariantResult& result) = 0;
};

/// Parses the command line, declares the chapter by calling `declare`, and runs it.
/// Returns the exit code: 0 ran (OOM rows included), 1 a check failed or a result could not be written, 2 cannot run
/// here, 64 bad usage, 130 interrupted. Never throws.
int run_chapter(int argc, char** argv, const Defaults& full, const Defaults& quick,
                const std::function<Chapter(const Config&)>& declare) noexcept;

}  // namespace oomlab
