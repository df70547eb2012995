// Which levers go together, as JSON: what docs/levers.md is made from.

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "plan/pairs.h"

namespace {

using namespace oomlab::plan;
using Json = nlohmann::ordered_json;

Json levers_of_course() {
  Json levers = Json::array();
  for (const Lever* lever : all_levers()) {
    Json options = Json::array();
    for (const oomlab::ChapterOption& option : lever->options)
      options.push_back({{"name", option.name}, {"help", option.help}});
    levers.push_back({{"name", lever->name}, {"chapter", lever->chapter}, {"options", options}});
  }
  return levers;
}

Json pairs_of_course() {
  const Work work = work_of_pairs();
  const std::vector<Pulled> pulled = pulled_levers(work, 4);
  const std::vector<Pair> pairs = pairs_of(work, pulled);
  std::size_t together = 0;
  std::map<std::string, Json> laws;
  for (const Pair& pair : pairs) {
    if (pair.law.empty()) {
      ++together;
      continue;
    }
    const auto words = [](const Value& of) { return of.lever->options_of(of.levers); };
    Json& concerned = laws.try_emplace(pair.law, Json::array()).first->second;
    concerned.push_back({{"levers", {pair.first->lever->name, pair.second->lever->name}},
                         {"options", {words(*pair.first), words(*pair.second)}}});
  }
  Json listed = Json::array();
  for (const auto& [law, concerned] : laws) listed.push_back({{"law", law}, {"pairs", concerned}});
  return {{"values", pulled.size()}, {"pairs", pairs.size()}, {"together", together}, {"laws", listed}};
}

}  // namespace

int main() {
  try {
    Json answer = pairs_of_course();
    answer["levers"] = levers_of_course();
    fmt::print("{}\n", answer.dump(1));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lever_pairs: %s\n", error.what());
    return 1;
  }
}
