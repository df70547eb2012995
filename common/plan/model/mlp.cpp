#include "plan/model/mlp.h"

#include <charconv>
#include <cstddef>
#include <stdexcept>

#include "plan/bytes.h"
#include "plan/limits.h"
#include "plan/model/bad_model.h"
#include "plan/names.h"

namespace oomlab::nn {

namespace {

std::vector<std::uint64_t> parse_widths(std::string_view text, std::string_view list) {
  std::vector<std::uint64_t> widths;
  for (;;) {
    const std::size_t dash = list.find('-');
    const std::string_view word = list.substr(0, dash);
    std::uint64_t width = 0;
    const char* const word_end = word.data() + word.size();
    auto [end, error] = std::from_chars(word.data(), word_end, width);
    std::size_t times = 1;
    if (error == std::errc() && end != word_end && *end == 'x') {
      const auto repeat = std::from_chars(end + 1, word_end, times);
      end = repeat.ptr, error = repeat.ec;
      if (times == 0 || times > kMostLayers) error = std::errc::result_out_of_range;
    }
    if (error == std::errc::result_out_of_range)
      bad_model(text, "has a width, or a number of times, out of range: " + std::string(word));
    if (error != std::errc() || end != word_end)
      bad_model(text, "is not a list of widths; write mlp:IN-...-CLASSES, for example mlp:64-128x3-10");
    if (width == 0) bad_model(text, "has a width of zero; every width must be at least 1");
    widths.insert(widths.end(), times, width);
    if (dash == std::string_view::npos) break;
    list.remove_prefix(dash + 1);
  }
  if (widths.size() - 1 > kMostLayers)
    bad_model(text, "has " + std::to_string(widths.size() - 1) + " layers; up to " + std::to_string(kMostLayers) +
                        " are allowed");
  if (widths.size() < 2) bad_model(text, "has one width; at least two are needed: IN-CLASSES");
  return widths;
}

}  // namespace

std::uint64_t MlpSpec::parameters() const {
  std::uint64_t sum = 0;
  for (std::size_t l = 1; l <= layers(); ++l)
    sum = checked_sum(sum, checked_sum(checked_product(widths[l - 1], widths[l]), widths[l]));
  return sum;
}

MlpSpec parse_model(std::string_view typed) {
  MlpSpec spec{lower_case(typed), {}, Activation::relu};
  const std::string_view text = spec.name;
  if (text == "mlp") {
    spec.widths = {512, 1024, 2048, 4096, 8192, 10};
  } else if (text == "mlp-small") {
    spec.widths = {64, 128, 64, 10};
  } else if (text == "mlp-weights") {
    spec.widths = {512, 2048, 2048, 10};
  } else if (text == "mlp-activations") {
    spec.widths = {8192, 8, 8192, 8, 8192, 8, 8192, 10};
  } else if (text.starts_with("mlp:")) {
    spec.widths = parse_widths(text, text.substr(4));
    try {
      (void)checked_product(spec.parameters(), sizeof(float));
    } catch (const std::length_error&) {
      bad_model(text, "has more parameters than 64 bits of bytes can hold");
    }
  } else {
    constexpr const char* kNames[] = {"mlp", "mlp-small", "mlp-weights", "mlp-activations"};
    unknown_model(text, kNames, "mlp:IN-...-CLASSES");
  }
  return spec;
}

}  // namespace oomlab::nn
