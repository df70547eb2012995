#include "plan/pairs.h"

#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace oomlab::plan {
namespace {

std::vector<Value> values_of(const Work& work, std::uint64_t cards) {
  std::vector<Value> all;
  for (const Lever* lever : all_levers())
    for (const Levers& levers : lever->tries({work, cards}))
      if (lever->differs({}, levers)) all.push_back({lever, levers});
  return all;
}
Levers all_of(std::initializer_list<const Value*> values) {
  Levers levers;
  for (const Value* value : values)
    if (value) value->lever->take(value->levers, levers);
  return levers;
}
// What may stand beside the values of a pair: nothing, or one of what they need.
std::vector<const Value*> beside(const Pulled& pulled) {
  if (pulled.needs.empty()) return {nullptr};
  std::vector<const Value*> all;
  for (const Value& needed : pulled.needs) all.push_back(&needed);
  return all;
}
Pair pair_of(const Work& work, const Pulled& first, const Pulled& second) {
  Pair pair{&first.value, &second.value, {}, {}};
  for (const Value* of_first : beside(first))
    for (const Value* of_second : beside(second)) {
      const Levers levers = all_of({of_first, of_second, pair.first, pair.second});
      const std::string law = refused(work, levers);
      if (law.empty()) return {pair.first, pair.second, levers, {}};
      if (pair.law.empty()) pair.law = law;
    }
  return pair;
}

}  // namespace

Work work_of_pairs() {
  Work work{nn::parse_transformer("llama:4-4-2-64-160"), 16, 8};
  work.spec.vocabulary = 400;
  work.spec.positions = 64;
  return work;
}

std::vector<Pulled> pulled_levers(const Work& work, std::uint64_t cards) {
  const std::vector<Value> values = values_of(work, cards);
  std::vector<Pulled> all;
  for (const Value& value : values) {
    Pulled pulled{value, {}};
    const std::string why = refused(work, value.levers);
    for (const Value& other : values)
      if (!why.empty() && other.lever != value.lever && refused(work, all_of({&other, &value})).empty())
        pulled.needs.push_back(other);
    if (!why.empty() && pulled.needs.empty())
      throw std::logic_error(options_of(value.levers) + " is refused with everything: " + why);
    all.push_back(std::move(pulled));
  }
  return all;
}

std::vector<Pair> pairs_of(const Work& work, const std::vector<Pulled>& pulled) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < pulled.size(); ++i)
    for (std::size_t j = i + 1; j < pulled.size(); ++j)
      if (pulled[i].value.lever != pulled[j].value.lever) pairs.push_back(pair_of(work, pulled[i], pulled[j]));
  return pairs;
}

}  // namespace oomlab::plan
