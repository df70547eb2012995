#include "cards.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/card.h"
#include "plan/json_writer.h"
#include "plan/option.h"
#include "plan/text.h"

namespace oomlab::fit {

namespace {

std::string cards_words() {
  std::string words = "name                  GiB   card\n";
  for (const Card& card : cards())
    words += fmt::format("{:<18} {:>6.2f}   {}\n", card.name, card.total_gib, card.title);
  return words +
         "GiB: what CUDA reports; what is sold as so many GB has less. Other usual names are taken, too: 4090, "
         "a100-80.\n";
}

std::string cards_json() {
  JsonWriter json;
  json.begin_array();
  for (const Card& card : cards())
    json.begin_object()
        .member("name", card.name)
        .member("title", card.title)
        .member("total_bytes", card.total_bytes())
        .end_object();
  json.end_array();
  return json.text();
}

}  // namespace

std::optional<std::string> answer_cards(const std::vector<std::string>& arguments) {
  if (!std::ranges::count(arguments, "--cards")) return std::nullopt;
  bool json = false;
  for (const std::string& argument : arguments) {
    json |= argument == "--json";
    if (argument != "--cards" && argument != "--json")
      throw UsageError(fmt::format("--cards goes alone, or with --json, and not with '{}'", one_line(argument)));
  }
  return json ? cards_json() : cards_words();
}

}  // namespace oomlab::fit
