#pragma once
// The trainer: any step that plan/ describes, on one rank or many. Each rank has its place in the grid: a slice of the
// model (its stage's layers, its part of each), a share of the batch (its replica's), and of the state what ZeRO leaves.
//
//   job.h              what it is asked to do, and what that needs
//   passes.h           the order of forward and backward passes in a pipeline
//   stage_links.h      what neighbour stages of a pipeline send each other
//   groups.h           who talks to whom
//   cluster.h          all ranks of a layout
//   units.h            parameters and gradients: whole, shared out, or a unit's alone
//   base.h             weights that are frozen, and adapters beside them: what lies in units
//   host_optimizer.h   state in the host's memory, updated by the CPU
//   nn/models/host_checkpoints.h   inputs of layers there, between their forward and their backward pass
//
//   among parts      two all-reduces of [rows, width] per layer, forward and backward (Megatron-LM); where they share out
//                    rows, as many gathers and sums of shares instead, and inputs of products gathered again backward
//   among tokens     keys, values and their gradients that go round, or rows exchanged for heads
//   among stages     activations forward, their gradients backward
//   among replicas   gradients, unit by unit, while the backward pass of earlier layers still runs (Li et al., "PyTorch
//                    distributed", 2020)
//   both ends        a tied token table is on the first and the last stage; the sum of its gradients on both
//   among all        with a loss scale, whether a gradient has overflowed anywhere

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "nn/models/host_checkpoints.h"
#include "nn/ops/values.h"
#include "train/base.h"
#include "train/fixed_factor.h"
#include "train/groups.h"
#include "train/host_optimizer.h"
#include "train/job.h"
#include "train/stage_links.h"
#include "train/units.h"

namespace oomlab::train {

template <class T>
class Trainer final : public Workload {
 public:
  /// One rank of the job; `make_store`: of a base that is stored in fewer bits. Throws OutOfMemory (of the device, or of
  /// the host where its memory cannot be pinned), NcclError, and std::invalid_argument for such a base without a store:
  /// nothing stays allocated. `failed` must outlive it.
  Trainer(Context& context, Job job, const Groups::Ids& ids, int rank, const std::atomic<bool>& failed,
          const nn::MakeFrozenStore<T>& make_store = {});

  void step() override;
  std::size_t samples_per_step() const override { return job_.batch; }
  /// Of what is trained. Throws std::runtime_error when a weight has changed that is frozen.
  std::uint64_t fingerprint() override;
  std::uint64_t bytes_sent() const override { return groups_.bytes_sent() + left_out_; }
  std::size_t most_in_flight() const override { return most_in_flight_; }

  /// The loss of the whole batch, the same on every rank.
  double figure() override;
  /// Those that are trained.
  const Units<T>& units() const { return adapters_ ? adapters_->units() : units_; }
  nn::Transformer<T>& model() { return model_; }
  /// A hash of the state of an optimizer on the device; for tests.
  std::uint64_t state_fingerprint() { return optimizer_->fingerprint(context_); }

  std::uint64_t steps() const { return on_host_ ? on_host_->steps() : optimizer_->steps(); }
  /// Bytes over the bus to and from an optimizer in host memory, in all steps.
  std::size_t moved_bytes() const { return on_host_ ? on_host_->moved_bytes() : 0; }

 private:
  struct Flight {
    nn::TokenBatch batch;
    typename nn::Transformer<T>::EmbeddingActivations embedding;
    std::vector<DeviceBuffer<T>> x;
    std::vector<nn::LayerActivations<T>> kept;
    DeviceBuffer<T> out;  // last stage: what the head reads
    std::size_t number = 0;
  };
  bool several() const { return job_.layout.ranks() > 1; }
  bool always() const { return job_.gradients == nn::GradientLife::always; }
  // In plan mode, when the pipeline is full and has begun to drain, the rest is the same again.
  std::size_t run_micro_batches() const {
    const bool all = !planning() || !job_.layout.one_forward_one_backward || job_.pack;
    return all ? job_.micro_batches() : std::min(job_.micro_batches(), job_.layout.pp + 1);
  }
  // Of what is sent while micro-batches run, what each of them sends: all but the sums of gradients that are whole.
  std::uint64_t sent_for_micro_batches() const {
    const bool each = (adapters_ ? adapters_->units() : units_).keeps_micro_batches_apart();
    const std::uint64_t once = adapters_ ? adapters_->sent_once() : sent_once_;
    return groups_.parts.bytes_sent() - once + groups_.tokens.bytes_sent() + groups_.forward.bytes_sent() +
           groups_.backward.bytes_sent() + (each ? groups_.replicas.bytes_sent() : 0);
  }
  bool embeds() const { return model_.slice().embeds(); }
  bool has_head() const { return model_.slice().has_head(job_.spec); }
  // Of the loss, on the device.
  const float* scale() const {
    if (factor_) return factor_->loss_scale();
    return scale_ ? scale_->scale_on_device() : nullptr;
  }
  Units<T>& trained() { return adapters_ ? adapters_->units() : units_; }
  // Two stages add up the gradients of a tied token table.
  bool sums_both_ends() const { return groups_.at_an_end && !job_.frozen(); }
  bool leaves(std::size_t segment) const { return inputs_on_host_ && inputs_on_host_->has(segment); }
  // Its first layer is number `first`.
  void fetch_input(Flight& f, std::size_t segment, std::size_t first) {
    if (leaves(segment)) f.x[first] = inputs_on_host_->fetch(f.number, segment);
  }

  // What the optimizer multiplies all gradients by, and whether it does anything.
  nn::StepOnDevice step_on_device() {
    if constexpr (kDTypeOf<T> == DType::fp16) return scale_->on_device();
    if constexpr (kDTypeOf<T> != DType::fp16)
      if (factor_) return {.factor = factor_->template of_gradients<T>(context_, model_.parameters())};
    return {};
  }

  // And tokens. Before the model's tensors are laid out in units.
  nn::Transformer<T>& share_rows();

  // All forward and backward passes of a step.
  void passes();

  // What is left to do when all passes are done.
  void update();

  using Update = typename nn::Optimizer<T>::Update;
  void add_updates(std::size_t unit, std::vector<Update>& updates) {
    Units<T>& units = trained();
    const auto [first, last] = units.pieces_of(unit);
    for (std::size_t p = first; p < last; ++p)
      updates.push_back({p, units.my_gradients(unit) + (units.pieces()[p].offset - units.begin(unit))});
  }
  void look_for_overflow(std::size_t unit) {
    scale_->template look_at<T>(context_, trained().my_gradients(unit), trained().count(unit));
  }
  std::string layer_name(std::size_t l) const { return "layer " + std::to_string(model_.slice().first_layer + l + 1); }

  void forward(Flight& f, const data::TokenSamples& samples, std::size_t at);

  void gather_layer(std::size_t l) {
    units_.gather(layer_name(l));
    if (adapters_) adapters_->units().gather(layer_name(l));
  }
  void release_layer(std::size_t l) {
    units_.release(layer_name(l));
    if (adapters_) adapters_->units().release(layer_name(l));
  }

  // `next`: the layer whose weights are needed after this one's; one behind the last: none.
  DeviceBuffer<T> layer_forward(Flight& f, std::size_t l, const nn::Keep& keep, std::size_t next);

  void backward(Flight f, bool accumulate, bool last);

  void layer_backward(Flight& f, std::size_t l, std::size_t next, DeviceBuffer<T>& d, bool accumulate, bool last);

  void make_head_gradients() {
    if (job_.spec.tied) units_.make_gradients("token");
    units_.make_gradients("head");
  }

  // A unit's gradients of a micro-batch are there.
  void finished(const std::string& name, bool accumulate, bool last);
  // Where parts share out rows, each has the gradients of norms of its own rows: they are summed up when a micro-batch's
  // gradients are used, and otherwise once, behind the last one.
  void sum_norms_over_parts(const std::string& name, bool last);
  // The token table's, whose sum over replicas waits for the end of the step. Where they are used at once, those of two
  // stages wait for each other, too: one that asked for the other's in the middle of a pipeline would stop it.
  void finished_token(bool accumulate, bool last);
  // Gradients that are not kept: summed up among the replicas, used, and freed.
  void use_gradients(const std::string& name, bool accumulate, bool last);
  void sum_of_both_ends() {
    const auto [gradients, count] = units_.shared_token();
    groups_.ends.all_reduce(gradients, count, context_.stream());
  }
  void zero_token_gradient() {
    const auto token = model_.parameter(0);
    CUDA_CHECK(cudaMemsetAsync(token.gradient, 0, token.count * sizeof(T), context_.stream()));
  }

  Context& context_;
  Job job_;
  Groups groups_;
  Stream reduce_stream_, forward_stream_, backward_stream_;
  nn::Schedule schedule_;
  nn::Transformer<T> model_;
  Base<T> base_;
  Units<T> units_;
  std::optional<TrainedAdapters<T>> adapters_;
  std::uint64_t base_at_first_ = 0;  // a hash of weights that are frozen
  std::optional<nn::LossScale> scale_;
  std::optional<nn::Optimizer<T>> optimizer_;
  std::optional<HostOptimizer<T>> on_host_;
  std::optional<nn::HostCheckpoints<T>> inputs_on_host_;
  DeviceBuffer<float> shown_loss_;
  std::optional<FixedFactor> factor_;
  StageLinks<T> links_{context_};
  std::size_t first_ = 0, targets_ = 0, most_in_flight_ = 0;
  std::uint64_t sent_once_ = 0;  // sums of norms' gradients of all micro-batches together, bytes
  std::uint64_t left_out_ = 0;   // sent by the micro-batches that plan mode leaves out, bytes
  bool whole_ = true;            // no step in the backward pass has failed half-way
};

// Compiled once, in trainer.cpp.
extern template class Trainer<float>;
extern template class Trainer<__half>;
extern template class Trainer<__nv_bfloat16>;

}  // namespace oomlab::train
