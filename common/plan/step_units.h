#pragma once
// How many elements lie in a unit: part of step.h.

#include "plan/model/transformer_tensors.h"
#include "plan/step.h"

namespace oomlab::nn {

/// The elements of each kind of unit, padded as kUnitAlign says, and how many layers a rank has. All layers have as
/// many elements as the first. Of a matrix that is stored in fewer bits: as many elements as its bytes take.
struct UnitElements {
  std::uint64_t token = 0;
  std::uint64_t embedding = 0;
  std::uint64_t layer = 0;
  std::uint64_t head = 0;
  std::uint64_t layers = 0;
  std::uint64_t adapters = 0;        ///< of a layer
  std::uint64_t norms = 0;           ///< of a layer: the tensors of its norms
  std::uint64_t embedding_norm = 0;  ///< of the embeddings: the same
  std::uint64_t adapters_whole = 0;  ///< of these, at the beginning: of tensors that all parts have. 0 of one part

  UnitElements(const TransformerSpec& spec, const StepLevers& levers);
  /// Of all units that are trained: the model's, or its adapters'.
  std::uint64_t trained(const StepLevers& levers) const {
    if (levers.frozen()) return checked_product(layers, adapters);
    return checked_sum(checked_sum(token, embedding), checked_sum(checked_product(layers, layer), head));
  }
};

}  // namespace oomlab::nn
