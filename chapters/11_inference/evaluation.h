#pragma once
// Evaluation: a forward pass over one batch after the other, and the loss of each token. Who keeps what decides the
// peak: a graph that no backward pass will read, and predictions that only the host wants.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "memory/repetition.h"
#include "nn/models/read_loss.h"
#include "nn/ops/loss.h"
#include "nn/ops/values.h"
#include "plan/step.h"
#include "train/precision.h"
#include "weights.h"

namespace oomlab::inference {

using namespace train;

/// What an evaluation keeps.
struct Keeping {
  bool graph = false;  ///< of each batch, what a backward pass would read, until the batch is done
  enum class Predictions { none, on_device, on_host } predictions = Predictions::none;  ///< of all batches
};

/// Text in batches of `sequences`, as many as `batches`.
struct Evaluated {
  std::size_t sequences, seq, batches;
  nn::StepForm form = {};  ///< of the attention
};

/// Where an evaluation ran out of its budget.
struct FailedBatch {
  std::optional<std::size_t> number;  ///< from 1
};

template <class T>
class Evaluation final : public Workload {
 public:
  Evaluation(Context& context, const Weights& weights, const data::TextSampler& text, const Evaluated& of,
             Keeping keeping, std::shared_ptr<FailedBatch> failed = nullptr)
      : context_(context),
        of_(of),
        keeping_(keeping),
        failed_(std::move(failed)),
        samples_(text.samples(0, planning() ? of.sequences : of.sequences * of.batches)),
        model_(weights.make_model<T>(context)),
        row_losses_(context.buffer<float>(checked_product(rows(), of.batches), Category::workspace, "row losses")),
        loss_(context.buffer<float>(1, Category::workspace, "loss")) {
    model_->set_form(of.form);
  }

  /// All batches. Predictions are given back at the end, as by a program that has written them to a file.
  void step() override {
    std::vector<DeviceBuffer<T>> on_device;
    on_host_.clear();
    std::size_t number = 0;
    try {
      Loop loop(context_.ledger(), "batch");  // for whoever looks for memory that grows
      Repetition batches(context_, of_.batches);
      while (batches.next()) {
        number = batches.number();
        evaluate(number, on_device);
        loop.end_round();
      }
      loop.leave_out(batches.left_out());
    } catch (const OutOfMemory& error) {
      if (failed_ && error.report().by_limit) failed_->number = number + 1;
      throw;
    }
    nn::scaled_sum(context_, row_losses_.data(), row_losses_.size(), 1.0f / float(row_losses_.size()), loss_.data());
  }
  std::size_t samples_per_step() const override { return of_.sequences * of_.batches; }
  /// The mean loss of a token, in nats.
  double figure() override { return nn::read_loss(context_, loss_); }
  /// Of the losses of all tokens.
  std::uint64_t fingerprint() override {
    return nn::fingerprint(context_, row_losses_.data(), row_losses_.size() * sizeof(float));
  }

  /// Peak bytes by category. Predictions on the device: those of all batches before the last one are there with it.
  static ByCategory predicted(const nn::TransformerSpec& spec, const Evaluated& of, Keeping keeping) {
    ByCategory resident = fixed_bytes(spec, of);
    if (keeping.predictions == Keeping::Predictions::on_device)
      resident[Category::activations] = checked_product(prediction_bytes(spec, of), of.batches - 1);
    const nn::StepLevers levers{.element_bytes = sizeof(T), .sequences = of.sequences, .seq = of.seq, .form = of.form};
    return nn::simulate_forward(spec, levers, resident, keeping.graph).at_peak;
  }
  /// Of one batch.
  static std::size_t prediction_bytes(const nn::TransformerSpec& spec, const Evaluated& of) {
    return round_to_granule(checked_product(checked_product(of.sequences, of.seq) * sizeof(T), spec.vocabulary));
  }
  /// The batch, from 1, in which an evaluation whose predictions stay on the device runs out of `budget` bytes, if it
  /// has enough of them; 0 when not even the weights fit.
  static std::size_t batch_that_fails(const nn::TransformerSpec& spec, Evaluated of, Keeping keeping,
                                      std::size_t budget) {
    if (fixed_bytes(spec, of).total() > budget) return 0;
    Evaluated one = of;
    one.batches = 1;
    // The losses of all batches are there from the beginning.
    const std::size_t losses = fixed_bytes(spec, of).total() - fixed_bytes(spec, one).total();
    const std::size_t first = checked_sum(predicted(spec, one, keeping).total(), losses);
    return first > budget ? 1 : (budget - first) / prediction_bytes(spec, of) + 2;
  }

 private:
  std::size_t rows() const { return checked_product(of_.sequences, of_.seq); }
  static ByCategory fixed_bytes(const nn::TransformerSpec& spec, const Evaluated& of) {
    ByCategory bytes;
    bytes[Category::parameters] = nn::tensor_bytes(spec, sizeof(T));
    const std::size_t rows = checked_product(checked_product(of.sequences, of.seq), of.batches);
    bytes[Category::workspace] =
        round_to_granule(checked_product(rows, sizeof(float))) + round_to_granule(sizeof(float));
    return bytes;
  }

  // One batch. Everything is given back at its end, but for predictions.
  void evaluate(std::size_t number, std::vector<DeviceBuffer<T>>& on_device) {
    const nn::TokenBatch batch = upload(context_, samples_, planning() ? 0 : number * of_.sequences, of_.sequences);
    const Phase phase(context_.ledger(), "forward");
    if (keeping_.graph) {
      nn::ForwardPass<T> pass(context_, *model_, batch);  // its destructor frees the graph
      take(number, batch, pass.logits(context_, *model_, batch));
      return;
    }
    DeviceBuffer<T> logits = model_->logits(context_, batch);
    take(number, batch, logits);
    if (keeping_.predictions == Keeping::Predictions::on_device) on_device.push_back(std::move(logits));
    if (keeping_.predictions == Keeping::Predictions::on_host) to_host(logits);
  }
  void take(std::size_t number, const nn::TokenBatch& batch, const DeviceBuffer<T>& logits) {
    nn::cross_entropy(context_, logits.data(), batch.labels.data(), row_losses_.data() + number * rows(), rows(),
                      model_->spec().vocabulary);
  }
  void to_host(const DeviceBuffer<T>& logits) {
    if (planning()) return;
    std::vector<T>& to = on_host_.emplace_back(logits.size());
    CUDA_CHECK(cudaMemcpyAsync(to.data(), logits.data(), logits.bytes(), cudaMemcpyDeviceToHost, context_.stream()));
    context_.synchronize();
  }

  Context& context_;
  Evaluated of_;
  Keeping keeping_;
  std::shared_ptr<FailedBatch> failed_;
  data::TokenSamples samples_;
  std::unique_ptr<nn::Transformer<T>> model_;
  DeviceBuffer<float> row_losses_, loss_;
  std::vector<std::vector<T>> on_host_;
};

}  // namespace oomlab::inference
