#pragma once
// A rank's pinned host memory, counted in a ledger of its own.

#include "memory/context.h"
#include "memory/device_buffer.h"
#include "memory/resource.h"

namespace oomlab::train {

class PinnedMemory {
 public:
  PinnedMemory() : tracking_(resource_, ledger_) {}
  /// Throws OutOfMemory when it cannot be pinned.
  template <class V>
  DeviceBuffer<V> buffer(Context& context, std::size_t count) {
    return DeviceBuffer<V>(tracking_, context.stream(), count, Category::optimizer, "pinned");
  }
  const Ledger& ledger() const noexcept { return ledger_; }

 private:
  Ledger ledger_;
  PinnedResource resource_;
  TrackingResource tracking_;
};

}  // namespace oomlab::train
