#pragma once
// The largest number of something that fits, asked as seldom as can be.

#include <cstdint>

namespace oomlab::fit {

/// The largest n of 1…most with fits(n), 0 where there is none. may_fit(n) is cheap, and holds where fits(n) does. Both
/// are taken to hold for all below one for which they hold.
template <class MayFit, class Fits>
std::uint64_t largest_that_fits(std::uint64_t most, MayFit may_fit, Fits fits) {
  std::uint64_t high = 0, stride = 1;
  while (high + stride <= most && may_fit(high + stride)) high += stride, stride *= 2;
  for (; stride > 0; stride /= 2)
    if (high + stride <= most && may_fit(high + stride)) high += stride;
  if (high == 0 || fits(high)) return high;
  // Down from there: it is near.
  std::uint64_t low = high;
  for (stride = 1; low > 0; stride *= 2) {
    low -= low < stride ? low : stride;
    if (low == 0 || fits(low)) break;
    high = low;
  }
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace oomlab::fit
