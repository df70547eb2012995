// The tape, against what PyTorch's documentation says of small programs: who holds what, and until when.

#include "plan/pytorch/tape.h"

#include <gtest/gtest.h>

#include "plan/pytorch/torch_ops.h"

namespace oomlab::fit {
namespace {

constexpr std::uint64_t kValue = 4;  // bytes

struct Program {
  TorchMemory memory{1, true};
  Tape tape{memory};
  Torch torch{tape, TorchDevice::cpu, {}};
  std::uint64_t live() const { return memory.live().total(); }
  Parameter weight(std::uint64_t count) { return {tape.make(count, DType::fp32, Category::parameters)}; }
};

TEST(Tape, LinearKeepsItsInputAndFreesItInTheBackwardPass) {
  Program p;
  Parameter w = p.weight(12);
  Tensor x = p.tape.make(6, DType::fp32);  // 2 rows of 3
  Tensor y = p.torch.linear(x, w, nullptr, 3, 4);
  x = {};
  EXPECT_EQ(p.live(), kValue * (12 + 6 + 8));
  Tensor loss = p.torch.mean(y, 1);
  y = {};
  EXPECT_EQ(p.live(), kValue * (12 + 6 + 1)) << "nothing needs the product's output";
  p.tape.backward(loss);
  loss = {};
  EXPECT_EQ(p.live(), kValue * (12 + 12));
  EXPECT_EQ(p.memory.live()[Category::gradients], kValue * 12);
}

TEST(Tape, AFrozenWeightKeepsNoInput) {
  Program p;
  Parameter frozen = p.weight(12), trained = p.weight(3);
  frozen.trained = false;
  Tensor x = p.torch.mul(p.tape.make(6, DType::fp32), p.tape.leaf(trained));
  Tensor y = p.torch.linear(x, frozen, nullptr, 3, 4);
  const std::uint64_t before = p.live();
  x = {};
  EXPECT_EQ(p.live(), before - kValue * 6);
}

TEST(Tape, GradientsAreAddedInPlaceWhereNobodyElseHoldsThem) {
  Program p;
  Parameter w = p.weight(100);
  for (int pass = 0; pass < 2; ++pass) {
    Tensor y = p.torch.scale(p.tape.leaf(w));
    Tensor loss = p.torch.mean(y, 1);
    y = {};
    p.tape.backward(loss);
  }
  EXPECT_EQ(p.live(), kValue * 200) << "a weight and one gradient";
}

TEST(Tape, AResidualsGradientIsOneTensorForBothWays) {
  Program p;
  Parameter w = p.weight(100);
  Tensor x = p.torch.scale(p.tape.leaf(w));
  Tensor y = p.torch.silu(x);
  Tensor sum = p.torch.add(x, y);
  Tensor loss = p.torch.mean(sum, 1);
  x = y = sum = {};
  p.memory.forget_peak();
  p.tape.backward(loss);
  // The weight, silu's input, the sum's gradient, silu's gradient; scale()'s comes when silu's input has gone.
  EXPECT_EQ(p.memory.at_peak().total(), kValue * (100 + 100 + 100 + 100 + 1));
}

TEST(Tape, ACheckpointKeepsItsInputOnlyAndRunsAgain) {
  Program p;
  Parameter w = p.weight(100);
  int runs = 0;
  const auto region = [&](Tensor x) {
    ++runs;
    for (int i = 0; i < 5; ++i) x = p.torch.silu(x);
    return x;
  };
  Tensor input = p.torch.scale(p.tape.leaf(w));
  Tensor y = p.tape.checkpoint(input, region, [](const std::function<void()>& run) { run(); });
  input = {};
  EXPECT_EQ(p.live(), kValue * 300) << "weight, input, output";
  Tensor loss = p.torch.mean(y, 1);
  y = {};
  p.memory.forget_peak();
  p.tape.backward(loss);
  EXPECT_EQ(runs, 2);
  // The weight, five inputs, the last output's gradient and what the first silu gives.
  EXPECT_EQ(p.memory.at_peak().total(), kValue * (100 + 500 + 200 + 1));
  loss = {};
  EXPECT_EQ(p.live(), kValue * 200);
}

TEST(Tape, AutocastCopiesAWeightOnce) {
  Program p;
  Torch torch(p.tape, TorchDevice::cpu, DType::bf16);
  Parameter w = p.weight(9);
  const Tensor x = p.tape.make(3, DType::bf16);
  Tensor y = torch.linear(x, w, nullptr, 3, 3);
  y = torch.linear(y, w, nullptr, 3, 3);
  EXPECT_EQ(p.live(), 9 * 4 + 9 * 2 + 3 * 2 + 2 * 3 * 2u);
  w.trained = false;
  w.cast = {};
  w.node = kNoNode;
  Tensor z = torch.linear(x, w, nullptr, 3, 3);
  EXPECT_FALSE(w.cast) << "what has no gradient is not cached";
}

// What a GPU copies to FP32, and what it keeps of 16 bits: measured on an H100, and the operators that PyTorch 2.11 calls.
TEST(Tape, AGpusSoftmaxAndLossUnderAutocast) {
  const auto live_after = [](TorchDevice device, std::optional<DType> autocast, DType type, auto run) {
    Program p;
    Torch torch(p.tape, device, autocast);
    Parameter w = p.weight(100);
    w.value.dtype = type;
    Tensor out = run(torch, p.tape.leaf(w));
    const std::uint64_t forward = p.live() - 400;
    p.memory.forget_peak();
    if (out.count > 1) out = torch.mean(out, 1);
    p.tape.backward(std::move(out));
    return std::pair(forward, p.memory.at_peak().total() - 400);
  };
  const auto softmax = [](Torch& torch, const Tensor& x) { return torch.softmax_fp32(x); };
  const auto plain = [](Torch& torch, const Tensor& x) { return torch.softmax(x); };
  const auto loss = [](Torch& torch, const Tensor& x) { return torch.cross_entropy(x, {}); };
  const std::pair<std::uint64_t, std::uint64_t> fused{400,
                                                      400 + 400 + 200};  // y and its gradient; that of x in 16 bits
  EXPECT_EQ(live_after(TorchDevice::cuda, {}, DType::fp16, softmax), fused);
  const std::pair<std::uint64_t, std::uint64_t> copied{400, 400 + 400 + 400};  // the gradient of the copy in FP32
  EXPECT_EQ(live_after(TorchDevice::cuda, {}, DType::bf16, softmax), copied);
  EXPECT_EQ(live_after(TorchDevice::cuda, DType::bf16, DType::bf16, plain), copied);
  // The log-softmax in 16 bits, its copy, and the gradient of the copy.
  const std::pair<std::uint64_t, std::uint64_t> of_loss{200 + 400 + 4, 200 + 400 + 4 + 400};
  EXPECT_EQ(live_after(TorchDevice::cuda, DType::bf16, DType::bf16, loss), of_loss);
}

TEST(Tape, AStorageThatIsEmptyIsStillHeld) {
  Program p;
  const Tensor x = p.tape.make(6, DType::fp32);
  const Tensor again = x;
  x.storage->empty();
  x.storage->empty();
  EXPECT_EQ(p.live(), 0u);
  again.storage->refill();
  EXPECT_EQ(p.live(), kValue * 6);
}

TEST(Tape, HooksRunBeforeTheirNodeAndAfterALeaf) {
  Program p;
  Parameter w = p.weight(100);
  std::vector<std::string> order;
  p.tape.after_accumulation([&](Parameter& parameter) {
    EXPECT_EQ(&parameter, &w);
    order.push_back("leaf");
  });
  Tensor x = p.torch.scale(p.tape.leaf(w));
  p.tape.before(x, [&] { order.push_back("scale"); });
  Tensor loss = p.torch.mean(x, 1);
  p.tape.before(loss, [&] { order.push_back("mean"); });
  x = {};
  p.tape.backward(loss);
  EXPECT_EQ(order, (std::vector<std::string>{"mean", "scale", "leaf"}));
}

TEST(Tape, EveryAllocationIsReleasedOnce) {
  TorchMemory memory(512, true);
  {
    Tape tape(memory);
    Torch torch(tape, TorchDevice::cuda, {});
    Parameter w{tape.make(10, DType::fp32)};
    Tensor loss = torch.mean(torch.silu(tape.leaf(w)), 1);
    tape.backward(loss);
  }
  std::vector<int> open;
  for (const MemoryEvent& event : memory.take_events()) {
    EXPECT_EQ(event.bytes % 512, 0u);
    if (!event.release) {
      EXPECT_EQ(event.id, open.size());
      open.push_back(1);
    } else {
      EXPECT_EQ(open.at(event.id)--, 1);
    }
  }
  for (const int count : open) EXPECT_EQ(count, 0);
  EXPECT_EQ(memory.live().total(), 0u);
}

}  // namespace
}  // namespace oomlab::fit
