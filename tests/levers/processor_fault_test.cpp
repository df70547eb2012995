// Steps whose weights are updated before the whole backward pass is over, with every call that may fail made to fail: the
// error has a type, nothing leaks, and what comes next is the same step again with the same result, or, once a weight has
// changed, a refusal. Nothing goes on with a model that is half updated.

#include <gtest/gtest.h>
#include <oomlab_host.h>

#include "../../chapters/13_optimizer_memory/training.h"

namespace oomlab::optimizer_memory {
namespace {

struct Outcomes {
  std::size_t again = 0, refused = 0, copies = 0;
};

// Every call, or one of so many.
template <class T>
Outcomes sweep(const Recipe& recipe, bool from_then_on, std::uint64_t one_of) {
  Task task{nn::parse_transformer("gpt:1-1-4"), nullptr, 1, 2};
  task.spec.positions = 4;
  task.text = std::make_shared<const data::TextSampler>(text_for(task.spec, task.seq, false));
  const auto run = [&](auto body) {
    CudaResource memory;
    Ledger ledger;
    Context context(memory, ledger);
    Training<T> training(context, task, recipe);
    training.step();
    body(training, ledger);
  };
  std::uint64_t weights = 0, calls = 0;
  run([&](Training<T>& training, Ledger&) {
    host::arm_fault(UINT64_MAX, false);
    training.step();
    calls = host::fault_calls();
    host::disarm_fault();
    training.step();
    weights = training.fingerprint();
  });
  EXPECT_GT(calls, 100u);
  Outcomes seen;
  for (std::uint64_t k = 1; k <= calls; k += one_of)
    run([&](Training<T>& training, Ledger& ledger) {
      const std::size_t live = ledger.live_bytes();
      host::arm_fault(k, from_then_on);
      bool failed = false;
      try {
        training.step();
      } catch (const std::runtime_error&) {  // CudaError, CublasError, OutOfMemory
        failed = true;
      }
      const std::string site = host::fault_site();
      host::disarm_fault();
      if (!failed) {  // what is given back is reported, and no reason to stop
        ASSERT_EQ(site, "cudaFree") << "call " << k << " failed, and nobody said so";
        return;
      }
      seen.copies += site == "cudaMemcpyAsync";
      EXPECT_EQ(ledger.live_bytes(), live) << site << ", call " << k;
      EXPECT_EQ(training.steps(), 1u) << site << ", call " << k;
      try {
        training.step();
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("failed half-way"), std::string::npos) << error.what();
        ++seen.refused;
        return;
      }
      training.step();
      EXPECT_EQ(training.fingerprint(), weights) << site << ", call " << k;
      ++seen.again;
    });
  return seen;
}

constexpr std::uint64_t kAll = OOMLAB_ROUNDS >= 10 ? 1 : 17;

TEST(ProcessorFaults, AreTriedAgainOrRefused) {
  const Recipe fp32{"", DType::fp32, {}, GradientLife::offloaded},
      bf16{"", DType::bf16, {UpdateRule::adamw, WeightForm::master}, GradientLife::offloaded};
  const Outcomes once = sweep<float>(fp32, false, kAll);
  EXPECT_GT(once.again, 0u);
  EXPECT_GT(once.refused, 0u);
  EXPECT_GE(once.copies, kAll == 1 ? 10u : 1u);
  sweep<float>(fp32, true, kAll == 1 ? 4 : 17);
  sweep<Bf16>(bf16, false, kAll == 1 ? 3 : 17);
}

TEST(ProcessorFaults, InBackwardAreTriedAgainOrRefused) {
  const Outcomes once = sweep<float>({"", DType::fp32, {}, GradientLife::optimizer_in_backward}, false, kAll);
  EXPECT_GT(once.again, 0u);
  EXPECT_GT(once.refused, 0u);
}

}  // namespace
}  // namespace oomlab::optimizer_memory
