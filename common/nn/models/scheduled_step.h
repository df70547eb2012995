#pragma once
// The step that chapters arrange: a forward pass in which a schedule says what each layer keeps, and the backward pass
// that computes the rest again. Around it stands what a chapter is about: the head in one pass or over many devices, or
// adapters. (Ranks, and gradients that are freed as soon as they are used: train/trainer.h.)
//
//   ScheduledPass<T> pass(context, model, batch, schedule);
//   d = model.head(context, batch, pass.output(), ...);        or head_forward(), cross_entropy(), head_backward()
//   pass.backward(context, model, batch, std::move(d), ...);

#include <exception>
#include <utility>
#include <vector>

#include "memory/context.h"
#include "nn/models/host_checkpoints.h"
#include "nn/models/transformer.h"
#include "plan/step_form.h"

namespace oomlab::nn {

template <class T>
class ScheduledPass {
 public:
  /// The forward pass of a whole model, up to the last layer's output (phase "forward"). Throws OutOfMemory: nothing
  /// stays allocated. `schedule` must outlive the pass, and so must `on_host`, with which the inputs of segments that
  /// are recomputed wait in host memory.
  ScheduledPass(Context& context, Transformer<T>& model, const TokenBatch& batch, const Schedule& schedule,
                HostCheckpoints<T>* on_host = nullptr)
      : schedule_(schedule), on_host_(on_host), x_(model.spec().layers), kept_(x_.size()) {
    const typename HostCheckpoints<T>::Guard guard(on_host);
    const Phase phase(context.ledger(), "forward");
    residual_ = model.embed(context, batch, embedding_);
    std::size_t l = 0;
    for (std::size_t s = 0; s < schedule.size(); ++s) {
      const Segment& segment = schedule[s];
      for (std::size_t i = 0; i < segment.layers; ++i, ++l) {
        x_[l] = std::move(residual_);
        const bool leaves_now = i == 0 && leaves(s);
        if (leaves_now) on_host->send(0, s, x_[l]);
        const Keep keep = segment.recompute ? Keep{.layer = false} : segment.keep;  // what is dropped
        residual_ = model.forward_layer(context, l, batch, x_[l].data(), keep, kept_[l]);
        if (leaves_now) on_host->finish_send();
        if (leaves_now || (segment.recompute && i > 0)) x_[l].reset();
      }
    }
    fetch_input(schedule.size() - 1, x_.size());
  }
  /// Where an exception ends it, what it frees is not copied any more.
  ~ScheduledPass() {
    if (on_host_ && std::uncaught_exceptions() > 0) on_host_->wait();
  }
  ScheduledPass(const ScheduledPass&) = delete;
  ScheduledPass& operator=(const ScheduledPass&) = delete;

  /// The last layer's output, [R, C], which the head consumes. To be called once.
  DeviceBuffer<T> output() noexcept { return std::move(residual_); }

  /// The gradients of all layers and of the embeddings, in the caller's phase; `residual` [R, C] is the gradient with
  /// respect to output(). Frees on the way what the forward pass has left.
  void backward(Context& context, Transformer<T>& model, const TokenBatch& batch, DeviceBuffer<T> residual,
                bool accumulate = false) {
    std::size_t end = x_.size();
    for (std::size_t s = schedule_.size(); s-- > 0;) {
      const std::size_t first = end - schedule_[s].layers;
      if (leaves(s)) on_host_->finish_fetch();
      if (s > 0) fetch_input(s - 1, first);
      if (schedule_[s].recompute)  // forward again, up to the input of the segment's last layer
        for (std::size_t l = first; l + 1 < end; ++l)
          x_[l + 1] = model.forward_layer(context, l, batch, x_[l].data(), model.form().keep, kept_[l]);
      while (end > first) {
        --end;
        model.rebuild_layer(context, end, batch, x_[end].data(), kept_[end]);  // of which nothing was kept
        model.backward_layer(context, end, batch, x_[end].data(), std::move(kept_[end]), residual, accumulate);
        x_[end].reset();
      }
    }
    model.embed_backward(context, batch, std::move(embedding_), std::move(residual), accumulate);
  }

 private:
  bool leaves(std::size_t segment) const { return on_host_ && on_host_->has(segment); }
  // Of a segment whose layers end before layer `end`.
  void fetch_input(std::size_t segment, std::size_t end) {
    if (leaves(segment)) x_[end - schedule_[segment].layers] = on_host_->fetch(0, segment);
  }

  const Schedule& schedule_;
  HostCheckpoints<T>* on_host_;
  std::vector<DeviceBuffer<T>> x_;  // each layer's input, where it is kept
  std::vector<LayerActivations<T>> kept_;
  typename Transformer<T>::EmbeddingActivations embedding_;
  DeviceBuffer<T> residual_;
};

}  // namespace oomlab::nn
