#pragma once
// A training step of a transformer as allocations and releases in the order of the work: part of step.h.

#include <cstdint>

#include "plan/peak.h"
#include "plan/step.h"
#include "plan/step_buffers.h"

namespace oomlab::nn {

/// Adds and drops the buffers of a step one after the other, and remembers the peak. It computes nothing. `spec` and
/// `levers` must outlive it.
class StepSimulation {
 public:
  /// Throws std::length_error when a buffer does not fit 64 bits, std::logic_error for a schedule of another number of
  /// layers.
  StepSimulation(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident);

  // step.cpp: the order of a step

  /// All micro-batches.
  void step();
  /// What simulate_forward() is asked for.
  void forward_without_backward(bool graph);
  /// What the forward pass of one micro-batch holds until its backward pass.
  ByCategory held();
  /// The residual before the segment is there, and stays; the one behind it comes.
  void segment_forward(const Segment& segment, bool more_follow = false);
  /// What segment_forward() left is there, and the gradient of its output, which becomes that of its input.
  void segment_backward(const Segment& segment, bool more_follow = false);

  // step_head.cpp: head and loss

  /// The last layer's output is there.
  void head_forward();

  const PeakTracker& tracker() const { return tracker_; }
  const StepBuffers& buffers() const { return buffers_; }
  /// Activations.
  void add(std::uint64_t bytes) { tracker_.add(Category::activations, bytes); }

 private:
  // What a unit has only while it is at work, or while its gradients come into being.
  struct UnitBuffers {
    std::uint64_t parameters = 0;  // ZeRO-3, streams: whole, for a forward or a backward pass
    std::uint64_t upload = 0;      // streams: on their way from the host; of ZeRO-3 a shard, or they stay as they are
    std::uint64_t gradients = 0;   // from its backward pass until they are reduced, used, or copied to the host
    std::uint64_t gradient_shard = 0;  // while it is added to what earlier micro-batches left
  };

  // ---- step.cpp

  UnitBuffers unit_buffers(std::uint64_t elements) const;
  void gather_parameters(const UnitBuffers& unit);
  void gather_layer();
  void release_layer();
  const UnitBuffers& trained_layer_unit() const { return levers_.frozen() ? adapter_unit_ : layer_unit_; }
  void prefetch_layer();
  void release_parameters(const UnitBuffers& unit) { tracker_.drop(Category::parameters, unit.parameters); }
  void add_gradients(const UnitBuffers& unit) { tracker_.add(Category::gradients, unit.gradients); }
  void reduce_gradients(const UnitBuffers& unit);
  bool keeps_token_gradients() const;
  void add_shared_token_gradients();

  void add_micro_batches_in_flight();
  void forward();
  void forward_without_saving();
  void backward();
  void embedding_forward();
  void embedding_backward();
  void wait_for_send();
  void embedding_norm();
  // Inputs of segments that wait in host memory.
  bool leaves(const Segment& segment) const { return levers_.checkpoints_on_host && segment.recompute; }
  void fetch_input(std::size_t segment) {
    if (leaves(schedule_[segment])) add(buffers_.residual);
  }
  void layer_in_segment_backward(const Segment& segment, std::uint64_t layer);
  // Parameters, gradients and optimizer state of a device of torch.nn.DataParallel.
  ByCategory whole_state() const;

  // ---- step_layer.cpp

  // A layer's input is there, and stays. `saved` says what is left for the backward pass. Without `output` the layer
  // ends with what its backward pass reads.
  void layer_forward(const Keep& saved, bool output = true);
  void attention_forward(const Keep& saved);
  void ring_attention_backward();
  // Rows for heads, or back, of a buffer: another one is packed, a third one comes.
  void exchange(std::uint64_t buffer) {
    if (!levers_.ulysses()) return;
    add(buffer);
    drop(buffer);
  }
  void pre_norm_mlp_forward(const Keep& saved, bool output);
  void post_norm_mlp_forward(const Keep& saved, bool output);
  void down_projection_forward(const Keep& saved, std::uint64_t output);
  // What `saved` says of a layer is there, its input, and the gradient of its output, which becomes that of its input.
  void layer_backward(const Keep& saved);
  void pre_norm_layer_backward(const Keep& saved);
  void post_norm_layer_backward(const Keep& saved);
  // A product that is summed up over the parts: where each gets its rows of the sum, the product has all of them.
  void begin_sum(std::uint64_t output) { add(shares_rows() ? buffers_.all_rows : output); }
  void end_sum(std::uint64_t output) {
    if (!shares_rows()) return;
    add(output);
    drop(buffers_.all_rows);
  }
  void add_to_residual_gradient();
  void down_projection_backward(const Keep& saved);
  void mlp_backward(const Keep& saved);
  void mlp_tiles_backward();
  void attention_backward(const Keep& saved);
  bool activates_by_rows(const Keep& saved) const;

  // ---- step_adapters.cpp: what adapters of a layer's matrices need while they are at work, and what a frozen layer saves

  void adapters_forward(const StepBuffers::OfAdapters& of, bool by_rows = false);
  void adapters_weight_gradients(const StepBuffers::OfAdapters& of, bool by_rows = false);
  void adapters_input_gradient(const StepBuffers::OfAdapters& of, bool by_rows = false);
  std::uint64_t adapter_masks() const;
  // Whether the gradients of a matrix, or of its adapters, read its input.
  bool reads_input(const StepBuffers::OfAdapters& of) const { return trains_all() || of.count != 0; }
  void input_of_gradients(const StepBuffers::OfAdapters& adapters, bool saved, std::uint64_t input,
                          std::uint64_t gathered = 0);
  bool saves_activation(const Keep& saved) const;
  bool saves_attention_norm(const Keep& saved) const;
  bool saves_attention_output(const Keep& saved) const;
  bool saves_mlp_norm(const Keep& saved) const;
  bool shares_rows() const { return levers_.row_shares() > 1; }
  bool tiles_mlp() const { return levers_.form.tiles_mlp(); }
  bool trains_all() const { return levers_.trained == Trained::all; }
  bool trains_head() const { return levers_.trained != Trained::adapters; }

  // ---- step_head.cpp

  void head_norm();
  void add_head_gradients();
  void loss();
  void head_backward();
  bool chunked_loss() const {
    return levers_.form.loss == LossForm::chunked && levers_.data_parallel == DataParallel::none;
  }

  void drop(std::uint64_t bytes) { tracker_.drop(Category::activations, bytes); }

  const TransformerSpec& spec_;
  const StepLevers& levers_;
  const bool pre_norm_;
  const bool embeds_;
  const bool has_head_;
  StepBuffers buffers_;
  Schedule schedule_;
  UnitBuffers token_unit_;
  UnitBuffers embedding_unit_;
  UnitBuffers layer_unit_;
  UnitBuffers head_unit_;
  UnitBuffers adapter_unit_;                  // of a layer
  bool accumulates_gradients_ = false;        // a later micro-batch
  bool layer_is_on_its_way_ = false;          // weights of the next one
  bool token_gradients_are_there_ = false;    // of a token table on two stages, to the end of the step
  std::uint64_t sent_residual_ = 0;           // to the next stage, or its gradient to the one before
  std::uint64_t gradients_sent_to_host_ = 0;  // being copied
  PeakTracker tracker_;
};

}  // namespace oomlab::nn
