// What a rank holds between steps.

#include <algorithm>

#include "plan/adapter_state.h"
#include "plan/bytes.h"
#include "plan/optimizer_state.h"
#include "plan/quantised/decoder.h"
#include "plan/step.h"
#include "plan/step_units.h"

namespace oomlab::nn {

namespace {

std::uint64_t rounded_up(std::uint64_t count, std::uint64_t to) { return checked_sum(count, to - 1) / to * to; }

// What a tensor of a layer takes in its unit, in elements, before the next one begins.
std::uint64_t elements_in_unit(const TensorShape& shape, const quantised::Format& base, std::uint64_t element_bytes) {
  std::uint64_t elements = shape.count();
  const quantised::Format format = quantised::format_of(shape, base);
  if (format.scheme != quantised::Scheme::as_is) {
    std::uint64_t bytes = 0;
    for (const quantised::Part& part : quantised::parts_of(format, shape.rows, shape.count()))
      bytes = checked_sum(bytes, rounded_up(part.bytes(), quantised::kPartAlign));
    elements = bytes / element_bytes;
  }
  return rounded_up(elements, kUnitAlign);
}

// Of a unit all of an array, or one of so many shards.
std::uint64_t unit_bytes(std::uint64_t elements, std::uint64_t shards, std::uint64_t bytes_per_element) {
  return round_to_granule(checked_product(elements / shards, bytes_per_element));
}

// The same of each unit of a model.
std::uint64_t array_bytes(const UnitElements& units, std::uint64_t shards, std::uint64_t bytes_per_element) {
  const auto bytes = [&](std::uint64_t elements) { return unit_bytes(elements, shards, bytes_per_element); };
  const std::uint64_t embeddings = checked_sum(bytes(units.token), bytes(units.embedding));
  const std::uint64_t layers = checked_product(units.layers, bytes(units.layer));
  return checked_sum(checked_sum(embeddings, bytes(units.head)), layers);
}

// Of shards: vectors, each of which has a part of a unit.
template <class BytesOf>
std::uint64_t state_of_shards(const UnitElements& units, const StepLevers& levers, BytesOf bytes_of) {
  const auto state = [&](const char* unit, std::uint64_t elements) {
    const TensorShape shard{"", unit, 1, elements / levers.replicas};
    return elements ? bytes_of(shard, levers.optimizer) : 0;
  };
  if (levers.frozen()) return checked_product(units.layers, state("layer", units.adapters));
  const std::uint64_t embeddings = checked_sum(state("token", units.token), state("embedding", units.embedding));
  const std::uint64_t layers = checked_product(units.layers, state("layer", units.layer));
  return checked_sum(checked_sum(embeddings, state("head", units.head)), layers);
}

}  // namespace

UnitElements::UnitElements(const TransformerSpec& spec, const StepLevers& levers) {
  const Slice& slice = levers.slice;
  layers = slice.end(spec) - slice.first_layer;
  const TransformerSpec one_layer = with_layers(spec, 1);
  const auto has_layer = [](std::uint64_t) { return true; };
  const auto of = [&](Place::Unit unit) -> std::uint64_t& {
    switch (unit) {
      case Place::Unit::token: return token;
      case Place::Unit::embedding: return embedding;
      case Place::Unit::layer: return layer;
      case Place::Unit::head: break;
    }
    return head;
  };
  visit_part(one_layer, slice.embeds(), slice.has_head(spec), slice.parts, has_layer, [&](const Place& tensor) {
    const std::uint64_t elements = rounded_up(checked_product(tensor.rows, tensor.columns), kUnitAlign);
    of(tensor.unit) += elements;
    const std::string_view name = tensor.name;
    if (name.starts_with("norm ")) norms += elements;
    if (name == "embedding norm") embedding_norm += elements;
  });
  if (levers.base.scheme != quantised::Scheme::as_is) {
    layer = 0;
    for (const TensorShape& shape : tensors_of(one_layer, {.parts = slice.parts}))
      if (shape.unit.starts_with("layer"))
        layer = checked_sum(layer, elements_in_unit(shape, levers.base, levers.element_bytes));
  }
  if (levers.trained == Trained::adapters) {
    for (const AdapterSlot& whole : adapter_slots(spec, levers.adapters.targets)) {
      const AdapterSlot slot = whole.of_part(slice.parts);
      const std::uint64_t a = rounded_up(checked_product(levers.adapters.rank, slot.in), kUnitAlign);
      const std::uint64_t b = rounded_up(checked_product(slot.out, levers.adapters.rank), kUnitAlign);
      adapters = checked_sum(adapters, checked_sum(a, b));
      if (slice.parts > 1) adapters_whole += slot.by_columns() ? b : a;
    }
  }
  const std::uint64_t align = checked_product(kUnitAlign, levers.replicas);
  for (std::uint64_t* unit : {&token, &embedding, &layer, &head, &adapters}) *unit = rounded_up(*unit, align);
}

namespace {

// The optimizer's state of one layer's adapters, by tensors.
ByCategory state_of_adapters(const TransformerSpec& spec, const StepLevers& levers) {
  ByCategory state;
  std::uint64_t rows = 0;
  for (const TensorShape& shape :
       adapter_tensors(with_layers(spec, 1), levers.adapters, {.parts = levers.slice.parts})) {
    state[Category::optimizer] = checked_sum(state[Category::optimizer], state_bytes(shape, levers.optimizer));
    if (shape.rows > 1) rows = std::max(rows, shape.rows);
  }
  if (levers.optimizer.rule == UpdateRule::adafactor) state[Category::workspace] = adafactor_sums_bytes(rows);
  return state;
}

}  // namespace

ByCategory optimizer_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  ByCategory state;
  if (levers.shards(1) > 1) {
    state[Category::optimizer] = state_of_shards(units, levers, state_bytes);
  } else if (levers.frozen()) {
    state = state_of_adapters(spec, levers);
    state[Category::optimizer] = checked_product(units.layers, state[Category::optimizer]);
  } else {
    state = optimizer_bytes(spec, levers.slice, levers.optimizer);
  }
  return state;
}

std::uint64_t paged_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  if (!levers.optimizer.paged_moments) return 0;
  const auto bytes_of = [](const TensorShape& shape, const OptimizerForm& form) { return paged_bytes(shape, form); };
  if (levers.shards(1) > 1) return state_of_shards(UnitElements(spec, levers), levers, bytes_of);
  if (!levers.frozen()) return paged_bytes(spec, levers.slice, levers.optimizer);
  std::uint64_t of_layer = 0;
  for (const TensorShape& shape : adapter_tensors(with_layers(spec, 1), levers.adapters, {.parts = levers.slice.parts}))
    of_layer = checked_sum(of_layer, bytes_of(shape, levers.optimizer));
  return checked_product(levers.slice.end(spec) - levers.slice.first_layer, of_layer);
}

ByCategory unit_state_bytes(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  ByCategory state;
  if (!levers.optimizer_on_host()) state = optimizer_state_bytes(spec, levers);
  std::uint64_t& parameters = state[Category::parameters];
  if (!levers.streamed) parameters = array_bytes(units, levers.shards(3), levers.element_bytes);
  const auto of_adapters = [&](std::uint64_t shards) {
    return checked_product(units.layers, unit_bytes(units.adapters, shards, levers.element_bytes));
  };
  parameters = checked_sum(parameters, of_adapters(levers.shards(3)));
  if (levers.gradients == GradientLife::always)
    state[Category::gradients] =
        levers.frozen() ? of_adapters(levers.shards(2)) : array_bytes(units, levers.shards(2), levers.element_bytes);
  if (levers.loss_scale) state[Category::optimizer] = checked_sum(state[Category::optimizer], scale_state_bytes());
  state[Category::workspace] = checked_sum(
      state[Category::workspace], decoded_part_bytes(spec, levers.base, levers.slice.parts, levers.element_bytes));
  return state;
}

PeakBytes making_base_peak(const TransformerSpec& spec, const StepLevers& levers) {
  const UnitElements units(spec, levers);
  quantised::LoadingBytes loading;
  for (const TensorShape& shape : tensors_of(with_layers(spec, 1), {.parts = levers.slice.parts})) {
    const quantised::Format format = quantised::format_of(shape, levers.base);
    if (format.scheme != quantised::Scheme::as_is)
      loading.at_least(quantised::loading_bytes(format, shape.rows, shape.columns));
  }
  PeakTracker tracker;
  tracker.add(Category::workspace, loading.total());
  if (levers.slice.has_head(spec)) tracker.add(Category::workspace, round_to_granule(sizeof(float)));  // the loss
  const bool whole_is_elsewhere = levers.streamed || levers.shards(3) > 1;
  const auto make = [&](std::uint64_t elements) {
    if (!levers.streamed)
      tracker.add(Category::parameters, unit_bytes(elements, levers.shards(3), levers.element_bytes));
    const std::uint64_t whole = whole_is_elsewhere ? unit_bytes(elements, 1, levers.element_bytes) : 0;
    tracker.add(Category::parameters, whole);
    tracker.drop(Category::parameters, whole);
  };
  make(units.token);
  make(units.embedding);
  for (std::uint64_t layer = 0; layer < units.layers; ++layer) make(units.layer);
  make(units.head);
  return tracker.peak();
}

}  // namespace oomlab::nn
