#pragma once
// A ledger on paper: the peak of allocations and releases that are only listed, for predictions.

#include <cstdint>

#include "plan/category.h"

namespace oomlab {

/// Live bytes at the moment of the peak (the first one, when several are equal), as Ledger::peak_by_category().
struct PeakBytes {
  ByCategory at_peak;
  std::uint64_t total() const { return at_peak.total(); }
};
/// The larger one; the first when equal. For a program that does one thing after the other.
PeakBytes later_peak(const PeakBytes& first, const PeakBytes& second);

/// Adds up and takes away bytes in the order of a program that does not run, and remembers the peak. All bytes are as
/// the ledger counts them: every buffer on its own rounded to the granule.
class PeakTracker {
 public:
  /// Begins with what is there before.
  explicit PeakTracker(const ByCategory& resident = {});
  /// Throws std::length_error when the sum does not fit 64 bits.
  void add(Category category, std::uint64_t bytes);
  /// Throws std::logic_error when there is less than that.
  void drop(Category category, std::uint64_t bytes);

  const ByCategory& live() const noexcept { return live_; }
  std::uint64_t live_bytes() const noexcept { return total_; }
  const PeakBytes& peak() const noexcept { return peak_; }
  std::uint64_t peak_bytes() const noexcept { return peak_total_; }

 private:
  ByCategory live_;
  PeakBytes peak_;
  std::uint64_t total_, peak_total_;
};

}  // namespace oomlab
