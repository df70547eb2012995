// The schedule for a budget.

#include <algorithm>
#include <iterator>
#include <limits>

#include "plan/interrupt.h"
#include "plan/schedule.h"

namespace oomlab::nn {

std::vector<Segment> segment_choices(std::uint64_t longest, const StepForm& form) {
  std::vector<Segment> choices;
  const bool textbook = form.attention == AttentionForm::textbook;
  for (const bool cheap : {true, false})      // norms and GELU go together: no product makes them
    for (const bool product : {true, false})  // where there are no probabilities, the product after the attention
      choices.push_back({1,
                         false,
                         {.norms = cheap,
                          .gelu = cheap,
                          .probabilities = !textbook || product,
                          .post_attention_residual = textbook || product}});
  for (std::uint64_t n = 1; n <= longest; ++n) choices.push_back({n, true, {}});
  return choices;
}

std::optional<Schedule> solve_schedule(const TransformerSpec& spec, std::uint64_t element_bytes,
                                       std::uint64_t sequences, std::uint64_t seq, std::uint64_t budget,
                                       const ByCategory& resident, const StepForm& form) {
  const StepLevers levers{.element_bytes = element_bytes, .sequences = sequences, .seq = seq, .form = form};
  const std::uint64_t fixed = checked_sum(resident.total(), token_batch_bytes(sequences, seq));
  if (budget <= fixed) return std::nullopt;
  const std::uint64_t room = budget - fixed;
  if (predict_schedule(spec, element_bytes, sequences, seq, keep_everything(spec.layers), resident, form).total() <=
      budget)
    return keep_everything(spec.layers);

  struct Choice {
    Segment segment;
    std::uint64_t held, peak;
    double recomputed;
  };
  std::vector<Choice> choices;
  // Longer segments neither save bytes (the best length is below sqrt(layers)) nor operations (each leaves out one
  // product).
  for (const Segment& s : segment_choices(std::min(spec.layers, 2 * root_of(spec.layers) + 2), form)) {
    const SegmentBytes bytes = segment_bytes(spec, levers, s);
    choices.push_back({s, bytes.held, std::max(bytes.forward_peak, bytes.backward_peak),
                       recompute_cost(spec, sequences, seq, s, form)});
  }

  // after[l]: ways to treat the first l layers. A way that holds no less and computes no less than another is dropped:
  // whatever follows it could follow the other.
  struct State {
    std::uint64_t held;
    double recomputed;
    std::uint64_t from, choice;  // the state before, in after[l − layers of the choice], and the choice that led here
  };
  std::vector<std::vector<State>> after(spec.layers + 1);
  after[0] = {{embedding_bytes(spec, element_bytes, sequences, seq), 0, 0, 0}};
  // Each list is in order, more bytes and fewer operations as it goes on, and so is what a choice makes of it: merged
  // one after the other, of equals the earlier choice first.
  const auto less = [](const State& a, const State& b) {
    return a.held != b.held ? a.held < b.held : a.recomputed < b.recomputed;
  };
  std::vector<State> more, merged;
  for (std::uint64_t l = 1; l <= spec.layers; ++l)
    for (std::uint64_t c = 0; c < choices.size(); ++c) {
      const Choice& choice = choices[c];
      if (choice.segment.layers > l) continue;
      check_interrupt();
      const auto& before = after[l - choice.segment.layers];
      more.clear(), merged.clear();
      for (std::uint64_t i = 0; i < before.size() && before[i].held + choice.peak <= room; ++i)
        more.push_back({before[i].held + choice.held, before[i].recomputed + choice.recomputed, i, c});
      std::merge(after[l].begin(), after[l].end(), more.begin(), more.end(), std::back_inserter(merged), less);
      after[l].clear();
      for (const State& state : merged)
        if (after[l].empty() || state.recomputed < after[l].back().recomputed) after[l].push_back(state);
    }

  // The fewer operations, the more bytes: the last one that leaves room for the loss.
  const auto& ends = after[spec.layers];
  const std::uint64_t head = head_peak_bytes(spec, levers);
  for (std::uint64_t i = ends.size(); i-- > 0;) {
    if (ends[i].held + head > room) continue;
    Schedule schedule;
    for (std::uint64_t l = spec.layers, at = i; l > 0;) {
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

}  // namespace oomlab::nn
