#pragma once
// The variants' names, folk advice about shared devices put to the test, and what was seen of both processes.

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/chapter.h"
#include "sharing.h"
#include "train/image_training.h"

namespace oomlab::sharing {

using train::ImageTraining;
inline constexpr nn::UpdateRule kOptimizer = nn::UpdateRule::adamw;

inline constexpr const char *kFirst = "first come, first served", *kKept = "a cache that is kept",
                            *kEmptied = "a cache that is emptied", *kKilled = "a killed neighbour";
struct NamedRule {
  const char* name;
  Rule rule;
};
inline constexpr NamedRule kRules[] = {{kFirst, Rule::first_come},
                                       {"a cap for the neighbour", Rule::cap},
                                       {"equal shares", Rule::equal_shares},
                                       {"waiting its turn", Rule::wait},
                                       {kKept, Rule::cache_kept},
                                       {kEmptied, Rule::cache_emptied},
                                       {kKilled, Rule::killed}};
using AllSeen = std::map<std::string, Seen>;

/// Seconds of so many allocations of 1 MiB from a pool that is emptied after each of them, or never. Nothing in plan
/// mode.
inline std::optional<double> seconds_of_rounds(bool emptied) {
  if (planning()) return std::nullopt;
  constexpr std::size_t kRounds = 16, kBytes = std::size_t(1) << 20;
  AsyncResource pool;
  const Stream stream;
  const auto round = [&] {
    pool.deallocate(pool.allocate(kBytes, stream), kBytes, stream);
    stream.synchronize();
    if (emptied) pool.trim();
  };
  round();
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kRounds; ++i) round();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline std::vector<Claim> claims_of(const Shares& shares, const std::shared_ptr<AllSeen>& seen) {
  constexpr double kMiB = 1 << 20;
  const Shares card{std::size_t(24) << 30, 0};  // the size at which claims about a card are judged
  const bool limited = shares.budget != kUnlimited;
  // Of what the budget has, what is left for us beside the neighbour.
  const auto left = [](const Shares& s, Rule rule) { return double(s.budget - std::min(s.wanted(), s.cap(rule))); };
  const auto served = [=](const char* name) {
    return [=](const Results& r) -> std::optional<double> {
      const VariantResult* const found = r.find(name);
      if (!found || !limited) return std::nullopt;
      return found->outcome == VariantResult::Outcome::ok;
    };
  };
  const std::string size = "a card of 24 GiB, and a neighbour that reserves three quarters of it";
  return {
      {.text = "nvidia-smi shows free memory, so it fits",
       .what = "what is left when the job asks, after an evaluation of the neighbour / what was free before it",
       .range = at_least(1),
       .size = size,
       .at_size = [=] { return ratio(left(card, Rule::cache_kept), double(card.budget)); },
       .measure = [=](const Results&) -> std::optional<double> {
         return limited ? ratio(left(shares, Rule::cache_kept), double(shares.budget)) : std::nullopt;
       }},
      {.text = "a container has its share",  // article 29
       .what = "what the second of two containers gets / half of the card",
       .range = at_least(1),
       .size = size,
       .at_size = [=] { return ratio(left(card, Rule::first_come), double(card.part(50))); },
       .measure = [=](const Results&) -> std::optional<double> {
         return limited ? ratio(left(shares, Rule::first_come), double(shares.part(50))) : std::nullopt;
       },
       .holds_where = [] { return "holds where somebody enforces it: a cap, a limit of MPS, a slice of MIG"; }},
      {.text = "a dead process keeps its memory",  // article 25
       .what = "share of a killed neighbour's bytes that the device does not have back within a minute",
       .range = at_least(0.5),
       .measure = [=](const Results&) -> std::optional<double> {
         const auto found = seen->find(kKilled);
         return found == seen->end() ? std::nullopt : found->second.device_keeps;
       }},
      {.text = "a context costs nothing",
       .what = "MiB that a process has on a device before it has allocated anything",
       .range = at_most(1),
       .size = "a T4, as fitcheck-llm measured it",
       .at_size = [] { return std::optional(141.0); },
       .measure = [=](const Results& r) -> std::optional<double> {
         const VariantResult* const found = r.find(kKilled);
         if (!found || planning()) return std::nullopt;
         return double(found->device_used_before) / kMiB;
       },
       .here = "the host runtime charges what OOMLAB_HOST_CONTEXT says, nothing by default"},
      {.text = "empty_cache() helps",  // article 12
       .what = "whether the job gets its memory after the neighbour has emptied its cache (1: yes)",
       .range = exactly(1),
       .measure = served(kEmptied),
       .holds_where = [] { return "holds where another process needs the memory, and the job fits without it"; }},
      {.text = "empty_cache() after every epoch costs nothing",  // article 12
       .about = About::time,
       .what = "time of 16 allocations from a pool that is emptied after each / never",
       .range = at_most(1.01),
       .measure = [](const Results&) { return ratio(seconds_of_rounds(true), seconds_of_rounds(false)); }},
  };
}

/// What both processes took, and that it is what was predicted.
inline void tell(const Shares& shares, const AllSeen& seen, const Results& results, Report& report) {
  Table table{"shares",
              fmt::format("what each takes, under a budget of {} (neighbour: at most; beside us: while we run; what is "
                          "cached counts as taken)",
                          shares.budget == kUnlimited ? "none" : format_bytes(shares.budget)),
              {{"variant"},
               {"neighbour", Unit::bytes},
               {"beside us", Unit::bytes},
               {"ours", Unit::bytes},
               {"together", Unit::bytes},
               {"note"}}};
  for (const VariantResult& r : results) {
    const auto found = seen.find(r.name);
    if (found == seen.end() || !r.measured) continue;
    const Seen& s = found->second;
    Rule rule{};
    for (const NamedRule& named : kRules)
      if (r.name == named.name) rule = named.rule;
    const Taken expected = predicted(rule, shares, r.predicted_peak(), s.limited);
    report.check(
        s.taken == expected,
        fmt::format("{}: the neighbour took {} bytes at most and {} beside us, both took {}; predicted {}, {}, {}",
                    r.name, s.taken.neighbour_most, s.taken.neighbour_beside_us, s.taken.together,
                    expected.neighbour_most, expected.neighbour_beside_us, expected.together));
    report.check(s.left_after_kill == 0, fmt::format("{}: {} bytes stay taken", r.name, s.left_after_kill));
    std::string note = s.limited ? "" : "too much: without the budget";
    if (s.taken.neighbour_refused) note = fmt::format("it asked for {}", format_bytes(shares.wanted()));
    if (s.waited_ms > 0) note = "we waited until it had ended";
    table.rows.push_back(
        {r.name, s.taken.neighbour_most, s.taken.neighbour_beside_us, r.peak_allocated, s.taken.together, note});
    report.figure("together_bytes_" + std::to_string(static_cast<int>(rule)), static_cast<double>(s.taken.together));
  }
  report.table(table);
}

}  // namespace oomlab::sharing
