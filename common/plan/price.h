#pragma once
// What a step costs beside memory.

#include <cstdint>

namespace oomlab::plan {

/// What the CPU's update moves. It begins when the first gradients are there, after the forward pass, and goes on
/// beside the backward pass. The token table's gradients are there last, with nothing left to compute beside them.
struct HostUpdate {
  double bytes = 0;           ///< of host memory, read and written for all ranks
  double last_bytes = 0;      ///< of these what one rank's token table needs
  double last_bus_bytes = 0;  ///< its gradients down, its weights up
  double forward_flops = 0;   ///< before it begins
};

/// Of the rank that has most to do, but for what says that it is of all.
struct Price {
  double flops = 0;              ///< of matrix products; fused attention's as if it had some
  double bus_bytes = 0;          ///< over the bus, in the busier direction
  double checkpoint_bytes = 0;   ///< over the bus beside these, in each direction
  double paged_bytes = 0;        ///< of managed memory; what has no room on the device comes and goes in each step
  double link_bytes = 0;         ///< sent to other ranks
  std::uint64_t host_bytes = 0;  ///< of host memory, of all ranks together: they are taken to share one node
  HostUpdate update{};
};

}  // namespace oomlab::plan
