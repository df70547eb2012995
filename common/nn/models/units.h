#pragma once
// Units: tensors of a model that are used together, one behind the other in one flat buffer. The token table, the other
// embeddings, each layer, the head.

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
};
/// The units of a slice, each padded so that `shards` ranks have equal shares of it.
inline std::vector<UnitShape> units_of(const TransformerSpec& spec, const Slice& slice = {}, std::size_t shards = 1) {
  std::vector<UnitShape> units;
  const std::vector<TensorShape> shapes = tensors_of(spec, slice);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (units.empty() || units.back().name != shapes[i].unit) units.push_back({shapes[i].unit, {}, {}, 0});
    UnitShape& unit = units.back();
    unit.tensors.push_back(i);
    unit.offsets.push_back(unit.count);
    unit.count += padded(shapes[i].count(), kUnitAlign);
  }
  for (UnitShape& unit : units) unit.count = padded(unit.count, kUnitAlign * shards);
  return units;
}

}  // namespace oomlab::nn
