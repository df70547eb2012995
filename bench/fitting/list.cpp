#include "list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "options.h"
#include "plan/card.h"
#include "plan/json_writer.h"
#include "plan/option.h"
#include "words.h"

namespace oomlab::fit {

namespace {

// transformers' names, then this course's, then networks of images.
std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const nn::HfShape& shape : nn::hf_models()) names.push_back(shape.name);
  for (const nn::TransformerSpec& spec : nn::named_transformers())
    if (std::ranges::find(names, spec.name) == names.end()) names.push_back(spec.name);
  for (const char* const name : nn::kNamedNetworks) names.emplace_back(name);
  return names;
}

std::string for_people() {
  std::string text = fmt::format("models, for --model\n  {}\ncards, for --gpu\n", fmt::join(models(), "\n  "));
  for (const Card& card : cards())
    text += fmt::format("  {:<24} {:>6} GiB   {}\n", card.name, gib(card.total_bytes()), card.title);
  text += "words\n";
  for (const auto& [option, words] : words_of_options())
    text += fmt::format("  {:<24} {}\n", option, fmt::join(words, ", "));
  return text;
}

std::string for_programs() {
  JsonWriter json;
  json.begin_object().key("models").begin_array();
  for (const std::string& name : models()) json.value(name);
  json.end_array().key("cards").begin_array();
  for (const Card& card : cards())
    json.begin_object()
        .member("name", card.name)
        .member("title", card.title)
        .member("memory_bytes", card.total_bytes())
        .end_object();
  json.end_array().key("words").begin_object();
  for (const auto& [option, words] : words_of_options()) {
    json.key(option).begin_array();
    for (const std::string& word : words) json.value(word);
    json.end_array();
  }
  json.end_object().key("categories").begin_array();
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    json.begin_object()
        .member("name", name_of(Category(c)))
        .member("en", words_of(Category(c), false))
        .member("zh", words_of(Category(c), true))
        .end_object();
  json.end_array().end_object();
  return json.text();
}

}  // namespace

std::optional<std::string> list_of(const std::vector<std::string>& arguments) {
  if (std::ranges::find(arguments, "--list") == arguments.end()) return std::nullopt;
  for (const std::string& argument : arguments)
    if (argument != "--list" && argument != "--json")
      throw UsageError(fmt::format("--list stands alone, or with --json, and not beside '{}'", argument));
  return std::ranges::find(arguments, "--json") == arguments.end() ? for_people() : for_programs();
}

}  // namespace oomlab::fit
