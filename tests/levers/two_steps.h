#pragma once
// For tests of chapters' workloads: what two steps of one need.

#include <memory>

#include "cuda/check.h"
#include "harness/chapter.h"
#include "memory/resource.h"

namespace oomlab::test {

/// Makes a workload with make(Context&) on a device, takes two steps of it, and returns read(Ledger&, Context&) while
/// it is still there.
template <class Make, class Read>
auto after_two_steps(int device, Make make, Read read) {
  CUDA_CHECK(cudaSetDevice(device));
  Ledger ledger;
  AsyncResource memory;
  Context context(memory, ledger);
  const std::unique_ptr<Workload> work = make(context);
  for (int step = 0; step < 2; ++step) {
    work->step();
    (void)work->figure();
  }
  return read(ledger, context);
}

}  // namespace oomlab::test
