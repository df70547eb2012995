#pragma once
// What the trainer is asked to do, and what a rank of it needs and sends, in closed form (plan/).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/dtype_of.h"
#include "data/text.h"
#include "nn/optimizer/mixed_precision.h"
#include "plan/flops.h"
#include "plan/host_state.h"
#include "plan/levers.h"
#include "plan/ranks.h"
#include "train/precision.h"
#include "train/text_training.h"

namespace oomlab::train {

using plan::Layout, plan::RankCoordinates;

/// What all ranks of a run work on, and how.
struct Job {
  nn::TransformerSpec spec;
  std::shared_ptr<const data::TextSampler> text;
  Layout layout;
  std::size_t batch;        ///< sequences of a step, on all ranks
  std::size_t micro_batch;  ///< sequences of a forward and backward pass
  std::size_t seq;
  nn::StepForm form;
  /// Without: AdamW, with a master copy of weights of 16 bits.
  std::optional<nn::OptimizerForm> optimizer = {};
  nn::GradientLife gradients = nn::GradientLife::always;
  bool streamed = false;  ///< weights are in host memory; for gradients that are offloaded, or weights that are frozen
  /// All of a model, or adapters beside it; then its layers' matrices are stored as `base`.
  nn::Trained trained = nn::Trained::all;
  nn::AdapterForm adapters = {};
  quantised::Format base = {};
  bool checkpoints_on_host = false;  ///< the inputs of segments that are recomputed wait in host memory
  bool sequence_parallel = false;    ///< ranks that have the parts of a layer share out the rows of norms and residuals
  /// Tokens of the sequences of a step, [batch]; empty: each has seq. They are padded to seq, or packed: in one stage, with
  /// one micro-batch in flight.
  std::vector<std::uint64_t> lengths = {};
  bool pack = false;
  nn::LossScaling scaling = scaling_of(Precision::fp16);  ///< where weights are FP16
  /// What one rank does with gradients that stay until all of them are there; no other is asked for it.
  float loss_scale = 1;  ///< of the loss, the same in all steps; one that overflows is left out
  float clip = 0;        ///< the largest norm of all gradients; 0: any
  nn::OptimizerSettings settings = {};
  std::uint64_t seed = kTextSeed;  ///< of the first weights
  /// How the layers of the rank at a place are treated; without, as the form says.
  std::function<nn::Schedule(const RankCoordinates&)> schedule = {};

  /// Whether all gradients are multiplied by a number that is only known when all of them are.
  bool frozen() const { return trained != nn::Trained::all; }
  bool has_factor() const { return clip != 0 || loss_scale != 1; }
  std::size_t micro_batches() const { return batch / layout.dp / micro_batch; }
  /// Of a sequence the tokens that a rank has.
  std::size_t own_seq() const { return seq / layout.cp; }
  /// Rows of so many sequences of a step, on all ranks that share out their tokens.
  std::size_t rows(std::size_t first, std::size_t count) const {
    if (!pack) return checked_product(count, seq);
    std::size_t rows = 0;
    for (std::size_t i = first; i < first + count; ++i) rows += lengths.at(i);
    return rows;
  }
  /// That a rank has of its micro-batch that has most.
  std::size_t most_rows(std::size_t replica) const {
    if (!pack) return checked_product(micro_batch, own_seq());
    std::size_t most = 0;
    for (std::size_t m = 0; m < micro_batches(); ++m)
      most = std::max(most, rows((replica * micro_batches() + m) * micro_batch, micro_batch));
    return most;
  }
  /// Of the packed sequences of a replica; empty where they are not packed.
  nn::LengthsInTurn lengths_of(std::size_t replica) const {
    return pack ? nn::LengthsInTurn{lengths, replica * (batch / layout.dp)} : nn::LengthsInTurn{};
  }
  nn::Schedule schedule_at(const RankCoordinates& place) const {
    if (schedule) return schedule(place);
    return {{plan::slice_of(spec, layout, place).layers, false, form.keep}};
  }
};
/// The optimizer of a job whose weights are stored as T.
template <class T>
nn::OptimizerForm optimizer_of(const Job& job) {
  return job.optimizer.value_or(nn::OptimizerForm{.weights = plan::usual_weights(kDTypeOf<T>)});
}

/// The step of one rank as its prediction sees it.
template <class T>
nn::StepLevers step_of(const Job& job, const RankCoordinates& place) {
  return {.element_bytes = sizeof(T),
          .sequences = job.micro_batch,
          .seq = job.own_seq(),
          .lengths = job.lengths_of(place.replica),
          .form = job.form,
          .schedule = job.schedule_at(place),
          .micro_batches = job.micro_batches(),
          .in_flight = plan::most_in_flight(job.layout, place.stage, job.micro_batches()),
          .slice = plan::slice_of(job.spec, job.layout, place),
          .replicas = job.layout.replicas(),
          .zero = job.layout.zero,
          .gradients = job.gradients,
          .trained = job.trained,
          .adapters = job.adapters,
          .base = job.base,
          .streamed = job.streamed,
          .checkpoints_on_host = job.checkpoints_on_host,
          .sequence_parallel = job.sequence_parallel,
          .context_ranks = job.layout.cp,
          .context = job.layout.context,
          .optimizer = optimizer_of<T>(job),
          .loss_scale = kDTypeOf<T> == DType::fp16};
}
/// Peak allocated bytes of a rank.
template <class T>
ByCategory predict_rank(const Job& job, const RankCoordinates& place) {
  return plan::rank_bytes(job.spec, step_of<T>(job, place), job.layout.ranks() > 1);
}
/// The same of the host's memory.
template <class T>
HostBytes predict_rank_on_host(const Job& job, const RankCoordinates& place) {
  return nn::host_bytes(job.spec, step_of<T>(job, place));
}
/// Payload in bytes that a rank sends in a step, as Communicator::bytes_sent() counts it.
template <class T>
std::uint64_t sent_a_step(const Job& job, const RankCoordinates& place) {
  return plan::sent_by_rank(job.spec, job.layout, place, step_of<T>(job, place));
}

/// Operations of the matrix products that a rank has in a step (Variant::flops). A part has its share of each layer;
/// head and loss are whole on each part of the last stage. Ranks that share out tokens have as much each.
inline std::optional<double> flops_a_step(const Job& job, const RankCoordinates& place) {
  const nn::Slice slice = plan::slice_of(job.spec, job.layout, place);
  const std::size_t layers = slice.layers;
  const nn::Schedule schedule = job.schedule_at(place);
  const auto all = flops_of_step(nn::with_layers(job.spec, layers), job.micro_batch, job.seq, schedule, job.form,
                                 job.trained, job.layout.head_shares());
  const auto head = flops_of_step(nn::with_layers(job.spec, 0), job.micro_batch, job.seq, {}, {}, job.trained);
  if (!all || !head) return std::nullopt;
  double adapters = 0;
  if (job.frozen())
    adapters =
        static_cast<double>(job.micro_batch) * static_cast<double>(nn::adapter_flops_of_each(
                                                   job.spec, job.adapters, slice.parts, job.seq, schedule, job.form));
  const auto micro_batches = static_cast<double>(job.micro_batches());
  const double of_head = slice.has_head(job.spec) ? *head : 0;
  const double of_micro_batch = (*all - *head) / static_cast<double>(slice.parts) + of_head + adapters;
  return micro_batches * of_micro_batch / static_cast<double>(job.layout.cp);
}

/// Host memory of the rank that has most of it, bytes.
template <class T>
HostBytes predict_largest_on_host(const Job& job) {
  HostBytes largest;
  for (std::size_t stage = 0; stage < job.layout.pp; ++stage) {
    const HostBytes bytes = predict_rank_on_host<T>(job, RankCoordinates{0, 0, stage});
    if (bytes.total() > largest.total()) largest = bytes;
  }
  return largest;
}
/// Bytes on the device at the peak of the rank whose peak is the largest.
template <class T>
ByCategory predict_largest(const Job& job) {
  PeakBytes largest, next;
  for (std::size_t stage = 0; stage < job.layout.pp; ++stage) {
    next.at_peak = predict_rank<T>(job, RankCoordinates{0, 0, stage});
    largest = later_peak(largest, next);
  }
  return largest.at_peak;
}

}  // namespace oomlab::train
