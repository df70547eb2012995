#pragma once
// Units: tensors of a model that are used together, one behind the other in one flat buffer. The token table, the other
// embeddings, each layer, the head.

#include <algorithm>
#include <string>
#include <vector>

#include "nn/models/transformer.h"
#include "plan/step.h"

namespace oomlab::nn {

/// `count` rounded up to a multiple of `to`, which is not 0. Elements.
inline std::size_t padded(std::size_t count, std::size_t to) { return (count + to - 1) / to * to; }

/// Where the tensors of one unit are.
struct UnitShape {
  std::string name;                  ///< TensorShape::unit
  std::vector<std::size_t> tensors;  ///< numbers in tensors_of()
  std::vector<std::size_t> offsets;  ///< elements
  std::size_t count = 0;             ///< elements, with padding
  std::size_t first = 0;             ///< of these, at the beginning: of tensors that come first
};
/// The units of these tensors, of which number i takes elements_of(i), each unit padded so that `shards` ranks have equal
/// shares of it. Those for which is_first(i) is true come first in their unit.
template <class ElementsOf, class IsFirst>
std::vector<UnitShape> units_of(const std::vector<TensorShape>& shapes, std::size_t shards, ElementsOf elements_of,
                                IsFirst is_first) {
  std::vector<UnitShape> units;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (units.empty() || units.back().name != shapes[i].unit) units.push_back({shapes[i].unit, {}, {}, 0, 0});
    units.back().tensors.push_back(i);
  }
  for (UnitShape& unit : units) {
    std::stable_partition(unit.tensors.begin(), unit.tensors.end(), is_first);
    for (const std::size_t i : unit.tensors) {
      unit.offsets.push_back(unit.count);
      unit.count += padded(elements_of(i), kUnitAlign);
      if (is_first(i)) unit.first = unit.count;
    }
    unit.count = padded(unit.count, kUnitAlign * shards);
  }
  return units;
}
/// The units of a slice.
inline std::vector<UnitShape> units_of(const TransformerSpec& spec, const Slice& slice = {}, std::size_t shards = 1) {
  const std::vector<TensorShape> shapes = tensors_of(spec, slice);
  return units_of(
      shapes, shards, [&](std::size_t i) { return shapes[i].count(); }, [](std::size_t) { return false; });
}

}  // namespace oomlab::nn
