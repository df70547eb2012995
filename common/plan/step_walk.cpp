#include "plan/step_walk.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "plan/step_sizes.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

class StepWalk {
 public:
  StepWalk(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident)
      : bert_(spec.bert()),
        embeds_(levers.slice.embeds()),
        has_head_(levers.slice.has_head(spec)),
        spec_(spec),
        levers_(levers),
        schedule_(levers.schedule),
        z_(spec, levers),
        tracker_(resident) {
    const std::uint64_t layers = levers.slice.end(spec) - levers.slice.first_layer;
    if (schedule_.empty()) schedule_ = {{layers, false, levers.form.keep}};
    std::uint64_t scheduled = 0;
    for (const Segment& segment : schedule_) scheduled += segment.layers;
    if (scheduled != layers) throw std::logic_error("a schedule for another number of layers");
    if (levers.gradients == GradientLife::always && (levers.replicas == 1 || levers.zero < 2)) return;
    const UnitElements elements(spec, levers);
    token_ = temporary(elements.token), embedding_ = temporary(elements.embedding);
    layer_ = temporary(elements.layer), head_ = temporary(elements.head);
  }

  void step() {
    if (levers_.data_parallel == DataParallel::other_device)
      add(Category::parameters, whole_state()[Category::parameters]);
    if (levers_.data_parallel == DataParallel::first_device) add(Category::data, whole_batch_tokens());
    // Later passes do the same with no more beside them, so these decide the peak.
    if (levers_.in_flight > 1) {
      wait_in_flight(levers_.in_flight - 1);
      if (!has_head_) add(sending_ = z_.u);  // the last one's output
    }
    forward();
    backward();
    tracker_.drop(Category::gradients, std::exchange(copying_, 0));
    if (levers_.micro_batches == 1) return;
    accumulate_ = true;
    if (levers_.micro_batches > levers_.in_flight) forward();
    backward();
  }

  void forward_alone(bool graph) {
    add(Category::data, z_.tokens);
    if (bert_) add(z_.u), add(z_.s), add(z_.s);
    add(z_.u);
    if (bert_ && !graph) drop(z_.u), drop(2 * z_.s);
    if (graph) {
      for (const Segment& segment : schedule_) forward(segment);
    } else {
      for (std::uint64_t l = 0; l < spec_.layers; ++l) {
        forward_layer({.layer = false});
        drop(z_.u);  // its input
      }
    }
    head_norm();
    add(z_.v);
  }

  // What the forward pass of one micro-batch holds until its backward pass.
  ByCategory held() {
    forward();
    settle();
    return tracker_.live();
  }

  // ---- one segment; the residual before it is there

  void forward(const Segment& segment) {
    for (std::uint64_t i = 0; i < segment.layers; ++i) {
      use(layer_);
      forward_layer(segment.recompute ? Keep{.layer = false} : segment.keep);
      done_with(layer_);
      if (segment.recompute && i > 0) drop(z_.u);  // the layer's input; the segment's stays
    }
  }
  void backward(const Segment& segment) {
    for (std::uint64_t i = 0; segment.recompute && i + 1 < segment.layers; ++i) {
      use(layer_);
      forward_layer(levers_.form.keep);
      done_with(layer_);
    }
    for (std::uint64_t i = segment.layers; i-- > 0;) {
      use(layer_), make_gradients(layer_);
      const bool again = segment.recompute && i + 1 < segment.layers;  // its forward pass has just run again
      const bool nothing = again ? !levers_.form.keep.layer : segment.recompute || !segment.keep.layer;
      Keep keep = nothing || again ? levers_.form.keep : segment.keep;
      if (nothing) keep.layer = keep.middle = keep.probabilities = true, forward_layer(keep, false);
      backward_layer(keep);
      drop(z_.u);  // the layer's input
      done_with(layer_), reduce_gradients(layer_);
    }
  }

  // Head and loss; the last layer's output is there.
  void head_forward() {
    if (spec_.tied) use(token_);
    use(head_);
    head_norm();
    if (chunked()) make_head_gradients();
    add(chunked() ? z_.chunk : z_.v);
    if (levers_.data_parallel == DataParallel::other_device) return;
    const bool gathers = levers_.data_parallel == DataParallel::first_device;
    const std::uint64_t batch = checked_product(levers_.sequences, gathers ? levers_.replicas : 1);
    const std::uint64_t rows = checked_product(batch, levers_.seq);
    const std::uint64_t gathered =
        round_to_granule(checked_product(checked_product(rows, spec_.vocabulary), levers_.element_bytes));
    const std::uint64_t row_losses = round_to_granule(checked_product(rows, sizeof(float)));
    if (gathers) add(gathered);
    add(Category::workspace, row_losses);
    tracker_.drop(Category::workspace, row_losses);
    if (gathers) drop(gathered), tracker_.drop(Category::data, whole_batch_tokens());
    if (chunked()) drop(z_.chunk);
  }

  // From the last layer's output to what the logits are made of.
  void head_norm() {
    if (bert_) add(z_.u), add(z_.u);  // dense, GELU
    add(z_.u), add(z_.n);
  }

  const PeakTracker& tracker() const { return tracker_; }
  void add(std::uint64_t bytes) { tracker_.add(Category::activations, bytes); }
  std::uint64_t residual() const { return z_.u; }

 private:
  // Bytes of a unit that are there only while it is at work, or while its gradients come into being.
  struct Temporary {
    std::uint64_t parameters = 0, gradients = 0;
    std::uint64_t shard = 0;  // while it is added to what earlier micro-batches left
  };
  Temporary temporary(std::uint64_t elements) const {
    const auto bytes = [&](std::uint64_t count) {
      return round_to_granule(checked_product(count, levers_.element_bytes));
    };
    return {.parameters = levers_.zero >= 3 ? bytes(elements) : 0,
            .gradients = bytes(elements),
            .shard = bytes(elements / levers_.replicas)};
  }

  // What the forward passes of so many micro-batches hold until their backward passes.
  void wait_in_flight(std::uint64_t micro_batches) {
    const ByCategory one = held_bytes(spec_, levers_);
    for (std::size_t c = 0; c < kCategoryCount; ++c)
      tracker_.add(Category(c), checked_product(micro_batches, one.bytes[c]));
  }

  void forward() {
    if (embeds_) settle();
    if (embeds_ || has_head_) add(Category::data, z_.tokens);
    if (embeds_) {
      use(token_), use(embedding_);
      if (bert_) add(z_.u), add(z_.s), add(z_.s);  // the sum before the norm, and its statistics
      add(z_.u);
      done_with(token_), done_with(embedding_);
    } else {
      add(z_.u);  // received
      settle();
    }
    for (const Segment& segment : schedule_) forward(segment);
    if (!has_head_) sending_ = z_.u;
  }

  void backward() {
    if (has_head_) {
      settle();
      head_forward();
      head_backward();
    } else {
      add(z_.u);  // received
      settle();
    }
    for (std::size_t i = schedule_.size(); i-- > 0;) backward(schedule_[i]);
    if (embeds_) {
      if (!spec_.tied) make_gradients(token_);
      use(embedding_), make_gradients(embedding_);
      if (bert_) drop(z_.u), drop(z_.s), drop(z_.s);
      drop(z_.u);
      done_with(embedding_);
      reduce_gradients(token_), reduce_gradients(embedding_);
    } else {
      sending_ = z_.u;
    }
    if (embeds_ || has_head_) tracker_.drop(Category::data, z_.tokens);
  }

  // What a stage sends to a neighbour stays until the stage has begun to receive what it needs next.
  void settle() { drop(std::exchange(sending_, 0)); }

  // From the logits to the gradient of the last layer's output, which takes that output's place.
  void head_backward() {
    if (levers_.data_parallel == DataParallel::other_device)
      add(Category::gradients, whole_state()[Category::gradients]);
    if (!chunked()) {  // or the gradient took the place of the norm's output while chunks of logits came and went
      make_head_gradients();
      drop(z_.u);  // norm
      add(z_.u);   // gradient
      drop(z_.v);
    }
    if (bert_) {
      drop(z_.u), drop(z_.u), drop(z_.u);  // GELU, dense, the last layer's output
      add(z_.u);
      drop(z_.u);
    } else {
      drop(z_.u);  // the last layer's output
    }
    drop(z_.n);
    if (spec_.tied) done_with(token_);
    done_with(head_), reduce_gradients(head_);
  }
  void make_head_gradients() {
    if (spec_.tied) make_gradients(token_);
    make_gradients(head_);
  }

  bool chunked() const { return levers_.form.loss == LossForm::chunked && levers_.data_parallel == DataParallel::none; }

  // Its input is there, and stays; its output comes, or only what its backward pass reads.
  void forward_layer(const Keep& keep, bool output = true) {
    const bool norms = keep.layer && keep.norms, gelu = keep.layer && keep.gelu;
    if (!bert_) add(z_.u), add(z_.n);  // norm 1
    add(z_.q);
    if (!bert_ && !norms) drop(z_.u);
    attend(keep);
    add(z_.u);  // middle
    if (!keep.layer) drop(z_.a);
    add(z_.u), add(z_.n);  // the norm before the MLP
    if (bert_ && (!keep.layer || !keep.middle)) drop(z_.u);
    add(z_.h);  // before the activation
    if (!bert_ && !norms) drop(z_.u);
    if (!bert_ && !output) {
      if (gelu) add(z_.g);
      return;
    }
    if (levers_.form.by_rows && keep.layer && !gelu) {
      const bool in_place = !bert_ && !keep.middle && levers_.slice.parts == 1;
      if (!in_place) add(z_.u);
      add(z_.g_chunk), drop(z_.g_chunk);
      if (in_place) return;  // the output has taken the place of `middle`
    } else {
      if (keep.layer) add(z_.g);  // after the activation: in place when nothing is kept
      add(z_.u);                  // the output, in bert the sum before the norm
      if (!gelu) drop(keep.layer ? z_.g : z_.h);
    }
    if (bert_) {
      if (!norms) drop(z_.u);
      if (output) add(z_.u);
      add(z_.s), add(z_.s);
    }
    if (!keep.layer) drop(z_.u), drop(2 * z_.n);  // middle, in bert the sum; statistics of two norms
    if (!bert_ && keep.layer && !keep.middle) drop(z_.u);
  }
  // From qkv to attended.
  void attend(const Keep& keep) {
    switch (levers_.form.attention) {
      case AttentionForm::textbook:
        add(z_.p), add(z_.a);
        if (!keep.layer || !keep.probabilities) drop(z_.p);
        break;
      case AttentionForm::tiled:
        add(z_.a);
        add(z_.t), drop(z_.t);
        break;
      case AttentionForm::fused:
        add(z_.a), add(z_.l);
        if (!keep.layer) drop(z_.l);
        break;
    }
    if (!keep.layer) drop(z_.q);
  }

  // What `keep` says of the layer is there, its input, and the gradient of its output, which becomes that of its input.
  // The rest is computed again when it is needed.
  void backward_layer(const Keep& keep) {
    if (bert_) drop(2 * z_.s), drop(z_.u);  // the second norm's statistics and the sum before it
    if (keep.gelu || !levers_.form.by_rows) {
      if (!keep.gelu) add(z_.g);
      drop(z_.g);  // after the activation
      add(z_.g);   // its gradient
      drop(z_.g);  // and in gpt and bert, where that is as large, what came before instead
    } else {       // whose place the gradient takes
      add(z_.g_chunk), drop(z_.g_chunk);
    }
    if (!keep.middle) add(z_.u);
    if (!bert_ && !keep.norms && levers_.form.by_rows && levers_.slice.parts == 1) {
      add(z_.u_chunk), drop(z_.h), drop(z_.n), drop(z_.u_chunk);
    } else {
      if (!keep.norms) add(z_.u);
      drop(z_.u);             // the norm before the MLP
      if (!bert_) add(z_.u);  // its gradient
      drop(z_.h);             // the MLP's gradient
      drop(z_.n);
      if (!bert_) drop(z_.u);
    }
    drop(z_.u);  // middle
    attend_backward(keep);
    if (!bert_) {
      if (!keep.norms) add(z_.u);
      drop(z_.u);  // norm 1
      add(z_.u);   // its gradient
      drop(z_.u), drop(z_.n);
    }
    drop(z_.q);  // gradient of qkv
  }
  // From attended and qkv to the gradient of qkv.
  void attend_backward(const Keep& keep) {
    switch (levers_.form.attention) {
      case AttentionForm::textbook:
        drop(z_.a), add(z_.a);  // attended, its gradient
        if (!keep.probabilities) add(z_.p);
        add(z_.q), add(z_.p);  // gradients of qkv and of the probabilities
        drop(z_.a), drop(z_.p), drop(z_.q), drop(z_.p);
        break;
      case AttentionForm::tiled:
        drop(z_.a), add(z_.a);
        add(z_.q), add(2 * z_.t), add(z_.sums);
        drop(z_.a), drop(z_.q), drop(2 * z_.t), drop(z_.sums);
        break;
      case AttentionForm::fused:
        add(z_.a), add(z_.l);  // gradient of attended, and its dots with attended
        drop(z_.a);
        add(z_.q);
        drop(z_.a), drop(2 * z_.l), drop(z_.q);
        break;
    }
  }

  void use(const Temporary& unit) { add(Category::parameters, unit.parameters); }
  void done_with(const Temporary& unit) { tracker_.drop(Category::parameters, unit.parameters); }
  void make_gradients(const Temporary& unit) { add(Category::gradients, unit.gradients); }
  void reduce_gradients(const Temporary& unit) {
    if (levers_.gradients == GradientLife::sent_to_host)
      return tracker_.drop(Category::gradients, std::exchange(copying_, unit.gradients));
    const std::uint64_t more = accumulate_ ? unit.shard : 0;
    add(Category::gradients, more);
    tracker_.drop(Category::gradients, unit.gradients + more);
  }
  ByCategory whole_state() const {
    return unit_state_bytes(spec_, {.element_bytes = levers_.element_bytes, .slice = levers_.slice});
  }
  std::uint64_t whole_batch_tokens() const {
    return token_batch_bytes(checked_product(levers_.sequences, levers_.replicas), levers_.seq);
  }
  void add(Category category, std::uint64_t bytes) { tracker_.add(category, bytes); }
  void drop(std::uint64_t bytes) { tracker_.drop(Category::activations, bytes); }

  bool bert_, embeds_, has_head_;
  const TransformerSpec& spec_;
  const StepLevers& levers_;
  Schedule schedule_;
  StepSizes z_;
  Temporary token_, embedding_, layer_, head_;
  bool accumulate_ = false;
  std::uint64_t sending_ = 0;
  std::uint64_t copying_ = 0;  // gradients on their way to the host
  PeakTracker tracker_;
};

// Levers for asking about a segment alone.
StepLevers alone(const StepLevers& levers, const Segment& segment) {
  return {.element_bytes = levers.element_bytes,
          .sequences = levers.sequences,
          .seq = levers.seq,
          .form = levers.form,
          .schedule = {segment},
          .slice = {.layers = segment.layers, .parts = levers.slice.parts}};
}

}  // namespace

PeakBytes walk_step(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident) {
  StepWalk walk(spec, levers, resident);
  walk.step();
  return walk.tracker().peak();
}

PeakBytes walk_forward(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident, bool graph) {
  StepWalk walk(spec, levers, resident);
  walk.forward_alone(graph);
  return walk.tracker().peak();
}

SegmentBytes segment_bytes(const TransformerSpec& spec, const StepLevers& levers, const Segment& segment) {
  const StepLevers its = alone(levers, segment);
  StepWalk forward(spec, its, {});
  forward.add(forward.residual());  // its input
  forward.forward(segment);
  SegmentBytes bytes{};
  bytes.held = forward.tracker().live_bytes() - forward.residual();  // without its output
  bytes.forward_peak = forward.tracker().peak_bytes();
  StepWalk backward(spec, its, {});
  backward.add(checked_sum(bytes.held, backward.residual()));  // and the gradient of its output
  backward.backward(segment);
  bytes.backward_peak = backward.tracker().peak_bytes();
  return bytes;
}

std::uint64_t head_peak_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const StepLevers its = alone(levers, {.layers = spec.layers});
  StepWalk walk(spec, its, {});
  walk.add(walk.residual());
  walk.head_forward();
  return walk.tracker().peak_bytes();
}

ByCategory held_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  return StepWalk(spec, levers, {}).held();
}

std::uint64_t embedding_bytes(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                              std::uint64_t seq) {
  const StepSizes z(spec, {.element_bytes = element_bytes, .sequences = sequences, .seq = seq});
  return spec.bert() ? checked_sum(z.u, 2 * z.s) : 0;
}

std::uint64_t residual_bytes(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                             std::uint64_t seq) {
  return StepSizes(spec, {.element_bytes = element_bytes, .sequences = sequences, .seq = seq}).u;
}

}  // namespace oomlab::nn
