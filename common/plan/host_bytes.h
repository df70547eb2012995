#pragma once
// Bytes of host memory, predicted or counted.

#include <cstdint>

#include "plan/bytes.h"
#include "plan/category.h"

namespace oomlab {

/// Bytes of the host's memory that one rank has for its work, each buffer rounded to the granule as on a device. What a
/// program is made of is not among them: its code, the text or the images that it trains on.
struct HostBytes {
  ByCategory pinned;    ///< page-locked (cudaMallocHost), so that a device can copy it by itself
  ByCategory pageable;  ///< what new and malloc give
  ByCategory managed;   ///< all of it, wherever its pages are: when a device is full they are on the host
  /// Throws std::length_error when the sum does not fit 64 bits.
  std::uint64_t total() const { return checked_sum(checked_sum(pinned.total(), pageable.total()), managed.total()); }
  friend bool operator==(const HostBytes&, const HostBytes&) = default;
};

}  // namespace oomlab
