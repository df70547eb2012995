// The schedule for a budget.

#include <algorithm>
#include <limits>
#include <utility>

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

namespace {

// A way to treat a stretch of layers.
struct Choice {
  Segment segment;
  std::uint64_t held, peak;
  double recomputed;
};

// What layers compute again at the least, by what they may hold together: as if each could be treated in parts, by any
// mixture of the choices. Bytes have a price, in operations, at which the layers' bytes and operations together cost
// what they cost at the least; for bytes that they may hold and don't, they are paid. That is a bound from below at
// any price (a Lagrangian relaxation), and the best one at a price at which two choices cost the same.
class LeastRecomputed {
 public:
  explicit LeastRecomputed(const std::vector<Choice>& choices) {
    std::vector<std::pair<double, double>> each;  // of a layer: operations, bytes
    for (const Choice& c : choices)
      each.emplace_back(c.recomputed / double(c.segment.layers), double(c.held) / double(c.segment.layers));
    std::pair<double, double> at = *std::min_element(each.begin(), each.end());
    most_ = std::max_element(each.begin(), each.end())->first;
    for (double price = 0;;) {
      prices_.push_back({price, at.first + price * at.second});
      // The next price at which another choice, of fewer bytes, becomes as cheap.
      double next = std::numeric_limits<double>::infinity();
      std::pair<double, double> then = at;
      for (const auto& of : each) {
        if (of.second >= at.second) continue;
        const double equal = (of.first - at.first) / (at.second - of.second);
        if (equal < next || (equal == next && of.second < then.second)) {
          next = equal;
          then = of;
        }
      }
      if (then == at) break;
      price = next;
      at = then;
    }
  }
  double of(std::uint64_t layers, std::uint64_t room) const {
    double least = 0;
    for (const auto& [price, cost] : prices_) least = std::max(least, double(layers) * cost - price * double(room));
    return least;
  }
  // Of a layer, where every one is treated in the way that computes most again.
  double most() const { return most_; }

 private:
  std::vector<std::pair<double, double>> prices_;  // of a byte; and a layer's bytes and operations at that price
  double most_ = 0;
};

}  // namespace

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

  std::vector<Choice> choices;
  // Longer segments neither save bytes (the best length is below sqrt(layers)) nor operations (each leaves out one
  // product).
  for (const Segment& s : segment_choices(std::min(spec.layers, 2 * root_of(spec.layers) + 2), form)) {
    const SegmentBytes bytes = segment_bytes(spec, levers, s);
    choices.push_back({s, bytes.held, std::max(bytes.forward_peak, bytes.backward_peak),
                       recompute_cost(spec, sequences, seq, s, form)});
  }

  // What the first l layers may hold, so that there is a way to treat the rest.
  const std::uint64_t head = head_peak_bytes(spec, levers);
  if (head > room) return std::nullopt;
  const auto index = [](std::uint64_t count) { return static_cast<std::size_t>(count); };  // kMostLayers at most
  const std::size_t layers = index(spec.layers);
  std::vector<std::optional<std::uint64_t>> most(layers);
  most.emplace_back(room - head);
  for (std::size_t l = layers; l-- > 0;)
    for (const Choice& choice : choices) {
      if (choice.segment.layers > layers - l || choice.peak > room) continue;
      const auto& then = most[l + index(choice.segment.layers)];
      if (then && *then >= choice.held)
        most[l] = std::max(most[l].value_or(0), std::min(*then - choice.held, room - choice.peak));
    }
  const std::uint64_t embedding = embedding_bytes(spec, element_bytes, sequences, seq);
  if (!most[0] || *most[0] < embedding) return std::nullopt;

  // after[l]: ways to treat the first l layers. A way that holds no less and computes no less than another is dropped:
  // whatever follows it could follow the other.
  struct State {
    std::uint64_t held;
    double recomputed;
    std::size_t from, choice;  // the state before, in after[l − layers of the choice], and the choice that led here
  };
  std::vector<std::vector<State>> after(layers + 1);
  after[0] = {{embedding, 0, 0, 0}};
  // Each list is in order, more bytes and fewer operations as it goes on, and so is what a choice makes of it: merged
  // one after the other, of equals the earlier choice first.
  const auto less = [](const State& a, const State& b) {
    return a.held != b.held ? a.held < b.held : a.recomputed < b.recomputed;
  };
  std::vector<State> more, merged;
  std::vector<std::size_t> useful;
  // So is a way that must compute more than `limit` in the end. The limit is a guess, which grows until a schedule is
  // below it: of those that are as good none was dropped then.
  const LeastRecomputed least(choices);
  const double rounding = 1e-9 * double(spec.layers) * least.most();
  const double bound = least.of(spec.layers, room - head - embedding);
  for (double slack = 0.25 * least.most();; slack *= 4) {
    const double limit = bound + slack;
    const auto may_be_best = [&](std::uint64_t treated, std::uint64_t held, double recomputed) {
      return held + head <= room &&
             recomputed + least.of(spec.layers - treated, room - head - held) <= limit + rounding;
    };
    useful.clear();  // choices that a schedule below the limit may have, wherever
    for (std::size_t c = 0; c < choices.size(); ++c)
      if (may_be_best(choices[c].segment.layers, embedding + choices[c].held, choices[c].recomputed))
        useful.push_back(c);
    for (std::size_t l = 1; l <= layers; ++l) {
      after[l].clear();
      if (!most[l]) continue;
      for (const std::size_t c : useful) {
        const Choice& choice = choices[c];
        if (choice.segment.layers > l) continue;
        check_interrupt();
        const auto& before = after[l - index(choice.segment.layers)];
        more.clear();
        for (std::size_t i = 0; i < before.size() && before[i].held + choice.peak <= room; ++i) {
          const State next{before[i].held + choice.held, before[i].recomputed + choice.recomputed, i, c};
          if (next.held > *most[l]) break;
          if (may_be_best(l, next.held, next.recomputed)) more.push_back(next);
        }
        if (more.empty()) continue;
        merged.resize(after[l].size() + more.size());
        std::merge(after[l].begin(), after[l].end(), more.begin(), more.end(), merged.begin(), less);
        std::size_t kept = 0;
        for (const State& state : merged)
          if (kept == 0 || state.recomputed < merged[kept - 1].recomputed) merged[kept++] = state;
        merged.resize(kept);
        after[l].swap(merged);
      }
    }
    // The fewer operations, the more bytes: the last one.
    if (after[layers].empty() || after[layers].back().recomputed > limit) continue;
    Schedule schedule;
    for (std::size_t l = layers, at = after[l].size() - 1; l > 0;) {
      const State& state = after[l][at];
      schedule.push_back(choices[state.choice].segment);
      l -= index(choices[state.choice].segment.layers);
      at = state.from;
    }
    std::reverse(schedule.begin(), schedule.end());
    return schedule;
  }
}

}  // namespace oomlab::nn
