#pragma once
// Memory over time: what a variant holds after each step of the memory pass, told as it runs, kept, and looked at for
// growth.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "harness/variant.h"
#include "memory/growth.h"
#include "memory/ledger.h"

namespace oomlab {

/// Where --watch writes: a terminal gets one line that is written over, at most twenty times a second, anything else a
/// line for each phase and each step.
class WatchLine {
 public:
  /// Standard error, where progress goes, too.
  WatchLine();
  /// Columns that a line may take; 0: `descriptor` is no terminal.
  static std::size_t columns_of(int descriptor) noexcept;
  /// `text` in at most `columns` columns, counted as one for each character (UTF-8).
  static std::string cut(std::string_view text, std::size_t columns);
  /// `important`: to be seen, although the line before it has only just been written.
  void write(const std::string& text, bool important) noexcept;
  /// Takes the line off the terminal, so that something else may be written there.
  void clear() noexcept;

 private:
  std::size_t columns_;
  bool shown_ = false;
  long long last_us_ = 0;
};

/// Looks on while one rank, or a variant of one rank, takes its steps.
class MemoryWatch final : public LedgerObserver {
 public:
  /// Tells `line`, where it is not null, of everything, under this name. `budget`: bytes, kUnlimited for none.
  MemoryWatch(Ledger& ledger, std::string name, std::size_t steps, std::size_t budget, WatchLine* line);
  ~MemoryWatch() override;
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  /// What each step held; of a plan so many more held what the last one did.
  const std::vector<StepMemory>& steps() const noexcept { return series_; }
  std::size_t steps_left_out() const noexcept { return left_out_; }
  std::vector<Growth> growths() const { return detector_.growths(); }

  void changed(const Ledger& ledger) noexcept override;
  void phase_began(const Ledger& ledger, std::string_view name) noexcept override;
  void phase_ended(const Ledger& ledger, std::string_view name) noexcept override;
  void loop_began(const Ledger& ledger, std::string_view name) override;
  void round_ended(const Ledger& ledger) override;
  void loop_ended(const Ledger& ledger, bool cut_short) noexcept override;
  void rounds_left_out(const Ledger& ledger, std::size_t rounds) override;
  bool follows_all() const noexcept override { return line_ != nullptr; }

 private:
  void start_step(const Ledger& ledger) noexcept;
  void say(const Ledger& ledger, std::string_view what, std::size_t peak, bool important) noexcept;

  Ledger& ledger_;
  std::string name_;
  std::size_t planned_steps_, budget_, loops_ = 0;  // loops that are open
  WatchLine* line_;
  GrowthDetector detector_;
  std::vector<StepMemory> series_;
  std::size_t left_out_ = 0;
  StepMemory step_;                       // that is running
  std::vector<std::size_t> phase_peaks_;  // of the phases that are open
  bool told_growth_ = false;
};

}  // namespace oomlab
