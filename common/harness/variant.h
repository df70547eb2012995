#pragma once
// One row of a chapter's table: the work, the ranks that share it, how its numbers must agree, and what became of it.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/context.h"
#include "memory/growth.h"
#include "memory/ledger.h"
#include "memory/out_of_memory.h"
#include "plan/card.h"
#include "plan/host_bytes.h"

namespace oomlab {

/// One running variant. All device memory it holds comes from the Context it was made with.
class Workload {
 public:
  virtual ~Workload() = default;
  /// One step of work, queued on the context's stream. May throw OutOfMemory; then nothing has changed. What it asks
  /// for follows from what is allocated, not from its number: of steps that repeat each other a plan leaves the rest
  /// out.
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

/// With --tf32 at least this is tolerated, where numbers agree within a tolerance: a weight that another order of FP32
/// sums has changed in its last bit may be rounded to another neighbour, and these are so far apart (relative).
inline constexpr double kTf32Tolerance = 0x1p-10;

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
  /// Peak allocated bytes of a rank by category, in closed form, without its context's cuBLAS workspace.
  virtual ByCategory predicted(int rank) const = 0;
  /// The same of host memory.
  virtual HostBytes predicted_on_host(int) const { return {}; }
  /// Variant::flops of a rank.
  virtual std::optional<double> flops(int) const { return std::nullopt; }
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
  /// Peak allocated bytes by category at a batch size, in closed form, without the context's cuBLAS workspace: the
  /// harness chooses its size (--workspace) and adds it.
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
  /// Operations of a step's matrix products at a batch size, in closed form, a multiplication and an addition counted
  /// as two; what the host runtime counts must be the same. Empty, or nothing: not known, and there is no least time
  /// (plan/card.h).
  std::function<std::optional<double>(std::size_t batch)> flops = {};
  DType dtype = DType::fp32;  ///< in which the factors of these are stored, all ranks' too
  /// Peak bytes of host memory at a batch size, in closed form; of several ranks: of the one that has most. Empty: it
  /// has none.
  std::function<HostBytes(std::size_t batch)> predicted_on_host = {};
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
  std::optional<DeviceWork> work = {};                                      ///< of its device, in a step
  std::optional<double> flops = {};                                         ///< predicted, in a step
  std::size_t device_used_before = 0;  ///< bytes of its device in use, before it had any, by others and libraries
  HostBytes predicted_on_host = {}, on_host = {};
};

/// What a step of the memory pass held. Bytes; of the rank that is shown.
struct StepMemory {
  std::size_t allocated = 0;                  ///< live when the step had ended
  std::size_t peak_allocated = 0;             ///< most that were live in it
  std::size_t reserved = 0, device_used = 0;  ///< when it had ended, as the allocator and the driver said last
  ByCategory at_peak;
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
  std::size_t device_used_before = 0;  ///< bytes of the last one that are not this run's: context, libraries, others
  ByCategory at_peak;
  std::vector<PhasePeak> phases;
  std::vector<RankResult> ranks;   ///< of a team; the figures above are those of the rank that needed most
  std::vector<double> figures;     ///< figure() after each step of the memory pass
  std::uint64_t fingerprint = 0;   ///< after the memory pass
  std::optional<DeviceWork> work;  ///< of the device, in the last step of the memory pass
  std::optional<double> flops;     ///< predicted, in a step; of a team: of the rank that has most
  DType dtype = DType::fp32;       ///< of the products' factors
  bool compared = false;           ///< against the baseline; not when the baseline did not run, nor in plan mode
  bool agrees = true;
  Agreement agreement;
  double largest_difference = 0;             ///< relative, of figures against the baseline's
  std::vector<StepMemory> steps;             ///< of the memory pass, where it was watched
  std::vector<Growth> growths;               ///< what grows from step to step
  int growth_rank = 0;                       ///< of a team: whose growth that is
  bool growth_looked_for = false;            ///< in steps enough to tell
  std::vector<double> samples_per_second;    ///< one for every timed step; empty in plan mode
  std::vector<double> reference_rates;       ///< of this machine, around these steps: see harness/timing.h
  std::optional<std::size_t> largest_batch;  ///< that fits the budget by the prediction (which is checked)
  HostBytes predicted_on_host;               ///< of a team: of the rank that has most host memory
  HostBytes on_host;                         ///< at the peak of each kind
  std::uint64_t on_host_of_all = 0;          ///< of all ranks together, predicted

  std::size_t predicted_peak() const { return predicted.total(); }
  /// False when the measured peak, or its split, is not the predicted one.
  bool prediction_holds() const { return !measured || at_peak == predicted; }
  /// The same of host memory; of a team, of any rank's.
  bool prediction_holds_on_host() const {
    const auto holds = [](const RankResult& rank) { return rank.on_host == rank.predicted_on_host; };
    return !measured || (on_host == predicted_on_host && std::ranges::all_of(ranks, holds));
  }
};

}  // namespace oomlab
