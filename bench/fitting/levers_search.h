#pragma once
// All combinations of levers that make sense, and the best of them, without planning them all: whoever cannot be better
// than the best so far is not planned (branch and bound; Land and Doig, 1960). With a thousand cards there are a
// hundred million. So bounds (bounds.h) are of families, which are opened only where a member may be better.

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "bounds.h"
#include "progress.h"
#include "question.h"

namespace oomlab::fit {

using nn::AttentionForm, nn::GradientLife, nn::LossForm, nn::UpdateRule, nn::WeightForm;

/// What is trained, on so many of the cards that there are: one alone has no buffers between ranks.
Work work_for(const Question& question, std::size_t ranks);
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
  std::array<std::size_t, 4> place{};  ///< among all, so that of equals the choice is always the same
  std::size_t peak() const { return plan.peak.total(); }
};

class LeversSearch {
 public:
  explicit LeversSearch(const Question& question, SearchProgress* progress = nullptr);

  /// The least bound on time of all that fit; of equals the fewest changes, then the least peak, then the first.
  std::optional<Candidate> cheapest() { return first_that_fits(false); }
  /// The cheapest of those that fit with the fewest changes.
  std::optional<Candidate> fewest() { return first_that_fits(true); }
  /// The least peak of all, where nothing fits.
  std::optional<Candidate> closest();
  /// Combinations that make sense and are allowed.
  std::size_t count() const { return count_; }
  /// Those that were planned so far.
  std::size_t planned() const { return planned_; }

 private:
  // All but the micro-batch and the form of a step.
  struct Head {
    Levers levers;
    std::size_t share;  // of a rank, samples
  };
  // The rest, but for the length of segments.
  struct Form {
    AttentionForm attention;
    LossForm loss;
    bool lean;
    Checkpoints checkpoints;
  };
  // A head and a form, with a micro-batch that is the whole share, or (`parts`) any smaller one that divides it.
  struct Family {
    double seconds;     // a bound
    std::size_t bytes;  // a bound
    std::uint32_t head;
    std::uint8_t form, changes;
    bool parts;
  };
  using Hopeless = std::function<bool(double seconds, std::size_t bytes)>;
  using Found = std::function<void(Candidate&)>;

  std::vector<capstone::Layout> layouts() const;
  void add(const Levers& head);
  const std::vector<std::uint8_t>& forms_of(const Levers& head);
  std::span<const std::size_t> micros_of(std::size_t share, bool parts);
  Levers levers_of(const Head& head, const Form& form) const;
  Bound bound_of(const Levers& levers, Checkpoints checkpoints, std::span<const std::size_t> micros);
  const Work& work_of(const Levers& levers) const { return levers.ranks.ranks() > 1 ? several_ : one_; }
  bool fits(const Candidate& candidate) const { return candidate.peak() <= work_of(candidate.levers).room(); }
  std::optional<Candidate> first_that_fits(bool changes_first);
  // All of a family, but what `hopeless` says of bounds.
  void open(const Family& family, const Hopeless& hopeless, const Found& found);
  std::optional<Candidate> plan(const Levers& levers);

  const Question& question_;
  Work one_, several_;  // on one card, on several
  SearchProgress* progress_;
  Levers base_;
  Bounds bounds_;
  std::vector<Head> heads_;
  std::vector<Form> forms_;
  std::vector<Family> families_;
  std::map<std::size_t, std::vector<std::size_t>> divisors_;
  std::optional<std::vector<std::uint8_t>> forms_of_one_, forms_of_several_;
  std::size_t count_ = 0, planned_ = 0;
};

}  // namespace oomlab::fit
