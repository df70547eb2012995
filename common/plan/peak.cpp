#include "plan/peak.h"

#include <stdexcept>

#include "plan/bytes.h"
#include "plan/interrupt.h"

namespace oomlab {

PeakBytes later_peak(const PeakBytes& first, const PeakBytes& second) {
  return second.total() > first.total() ? second : first;
}

PeakTracker::PeakTracker(const ByCategory& resident)
    : live_(resident), peak_{resident}, total_(resident.total()), peak_total_(total_) {}

void PeakTracker::add(Category category, std::uint64_t bytes) {
  check_interrupt();  // searches simulate thousands of steps
  total_ = checked_sum(total_, bytes);
  live_[category] += bytes;  // at most the total
  if (total_ <= peak_total_) return;
  peak_total_ = total_;
  peak_.at_peak = live_;
}

void PeakTracker::drop(Category category, std::uint64_t bytes) {
  if (live_[category] < bytes) throw std::logic_error("more bytes are released than there are");
  live_[category] -= bytes;
  total_ -= bytes;
}

}  // namespace oomlab
