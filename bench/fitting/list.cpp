#include "list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "options.h"
#include "plan/card.h"
#include "plan/json_writer.h"
#include "plan/option.h"
#include "plan/text.h"
#include "words.h"

namespace oomlab::fit {

namespace {

// transformers' names, then this course's, then networks of images, a detector's backbone, then pipelines that make them.
std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const nn::HfShape& shape : nn::hf_models()) names.push_back(shape.name);
  for (const nn::TransformerSpec& spec : nn::named_transformers())
    if (std::ranges::find(names, spec.name) == names.end()) names.push_back(spec.name);
  for (const char* const name : nn::kNamedNetworks) names.emplace_back(name);
  names.emplace_back(nn::kFpnBackbone);
  for (std::string& name : names_of_pipelines()) names.push_back(std::move(name));
  return names;
}

std::string cards_words() {
  std::string words = fmt::format("{:<18} {:>6}   card\n", "name", "GiB");
  for (const Card& card : cards())
    words += fmt::format("{:<18} {:>6.2f}   {}\n", card.name, card.total_gib, card.title);
  return words +
         "GiB: what CUDA reports; what is sold as so many GB has less. Other usual names are taken, too: 4090, "
         "a100-80.\n";
}

void write_cards(JsonWriter& json) {
  json.begin_array();
  for (const Card& card : cards())
    json.begin_object()
        .member("name", card.name)
        .member("title", card.title)
        .member("total_bytes", card.total_bytes())
        .end_object();
  json.end_array();
}

std::string cards_json() {
  JsonWriter json;
  write_cards(json);
  return json.text();
}

std::string list_words() {
  std::string text = fmt::format("models, for --model\n  {}\n\ncards, for --gpu\n{}\nwords\n",
                                 fmt::join(models(), "\n  "), cards_words());
  for (const auto& [option, words] : words_of_options())
    text += fmt::format("  {:<24} {}\n", option, fmt::join(words, ", "));
  return text + fmt::format("  {:<24} {}\n", "--with", fmt::join(words_of_pipelines(), ", "));
}

std::string list_json() {
  JsonWriter json;
  json.begin_object().key("models").begin_array();
  for (const std::string& name : models()) json.value(name);
  json.end_array().key("cards");
  write_cards(json);
  json.key("words").begin_object();
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
  const auto asked = std::ranges::find_if(arguments, [](const auto& a) { return a == "--list" || a == "--cards"; });
  if (asked == arguments.end()) return std::nullopt;
  bool json = false;
  for (const std::string& argument : arguments) {
    json |= argument == "--json";
    if (argument != *asked && argument != "--json")
      throw UsageError(fmt::format("{} goes alone, or with --json, and not with '{}'", *asked, one_line(argument)));
  }
  if (*asked == "--cards") return json ? cards_json() : cards_words();
  return json ? list_json() : list_words();
}

}  // namespace oomlab::fit
