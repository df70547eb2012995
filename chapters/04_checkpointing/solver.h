#pragma once
// The schedule for a budget.

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "checkpointing.h"
#include "plan/interrupt.h"

namespace oomlab::checkpointing {

/// All ways to treat a stretch of layers that the solver knows; recomputed segments have up to `longest` layers.
inline std::vector<Segment> segment_choices(std::size_t longest, const nn::StepForm& form = {}) {
  std::vector<Segment> choices;
  const bool textbook = form.attention == nn::AttentionForm::textbook;
  for (const bool cheap : {true, false})      // norms and GELU go together: no product makes them
    for (const bool product : {true, false})  // where there are no probabilities, the product after the attention
      choices.push_back(
          {1,
           false,
           {.norms = cheap, .gelu = cheap, .probabilities = !textbook || product, .middle = textbook || product}});
  for (std::size_t n = 1; n <= longest; ++n) choices.push_back({n, true, {}});
  return choices;
}

/// The schedule that recomputes the fewest operations (not the least time, see recompute_cost()) among all whose peak
/// is at most `budget` bytes, `resident` included; nothing when there is none. Exact: dynamic programming over the
/// layers, whose states are all (bytes held, operations) of which no other is better in both. Of schedules that are
/// equal in both it is the one whose last segment comes first in segment_choices(), and so on towards the front: the
/// same with every library.
inline std::optional<Schedule> solve_schedule(const nn::TransformerSpec& spec, std::size_t element_bytes,
                                              std::size_t sequences, std::size_t seq, std::size_t budget,
                                              const ByCategory& resident, const nn::StepForm& form = {}) {
  const nn::StepLevers levers{.element_bytes = element_bytes, .sequences = sequences, .seq = seq, .form = form};
  const std::size_t fixed = checked_sum(resident.total(), nn::token_batch_bytes(sequences, seq));
  if (budget <= fixed) return std::nullopt;
  const std::size_t room = budget - fixed;
  if (predict_schedule(spec, element_bytes, sequences, seq, keep_everything(spec.layers), resident, form).total() <=
      budget)
    return keep_everything(spec.layers);

  struct Choice {
    Segment segment;
    std::size_t held, peak;
    double recomputed;
  };
  std::vector<Choice> choices;
  // Longer segments neither save bytes (the best length is below sqrt(layers)) nor operations (each leaves out one
  // product).
  for (const Segment& s : segment_choices(std::min(spec.layers, 2 * root_of(spec.layers) + 2), form)) {
    const nn::SegmentBytes bytes = nn::segment_bytes(spec, levers, s);
    choices.push_back({s, bytes.held, std::max(bytes.forward_peak, bytes.backward_peak),
                       recompute_cost(spec, sequences, seq, s, form)});
  }

  // after[l]: ways to treat the first l layers. A way that holds no less and computes no less than another is dropped:
  // whatever follows it could follow the other.
  struct State {
    std::size_t held;
    double recomputed;
    std::size_t from, choice;  // the state before, in after[l − layers of the choice], and the choice that led here
  };
  std::vector<std::vector<State>> after(spec.layers + 1);
  after[0] = {{nn::embedding_bytes(spec, element_bytes, sequences, seq), 0, 0, 0}};
  // Each list is in order, more bytes and fewer operations as it goes on, and so is what a choice makes of it: merged
  // one after the other, of equals the earlier choice first.
  const auto less = [](const State& a, const State& b) {
    return a.held != b.held ? a.held < b.held : a.recomputed < b.recomputed;
  };
  std::vector<State> more, merged;
  for (std::size_t l = 1; l <= spec.layers; ++l)
    for (std::size_t c = 0; c < choices.size(); ++c) {
      const Choice& choice = choices[c];
      if (choice.segment.layers > l) continue;
      check_interrupt();
      const auto& before = after[l - choice.segment.layers];
      more.clear(), merged.clear();
      for (std::size_t i = 0; i < before.size() && before[i].held + choice.peak <= room; ++i)
        more.push_back({before[i].held + choice.held, before[i].recomputed + choice.recomputed, i, c});
      std::merge(after[l].begin(), after[l].end(), more.begin(), more.end(), std::back_inserter(merged), less);
      after[l].clear();
      for (const State& state : merged)
        if (after[l].empty() || state.recomputed < after[l].back().recomputed) after[l].push_back(state);
    }

  // The fewer operations, the more bytes: the last one that leaves room for the loss.
  const auto& ends = after[spec.layers];
  const std::size_t head = nn::head_peak_bytes(spec, levers);
  for (std::size_t i = ends.size(); i-- > 0;) {
    if (ends[i].held + head > room) continue;
    Schedule schedule;
    for (std::size_t l = spec.layers, at = i; l > 0;) {
      const State& state = after[l][at];
      schedule.push_back(choices[state.choice].segment);
      l -= choices[state.choice].segment.layers;
      at = state.from;
    }
    std::reverse(schedule.begin(), schedule.end());
    return schedule;
  }
  return std::nullopt;
}

}  // namespace oomlab::checkpointing
