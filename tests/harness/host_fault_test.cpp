// The reference work around timings: the chapters' sweeps time one step only, and leave it out. Here each of its
// fallible calls fails, once and from then on.

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <new>

#include "cuda/check.h"
#include "harness/chapter.h"
#include "harness/timing.h"

namespace oomlab {
namespace {

TEST(HostFault, ReferenceWork) {
  const auto work = [] {
    Ledger ledger;
    std::size_t rates = 0;
    with_context(Config{}, kUnlimited, ledger, [&](Context& context) { rates = reference_rates(context).size(); });
    return rates;
  };
  ASSERT_EQ(5u, work());
  for (const bool from : {false, true}) {
    std::uint64_t k = 1;
    for (;; ++k) {
      host::arm_fault(k, from);
      std::string ended = "well";
      try {
        (void)work();
      } catch (const OutOfMemory&) {
        ended = "typed";
      } catch (const CudaError&) {
        ended = "typed";
      } catch (const CublasError&) {
        ended = "typed";
      } catch (const std::exception& error) {
        ended = error.what();
      }
      host::disarm_fault();
      if (host::fault_site()[0] == '\0') break;
      EXPECT_TRUE(ended == "typed" || ended == "well") << k << " " << host::fault_site() << ": " << ended;
      EXPECT_EQ("nothing", host::describe(host::live())) << k << " " << host::fault_site();
      EXPECT_EQ(cudaSuccess, cudaPeekAtLastError()) << k << " " << host::fault_site();
    }
    EXPECT_GT(k, 40u);
    EXPECT_EQ(5u, work());
  }
}

}  // namespace
}  // namespace oomlab
