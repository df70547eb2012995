#pragma once
// What a benchmark judges of times: a row for bench/benchmarks/run, the program behind `tests/run bench`. No test
// judges a time.

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "ending.h"
#include "harness/chapter.h"

namespace oomlab::bench {

enum class Wanted { at_most, at_least };

/// Says what was seen and what is wanted, as a line of JSON, which bench/benchmarks/run reads. The words of `benchmark`
/// and `what` have no quotes. `unit`: "x" for a ratio, "s" for seconds.
inline void judged(std::string_view benchmark, std::string_view what, double seen, Wanted wanted, double limit,
                   std::string_view unit = "x") {
  fmt::print(
      "{{\"benchmark\": \"{}\", \"what\": \"{}\", \"seen\": {:.6g}, \"at\": \"{}\", \"wanted\": {:g}, \"unit\": "
      "\"{}\"}}\n",
      benchmark, what, seen, wanted == Wanted::at_most ? "most" : "least", limit, unit);
  std::fflush(stdout);
}

using oomlab::median;

/// The seconds that each of `ways` returns, by way and round. All have their turn in each round, so that whatever else
/// the machine does meanwhile, it does to all of them; every second round goes backwards. One round before does not
/// count.
inline std::vector<std::vector<double>> in_turns(std::size_t rounds, const std::vector<std::function<double()>>& ways) {
  std::vector<std::vector<double>> seconds(ways.size());
  for (std::size_t round = 0; round <= rounds; ++round)
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t way = round % 2 ? ways.size() - 1 - i : i;
      const double s = ways[way]();
      if (round > 0) seconds[way].push_back(s);
    }
  return seconds;
}

/// The median of the ratios of the rounds.
inline double ratio_in_pairs(const std::vector<double>& times, const std::vector<double>& of) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.size(); ++i) ratios.push_back(times[i] / of[i]);
  return median(ratios);
}

/// The main() of a benchmark that has no options: what it throws is one line, and exit code 2.
template <class Body>
int run_judged(const char* program, Body body) {
  open_standard_descriptors();
  return ending_of(program, [&] {
    body();
    return 0;
  });
}

}  // namespace oomlab::bench
