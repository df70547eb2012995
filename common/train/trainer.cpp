#include "train/trainer.h"

#include <algorithm>
#include <stdexcept>

#include "train/passes.h"
#include "train/shown_loss.h"

namespace oomlab::train {

template <class T>
Trainer<T>::Trainer(Context& context, Job job, const Groups::Ids& ids, int rank, const std::atomic<bool>& failed,
                    const nn::MakeFrozenStore<T>& make_store)
    : context_(context),
      job_(std::move(job)),
      groups_(ids, job_.layout, job_.spec.tied, rank, failed),
      schedule_(job_.schedule_at(groups_.place)),
      model_(context, job_.spec, plan::slice_of(job_.spec, job_.layout, groups_.place),
             [this](Context& c, T* data, std::size_t count) { groups_.parts.all_reduce(data, count, c.stream()); }),
      base_(context, job_, share_rows(), make_store),
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
                            job_.most_rows(groups_.place.replica) * job_.spec.width / model_.row_shares());
  if (job_.gradients == nn::GradientLife::offloaded) {
    const bool collects = job_.micro_batches() > 1 || scale_;
    const unsigned threads = HostOptimizer<T>::threads_of(job_.layout.ranks());
    on_host_.emplace(context, trained(), optimizer_of<T>(job_), job_.settings, collects, threads);
  } else {
    optimizer_.emplace(context, trained().shapes(), trained().values(), optimizer_of<T>(job_), job_.settings);
  }
}

template <class T>
nn::Transformer<T>& Trainer<T>::share_rows() {
  if (job_.layout.cp > 1)
    model_.share_tokens({.ranks = job_.layout.cp,
                         .rank = groups_.place.share_of_tokens(job_.layout),
                         .form = job_.layout.context,
                         .pass_on = [this](Context& c, auto all) { groups_.tokens.pass_on(all, c.stream()); },
                         .exchange =
                             [this](Context& c, const void* own, void* others, std::size_t bytes_of_part) {
                               groups_.tokens.exchange(own, others, bytes_of_part, c.stream());
                             }});
  if (!job_.sequence_parallel) return model_;
  model_.share_rows({.gather = [this](Context& c, const T* own, T* all,
                                      std::size_t count) { groups_.parts.all_gather(own, all, count, c.stream()); },
                     .sum = [this](Context& c, const T* all, T* own,
                                   std::size_t count) { groups_.parts.reduce_scatter(all, own, count, c.stream()); }});
  return model_;
}

template <class T>
void Trainer<T>::step() {
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

template <class T>
std::uint64_t Trainer<T>::fingerprint() {
  if (job_.frozen() && units_.fingerprint() != base_at_first_)
    throw std::runtime_error("a weight of the frozen base has changed");
  return trained().fingerprint();
}

template <class T>
double Trainer<T>::figure() {
  if (!several()) return model_.loss(context_);
  if (planning()) return 0;
  const bool mine = has_head() && groups_.place.part == 0;
  return loss_of_all(context_, groups_.world, mine ? model_.loss_buffer() : nullptr, shown_loss_.data());
}

template <class T>
void Trainer<T>::passes() {
  const Layout& layout = job_.layout;
  const std::size_t micro_batches = run_micro_batches();
  const bool replicas_are_alike = planning() && !job_.pack;
  const std::size_t share = replicas_are_alike ? 0 : job_.batch / layout.dp;
  const data::TokenSamples samples =
      job_.text->samples(first_, replicas_are_alike ? micro_batches * job_.micro_batch : job_.batch, job_.lengths);
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
    const std::size_t at = groups_.place.share_of_samples(layout) * share + pass.micro_batch * job_.micro_batch;
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

template <class T>
void Trainer<T>::update() {
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

template <class T>
void Trainer<T>::forward(Flight& f, const data::TokenSamples& samples, std::size_t at) {
  const Phase phase(context_.ledger(), "forward");
  f.batch.sequences = job_.micro_batch, f.batch.seq = job_.own_seq();
  if (embeds()) links_.settle();
  if (embeds() || has_head())
    f.batch = job_.pack ? upload_packed(context_, samples, at, job_.micro_batch)
                        : upload(context_, samples, at, job_.micro_batch, model_.own_tokens(job_.seq));
  f.batch.first_row = job_.rows(0, at);
  DeviceBuffer<T> out;
  if (embeds()) {
    units_.gather("token"), units_.gather("embedding");
    out = model_.embed(context_, f.batch, f.embedding);
    units_.release("token"), units_.release("embedding");
  } else {
    out = links_.receive(groups_.forward, f.batch.rows() / model_.row_shares() * job_.spec.width,
                         int(groups_.place.stage) - 1, forward_stream_, "layer input");
  }
  f.x.resize(model_.slice().layers);
  f.kept.resize(model_.slice().layers);
  std::size_t l = 0;
  for (std::size_t s = 0; s < schedule_.size(); ++s) {
    const nn::Segment& segment = schedule_[s];
    for (std::size_t i = 0; i < segment.layers; ++i, ++l) {
      const bool leaves_now = i == 0 && leaves(s);
      f.x[l] = std::move(out);
      if (leaves_now) inputs_on_host_->send(f.number, s, f.x[l]);
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

template <class T>
DeviceBuffer<T> Trainer<T>::layer_forward(Flight& f, std::size_t l, const nn::Keep& keep, std::size_t next) {
  gather_layer(l);
  if (next < f.x.size()) units_.prefetch(layer_name(next));
  const std::size_t layer = model_.slice().first_layer + l;
  DeviceBuffer<T> out = model_.forward_layer(context_, layer, f.batch, f.x[l].data(), keep, f.kept[l]);
  release_layer(l);
  return out;
}

template <class T>
void Trainer<T>::backward(Flight f, bool accumulate, bool last) {
  const Phase phase(context_.ledger(), "backward");
  const typename nn::HostCheckpoints<T>::Guard guard(inputs_on_host_ ? &*inputs_on_host_ : nullptr);
  DeviceBuffer<T> d;
  fetch_input(f, schedule_.size() - 1, f.x.size() - schedule_.back().layers);
  if (has_head()) {
    links_.settle();
    if (job_.spec.tied) units_.gather("token");
    units_.gather("head");
    f.out = model_.all_rows(context_, std::move(f.out), "layer output of all rows");
    if (job_.form.loss == nn::LossForm::chunked) {  // gradients come with the first chunk of logits
      make_head_gradients();
      d = model_.head(context_, f.batch, std::move(f.out), {accumulate, targets_}, scale());
    } else {
      auto kept = model_.head_forward(context_, f.batch, std::move(f.out));
      model_.cross_entropy(context_, f.batch, kept.logits.data(), {accumulate, targets_}, scale());
      make_head_gradients();
      d = model_.head_backward(context_, std::move(kept), accumulate);
    }
    d = model_.own_rows(context_, std::move(d));
    if (job_.spec.tied) units_.release("token");
    units_.release("head");
    finished("head", accumulate, last);
    if (sums_both_ends() && always()) units_.reduce_to_shard("token", accumulate);
  } else {
    d = links_.receive(groups_.backward, f.batch.rows() / model_.row_shares() * job_.spec.width,
                       int(groups_.place.stage) + 1, backward_stream_, "residual gradient");
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

template <class T>
void Trainer<T>::layer_backward(Flight& f, std::size_t l, std::size_t next, DeviceBuffer<T>& d, bool accumulate,
                                bool last) {
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

template <class T>
void Trainer<T>::finished(const std::string& name, bool accumulate, bool last) {
  if (trained().number(name) == trained().size()) return;
  if (adapters_) adapters_->sum_over_parts(name, last);
  sum_norms_over_parts(name, last);
  if (!always()) return use_gradients(name, accumulate, last);
  trained().reduce_to_shard(name, accumulate);
  if (!last || groups_.replicas.ranks() == 1) return;
  links_.join(context_.stream(), reduce_stream_);  // the replicas add them up, beside what comes next
  trained().sum_gradients(name, reduce_stream_);
}

template <class T>
void Trainer<T>::sum_norms_over_parts(const std::string& name, bool last) {
  const bool apart = units_.keeps_micro_batches_apart();
  if (model_.row_shares() == 1 || job_.frozen() || (!apart && !last)) return;
  const auto [gradients, count] = units_.first_gradients(name);
  if (count == 0) return;
  const std::uint64_t before = groups_.parts.bytes_sent();
  groups_.parts.all_reduce(gradients, count, context_.stream());
  if (!apart) sent_once_ += groups_.parts.bytes_sent() - before;
}

template <class T>
void Trainer<T>::finished_token(bool accumulate, bool last) {
  if (always())
    units_.reduce_to_shard("token", accumulate);
  else if (!sums_both_ends())
    use_gradients("token", accumulate, last);
}

template <class T>
void Trainer<T>::use_gradients(const std::string& name, bool accumulate, bool last) {
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

template class Trainer<float>;
template class Trainer<__half>;
template class Trainer<__nv_bfloat16>;

}  // namespace oomlab::train
