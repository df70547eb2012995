#pragma once
// Lengths of sequences that come in turn: so that a step of any number of them costs no more to plan than one turn.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace oomlab::nn {

/// Sequence i has turn[(first + i) mod turn.size()] tokens.
struct LengthsInTurn {
  std::vector<std::uint64_t> turn;
  std::uint64_t first = 0;

  bool empty() const noexcept { return turn.empty(); }
  std::uint64_t of(std::uint64_t sequence) const {
    return turn[(first % turn.size() + sequence % turn.size()) % turn.size()];
  }
  /// The same from another sequence on.
  LengthsInTurn from(std::uint64_t sequence) const {
    return {turn, (first % turn.size() + sequence % turn.size()) % turn.size()};
  }
  /// Calls body(tokens, times) for `count` sequences, those of the same place in the turn at once.
  template <class Body>
  void each(std::uint64_t count, Body body) const {
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, turn.size()); ++i)
      body(of(i), count / turn.size() + (i < count % turn.size()));
  }
  /// After how many groups of so many sequences the same group comes again.
  std::uint64_t period(std::uint64_t sequences) const {
    return turn.size() / std::gcd(sequences % turn.size(), std::uint64_t(turn.size()));
  }
  friend bool operator==(const LengthsInTurn&, const LengthsInTurn&) = default;
};

}  // namespace oomlab::nn
