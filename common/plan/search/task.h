#pragma once
// What a search is asked: a step, the cards that there are, and how far it may go.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "plan/lever/lever.h"
#include "plan/plan.h"

namespace oomlab::plan {

struct SearchTask {
  Work one;                      ///< on one card, under its budget
  Work several;                  ///< the same on several, whose budget has buffers between ranks taken off
  std::uint64_t cards = 1;       ///< that there are
  const Card* card = nullptr;    ///< whose times are bounds; without one only bytes are bounded
  std::uint64_t host_bytes = 0;  ///< of host memory that a step may take
  double host_gb_per_s = 0;      ///< of host memory
  Numbers::Change change = Numbers::Change::fewer_bits;  ///< no combination changes the numbers more than this
  std::optional<DType> precision;                        ///< only this one
  std::set<std::string> without;                         ///< levers that are left out, by LeverWord::name
  /// Called now and then, if there: so many combinations are known, so many of them planned.
  std::function<void(std::uint64_t known, std::uint64_t planned)> progress;

  const Work& work_of(const Levers& levers) const { return levers.ranks.ranks() > 1 ? several : one; }
};

/// The textbook's step, on all cards that the batch can be shared among; in the precision that is asked for.
Levers step_as_it_is(const SearchTask& task);
/// Whether the task allows a combination that is not refused: its precision, numbers, and levers. No search tries
/// paged moments, packing, or solved schedules whose inputs are in host memory; context parallelism is tried on up to
/// kCardsOfWholeSearch cards, of sequences of kTokensToShare and more.
bool allowed(const SearchTask& task, const Levers& levers);

/// Cards up to which every grid is tried with every optimizer.
inline constexpr std::uint64_t kCardsOfWholeSearch = 8;
/// Tokens of a sequence from which ranks are tried that share them out. Of shorter ones ranks share samples or layers.
inline constexpr std::uint64_t kTokensToShare = 16384;
/// Every combination of what the levers of these kinds try, on top of `base`: none that is refused or not allowed, and
/// none twice. Levers of the list that come later vary faster. Of more than kCardsOfWholeSearch cards, AdamW in FP32 or
/// with a master copy is tried on every grid, and all other ways to keep the state on those that use as many cards as
/// they can: they save memory and no time, so that an answer with fewer cards is hardly ever one of theirs. Schedules that
/// are solved are tried on one rank.
std::vector<Levers> combinations(const SearchTask& task, const Levers& base, Lever::Changes changes);

/// Whether segments of every length are tried, or those of one layer alone.
bool tries_each_length(const SearchTask& task, const Levers& levers);

/// `state`, whose passes are not chosen yet, with those by which it is asked whether it makes sense: the textbook's, but
/// where a ring merges blocks of keys, which fused attention alone does.
Levers with_any_pass(Levers state);

/// `state` with what passes keep in `pass`.
Levers with_pass(Levers state, const Levers& pass);

}  // namespace oomlab::plan
