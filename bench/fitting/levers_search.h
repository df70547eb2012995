#pragma once
// All combinations of levers that make sense, and the best of them, without planning them all: whoever cannot be better
// than the best so far is not planned (branch and bound; Land and Doig, 1960). Bounds are from below:
//
//   seconds   the operations, which no schedule avoids, over the card's peak; the state that is there from step to
//             step, over its bandwidth; the bus. Of a solved schedule: as if every layer could be treated in parts, and all
//             room were its (a linear program with two choices, as a lower envelope)
//   bytes     the state

#include <cmath>
#include <functional>
#include <limits>

#include "../../chapters/16_capstone/levers.h"
#include "question.h"

namespace oomlab::fit {

using capstone::Levers, capstone::Plan, capstone::Work;
using nn::AttentionForm, nn::GradientLife, nn::LossForm, nn::UpdateRule, nn::WeightForm;

/// The textbook's step, on all cards that the batch can be shared among; in the precision that is asked for.
Levers step_as_it_is(const Question& question);
/// Whether `question` allows a combination: its precision, numbers, and levers.
bool allowed(const Question& question, const Levers& levers);
/// Levers that are not as in `base`. Cards count once, and ZeRO once.
std::size_t changes_between(const Levers& base, const Levers& levers);

struct Candidate {
  Levers levers;
  Plan plan;
  double seconds = 0;
  std::size_t changes = 0;
  std::size_t peak() const { return plan.peak.total(); }
};

class LeversSearch {
 public:
  LeversSearch(const Question& question, const Work& work);

  /// Nothing when the card does not compute so. Throws as plan_of().
  std::optional<Candidate> tried(const Levers& levers) const;
  bool fits(const Candidate& candidate) const { return candidate.peak() <= work_.room(); }

  /// The least bound on time of all that fit; of equals the fewest changes, then the least peak.
  std::optional<Candidate> cheapest() const { return first_that_fits(false); }
  /// The cheapest of those that fit with the fewest changes.
  std::optional<Candidate> fewest() const { return first_that_fits(true); }
  /// One that fits, if any does; else the least peak of all.
  std::optional<Candidate> least() const;
  /// Combinations that make sense and are allowed.
  std::size_t count() const { return count_; }
  /// Of these, how often one was planned: the work of the search.
  std::size_t plans() const { return plans_; }

 private:
  // Combinations that differ in their checkpoints alone: none, segments of 1, 2, … layers, or a solved schedule.
  enum class Kind { none, segments, solved };
  struct Node {
    Levers levers;
    Kind kind;
    double seconds;     // a bound
    std::size_t bytes;  // a bound
    std::size_t changes;
  };

  // Ordered by changes and then the bound on time, or the other way round; of equals the one with the least peak.
  std::optional<Candidate> first_that_fits(bool changes_first) const;
  std::vector<capstone::Layout> layouts() const;
  void add_nodes(const Levers& head);
  // What no schedule avoids, on one rank.
  struct Least {
    ByCategory state;       // from step to step, on whichever rank has least of it
    std::size_t bytes = 0;  // of it, on the rank that has most
    double flops = 0;       // on the rank that has most to do
  };
  Least least_of(const Levers& levers) const;
  double solved_flops(const Levers& levers, const ByCategory& state) const;
  std::optional<double> seconds_of(const Levers& levers, const ByCategory& bytes, double flops) const;
  void try_node(const Node& node, const std::function<bool(double seconds)>& hopeless,
                const std::function<void(Candidate)>& found) const;

  const Question& question_;
  Work work_;
  Levers base_;
  std::vector<Node> nodes_;
  std::size_t count_ = 0;
  mutable std::size_t plans_ = 0;
};

}  // namespace oomlab::fit
