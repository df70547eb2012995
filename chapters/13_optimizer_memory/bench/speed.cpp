// How long one update takes, in ratios on this machine: of 16 million parameters, without a model around it. All rules
// have their turns. bench/peers/pytorch_optimizer.py runs it in turns with PyTorch's.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "../../../bench/benchmarks/judged.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"

namespace oomlab::optimizer_memory {
namespace {

using namespace nn;

constexpr std::size_t kMatrices = 16, kSide = 1024, kCount = kMatrices * kSide * kSide;

// Weights, their state, and gradients, which all rules of one type may share.
template <class T>
class Updated {
 public:
  Updated(Context& context, OptimizerForm form, T* gradients)
      : context_(context), weights_(context.buffer<T>(kCount, Category::parameters, "weights")) {
    fill_uniform(context, weights_.data(), kCount, 0.1f, 1, 1);
    std::vector<TensorShape> shapes;
    std::vector<T*> values;
    for (std::size_t i = 0; i < kMatrices; ++i) {
      shapes.push_back({"matrix " + std::to_string(i), "layer 1", kSide, kSide});
      values.push_back(weights_.data() + i * kSide * kSide);
      updates_.push_back({i, gradients + i * kSide * kSide});
    }
    optimizer_ = std::make_unique<Optimizer<T>>(context, shapes, values, form);
  }
  double update() {
    context_.synchronize();
    const auto start = std::chrono::steady_clock::now();
    optimizer_->update(context_, updates_);
    optimizer_->end_step();
    context_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  Context& context_;
  DeviceBuffer<T> weights_;
  std::vector<typename Optimizer<T>::Update> updates_;
  std::unique_ptr<Optimizer<T>> optimizer_;
};

void judge() {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  auto gradients = context.buffer<float>(kCount, Category::gradients, "gradients");
  auto short_gradients = context.buffer<__nv_bfloat16>(kCount, Category::gradients, "gradients in BF16");
  fill_uniform(context, gradients.data(), kCount, 0.1f, 1, 2);
  fill_uniform(context, short_gradients.data(), kCount, 0.1f, 1, 2);
  Updated<float> adamw(context, {}, gradients.data()), adamw8(context, {UpdateRule::adamw8}, gradients.data()),
      adafactor(context, {UpdateRule::adafactor}, gradients.data()), sgd(context, {UpdateRule::sgd}, gradients.data());
  Updated<__nv_bfloat16> stochastic(context, {UpdateRule::adamw, WeightForm::stochastic}, short_gradients.data());

  // Bytes that an update cannot but move: weights and state read and written, gradients read.
  const std::pair<const char*, double> names[] = {
      {"adamw", 28}, {"adamw8", 16 + 16.0 / 256}, {"adafactor", 12}, {"sgd", 12}, {"bf16 stochastic", 22}};
  const auto seconds = bench::in_turns(
      11, {[&] { return adamw.update(); }, [&] { return adamw8.update(); }, [&] { return adafactor.update(); },
           [&] { return sgd.update(); }, [&] { return stochastic.update(); }});
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double s = bench::median(seconds[i]);
    fmt::print("{:<18} {:7.2f} ms  {:6.2f} bytes per parameter, {:5.1f} GB/s\n", names[i].first, 1e3 * s,
               names[i].second, names[i].second * double(kCount) / s / 1e9);
  }
  bench::judged("13_optimizer_memory", "one update, 8-bit AdamW / AdamW", bench::ratio_in_pairs(seconds[1], seconds[0]),
                bench::Wanted::at_most, 4);
}

}  // namespace
}  // namespace oomlab::optimizer_memory

int main() { return oomlab::bench::run_judged("13_optimizer_memory_bench", oomlab::optimizer_memory::judge); }
