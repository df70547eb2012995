#pragma once
// The mitigation: do not keep what can be computed again (Chen et al., "Training deep nets with sublinear memory cost",
// 2016), and only what is cheap to compute (Korthikanti et al., "Reducing activation recomputation", 2022).
//
// A schedule cuts the layers into segments. A segment is either plain: its layers keep what its Keep says; or it is
// recomputed: only its input is kept, and before its backward pass its forward pass runs again. A recomputed segment of
// one layer is "checkpoint every layer".

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/bytes.h"
#include "nn/transformer.h"

namespace oomlab::checkpointing {

struct Segment {
  std::size_t layers = 0;
  bool recompute = false;
  nn::Keep keep{};  ///< plain segments
  friend bool operator==(const Segment&, const Segment&) = default;
};
using Schedule = std::vector<Segment>;

inline Schedule keep_everything(std::size_t layers) { return {{layers, false, {}}}; }
inline Schedule keep_selected(std::size_t layers, nn::Keep keep) { return {{layers, false, keep}}; }
/// Segments of at most `length` layers, each recomputed from its input.
inline Schedule recompute_segments(std::size_t layers, std::size_t length) {
  Schedule schedule;
  for (std::size_t l = 0; l < layers; l += length) schedule.push_back({std::min(length, layers - l), true, {}});
  return schedule;
}
/// √layers, rounded up: as many segments as each has layers.
inline std::size_t root_of(std::size_t layers) {
  return static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(layers))));
}

/// Forward and backward as Transformer::forward_backward(), to the same bits, with this schedule.
template <class T>
void checkpointed_step(Context& context, nn::Transformer<T>& model, nn::TokenBatch batch, const Schedule& schedule,
                       const float* scale_on_device = nullptr) {
  const std::size_t layers = model.spec().layers;
  std::vector<DeviceBuffer<T>> x(layers);
  std::vector<nn::LayerActivations<T>> kept(layers);
  typename nn::Transformer<T>::EmbeddingActivations embedding;
  DeviceBuffer<T> residual;
  {
    const Phase phase(context.ledger(), "forward");
    residual = model.embed(context, batch, embedding);
    std::size_t l = 0;
    for (const Segment& segment : schedule)
      for (std::size_t i = 0; i < segment.layers; ++i, ++l) {
        x[l] = std::move(residual);
        const nn::Keep keep = segment.recompute ? nn::Keep{.layer = false} : segment.keep;  // what is dropped
        residual = model.forward_layer(context, l, batch, x[l].data(), keep, kept[l]);
        if (segment.recompute && i > 0) x[l].reset();
      }
  }
  residual = model.head(context, batch, std::move(residual), {}, scale_on_device);

  const Phase phase(context.ledger(), "backward");
  std::size_t end = layers;
  for (std::size_t s = schedule.size(); s-- > 0;) {
    const std::size_t first = end - schedule[s].layers;
    if (schedule[s].recompute)  // forward again, up to the input of the segment's last layer
      for (std::size_t l = first; l + 1 < end; ++l)
        x[l + 1] = model.forward_layer(context, l, batch, x[l].data(), {}, kept[l]);
    while (end > first) {
      --end;
      model.rebuild_layer(context, end, batch, x[end].data(), kept[end]);  // what was not kept
      model.backward_layer(context, end, batch, x[end].data(), std::move(kept[end]), residual, false);
      x[end].reset();
    }
  }
  model.embed_backward(context, batch, std::move(embedding), std::move(residual), false);
}

// --------------------------------------------------------------------------------------------------------- closed form

/// What the parts of a step need, in bytes and operations, for one shape of batch.
class StepCosts {
 public:
  StepCosts(const nn::TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences, std::size_t seq);

  /// Bytes that a segment holds from its forward to its backward pass.
  std::size_t held(const Segment& segment) const;
  /// The fullest moment of its forward and of its backward pass, above what the segments before it hold.
  std::size_t forward_peak(const Segment& segment) const;
  std::size_t backward_peak(const Segment& segment) const;
  /// What it computes again, in operations: matrix products, and 30 for a GELU and 8 for a normalised element.
  double recompute_cost(const Segment& segment) const;
  /// Of these the matrix products, exactly.
  std::uint64_t recompute_flops(const Segment& segment) const;
  /// The moment of the loss, above what all segments hold (row losses included), and what embed() keeps.
  std::size_t head = 0, embedding = 0;

 private:
  bool bert_;
  std::size_t u_, rows_;
  nn::LayerBytes all_, nothing_;
  nn::LayerFlops flops_;
  std::size_t elements_;  // R · C
  nn::TransformerSpec spec_;
  std::size_t element_bytes_, sequences_, seq_;
};

inline StepCosts::StepCosts(const nn::TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                            std::size_t seq)
    : bert_(spec.bert()),
      u_(nn::residual_bytes(spec, element_bytes, sequences, seq)),
      rows_(sequences * seq),
      all_(nn::layer_bytes(spec, element_bytes, sequences, seq, {})),
      nothing_(nn::layer_bytes(spec, element_bytes, sequences, seq, {.layer = false})),
      flops_(nn::layer_flops(spec, sequences, seq)),
      elements_(rows_ * spec.width),
      spec_(spec),
      element_bytes_(element_bytes),
      sequences_(sequences),
      seq_(seq) {
  const nn::HeadBytes bytes = nn::head_bytes(spec, element_bytes, sequences, seq);
  head = u_ + bytes.activations + bytes.workspace;
  embedding = nn::embedding_bytes(spec, element_bytes, sequences, seq);
}

inline std::size_t StepCosts::held(const Segment& s) const {
  if (s.recompute) return u_;
  return checked_product(s.layers, u_ + nn::layer_bytes(spec_, element_bytes_, sequences_, seq_, s.keep).kept);
}

// u: one residual. In a plain segment, layer i (from 0) finds i + 1 inputs and what i layers keep, and backward the
// residual's gradient too. A recomputed segment is, forward, its input, its layer's input, and the layer at work;
// backward it is a plain one that keeps everything, with its last layer computed again.
inline std::size_t StepCosts::forward_peak(const Segment& s) const {
  if (s.recompute) return (s.layers > 1 ? 2 : 1) * u_ + nothing_.forward_peak;
  const nn::LayerBytes layer = nn::layer_bytes(spec_, element_bytes_, sequences_, seq_, s.keep);
  return checked_sum(s.layers * u_, checked_product(s.layers - 1, layer.kept)) + layer.forward_peak;
}

inline std::size_t StepCosts::backward_peak(const Segment& s) const {
  const nn::LayerBytes layer = s.recompute ? all_ : nn::layer_bytes(spec_, element_bytes_, sequences_, seq_, s.keep);
  const std::size_t below = checked_sum((s.layers + 1) * u_, checked_product(s.layers - 1, layer.kept));
  if (!s.recompute) return below + layer.backward_peak;
  // Before that, the last layer but one runs forward again, with one input and one layer's activations less.
  const std::size_t again = s.layers > 1 ? below - u_ - layer.kept + layer.forward_peak : 0;
  return std::max(again, below + nothing_.backward_peak);
}

inline std::uint64_t StepCosts::recompute_flops(const Segment& s) const {
  if (s.recompute) return s.layers * flops_.forward - flops_.last_product;
  return s.keep.probabilities ? 0 : s.layers * flops_.probabilities;
}

inline double StepCosts::recompute_cost(const Segment& s) const {
  const auto elements = static_cast<double>(s.layers) * static_cast<double>(elements_);
  const double norms = (bert_ ? 1 : 2) * 8 * elements, gelu = 30 * 4 * elements;
  double sum = static_cast<double>(recompute_flops(s));
  if (s.recompute) return sum + norms + gelu + (bert_ ? norms : 0);
  return sum + (s.keep.norms ? 0 : norms) + (s.keep.gelu ? 0 : gelu);
}

/// Peak of checkpointed_step() with this schedule, by category, above `resident`.
inline ByCategory predict_schedule(const nn::TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                                   std::size_t seq, const Schedule& schedule, const ByCategory& resident) {
  const StepCosts costs(spec, element_bytes, sequences, seq);
  std::size_t live = costs.embedding, layers = 0, loss = 0;
  for (const Segment& s : schedule) live = checked_sum(live, costs.held(s));
  const std::size_t row_losses = round_to_granule(sequences * seq * sizeof(float));
  loss = checked_sum(live, costs.head - row_losses);

  std::size_t forward = 0, backward = 0;
  live = costs.embedding;
  for (const Segment& s : schedule) {
    forward = std::max(forward, checked_sum(live, costs.forward_peak(s)));
    backward = std::max(backward, checked_sum(live, costs.backward_peak(s)));
    live += costs.held(s);
    layers += s.layers;
  }
  if (layers != spec.layers) throw std::logic_error("a schedule for another number of layers");
  ByCategory peak = resident;
  peak[Category::data] = checked_sum(peak[Category::data], nn::token_batch_bytes(sequences, seq));
  // Of equal moments the first one counts.
  const bool at_loss = loss + row_losses > forward && loss + row_losses >= backward;
  peak[Category::activations] = checked_sum(peak[Category::activations], at_loss ? loss : std::max(forward, backward));
  if (at_loss) peak[Category::workspace] += row_losses;
  return peak;
}

/// Matrix products of the step, exactly.
inline std::uint64_t schedule_flops(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                                    const Schedule& schedule) {
  const StepCosts costs(spec, 4, sequences, seq);
  std::uint64_t flops = nn::step_flops(spec, sequences, seq);
  for (const Segment& s : schedule) flops += costs.recompute_flops(s);
  return flops;
}

/// "4 kept, 2 without norms+GELU, 6 again in segments of 3": how many layers are treated how.
inline std::string describe(const Schedule& schedule) {
  std::map<std::string, std::size_t> layers;
  for (const Segment& s : schedule) {
    std::string how;
    if (s.recompute) {
      how = s.layers == 1 ? "again" : fmt::format("again in segments of {}", s.layers);
    } else {
      if (!s.keep.norms) how += "norms+";
      if (!s.keep.gelu) how += "GELU+";
      if (!s.keep.probabilities) how += "probabilities+";
      how = how.empty() ? "kept" : "without " + how.substr(0, how.size() - 1);
    }
    layers[how] += s.layers;
  }
  std::string text;
  for (const char* first : {"kept", "without", "again"})
    for (const auto& [how, count] : layers)
      if (how.starts_with(first)) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, how);
  return text;
}

}  // namespace oomlab::checkpointing
