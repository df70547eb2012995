#pragma once
// Rounds of a loop that ask for the same memory: micro-batches, batches, steps.
//
// A plan computes nothing. So when one of its rounds has done to the ledger what the round before it did, event by
// event, all that follow would, and no peak changes any more. They are left out: a billion steps take as long as three.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/context.h"

namespace oomlab {

/// While a timeline is recorded, a plan leaves rounds out only after so many of its events.
inline constexpr std::size_t kEventsToldInFull = 100'000;

/// Counts the rounds of a loop:
///
///   for (Repetition rounds(context, micro_batches); rounds.next();) micro_batch(rounds.number());
///
/// Outside of plan mode each of them is done. In plan mode the rest is left out once a round repeats the one before;
/// visits of phases and operations are counted as if it had not been. That is right where what a round asks for follows
/// from what is allocated and not from its number, which whoever uses this promises. None is left out while an observer
/// of the ledger wants to be told of each (--watch).
class Repetition {
 public:
  Repetition(Context& context, std::size_t count);
  ~Repetition();
  Repetition(const Repetition&) = delete;
  Repetition& operator=(const Repetition&) = delete;

  /// False when all rounds are done, or the others left out.
  bool next();
  /// Of the round that has begun, from 0.
  std::size_t number() const noexcept { return done_ - 1; }
  /// How many have begun.
  std::size_t done() const noexcept { return done_; }
  std::size_t left_out() const noexcept { return left_out_; }

 private:
  bool repeats();

  Context& context_;
  std::size_t count_, done_ = 0, left_out_ = 0;
  bool plans_;
  std::uint64_t outer_history_ = 0;   // what was there before the loop, and goes on after it
  std::uint64_t last_ = 0, all_ = 0;  // the hash of the round before, and of all rounds
  std::uint64_t flops_ = 0;           // when the round began
  std::vector<std::size_t> visits_;   // the same
};

}  // namespace oomlab
