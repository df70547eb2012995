#pragma once
// How many elements lie in a unit: part of step.h.

#include "plan/model/transformer_tensors.h"
#include "plan/step.h"

namespace oomlab::nn {

/// The elements of each kind of unit, padded as kUnitAlign says, and how many layers a rank has. All layers have as
/// many elements as the first.
struct UnitElements {
  std::uint64_t token = 0;
  std::uint64_t embedding = 0;
  std::uint64_t layer = 0;
  std::uint64_t head = 0;
  std::uint64_t layers = 0;

  UnitElements(const TransformerSpec& spec, const StepLevers& levers) {
    const Slice& slice = levers.slice;
    layers = slice.end(spec) - slice.first_layer;
    TransformerSpec one_layer = spec;
    one_layer.layers = 1;
    const auto has_layer = [](std::uint64_t) { return true; };
    visit_part(one_layer, slice.embeds(), slice.has_head(spec), slice.parts, has_layer, [&](const Place& tensor) {
      of(tensor.unit) += padded(checked_product(tensor.rows, tensor.columns), kUnitAlign);
    });
    const std::uint64_t align = checked_product(kUnitAlign, levers.replicas);
    for (std::uint64_t* unit : {&token, &embedding, &layer, &head}) *unit = padded(*unit, align);
  }

 private:
  static std::uint64_t padded(std::uint64_t count, std::uint64_t align) {
    return checked_sum(count, align - 1) / align * align;
  }
  std::uint64_t& of(Place::Unit unit) {
    switch (unit) {
      case Place::Unit::token: return token;
      case Place::Unit::embedding: return embedding;
      case Place::Unit::layer: return layer;
      case Place::Unit::head: break;
    }
    return head;
  }
};

}  // namespace oomlab::nn
