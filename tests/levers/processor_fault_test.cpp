// A step whose optimizer is on the processor, with every call that may fail made to fail: weights and moments stay
// those of the last step, the error has a type, and the same step works when it is tried again.

#include <gtest/gtest.h>
#include <oomlab_host.h>

#include "../../chapters/13_optimizer_memory/training.h"

namespace oomlab::optimizer_memory {
namespace {

// Every call, or one of so many.
template <class T>
void sweep(const Recipe& recipe, bool from_then_on, std::uint64_t one_of) {
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
  std::uint64_t weights = 0, state = 0, calls = 0;
  run([&](Training<T>& training, Ledger&) {
    host::arm_fault(UINT64_MAX, false);
    training.step();
    calls = host::fault_calls();
    host::disarm_fault();
    weights = training.fingerprint(), state = training.state_fingerprint();
  });
  ASSERT_GT(calls, 100u);
  std::size_t copies = 0;
  for (std::uint64_t k = 1; k <= calls; k += one_of)
    run([&](Training<T>& training, Ledger& ledger) {
      const std::uint64_t weights_before = training.fingerprint(), state_before = training.state_fingerprint();
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
      copies += site == "cudaMemcpyAsync";
      EXPECT_EQ(ledger.live_bytes(), live) << site;
      EXPECT_EQ(training.steps(), 1u) << site;
      EXPECT_EQ(training.state_fingerprint(), state_before) << site << ", call " << k;
      if (!from_then_on) {  // otherwise nothing could be copied back, and the next step begins with that
        EXPECT_EQ(training.fingerprint(), weights_before) << site << ", call " << k;
      }
      training.step();
      EXPECT_EQ(training.fingerprint(), weights) << site << ", call " << k;
      EXPECT_EQ(training.state_fingerprint(), state) << site << ", call " << k;
    });
  EXPECT_GE(copies, one_of == 1 ? 15u : 1u);
}

TEST(ProcessorFaults, LeaveTheLastStep) {
  const Recipe fp32{"", DType::fp32, {}, GradientLife::offloaded},
      bf16{"", DType::bf16, {UpdateRule::adamw, WeightForm::master}, GradientLife::offloaded};
  sweep<float>(fp32, false, OOMLAB_ROUNDS >= 10 ? 1 : 17);
  sweep<float>(fp32, true, OOMLAB_ROUNDS >= 10 ? 4 : 17);
  sweep<Bf16>(bf16, false, OOMLAB_ROUNDS >= 10 ? 3 : 17);
}

// A step in the backward pass cannot do that. It says so, and does not go on with a model that is half updated.
TEST(ProcessorFaults, InBackwardIsNotGoneOnWith) {
  Task task{nn::parse_transformer("gpt:1-1-4"), nullptr, 1, 2};
  task.text = std::make_shared<const data::TextSampler>(text_for(task.spec, task.seq, false));
  std::size_t refused = 0;
  for (std::uint64_t k = 1; k < 200; k += OOMLAB_ROUNDS >= 10 ? 3 : 10) {
    CudaResource memory;
    Ledger ledger;
    Context context(memory, ledger);
    Training<float> training(context, task, {"", DType::fp32, {}, GradientLife::optimizer_in_backward});
    training.step();
    const std::uint64_t before = training.fingerprint();
    host::arm_fault(k, false);
    bool failed = false;
    try {
      training.step();
    } catch (const std::runtime_error&) {
      failed = true;
    }
    host::disarm_fault();
    if (!failed) continue;
    if (training.fingerprint() == before) continue;  // nothing had been updated
    EXPECT_THROW(training.step(), std::runtime_error);
    ++refused;
  }
  EXPECT_GE(refused, 2u);
}

}  // namespace
}  // namespace oomlab::optimizer_memory
