// The timing pass by its calls. The reference work around timings: the chapters' sweeps time one step only, and leave
// it out; here each of its fallible calls fails, once and from then on. And what the harness adds to a step.

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <functional>
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

// A step of three calls.
class ThreeCalls final : public Workload {
 public:
  explicit ThreeCalls(Context& context) : context_(context) {}
  void step() override {
    auto buffer = context_.buffer<char>(1'000, Category::activations, "bytes");
    CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, buffer.size(), context_.stream()));
  }
  std::size_t samples_per_step() const override { return 1; }
  double figure() override { return 0; }
  std::uint64_t fingerprint() override { return 0; }

 private:
  Context& context_;
};

// Two events are recorded, one is waited for, and their times are read. (The time that this takes: tests/run bench.)
TEST(HostCalls, TheHarnessAddsFourToAStep) {
  Ledger ledger;
  with_context(Config{}, kUnlimited, ledger, [](Context& context) {
    ThreeCalls work(context);
    const auto calls_of = [&](const std::function<void()>& body) {
      host::arm_fault(UINT64_MAX, false);
      body();
      host::disarm_fault();
      return host::fault_calls();
    };
    const auto timed = [&](std::size_t steps) {
      return calls_of([&] { EXPECT_EQ(time_steps(context, work, {.steps = steps}).size(), steps); });
    };
    const std::uint64_t step = calls_of([&] { work.step(); });
    EXPECT_EQ(3u, step);
    EXPECT_EQ((step + 4) * 100, timed(101) - timed(1));
  });
}

}  // namespace
}  // namespace oomlab
