#pragma once
// All combinations of levers that make sense, and the best of them, without planning them all: whoever cannot be better
// than the best so far is not planned (branch and bound; Land and Doig, 1960). With a thousand cards there are a
// hundred million. So bounds (bounds.h) are of families, which are opened only where a member may be better.

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "plan/search/bounds.h"

namespace oomlab::plan {

struct Candidate {
  Levers levers;
  Plan plan;
  double seconds = 0;
  std::uint64_t changes = 0;
  std::array<std::uint64_t, 4> place{};  ///< among all, so that of equals the choice is always the same
  std::uint64_t peak() const { return plan.peak.total(); }
};

class LeversSearch {
 public:
  /// The task must outlive this.
  explicit LeversSearch(const SearchTask& task);

  /// The least bound on time of all that fit; of equals the fewest changes, then the least peak, then the first.
  std::optional<Candidate> cheapest() { return first_that_fits(First::least_seconds); }
  /// The cheapest of those that fit with the fewest changes.
  std::optional<Candidate> fewest() { return first_that_fits(First::fewest_changes); }
  /// The cheapest of those that fit beside the least host memory.
  std::optional<Candidate> least_on_host() { return first_that_fits(First::least_host_bytes); }
  /// The least peak of all, where nothing fits.
  std::optional<Candidate> closest();
  /// Combinations that make sense and are allowed.
  std::uint64_t count() const { return count_; }
  /// Those that were planned so far.
  std::uint64_t planned() const { return planned_; }

 private:
  // A combination of all but the micro-batch and what passes keep, with a micro-batch that is a rank's whole share, or
  // (`parts`) any smaller one that divides it; and with what passes keep, but for the length of segments. Levers that save
  // memory alone make further families of one. As no bound on time is less with them, and each is one more change, these
  // are made when the search comes to the one without them.
  struct Family {
    double seconds;       // a bound
    std::uint64_t bytes;  // a bound
    std::uint32_t state;  // in states_
    std::uint16_t pass;   // in passes_
    std::uint8_t changes;
    bool parts : 1;
    bool has_further : 1 = false;  // they are there
  };
  static_assert(sizeof(Family) == 24);  // there are millions
  using Hopeless = std::function<bool(double seconds, std::uint64_t bytes)>;
  using Found = std::function<void(Candidate&)>;

  void make_passes();
  void add(const Levers& state);
  void add(std::uint32_t state, std::uint16_t pass, bool parts);
  // Families with one lever more that saves memory alone. Their numbers begin at the answer, and end at the last family.
  std::uint32_t add_further(std::uint32_t family);
  // Micro-batches that go with these levers that save memory alone, in each of such combinations; the first has none.
  const std::vector<std::uint64_t>& micros_with_further(const Levers& state, bool parts);
  const std::vector<std::uint16_t>& passes_for(const Levers& state);
  std::span<const std::uint64_t> micros_of(std::uint64_t share, bool parts);
  Bound bound_of(const Levers& levers, std::span<const std::uint64_t> micros);
  bool fits(const Candidate& candidate) const { return candidate.peak() <= task_.work_of(candidate.levers).room(); }
  enum class First { least_seconds, fewest_changes, least_host_bytes };
  std::optional<Candidate> first_that_fits(First first);
  // All of a family, but what `hopeless` says of bounds.
  void open(const Family& family, const Hopeless& hopeless, const Found& found);
  std::optional<Candidate> plan(const Levers& levers);
  // plan::schedule_of(), which is asked once for all combinations that are the same to a device.
  nn::Schedule schedule_of(const Work& work, const Levers& levers, const RankCoordinates& place);

  const SearchTask& task_;
  Levers base_;
  Bounds bounds_;
  std::vector<Levers> states_;
  std::vector<Levers> passes_;  // in the textbook's state; segments of one layer stand for those of any length
  std::size_t first_passes_ =
      0;  // of these the ones without a lever that saves memory alone; the others come after them
  std::vector<std::vector<std::uint16_t>> further_;  // of each pass, the passes with one such lever more
  std::vector<std::uint16_t> kind_;                  // of each pass, which combination of such levers it has
  std::deque<Family> families_;                      // millions: a vector that grows has all of them twice
  std::map<std::uint64_t, std::vector<std::uint64_t>> divisors_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, bool>, std::vector<std::uint64_t>> with_further_;
  std::map<std::tuple<bool, bool, nn::ContextForm>, std::vector<std::uint16_t>> passes_for_;
  std::map<std::string, nn::Schedule> solved_;
  std::uint64_t count_ = 0, planned_ = 0;
};

}  // namespace oomlab::plan
