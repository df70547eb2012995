#pragma once
// What a chapter declares, and what the harness finds out.
//
// A chapter is a list of variants of the same work (the first is the baseline, the others are mitigations), each with
// the peak bytes that theory predicts, and a list of claims. run_chapter() does the rest: it runs every variant under
// the budget, those that ran out of memory once more without it, checks prediction and numerics, measures throughput
// in a separate pass, and reports.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/context.h"
#include "memory/ledger.h"
#include "memory/out_of_memory.h"

namespace oomlab {

/// The user asked for something that cannot be: one line that says what, and what is allowed. Exit code 64.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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

/// What a chapter runs when the user says nothing. (No std::string: main() makes one before anything can be caught.)
struct Defaults {
  const char* model = "";
  std::size_t batch = 0;   ///< samples a step
  std::size_t steps = 0;   ///< timed steps a variant
  std::size_t budget = 0;  ///< bytes
  // Chapters that train on text have more options; a chapter has those for which it gives a default here.
  std::size_t seq = 0;          ///< --seq and --text instead of --data: tokens a sequence; 0: a chapter on images
  std::size_t micro_batch = 0;  ///< --micro-batch: samples of one forward and backward pass
  const char* precision = "";   ///< --precision: fp32, fp16, bf16
  bool oversubscribe = false;   ///< true: the chapter has the option --oversubscribe
  int devices = 0;  ///< a chapter on several devices: how many, and --tp, --pp, --dp, --zero and --checkpoint
};

/// The common command line, after parsing and checking.
struct Config {
  std::size_t budget = 0;  ///< bytes; kUnlimited with --budget none
  int device = 0;
  int devices = 1;
  bool devices_given = false;  ///< --devices was
  std::string model;
  std::size_t batch = 0, steps = 0;
  std::string data;                      ///< folder with IDX files; empty: the digits that come with the course
  std::string text;                      ///< file to train on; empty: the course's text
  std::size_t seq = 0, micro_batch = 0;  ///< 0: the chapter has no such option
  std::string precision;                 ///< empty: the chapter has no such option
  bool oversubscribe = false;            ///< more managed memory than the device has is allowed
  std::size_t tp = 0, pp = 0, dp = 0;    ///< sizes of the groups of ranks; 0: not given
  int zero = -1;                         ///< ZeRO stage, 0 to 3; -1: not given
  bool checkpoint = false;               ///< layers are computed again instead of kept
  bool quick = false, plan = false, list = false, quiet = false;
  std::string filter;                 ///< regular expression on variant names; empty: all
  std::string json, trace, snapshot;  ///< output files; empty: none
};

/// One running variant. All device memory it holds comes from the Context it was made with.
class Workload {
 public:
  virtual ~Workload() = default;
  /// One step of work, queued on the context's stream. May throw OutOfMemory; then nothing has changed.
  virtual void step() = 0;
  virtual std::size_t samples_per_step() const = 0;
  /// The figure that is compared between variants after a step, for example the loss. 0 in plan mode.
  virtual double figure() = 0;
  /// A hash of everything the work has produced, for example of all weights. 0 in plan mode.
  virtual std::uint64_t fingerprint() = 0;
  /// A rank of a team: payload sent since the beginning, bytes.
  virtual std::uint64_t bytes_sent() const { return 0; }
  /// A stage of a pipeline: micro-batches in flight at most.
  virtual std::size_t most_in_flight() const { return 1; }
};

/// How a mitigation's numbers must agree with the baseline's, after every step.
struct Agreement {
  enum class Kind { bit_equal, within_tolerance, differs_by_design };
  Kind kind = Kind::bit_equal;
  double tolerance = 0;  ///< within_tolerance: largest relative difference of figure()
  std::string why;       ///< differs_by_design: the reason, for the table's footnote
};

/// Numbers need not agree, because of `why`.
inline Agreement differs_by_design(std::string why) {
  Agreement agreement;
  agreement.kind = Agreement::Kind::differs_by_design;
  agreement.why = std::move(why);
  return agreement;
}

/// Ranks that work on one thing, each on a thread and a device of its own. Made anew for every run.
class Team {
 public:
  explicit Team(int ranks) : ranks_(ranks) {}
  virtual ~Team() = default;
  int ranks() const noexcept { return ranks_; }
  /// A rank's part of the work, made on its thread, its device current. Throws as Variant::make.
  virtual std::unique_ptr<Workload> make(Context& context, int rank) = 0;
  /// Peak allocated bytes of a rank by category, in closed form.
  virtual ByCategory predicted(int rank) const = 0;
  /// Ranks of one kind need the same memory: plan mode runs one of each.
  virtual int kind(int rank) const { return rank; }
  /// Raised when a rank fails: the others must not wait for it.
  std::atomic<bool> failed{false};

 private:
  int ranks_;
};

/// One row of the comparison.
struct Variant {
  std::string name;
  std::size_t batch = 0;  ///< samples a step
  /// Peak allocated bytes by category at a batch size, in closed form.
  std::function<ByCategory(std::size_t batch)> predicted;
  Agreement agreement;
  /// Makes the work. Throws OutOfMemory when its fixed part does not fit; then nothing stays allocated.
  std::function<std::unique_ptr<Workload>(Context&, std::size_t batch)> make;
  /// Where its memory comes from, on the current device, with the budget in bytes (kUnlimited: none) as the limit of
  /// what it may hold. Empty: cudaMallocAsync, with the budget as the limit of what is allocated.
  std::function<std::unique_ptr<MemoryResource>(std::size_t budget)> resource = {};
  /// Several ranks instead of `make`. The row shows the rank that needs most; `predicted` is that rank's.
  std::function<std::unique_ptr<Team>(std::size_t batch)> team = {};
  int ranks = 1;  ///< of the team
};

/// What one rank of a team, and those that are alike, needed.
struct RankResult {
  int rank = 0;
  std::size_t alike = 1;  ///< ranks that this one stands for (plan mode), itself included
  ByCategory predicted, at_peak;
  std::size_t peak_allocated = 0, peak_reserved = 0, peak_device_used = 0;  ///< bytes
  std::uint64_t bytes_sent = 0;                                             ///< payload, in a step
  std::size_t most_in_flight = 0;                                           ///< micro-batches
  std::uint64_t fingerprint = 0;                                            ///< after the memory pass
};

/// What happened to a variant.
struct VariantResult {
  enum class Outcome { ok, oom, skipped };
  std::string name;
  bool baseline = false;
  std::size_t batch = 0;
  Outcome outcome = Outcome::ok;         ///< under the budget
  std::string reason;                    ///< oom: one line; skipped: why
  std::optional<OutOfMemoryReport> oom;  ///< under the budget
  bool measured = false;                 ///< the figures below are there (with the budget, or if oom, without it)
  ByCategory predicted;
  std::size_t peak_allocated = 0, peak_reserved = 0, peak_device_used = 0;  ///< bytes
  ByCategory at_peak;
  std::vector<PhasePeak> phases;
  std::vector<RankResult> ranks;  ///< of a team; the figures above are those of the rank that needed most
  std::vector<double> figures;    ///< figure() after each step of the memory pass
  std::uint64_t fingerprint = 0;  ///< after the memory pass
  bool compared = false;          ///< against the baseline; not when the baseline did not run, nor in plan mode
  bool agrees = true;
  Agreement agreement;
  double largest_difference = 0;             ///< relative, of figures against the baseline's
  std::vector<double> samples_per_second;    ///< one for every timed step; empty in plan mode
  std::vector<double> reference_rates;       ///< of this machine, around these steps: see harness/timing.h
  std::optional<std::size_t> largest_batch;  ///< that fits the budget by the prediction (which is checked)

  std::size_t predicted_peak() const { return predicted.total(); }
  /// False when the measured peak, or its split, is not the predicted one.
  bool prediction_holds() const { return !measured || at_peak == predicted; }
};

/// Folk advice, put to the test.
struct Claim {
  std::string text;          ///< as it is commonly given
  std::string what;          ///< what is measured here, with its unit
  double low = 0, high = 0;  ///< the claim holds when the measurement lies in [low, high]
  /// The measurement; nothing when this run does not have what it takes (a filter, an OOM, plan mode).
  std::function<std::optional<double>(const std::vector<VariantResult>&)> measure;
};

class Report;

/// A chapter, as its main.cu declares it.
struct Chapter {
  std::string title;
  std::vector<Variant> variants;
  std::vector<Claim> claims;
  /// Runs after the table: the chapter's own findings. What it tells the Report is printed and lands in the JSON.
  std::function<void(const std::vector<VariantResult>&, Report&)> after;
};

/// Runs `body` with a fresh context under `budget` bytes on the device of `config`, and gives what it allocated back,
/// whatever happens. The ledger passed in keeps the figures. For chapters that search (a batch finder).
void with_context(const Config& config, std::size_t budget, Ledger& ledger, const std::function<void(Context&)>& body);
/// The same over a variant's own resource, where it has one.
void with_context(const Config& config, const Variant& variant, std::size_t budget, Ledger& ledger,
                  const std::function<void(Context&)>& body);

/// An OutOfMemory in a few words: "OOM: asked for 128.00 MiB (layer 4 weight), had 31.00 MiB".
std::string oom_line(const OutOfMemoryReport& report);

/// The median of timings or rates. Throws std::invalid_argument when there are none.
double median(const std::vector<double>& values);

/// Fills `bytes` bytes at `data` by calling `make`. Of several processes (mpirun) the first one does, and all get what
/// it made; all must call this, in the same order.
void made_by_the_first_process(void* data, std::size_t bytes, const std::function<void()>& make);

/// Throws (exit code 130) when Ctrl-C was pressed. The harness asks between steps; a chapter's own loop should too.
void check_interrupt();

/// Where a chapter's own findings go: printed below the table, and under "findings" in the JSON.
class Report {
 public:
  virtual ~Report() = default;
  virtual const Config& config() const = 0;
  /// A line of text for the reader.
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
