#pragma once
// How many elements lie in a unit: part of step_walk.h.

#include "plan/model/transformer_tensors.h"
#include "plan/step_walk.h"

namespace oomlab::nn {

// The elements of each kind of unit. All layers have equally many, so one is visited for all of them.
struct UnitElements {
  std::uint64_t token = 0, embedding = 0, layer = 0, head = 0, layers = 0;

  UnitElements(const TransformerSpec& spec, const StepLevers& levers) {
    using Unit = Place::Unit;
    const Slice& slice = levers.slice;
    layers = slice.end(spec) - slice.first_layer;
    const auto padded = [](std::uint64_t count, std::uint64_t to) { return checked_sum(count, to - 1) / to * to; };
    TransformerSpec one = spec;
    one.layers = 1;
    const auto every = [](std::uint64_t) { return true; };
    visit_part(one, slice.embeds(), slice.has_head(spec), slice.parts, every, [&](const Place& p) {
      (p.unit == Unit::token       ? token
       : p.unit == Unit::embedding ? embedding
       : p.unit == Unit::layer     ? layer
                                   : head) += padded(checked_product(p.rows, p.columns), kUnitAlign);
    });
    for (std::uint64_t* unit : {&token, &embedding, &layer, &head})
      *unit = padded(*unit, checked_product(kUnitAlign, levers.replicas));
  }
};

}  // namespace oomlab::nn
