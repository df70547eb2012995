// What PyTorch needs at its peak, for settings on standard input: one line each of words like
//
//   model=gpt2 batch=4 seq=128 precision=bf16 checkpoint=1 optimizer=adamw_foreach vocabulary=1000 tied=0
//
// and one line of JSON each on standard output. `model` is a name of nn::parse_transformer(); vocabulary, positions and
// tied change the shape. Bad input: one line, exit 64.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <sstream>

#include "memory/text.h"
#include "plan/pytorch/peak.h"

namespace {

using oomlab::Category;
using oomlab::fit::TorchOptimizer;

std::size_t number(const std::string& key, const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument(fmt::format("{}={} is no whole number", key, text));
  return value;
}

oomlab::DType precision(const std::string& text) {
  const std::optional<oomlab::DType> dtype = oomlab::dtype_named(text);
  if (!dtype || std::ranges::find(oomlab::kModelDTypes, *dtype) == oomlab::kModelDTypes.end())
    throw std::invalid_argument(fmt::format("precision={} is unknown", text));
  return *dtype;
}

std::string answer(const std::string& line) {
  oomlab::nn::TransformerSpec spec;
  oomlab::fit::PyTorchStep step;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw std::invalid_argument(fmt::format("'{}' is not KEY=VALUE", word));
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    const auto one_of = [&](std::initializer_list<const char*> names) {
      std::size_t i = 0;
      for (const char* const name : names) {
        if (value == name) return i;
        ++i;
      }
      throw std::invalid_argument(fmt::format("{}={} is unknown", key, value));
    };
    if (key == "model")
      spec = oomlab::nn::parse_transformer(value);
    else if (spec.layers == 0)
      throw std::invalid_argument("begin with model=NAME");
    else if (key == "batch")
      step.batch = number(key, value);
    else if (key == "seq")
      step.seq = number(key, value);
    else if (key == "precision")
      step.precision = precision(value);
    else if (key == "checkpoint")
      step.checkpoint = one_of({"0", "1"}) == 1;
    else if (key == "optimizer")
      step.optimizer = static_cast<TorchOptimizer>(one_of({"adamw_foreach", "adamw_fused", "adamw_8bit"}));
    else if (key == "vocabulary")
      spec.vocabulary = number(key, value);
    else if (key == "positions")
      spec.positions = number(key, value);
    else if (key == "tied")
      spec.tied = one_of({"0", "1"}) == 1;
    else
      throw std::invalid_argument(fmt::format("'{}' is unknown", key));
  }
  if (spec.layers == 0) throw std::invalid_argument("begin with model=NAME");
  const oomlab::fit::PyTorchPeak peak = oomlab::fit::pytorch_peak(spec, step);
  const auto of = [&](Category category) { return peak.bytes[category]; };
  return fmt::format(
      R"({{"peak": {}, "parameters": {}, "gradients": {}, "optimizer": {}, "activations": {}, "data": {}, "moment": "{}", "checked": {}}})",
      peak.bytes.total(), of(Category::parameters), of(Category::gradients), of(Category::optimizer),
      of(Category::activations), of(Category::data), peak.moment, peak.checked);
}

}  // namespace

int main() {
  oomlab::open_standard_descriptors();
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << answer(line) << "\n";
    } catch (const std::exception& error) {  // bad words, or figures that no 64 bits hold
      return oomlab::complain("fit_pytorch", error.what(), 64);
    }
  }
  if (std::cout.flush()) return 0;
  return oomlab::complain("fit_pytorch", "the output could not be written", 1);
}
