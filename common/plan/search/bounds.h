#pragma once
// What no combination of a family avoids: bounds from below on the bytes and the time of a step, without planning it. A
// family has one precision, optimizer, grid of ranks and form of a step, and any of some micro-batches.
//
//   bytes     the state; and beside it the fullest of three moments: all layers' forward passes are done; the last
//             layer is at its backward pass; the head is at work. Buffers grow with the micro-batch, so those of the smallest
//             one are a bound for all
//   seconds   the operations, of whichever micro-batch has fewest, over the card's peak; the state that is there from
//             step to step, over its bandwidth; the bus. Of a solved schedule: as if every layer could be treated in
//             parts, and all room were its (a linear program with two choices, as a lower envelope)

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/search/task.h"

namespace oomlab::plan {

/// Combinations that differ in their checkpoints alone: none, segments of 1, 2, … layers, or a solved schedule.
enum class Checkpoints { none, segments, solved };
inline Checkpoints checkpoints_of(const Levers& levers) {
  if (levers.solved) return Checkpoints::solved;
  return levers.recompute ? Checkpoints::segments : Checkpoints::none;
}

/// Seconds of what cannot be.
inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Bound {
  double seconds =
      0;  ///< 0 without a card; infinite: cannot be, in this room, on this card, or with this much host memory
  std::uint64_t bytes = 0;  ///< of the rank that needs most
};

/// Keeps what it has computed: not thread-safe.
class Bounds {
 public:
  explicit Bounds(const SearchTask& task) : task_(task), spec_(task.one.spec), seq_(task.one.seq) {}

  /// Of levers with any of these micro-batches, ascending, each of which divides a rank's share. What the levers say of
  /// micro-batches and of the length of segments does not count. Throws std::length_error.
  Bound of(const Work& work, const Levers& levers, Checkpoints checkpoints, std::span<const std::uint64_t> micros);
  /// No step takes less, with segments of levers.recompute layers and levers.micro_batch.
  double seconds_of_segments(const Work& work, const Levers& levers);
  /// No step with this state takes less host memory, of all ranks. What its passes keep and its micro-batch do not count.
  std::uint64_t least_host_bytes(const Work& work, const Levers& levers);

 private:
  // Of one layer, and of the head: bytes above the state.
  struct LayerBytes {
    std::uint64_t held = 0, forward = 0, backward = 0, head = 0;
    double raw = 0;  // held by one sequence, without rounding
  };
  // What was computed for layers, by the levers and the micro-batch; raw bytes and operations of each choice.
  struct OfLayers {
    std::unordered_map<std::uint64_t, LayerBytes> bytes;
    std::unordered_map<std::uint64_t, double> flops;
    std::unordered_map<std::uint64_t, std::vector<std::pair<double, double>>> again;
  };
  OfLayers& of_layers(const Layout& ranks) { return of_layers_[{ranks.cp, ranks.context}]; }
  // Tokens that a rank has of each sequence.
  std::uint64_t own_seq(const Layout& ranks) const { return task_.one.seq / ranks.cp; }
  const LayerBytes& layer_bytes(const Levers& levers, Checkpoints checkpoints, std::uint64_t micro);
  // Operations of a layer for a rank's share, in whichever micro-batches have fewest; and of all layers together those
  // that a solved schedule computes again.
  double least_layer_flops(const Levers& levers, Checkpoints checkpoints, std::uint64_t share,
                           std::span<const std::uint64_t> micros);
  double least_again(const Work& work, const Levers& levers, std::uint64_t state, std::uint64_t share,
                     std::span<const std::uint64_t> micros);
  // Of the first stage of each kind, with the same state of one rank or several: what stays on a rank from step to step,
  // and a layer's parameters. Asked for one state after the other, with every form of a step.
  struct StageState {
    std::uint64_t stage = 0;
    nn::Slice slice{};
    ByCategory bytes;
    std::uint64_t layer = 0;
  };
  const std::vector<StageState>& states_of_stages(const Work& work, const Levers& levers);
  const ByCategory& state_of_one(const Work& work, const Levers& levers);
  double seconds(const Work& work, const Levers& levers, const ByCategory& state, double flops);

  const SearchTask& task_;
  const nn::TransformerSpec& spec_;
  std::uint64_t seq_;
  std::map<std::pair<std::uint64_t, nn::ContextForm>, OfLayers> of_layers_;
  std::map<std::uint64_t, ByCategory> states_;
  Levers of_stages_;
  std::vector<StageState> stages_;  // with those levers; none yet: empty
  Levers of_host_;
  std::optional<std::uint64_t> on_host_;  // with those levers
};

}  // namespace oomlab::plan
