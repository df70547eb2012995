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
//   among parts      two all-reduces of [rows, width] per layer, forward and backward (Megatron-LM)
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
#include "train/passes.h"
#include "train/shown_loss.h"
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
          const MakeFrozenStore<T>& make_store = {})
      : context_(context),
        job_(std::move(job)),
        groups_(ids, job_.layout, job_.spec.tied, rank, failed),
        schedule_(job_.schedule_at(groups_.place)),
        model_(context, job_.spec, plan::slice_of(job_.spec, job_.layout, groups_.place),
               [this](Context& c, T* data, std::size_t count) { groups_.parts.all_reduce(data, count, c.stream()); }),
        base_(context, job_, model_, make_store),
        units_(context, base_.tensors(groups_.replicas.ranks()), groups_.replicas, job_.layout.zero, job_.gradients,
               job_.streamed, !job_.frozen()) {
    model_.set_form(job_.form);
    base_.made();
    if (job_.frozen()) {
      adapters_.emplace(context, job_, model_, groups_);
      base_at_first_ = units_.fingerprint();
    }
    if (several()) shown_loss_ = context.buffer<float>(1, Category::workspace, "loss of all");
    if constexpr (kDTypeOf<T> == DType::fp16) scale_.emplace(context, job_.scaling);
    if (job_.has_factor()) {
      if (several() || !always() || scale_ || job_.frozen())
        throw std::invalid_argument("clipping and a fixed loss scale are for one rank whose gradients stay");
      factor_.emplace(context, units_.shapes(), job_.loss_scale, job_.clip);
    }
    if (job_.checkpoints_on_host)
      inputs_on_host_.emplace(context, schedule_,
                              plan::most_in_flight(job_.layout, groups_.place.stage, job_.micro_batches()),
                              job_.micro_batch * job_.seq * job_.spec.width);
    if (job_.gradients == nn::GradientLife::offloaded) {
      const bool collects = job_.micro_batches() > 1 || scale_;
      const unsigned threads = HostOptimizer<T>::threads_of(job_.layout.ranks());
      on_host_.emplace(context, trained(), optimizer_of<T>(job_), job_.settings, collects, threads);
    } else {
      optimizer_.emplace(context, trained().shapes(), trained().values(), optimizer_of<T>(job_), job_.settings);
    }
  }

  void step() override {
    if (on_host_) on_host_->begin();
    if (adapters_) adapters_->begin_step(first_ / job_.batch);
    if (!whole_)
      throw std::runtime_error(
          "a step that uses gradients in its backward pass failed half-way: some layers are updated and others are "
          "not; load a saved state");
    try {
      passes();
      update();
    } catch (...) {
      if (on_host_) on_host_->roll_back();
      units_.clear_pass();
      if (adapters_) adapters_->units().clear_pass();
      links_.clear();
      throw;
    }
    first_ += job_.batch;
  }
  std::size_t samples_per_step() const override { return job_.batch; }
  /// Of what is trained. Throws std::runtime_error when a weight has changed that is frozen.
  std::uint64_t fingerprint() override {
    if (job_.frozen() && units_.fingerprint() != base_at_first_)
      throw std::runtime_error("a weight of the frozen base has changed");
    return trained().fingerprint();
  }
  std::uint64_t bytes_sent() const override { return groups_.bytes_sent() + left_out_; }
  std::size_t most_in_flight() const override { return most_in_flight_; }

  /// The loss of the whole batch, the same on every rank.
  double figure() override {
    if (!several()) return model_.loss(context_);
    if (planning()) return 0;
    const bool mine = has_head() && groups_.place.part == 0;
    return loss_of_all(context_, groups_.world, mine ? model_.loss_buffer() : nullptr, shown_loss_.data());
  }
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
    const bool all = !planning() || !job_.layout.one_forward_one_backward;
    return all ? job_.micro_batches() : std::min(job_.micro_batches(), job_.layout.pp + 1);
  }
  // Of what is sent while micro-batches run, what each of them sends: all but the sums of gradients that are whole.
  std::uint64_t sent_for_micro_batches() const {
    const bool each = job_.layout.zero >= 2 || !always();
    const std::uint64_t once = adapters_ ? adapters_->sent_once() : 0;
    return groups_.parts.bytes_sent() - once + groups_.forward.bytes_sent() + groups_.backward.bytes_sent() +
           (each ? groups_.replicas.bytes_sent() : 0);
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

  // All forward and backward passes of a step.
  void passes() {
    const Layout& layout = job_.layout;
    const std::size_t micro_batches = run_micro_batches();
    const std::size_t share = planning() ? 0 : job_.batch / layout.dp;
    const data::TokenSamples samples =
        job_.text->samples(first_, planning() ? micro_batches * job_.micro_batch : job_.batch);
    targets_ = samples.targets();
    // The head would have overwritten what the embeddings add to.
    if (sums_both_ends() && embeds() && always() && layout.zero < 2) zero_token_gradient();
    std::vector<Flight> flights(micro_batches);
    const typename nn::HostCheckpoints<T>::Guard guard(inputs_on_host_ ? &*inputs_on_host_ : nullptr);
    for (std::size_t i = 0; i < micro_batches; ++i) flights[i].number = i;
    std::size_t now = 0;
    const std::uint64_t sent_before = sent_for_micro_batches();
    const std::uint64_t flops_before = context_.flops();
    for (const Pass& pass : passes_of(layout, groups_.place.stage, micro_batches)) {
      const std::size_t at = groups_.place.replica * share + pass.micro_batch * job_.micro_batch;
      if (pass.forward) {
        most_in_flight_ = std::max(most_in_flight_, ++now);
        forward(flights[pass.micro_batch], samples, at);
      } else {
        backward(std::move(flights[pass.micro_batch]), pass.micro_batch > 0, pass.micro_batch + 1 == micro_batches);
        --now;
      }
    }
    links_.settle();
    const std::size_t left_out = job_.micro_batches() - micro_batches;
    left_out_ += (sent_for_micro_batches() - sent_before) / micro_batches * left_out;
    context_.count_flops((context_.flops() - flops_before) / micro_batches * left_out);
  }

  // What is left to do when all passes are done.
  void update() {
    if (sums_both_ends() && !always()) use_gradients("token", false, true);
    const Phase phase(context_.ledger(), "optimizer");
    if (always()) {
      if (!job_.frozen()) units_.sum_gradients("token", context_.stream());
      if (sums_both_ends()) sum_of_both_ends();
      links_.join(reduce_stream_, context_.stream());
      if (scale_)
        for (std::size_t u = 0; u < trained().size(); ++u) look_for_overflow(u);
    }
    if (scale_) {
      groups_.world.all_reduce(scale_->overflow(), 1, context_.stream());
      scale_->begin(context_, nn::AdamWSettings{});
    }
    if (on_host_) {
      on_host_->end(scale_ && !planning() ? scale_->factor(context_) : 1.0f);
    } else if (always()) {
      std::vector<Update> all;
      for (std::size_t u = 0; u < trained().size(); ++u) add_updates(u, all);
      optimizer_->update(context_, all, step_on_device());
    }
    if (optimizer_) optimizer_->end_step();
    if (scale_) scale_->end(context_);
    if (always() || on_host_)  // otherwise they have been gathered unit by unit
      for (std::size_t u = 0; u < trained().size(); ++u) trained().gather_updates(u);
    whole_ = true;
  }

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

  void forward(Flight& f, const data::TokenSamples& samples, std::size_t at) {
    const Phase phase(context_.ledger(), "forward");
    f.batch.sequences = job_.micro_batch, f.batch.seq = job_.seq;
    if (embeds()) links_.settle();
    if (embeds() || has_head()) f.batch = upload(context_, samples, at, job_.micro_batch);
    f.batch.first_row = at * job_.seq;
    DeviceBuffer<T> out;
    if (embeds()) {
      units_.gather("token"), units_.gather("embedding");
      out = model_.embed(context_, f.batch, f.embedding);
      units_.release("token"), units_.release("embedding");
    } else {
      out = links_.receive(groups_.forward, f.batch.rows() * job_.spec.width, int(groups_.place.stage) - 1,
                           forward_stream_, "layer input");
    }
    f.x.resize(model_.slice().layers);
    f.kept.resize(model_.slice().layers);
    std::size_t l = 0;
    for (std::size_t s = 0; s < schedule_.size(); ++s) {
      const nn::Segment& segment = schedule_[s];
      for (std::size_t i = 0; i < segment.layers; ++i, ++l) {
        const bool leaves_now = i == 0 && leaves(s);
        f.x[l] = std::move(out);
        if (leaves_now) inputs_on_host_->send(f.number, s, f.x[l].data());
        out = layer_forward(f, l, segment.recompute ? nn::Keep{.layer = false} : segment.keep, l + 1);
        if (leaves_now) inputs_on_host_->finish_send();
        if (leaves_now || (segment.recompute && i > 0)) f.x[l].reset();
      }
    }
    if (has_head()) {
      f.out = std::move(out);
    } else {
      links_.send(groups_.forward, std::move(out), int(groups_.place.stage) + 1, forward_stream_);
    }
  }

  void gather_layer(std::size_t l) {
    units_.gather(layer_name(l));
    if (adapters_) adapters_->units().gather(layer_name(l));
  }
  void release_layer(std::size_t l) {
    units_.release(layer_name(l));
    if (adapters_) adapters_->units().release(layer_name(l));
  }

  // `next`: the layer whose weights are needed after this one's; one behind the last: none.
  DeviceBuffer<T> layer_forward(Flight& f, std::size_t l, const nn::Keep& keep, std::size_t next) {
    gather_layer(l);
    if (next < f.x.size()) units_.prefetch(layer_name(next));
    const std::size_t layer = model_.slice().first_layer + l;
    DeviceBuffer<T> out = model_.forward_layer(context_, layer, f.batch, f.x[l].data(), keep, f.kept[l]);
    release_layer(l);
    return out;
  }

  void backward(Flight f, bool accumulate, bool last) {
    const Phase phase(context_.ledger(), "backward");
    const typename nn::HostCheckpoints<T>::Guard guard(inputs_on_host_ ? &*inputs_on_host_ : nullptr);
    DeviceBuffer<T> d;
    fetch_input(f, schedule_.size() - 1, f.x.size() - schedule_.back().layers);
    if (has_head()) {
      links_.settle();
      if (job_.spec.tied) units_.gather("token");
      units_.gather("head");
      if (job_.form.loss == nn::LossForm::chunked) {  // gradients come with the first chunk of logits
        make_head_gradients();
        d = model_.head(context_, f.batch, std::move(f.out), {accumulate, targets_}, scale());
      } else {
        auto kept = model_.head_forward(context_, f.batch, std::move(f.out));
        model_.cross_entropy(context_, f.batch, kept.logits.data(), {accumulate, targets_}, scale());
        make_head_gradients();
        d = model_.head_backward(context_, std::move(kept), accumulate);
      }
      if (job_.spec.tied) units_.release("token");
      units_.release("head");
      finished("head", accumulate, last);
      if (sums_both_ends() && always()) units_.reduce_to_shard("token", accumulate);
    } else {
      d = links_.receive(groups_.backward, f.batch.rows() * job_.spec.width, int(groups_.place.stage) + 1,
                         backward_stream_, "residual gradient");
    }
    std::size_t end = f.x.size();
    for (std::size_t segment = schedule_.size(); segment-- > 0;) {
      const std::size_t first = end - schedule_[segment].layers;
      if (leaves(segment)) inputs_on_host_->finish_fetch();
      if (segment > 0) fetch_input(f, segment - 1, first - schedule_[segment - 1].layers);
      if (schedule_[segment].recompute)  // forward again, up to the input of the segment's last layer
        for (std::size_t l = first; l + 1 < end; ++l) f.x[l + 1] = layer_forward(f, l, job_.form.keep, l + 1);
      for (std::size_t l = end; l-- > first;) {
        std::size_t next = l - 1;  // of layer 0: none
        if (l == first && segment > 0 && schedule_[segment - 1].recompute) next = first - schedule_[segment - 1].layers;
        layer_backward(f, l, next, d, accumulate, last);
      }
      end = first;
    }
    if (embeds() && job_.frozen()) {
      d.reset();  // nothing below the first layer is trained
    } else if (embeds()) {
      if (!job_.spec.tied || !has_head()) units_.make_gradients("token");
      units_.gather("embedding");
      units_.make_gradients("embedding");
      model_.embed_backward(context_, f.batch, std::move(f.embedding), std::move(d), accumulate);
      units_.release("embedding");
      finished_token(accumulate, last);
      finished("embedding", accumulate, last);
    } else {
      links_.send(groups_.backward, std::move(d), int(groups_.place.stage) - 1, backward_stream_);
    }
    if (on_host_) on_host_->flush();
  }

  void layer_backward(Flight& f, std::size_t l, std::size_t next, DeviceBuffer<T>& d, bool accumulate, bool last) {
    gather_layer(l);
    if (next < f.x.size()) units_.prefetch(layer_name(next));
    trained().make_gradients(layer_name(l));
    const std::size_t layer = model_.slice().first_layer + l;
    model_.rebuild_layer(context_, layer, f.batch, f.x[l].data(), f.kept[l]);  // of which nothing was kept
    model_.backward_layer(context_, layer, f.batch, f.x[l].data(), std::move(f.kept[l]), d, accumulate);
    f.x[l].reset();
    release_layer(l);
    finished(layer_name(l), accumulate, last);
  }

  void make_head_gradients() {
    if (job_.spec.tied) units_.make_gradients("token");
    units_.make_gradients("head");
  }

  // A unit's gradients of a micro-batch are there.
  void finished(const std::string& name, bool accumulate, bool last) {
    if (trained().number(name) == trained().size()) return;
    if (adapters_) adapters_->sum_over_parts(name, last);
    if (!always()) return use_gradients(name, accumulate, last);
    trained().reduce_to_shard(name, accumulate);
    if (!last || groups_.replicas.ranks() == 1) return;
    links_.join(context_.stream(), reduce_stream_);  // the replicas add them up, beside what comes next
    trained().sum_gradients(name, reduce_stream_);
  }
  // The token table's, whose sum over replicas waits for the end of the step. Where they are used at once, those of two
  // stages wait for each other, too: one that asked for the other's in the middle of a pipeline would stop it.
  void finished_token(bool accumulate, bool last) {
    if (always())
      units_.reduce_to_shard("token", accumulate);
    else if (!sums_both_ends())
      use_gradients("token", accumulate, last);
  }
  // Gradients that are not kept: summed up among the replicas, used, and freed.
  void use_gradients(const std::string& name, bool accumulate, bool last) {
    Units<T>& units = trained();
    const std::size_t unit = units.number(name);
    if (unit == units.size()) return;
    units.sum_gradients(name, context_.stream());
    if (name == "token" && sums_both_ends()) sum_of_both_ends();
    const Phase phase(context_.ledger(), "optimizer");
    if (on_host_) {
      if (scale_) look_for_overflow(unit);
      const T* const mine = units.my_gradients(unit);
      on_host_->take(unit, units.hand_over(unit), mine, accumulate, last && !scale_);
      return;
    }
    std::vector<Update> updates;
    add_updates(unit, updates);
    whole_ = false;
    optimizer_->update(context_, updates);
    units.gather_updates(unit);
    units.hand_over(unit);
  }
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
  std::uint64_t left_out_ = 0;  // sent by the micro-batches that plan mode leaves out, bytes
  bool whole_ = true;           // no step in the backward pass has failed half-way
};

}  // namespace oomlab::train
