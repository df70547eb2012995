#pragma once
// Memory that grows: from round to round of a loop, at the same point of each, more bytes are live. Who, since when,
// and when the budget is reached.
//
// A program that repeats itself should hold the same bytes at the same point of each round: at its end, and at the end
// of each phase in it. What tells a leak from what is none:
//   - Warm-up. The first rounds make what stays (optimizer state, caches): the first two are not looked at.
//   - A cache fills, and stops. So growth has to go on: of the last 8, 16, ... 128 rounds each quarter's least bytes
//     are above those of the quarter before, and the last rise is less long ago than rises lie apart. A cache that
//     fills for more than ten rounds is named while it does, and no more when it is full.
//   - Inputs of varying length. Where bytes have ever fallen from one round to the next, eight rising rounds come about
//     by chance, once in 40,000 tries. There it takes 32 rounds, whose rising and falling pairs differ by Kendall's S
//     of at least 4.8 standard deviations, once in a million (H. B. Mann, "Nonparametric tests against trend", 1945).
// So a leak from the first round on is found in the tenth.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/ledger.h"

namespace oomlab {

/// What grows at one point of a loop.
struct Growth {
  struct Tag {
    Category category{};
    std::string tag;
    double bytes_a_round = 0;
  };
  std::string loop;   ///< "step"
  std::string phase;  ///< grows at the end of this phase, and is given back before the round ends; empty: it is not
  std::size_t rounds = 0;      ///< of the loop, that were seen
  std::size_t since = 0;       ///< the first round, from 1, that left more behind than the one before, as all after it
  std::size_t found_in = 0;    ///< the round after which this was known; 0: only because memory ran out
  double bytes_a_round = 0;    ///< on average
  std::vector<Tag> tags = {};  ///< that grow, at most five, largest first
  /// The first round whose peak is above the budget: seen, or, as the peaks grow, to come.
  std::optional<std::size_t> exceeds_in = std::nullopt;
};

/// One line: "20.29 MiB more after each step, since step 1 of 10: ..., found in step 10; ...".
std::string describe(const Growth& growth, std::size_t budget, bool chinese = false);

/// Looks on (Ledger::set_observer), and says what grows. Needs 16 bytes for each point of a round, and compares the
/// live blocks' tags after each round.
class GrowthDetector : public LedgerObserver {
 public:
  /// `budget` bytes (kUnlimited: none): when it is exceeded is said, too.
  explicit GrowthDetector(std::size_t budget = kUnlimited) : budget_(budget) {}

  /// What grows in the loops that are open, and what had grown when others ended; one for each loop, by name. Where a
  /// loop was cut short by an exception, two rises after its first round are enough: then memory has run out.
  /// Throws std::bad_alloc, also when something could not be noted.
  std::vector<Growth> growths() const;

  void changed(const Ledger& ledger) noexcept override;
  void phase_ended(const Ledger& ledger, std::string_view name) noexcept override;
  void loop_began(const Ledger& ledger, std::string_view name) override;
  /// Throws std::bad_alloc, also when a phase could not be noted.
  void round_ended(const Ledger& ledger) override;
  void loop_ended(const Ledger& ledger, bool cut_short) noexcept override;
  void rounds_left_out(const Ledger& ledger, std::size_t rounds) override;

 private:
  struct At {
    std::size_t round, bytes;
  };
  struct Point {
    std::string phase;      // empty: the end of the round
    std::size_t visit = 0;  // of the phase, in a round
    std::vector<At> live = {};
    bool has_fallen = false;  // after the warm-up
    // Of each tag, the bytes from a round on; kept for the end of rounds, elsewhere only once bytes have risen.
    std::map<std::pair<Category, std::string>, std::vector<At>> tags = {};
    std::size_t tags_since = 0;  // round; 0: not kept
  };
  struct OpenLoop {
    std::string name;
    std::size_t rounds = 0, found_in = 0;
    std::vector<Point> points = {};                  // the first one is the end of the round
    std::map<std::string, std::size_t> visits = {};  // of phases, in this round
    std::size_t peak = 0;                            // of this round
    std::vector<std::size_t> peaks = {};             // of each round
  };

  static void note(const Ledger& ledger, Point& point, std::size_t round);
  static std::size_t growing_window(const Point& point, std::size_t rounds);
  std::optional<Growth> growth_of(const OpenLoop& loop, bool cut_short) const;
  Growth growth_at(const OpenLoop& loop, const Point& point, std::size_t window) const;

  std::size_t budget_;
  std::vector<OpenLoop> open_;
  std::map<std::string, Growth> ended_;
  bool lost_ = false;  // something could not be noted
};

}  // namespace oomlab
