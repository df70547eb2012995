#pragma once
// What stays allocated between the steps of fine-tuning on one rank, in bytes: a base that is frozen, whatever it is
// stored as, and what is trained beside it.

#include "dtype.h"
#include "plan/category.h"
#include "plan/model/adapters.h"
#include "plan/optimizer_state.h"
#include "plan/peak.h"
#include "plan/quantised/format.h"
#include "plan/step.h"

namespace oomlab::nn {

/// How a model is fine-tuned.
struct FineTuning {
  Trained trained = Trained::all;
  AdapterForm adapters{};     ///< where those are trained
  quantised::Format base{};   ///< of the layers' matrices, where they are frozen
  DType dtype = DType::fp32;  ///< of all else, and of activations: one of kModelDTypes
  OptimizerForm optimizer{};  ///< of what is trained
};

/// Matrices that are stored in fewer bits are decoded an eighth at a time, by rows or by columns, into a buffer that
/// stays.
inline constexpr std::uint64_t kDecodedParts = 8;
/// Bytes of that buffer as the ledger counts it, for a part of each layer: of the largest eighth, in values of
/// `element_bytes` each. 0 where nothing is stored so.
std::uint64_t decoded_part_bytes(const TransformerSpec& spec, const quantised::Format& base, std::uint64_t parts,
                                 std::uint64_t element_bytes);
std::uint64_t decoded_part_bytes(const TransformerSpec& spec, const FineTuning& tuning);

/// What the adapters alone are: A, B and, with what trains them, gradients and the optimizer's state. Throws as
/// adapter_tensors().
ByCategory adapter_bytes(const TransformerSpec& spec, const FineTuning& tuning, bool trained);
/// All of it: the weights, what is trained, the loss and the loss scale. Throws as adapter_tensors() and parts_of().
ByCategory fine_tuning_bytes(const TransformerSpec& spec, const FineTuning& tuning);

/// What is there when the base has been made, pieces of its largest matrix on their way among it.
PeakBytes base_peak(const TransformerSpec& spec, const FineTuning& tuning);
/// Peak of fine-tuning, on one rank: of making the base, or of a step with these levers, whose trained and adapters are
/// taken from `tuning`.
PeakBytes fine_tuning_peak(const TransformerSpec& spec, const FineTuning& tuning, StepLevers levers);

}  // namespace oomlab::nn
