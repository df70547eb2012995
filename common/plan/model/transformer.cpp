#include "plan/model/transformer.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <stdexcept>

#include "plan/limits.h"
#include "plan/model/bad_model.h"
#include "plan/model/transformer_tensors.h"
#include "plan/names.h"

namespace oomlab::nn {

namespace {

// The numbers between dashes after the colon, as many as `figures`.
void parse_figures(std::string_view text, const char* how, std::initializer_list<std::uint64_t*> figures) {
  std::string_view list = text.substr(text.find(':') + 1);
  for (std::uint64_t* const figure : figures) {
    const std::size_t dash = figure == *(figures.end() - 1) ? std::string_view::npos : list.find('-');
    const std::string_view word = list.substr(0, dash);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *figure);
    if (error == std::errc::result_out_of_range)
      bad_model(text, "has a figure that is too large: " + std::string(word));
    if (error != std::errc() || end != word.data() + word.size() || *figure == 0)
      bad_model(text, std::string("is not a shape; write ") + how);
    list.remove_prefix(dash == std::string_view::npos ? list.size() : dash + 1);
  }
}

void require_possible(std::string_view text, const TransformerSpec& spec) {
  if (spec.width % spec.heads != 0)
    bad_model(text, "has a width of " + std::to_string(spec.width) + ", which " + std::to_string(spec.heads) +
                        " heads do not divide");
  if (spec.heads % spec.keys() != 0)
    bad_model(text, "has " + std::to_string(spec.keys()) + " heads of keys and values, which do not divide " +
                        std::to_string(spec.heads) + " heads");
  if (spec.llama() && (spec.depth() % 2 != 0 || spec.depth() > kRotaryDepth))
    bad_model(text, "has heads of " + std::to_string(spec.depth()) +
                        " values; rotary positions turn an even number of them, at most " +
                        std::to_string(kRotaryDepth));
  if (spec.layers > kMostLayers)
    bad_model(text,
              "has " + std::to_string(spec.layers) + " layers; up to " + std::to_string(kMostLayers) + " are allowed");
  try {
    (void)tensor_bytes(spec, sizeof(float));
  } catch (const std::length_error&) {
    bad_model(text, "has more parameters than 64 bits of bytes can hold");
  }
}

// Llama 3.1's and 3.2's way to 131,072 positions from 8,192.
constexpr Rotary llama3_rotary(double factor) { return {500000, Rotary::Scaling::llama3, factor, 1, 4, 8192}; }

}  // namespace

const std::vector<TransformerSpec>& named_transformers() {
  using Style = TransformerSpec::Style;
  const Style llama = Style::llama;
  static const std::vector<TransformerSpec> all{
      {"bytes-gpt", Style::gpt, 4, 4, 128, 256, 256},
      {"gpt2", Style::gpt, 12, 12, 768, 50257, 1024},
      {"gpt2-medium", Style::gpt, 24, 16, 1024, 50257, 1024},
      {"gpt2-large", Style::gpt, 36, 20, 1280, 50257, 1024},
      {"gpt2-xl", Style::gpt, 48, 25, 1600, 50257, 1024},
      {"gpt3-175b", Style::gpt, 96, 96, 12288, 50257, 2048},
      {"bert-base", Style::bert, 12, 12, 768, 30522, 512},
      {"bert-large", Style::bert, 24, 16, 1024, 30522, 512},
      {"bytes-llama", llama, 3, 4, 64, 256, 2048, 2, 172, true, false},
      {"llama-3.2-1b", llama, 16, 32, 2048, 128256, 131072, 8, 8192, true, false, 1e-5f, llama3_rotary(32)},
      {"llama-3.1-8b", llama, 32, 32, 4096, 128256, 131072, 8, 14336, false, false, 1e-5f, llama3_rotary(8)},
      {"llama-3.1-70b", llama, 80, 64, 8192, 128256, 131072, 8, 28672, false, false, 1e-5f, llama3_rotary(8)},
      {"qwen2.5-7b", llama, 28, 28, 3584, 152064, 131072, 4, 18944, false, true, 1e-6f, {.theta = 1e6}},
      {"llama-2-7b", llama, 32, 32, 4096, 32000, 4096, 32, 11008, false, false},
      {"mistral-7b", llama, 32, 32, 4096, 32000, 4096, 8, 14336, false, false}};
  return all;
}

TransformerSpec parse_transformer(std::string_view typed) {
  using Style = TransformerSpec::Style;
  const std::string name = lower_case(typed);
  const std::string_view text = name;
  std::vector<const char*> known;
  for (const TransformerSpec& named : named_transformers()) {
    if (named.name == text) return named;
    known.push_back(named.name.c_str());
  }
  TransformerSpec spec{name, Style::gpt, 0, 0, 0, 258, 1024};
  if (text.starts_with("gpt:")) {
    parse_figures(text, "gpt:LAYERS-HEADS-WIDTH, for example gpt:4-4-128", {&spec.layers, &spec.heads, &spec.width});
  } else if (text.starts_with("bert:")) {
    spec.style = Style::bert;
    spec.positions = 512;
    parse_figures(text, "bert:LAYERS-HEADS-WIDTH, for example bert:4-4-128", {&spec.layers, &spec.heads, &spec.width});
  } else if (text.starts_with("llama:")) {
    spec.style = Style::llama;
    spec.positions = 2048;
    spec.qkv_bias = false;
    parse_figures(text, "llama:LAYERS-HEADS-KVHEADS-WIDTH-MLP, for example llama:4-4-2-128-344",
                  {&spec.layers, &spec.heads, &spec.kv_heads, &spec.width, &spec.mlp});
  } else {
    unknown_model(text, known, "gpt:LAYERS-HEADS-WIDTH, bert:..., llama:LAYERS-HEADS-KVHEADS-WIDTH-MLP");
  }
  require_possible(text, spec);
  return spec;
}

std::vector<TensorShape> tensors_of(const TransformerSpec& spec, const Slice& slice) {
  if (slice.parts == 0 || spec.heads % slice.parts != 0 || slice.part >= slice.parts)
    throw std::invalid_argument(std::to_string(slice.parts) + " parts do not divide " + std::to_string(spec.heads) +
                                " heads");
  if (spec.keys() % slice.parts != 0)
    throw std::invalid_argument(std::to_string(slice.parts) + " parts do not divide " + std::to_string(spec.keys()) +
                                " heads of keys and values");
  if (spec.hidden() % slice.parts != 0)
    throw std::invalid_argument(std::to_string(slice.parts) + " parts do not divide " + std::to_string(spec.hidden()) +
                                " hidden units");
  if (slice.end(spec) > spec.layers || slice.first_layer >= slice.end(spec))
    throw std::invalid_argument(spec.name + " has " + std::to_string(spec.layers) + " layers");
  std::vector<TensorShape> all;
  visit_tensors(spec, slice, [&](const Place& p) {
    const std::string layer = p.layer ? "layer " + std::to_string(p.layer) : "";
    const char* const units[] = {"token", "embedding", layer.c_str(), "head"};
    all.push_back({layer + (p.layer ? " " : "") + p.name + p.what, units[static_cast<int>(p.unit)], p.rows, p.columns});
  });
  return all;
}

std::uint64_t TransformerSpec::parameters() const {
  std::uint64_t sum = 0;
  visit_whole(*this, [&](const Place& p) { sum = checked_sum(sum, checked_product(p.rows, p.columns)); });
  return sum;
}

std::uint64_t tensor_bytes(const TransformerSpec& spec, std::uint64_t element_bytes) {
  std::uint64_t sum = 0;
  visit_whole(spec, [&](const Place& p) {
    sum = checked_sum(sum, round_to_granule(checked_product(checked_product(p.rows, p.columns), element_bytes)));
  });
  return sum;
}

}  // namespace oomlab::nn
