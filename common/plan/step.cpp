#include "plan/step.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "plan/step_buffers.h"
#include "plan/step_simulation.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

std::uint64_t sum_of(const LengthsInTurn& lengths, std::uint64_t count) {
  std::uint64_t sum = 0;
  lengths.each(count, [&](std::uint64_t tokens, std::uint64_t times) {
    sum = checked_sum(sum, checked_product(tokens, times));
  });
  return sum;
}

}  // namespace

std::uint64_t StepLevers::rows() const {
  return packed() ? sum_of(lengths, sequences) : checked_product(sequences, seq);
}

std::uint64_t StepLevers::most_rows() const {
  if (!packed()) return rows();
  std::uint64_t most = 0;
  for (std::uint64_t m = 0; m < packed_kinds(); ++m) most = std::max(most, sum_of(lengths_of(m), sequences));
  return most;
}

std::uint64_t StepLevers::rows_of_step() const {
  return packed() ? sum_of(lengths, checked_product(micro_batches, sequences)) : checked_product(micro_batches, rows());
}

StepSimulation::StepSimulation(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident)
    : spec_(spec),
      levers_(levers),
      pre_norm_(!spec.bert()),
      embeds_(levers.slice.embeds()),
      has_head_(levers.slice.has_head(spec)),
      buffers_(spec, levers),
      schedule_(levers.schedule),
      tracker_(resident) {
  const std::uint64_t layers = levers.slice.end(spec) - levers.slice.first_layer;
  if (schedule_.empty()) schedule_ = {{layers, false, levers.form.keep}};
  std::uint64_t scheduled = 0;
  for (const Segment& segment : schedule_) scheduled += segment.layers;
  if (scheduled != layers) throw std::logic_error("a schedule for another number of layers");
  const bool one_rank = levers.slice.parts == 1 && layers == spec.layers && levers.replicas == 1;
  if (levers.trained == Trained::head && (!one_rank || levers.gradients != GradientLife::always))
    throw std::logic_error("a head that is trained alone is for one rank, whose gradients are always there");

  if (levers.gradients == GradientLife::always && levers.shards(2) == 1 && !levers.streamed) return;
  const UnitElements elements(spec, levers);
  token_unit_ = unit_buffers(elements.token);
  embedding_unit_ = unit_buffers(elements.embedding);
  layer_unit_ = unit_buffers(elements.layer);
  head_unit_ = unit_buffers(elements.head);
  if (!levers.frozen()) return;
  adapter_unit_ = unit_buffers(elements.adapters);
  adapter_unit_.upload = 0;
  if (levers.shards(3) == 1) adapter_unit_.parameters = 0;
  if (levers.gradients == GradientLife::always && levers.shards(2) == 1)  // they stay
    adapter_unit_.gradients = adapter_unit_.gradient_shard = 0;
}

// ---------------------------------------------------------------------------------------------------------- whole step

void StepSimulation::step() {
  if (levers_.data_parallel == DataParallel::other_device)
    tracker_.add(Category::parameters, whole_state()[Category::parameters]);
  if (levers_.data_parallel == DataParallel::first_device)
    tracker_.add(Category::data, buffers_.whole_batch_tokens_and_labels);
  // Later passes do the same with no more beside them, so these decide the peak.
  if (levers_.in_flight > 1) add_micro_batches_in_flight();
  if (levers_.trained == Trained::head) return forward_without_saving();
  forward();
  backward();
  tracker_.drop(Category::gradients, std::exchange(gradients_sent_to_host_, 0));
  if (levers_.micro_batches == 1) return;
  accumulates_gradients_ = true;
  if (levers_.micro_batches > levers_.in_flight) forward();
  backward();
}

// All but one have run their forward passes, and wait for their backward passes.
void StepSimulation::add_micro_batches_in_flight() {
  const std::uint64_t waiting = levers_.in_flight - 1;
  const ByCategory one = held_bytes(spec_, levers_);
  for (std::size_t c = 0; c < kCategoryCount; ++c) tracker_.add(Category(c), checked_product(waiting, one.bytes[c]));
  if (has_head_) return;
  add(buffers_.residual);  // the last one's output
  sent_residual_ = buffers_.residual;
}

void StepSimulation::forward() {
  if (embeds_) wait_for_send();
  if (embeds_ || has_head_) tracker_.add(Category::data, buffers_.tokens_and_labels);
  if (embeds_) {
    embedding_forward();
  } else {
    add(buffers_.residual);  // received
    wait_for_send();
  }
  for (std::size_t i = 0; i < schedule_.size(); ++i) segment_forward(schedule_[i], i + 1 < schedule_.size());
  if (!has_head_) sent_residual_ = buffers_.residual;
}

void StepSimulation::backward() {
  fetch_input(schedule_.size() - 1);
  if (has_head_) {
    wait_for_send();
    head_forward();
    head_backward();
  } else {
    add(buffers_.residual_gradient);  // received
    wait_for_send();
  }
  for (std::size_t i = schedule_.size(); i-- > 0;) {
    if (i > 0) fetch_input(i - 1);
    segment_backward(schedule_[i], i > 0);
  }
  if (embeds_) {
    embedding_backward();
  } else {
    sent_residual_ = buffers_.residual_gradient;
  }
  if (embeds_ || has_head_) tracker_.drop(Category::data, buffers_.tokens_and_labels);
}

// Only the head is trained: no layer saves anything, and the way back ends with the head's gradients.
void StepSimulation::forward_without_saving() {
  tracker_.add(Category::data, buffers_.tokens_and_labels);
  embedding_forward();
  if (spec_.bert()) {
    drop(buffers_.embedding_sum);
    drop(buffers_.embedding_norm_statistics);
  }
  for (std::uint64_t layer = 0; layer < spec_.layers; ++layer) {
    layer_forward({.layer = false});
    drop(buffers_.residual);  // the layer's input
  }
  head_forward();
}

// What a stage sends to a neighbour stays until the stage has begun to receive what it needs next.
void StepSimulation::wait_for_send() { drop(std::exchange(sent_residual_, 0)); }

ByCategory StepSimulation::held() {
  forward();
  wait_for_send();
  return tracker_.live();
}

void StepSimulation::forward_without_backward(bool graph) {
  tracker_.add(Category::data, buffers_.tokens_and_labels);
  embedding_norm();
  add(buffers_.residual);
  if (graph) {
    for (const Segment& segment : schedule_) segment_forward(segment);
  } else {
    if (spec_.bert()) {
      drop(buffers_.embedding_sum);
      drop(buffers_.embedding_norm_statistics);
    }
    for (std::uint64_t layer = 0; layer < spec_.layers; ++layer) {
      layer_forward({.layer = false});
      drop(buffers_.residual);  // the layer's input
    }
  }
  head_norm();
  add(buffers_.logits);
}

// ---------------------------------------------------------------------------------------------------------- embeddings

void StepSimulation::embedding_forward() {
  gather_parameters(token_unit_);
  gather_parameters(embedding_unit_);
  embedding_norm();
  add(buffers_.residual);
  release_parameters(token_unit_);
  release_parameters(embedding_unit_);
}

void StepSimulation::embedding_norm() {
  if (!spec_.bert()) return;
  add(buffers_.embedding_sum);
  add(buffers_.embedding_norm_statistics);
}

void StepSimulation::embedding_backward() {
  if (levers_.frozen()) return drop(buffers_.residual_gradient);
  if (levers_.shares_token(spec_))
    add_shared_token_gradients();
  else if (!spec_.tied)
    add_gradients(token_unit_);
  gather_parameters(embedding_unit_);
  add_gradients(embedding_unit_);
  if (spec_.bert()) {
    drop(buffers_.embedding_sum);
    drop(buffers_.embedding_norm_statistics);
  }
  add(buffers_.all_rows);  // the gradient, gathered
  drop(buffers_.residual_gradient);
  drop(buffers_.all_rows);
  release_parameters(embedding_unit_);
  if (!keeps_token_gradients()) reduce_gradients(token_unit_);
  reduce_gradients(embedding_unit_);
}

// Where gradients are used at once those of a token table on two stages must wait for each other, to the end of the
// step.
bool StepSimulation::keeps_token_gradients() const {
  return !levers_.frozen() && levers_.shares_token(spec_) && levers_.gradients != GradientLife::always;
}

void StepSimulation::add_shared_token_gradients() {
  if (keeps_token_gradients() && std::exchange(token_gradients_are_there_, true)) return;
  add_gradients(token_unit_);
}

// ------------------------------------------------------------------------------------------------- segments of layers

void StepSimulation::segment_forward(const Segment& segment, bool more_follow) {
  const Keep saved = segment.recompute ? Keep{.layer = false} : segment.keep;
  for (std::uint64_t layer = 0; layer < segment.layers; ++layer) {
    gather_layer();
    if (layer + 1 < segment.layers || more_follow) prefetch_layer();
    layer_forward(saved);
    release_layer();
    if (segment.recompute && (layer > 0 || leaves(segment))) drop(buffers_.residual);  // the layer's input
  }
}

void StepSimulation::segment_backward(const Segment& segment, bool more_follow) {
  // The last layer is recomputed right before its backward pass.
  for (std::uint64_t layer = 0; segment.recompute && layer + 1 < segment.layers; ++layer) {
    gather_layer();
    prefetch_layer();
    layer_forward(levers_.form.keep);
    release_layer();
  }
  for (std::uint64_t layer = segment.layers; layer-- > 0;) {
    gather_layer();
    if (layer > 0 || more_follow) prefetch_layer();
    add_gradients(trained_layer_unit());
    layer_in_segment_backward(segment, layer);
    release_layer();
    reduce_gradients(trained_layer_unit());
  }
}

void StepSimulation::layer_in_segment_backward(const Segment& segment, std::uint64_t layer) {
  const bool last_of_recomputed = segment.recompute && layer + 1 == segment.layers;
  Keep saved = segment.recompute ? levers_.form.keep : segment.keep;
  if (last_of_recomputed || !saved.layer) {
    saved = levers_.form.keep;
    saved.layer = true;
    saved.post_attention_residual = true;  // is there, and needed soon
    saved.probabilities = true;            // the same
    layer_forward(saved, /*output=*/false);
  }
  layer_backward(saved);
  drop(buffers_.residual);  // the layer's input
}

// ---------------------------------------------------------------------------------------------- parameters, gradients

StepSimulation::UnitBuffers StepSimulation::unit_buffers(std::uint64_t elements) const {
  const auto bytes = [&](std::uint64_t count) {
    return round_to_granule(checked_product(count, levers_.element_bytes));
  };
  const bool comes_and_goes = levers_.streamed || levers_.shards(3) > 1;
  return {.parameters = comes_and_goes ? bytes(elements) : 0,
          .upload = levers_.streamed ? bytes(elements / levers_.shards(3)) : 0,
          .gradients = bytes(elements),
          .gradient_shard = bytes(elements / levers_.replicas)};
}

void StepSimulation::gather_parameters(const UnitBuffers& unit) {
  const bool was_on_its_way = std::exchange(layer_is_on_its_way_, false);
  if (!was_on_its_way) tracker_.add(Category::parameters, unit.upload);
  if (levers_.streamed && levers_.shards(3) == 1) return;  // what has come is all of it
  tracker_.add(Category::parameters, unit.parameters);
  tracker_.drop(Category::parameters, unit.upload);
}

// With its adapters, which are never on the host.
void StepSimulation::gather_layer() {
  gather_parameters(layer_unit_);
  tracker_.add(Category::parameters, adapter_unit_.parameters);
}

void StepSimulation::release_layer() {
  release_parameters(layer_unit_);
  release_parameters(adapter_unit_);
}

void StepSimulation::prefetch_layer() {
  if (!levers_.streamed) return;
  tracker_.add(Category::parameters, layer_unit_.upload);
  layer_is_on_its_way_ = true;
}

void StepSimulation::reduce_gradients(const UnitBuffers& unit) {
  if (levers_.frozen() && &unit != &adapter_unit_) return;
  if (levers_.optimizer_on_host()) {  // those of the unit before have arrived
    tracker_.drop(Category::gradients, std::exchange(gradients_sent_to_host_, unit.gradients));
    return;
  }
  if (accumulates_gradients_) {
    tracker_.add(Category::gradients, unit.gradient_shard);
    tracker_.drop(Category::gradients, unit.gradient_shard);
  }
  tracker_.drop(Category::gradients, unit.gradients);
}

ByCategory StepSimulation::whole_state() const {
  return unit_state_bytes(
      spec_, {.element_bytes = levers_.element_bytes, .slice = levers_.slice, .optimizer = levers_.optimizer});
}

// --------------------------------------------------------------------------------------------------- what is asked for

namespace {

// Levers for asking about a segment alone.
StepLevers levers_of_segment(const StepLevers& levers, const Segment& segment) {
  return {.element_bytes = levers.element_bytes,
          .sequences = levers.sequences,
          .seq = levers.seq,
          .form = levers.form,
          .schedule = {segment},
          .slice = {.layers = segment.layers, .parts = levers.slice.parts},
          .sequence_parallel = levers.sequence_parallel};
}

// Micro-batches of unequal sizes, one after the other: what one leaves does not depend on its size. Those behind the first
// add to its gradients. Those that are alike are asked about once.
PeakBytes simulate_packed_step(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident) {
  PeakBytes largest;
  const std::uint64_t first_and_kinds = std::min(levers.micro_batches, levers.packed_kinds() + 1);
  for (std::uint64_t m = 0; m < first_and_kinds; ++m) {
    StepLevers one = levers;
    one.lengths = levers.lengths_of(m);
    one.micro_batches = m == 0 ? 1 : 2;
    StepSimulation simulation(spec, one, resident);
    simulation.step();
    largest = later_peak(largest, simulation.tracker().peak());
  }
  return largest;
}

}  // namespace

PeakBytes simulate_step(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident) {
  if (levers.packed()) return simulate_packed_step(spec, levers, resident);
  StepSimulation simulation(spec, levers, resident);
  simulation.step();
  return simulation.tracker().peak();
}

PeakBytes simulate_forward(const TransformerSpec& spec, const StepLevers& levers, const ByCategory& resident,
                           bool graph) {
  StepSimulation simulation(spec, levers, resident);
  simulation.forward_without_backward(graph);
  return simulation.tracker().peak();
}

SegmentBytes segment_bytes(const TransformerSpec& spec, const StepLevers& levers, const Segment& segment) {
  const StepLevers alone = levers_of_segment(levers, segment);
  SegmentBytes bytes{};
  StepSimulation forward(spec, alone, {});
  forward.add(forward.buffers().residual);  // its input
  forward.segment_forward(segment);
  bytes.held = forward.tracker().live_bytes() - forward.buffers().residual;  // without its output
  bytes.forward_peak = forward.tracker().peak_bytes();
  StepSimulation backward(spec, alone, {});
  backward.add(checked_sum(bytes.held, backward.buffers().residual_gradient));
  backward.segment_backward(segment);
  bytes.backward_peak = backward.tracker().peak_bytes();
  return bytes;
}

std::uint64_t head_peak_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const StepLevers alone = levers_of_segment(levers, {.layers = spec.layers});
  StepSimulation simulation(spec, alone, {});
  simulation.add(simulation.buffers().residual);
  simulation.head_forward();
  return simulation.tracker().peak_bytes();
}

ByCategory held_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  return StepSimulation(spec, levers, {}).held();
}

std::uint64_t embedding_bytes(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                              std::uint64_t seq) {
  const StepBuffers buffers(spec, {.element_bytes = element_bytes, .sequences = sequences, .seq = seq});
  return spec.bert() ? checked_sum(buffers.embedding_sum, buffers.embedding_norm_statistics) : 0;
}

std::uint64_t residual_bytes(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                             std::uint64_t seq, std::uint64_t shares) {
  const std::uint64_t rows = checked_product(sequences, seq) / shares;
  return round_to_granule(checked_product(checked_product(rows, spec.width), element_bytes));
}

}  // namespace oomlab::nn
