#include "plan/card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan/bytes.h"
#include "plan/names.h"
#include "plan/text.h"

namespace oomlab {
namespace {

constexpr Card kCards[] = {
#include "plan/cards.inc"
};

constexpr std::size_t kNearest = 3;

// Letters and digits only, small: "RTX 4090" is "rtx4090".
std::string bare(std::string_view name) {
  std::string text;
  for (const char c : lower_case(name))
    if (std::isalnum(static_cast<unsigned char>(c))) text += c;
  return text;
}

// Without the makers' words in front.
std::string without_maker(std::string name) {
  for (const std::string_view word : {"nvidia", "geforce", "tesla"})
    if (name.starts_with(word)) name.erase(0, word.size());
  return name;
}

std::vector<std::string_view> parts(std::string_view list, char separator) {
  std::vector<std::string_view> found;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(separator), list.size());
    found.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return found;
}

// What a card may be called, bare.
std::vector<std::string> names_of(const Card& card) {
  std::vector<std::string> names{bare(card.name), bare(card.title)};
  for (const std::string_view device : parts(card.device, '|')) names.push_back(bare(device));
  for (const std::string_view alias : parts(card.aliases, ' ')) names.push_back(bare(alias));
  for (std::size_t i = 0, count = names.size(); i < count; ++i)
    if (names[i].starts_with("rtx") || names[i].starts_with("gtx")) names.push_back(names[i].substr(3));
  const std::string size = std::to_string(static_cast<std::size_t>(card.memory_gb));
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    names.push_back(names[i] + size);
    names.push_back(names[i] + size + "gb");
  }
  return names;
}

std::vector<const Card*> cards_named(std::string_view name) {
  const std::string wanted = without_maker(bare(name));
  std::vector<const Card*> found;
  for (const Card& card : kCards)
    if (std::ranges::count(names_of(card), wanted)) found.push_back(&card);
  return found;
}

bool by_amd(std::string_view name) {
  for (const std::string_view word : {"amd", "instinct", "radeon"})
    if (name.starts_with(word)) return true;
  const bool series = name.starts_with("mi") || name.starts_with("rx");
  return series && name.size() > 2 && std::isdigit(static_cast<unsigned char>(name[2]));
}

// What `bytes` of one group leave to be moved, beside a cache that holds so much: written once, read once.
double moved(std::uint64_t bytes, double cache_bytes) {
  return 2 * std::max(0.0, static_cast<double>(bytes) - 2 * cache_bytes);
}

}  // namespace

std::span<const Card> cards() { return kCards; }

std::string card_names() {
  std::string names;
  for (const Card& card : kCards) names += (names.empty() ? "" : ", ") + std::string(card.name);
  return names;
}

const Card* find_card(std::string_view name) {
  const std::vector<const Card*> found = cards_named(name);
  return found.empty() ? nullptr : found.front();
}

std::string other_cards(std::string_view name) {
  std::string others;
  const std::vector<const Card*> found = cards_named(name);
  for (std::size_t i = 1; i < found.size(); ++i) others += (i > 1 ? ", " : "") + std::string(found[i]->name);
  return others;
}

std::string unknown_card(std::string_view name) {
  const std::string wanted = without_maker(bare(name)), said = fmt::format("'{}' is ", one_line(name));
  if (by_amd(wanted)) return said + "AMD's; only cards by NVIDIA are known";
  std::vector<std::vector<std::string>> names;
  for (const Card& card : kCards) names.push_back(names_of(card));
  std::string nearest;
  for (const std::size_t i : nearest_names(wanted, names, kNearest))
    nearest += (nearest.empty() ? "" : ", ") + std::string(kCards[i].name);
  return said + "unknown; nearest: " + nearest + "; --help has all";
}

const Card* card_of_device(std::string_view device_name, std::uint64_t total_bytes) {
  for (const std::string_view maker : {"NVIDIA ", "Tesla ", "GeForce "})
    if (device_name.starts_with(maker)) device_name.remove_prefix(maker.size());
  const auto alike = [total = static_cast<double>(total_bytes)](const Card& card) {
    const double whole = static_cast<double>(card.total_bytes());
    return total > 0.9 * whole && total < 1.1 * whole;
  };
  for (const Card& card : kCards)
    if (std::ranges::count(parts(card.device, '|'), device_name) && alike(card)) return &card;
  return nullptr;
}

std::optional<double> peak_tflops(const Card& card, DType dtype) {
  switch (dtype) {
    case DType::fp32: return card.fp32_tflops;
    case DType::fp16: return card.fp16_tflops;
    case DType::bf16: return card.has_bf16 ? std::optional(card.fp16_tflops) : std::nullopt;
    default: throw std::invalid_argument(std::string("no peak of products of ") + name_of(dtype) + " is known");
  }
}

std::optional<LeastTime> least_time(const Card& card, DType dtype, double flops, const ByCategory& at_peak) {
  const std::optional<double> tflops = peak_tflops(card, dtype);
  if (!tflops) return std::nullopt;
  const double cache_bytes = card.l2_mib * (1 << 20);
  LeastTime least{.flops = flops};
  least.computing_seconds = flops / (*tflops * 1e12);
  least.moved_bytes = moved(checked_sum(at_peak[Category::parameters], at_peak[Category::optimizer]), cache_bytes) +
                      moved(at_peak[Category::gradients], cache_bytes) +
                      moved(at_peak[Category::activations], cache_bytes);
  least.moving_seconds = least.moved_bytes / (card.gb_per_s * 1e9);
  return least;
}

}  // namespace oomlab
