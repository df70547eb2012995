// Names of models, and the tensors they have.

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "nn/bad_model.h"
#include "nn/named.h"
#include "nn/step_walk.h"
#include "nn/transformer_tensors.h"

namespace oomlab::nn {

namespace {

// LAYERS-HEADS-WIDTH
void parse_shape(std::string_view text, std::string_view list, TransformerSpec& spec) {
  for (std::size_t* figure : {&spec.layers, &spec.heads, &spec.width}) {
    const std::size_t dash = figure == &spec.width ? std::string_view::npos : list.find('-');
    const std::string_view word = list.substr(0, dash);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *figure);
    if (error == std::errc::result_out_of_range)
      bad_model(text, "has a figure that is too large: " + std::string(word));
    if (error != std::errc() || end != word.data() + word.size() || *figure == 0)
      bad_model(text, "is not a shape; write gpt:LAYERS-HEADS-WIDTH, for example gpt:4-4-128");
    list.remove_prefix(dash == std::string_view::npos ? list.size() : dash + 1);
  }
  if (spec.width % spec.heads != 0)
    bad_model(text, "has a width of " + std::to_string(spec.width) + ", which " + std::to_string(spec.heads) +
                        " heads do not divide");
  if (spec.layers > 1'000'000) bad_model(text, "has more than a million layers");
  try {
    (void)tensor_bytes(spec, sizeof(float));
  } catch (const std::length_error&) {
    bad_model(text, "has more parameters than 64 bits of bytes can hold");
  }
}

}  // namespace

const char* name_of(LossForm form) noexcept { return form == LossForm::full ? "full" : "chunked"; }

LossForm parse_loss(std::string_view name) {
  return parse_named("loss", name, {LossForm::full, LossForm::chunked});
}

std::size_t loss_chunk_rows(const TransformerSpec& spec, std::size_t rows) {
  const std::size_t as_residual = checked_product(rows, spec.width) / spec.vocabulary;
  return std::max<std::size_t>(1, std::min(as_residual, (rows + 3) / 4));
}

TransformerSpec parse_transformer(std::string_view text) {
  using Style = TransformerSpec::Style;
  const std::string name(text);
  if (text == "bytes-gpt") return {name, Style::gpt, 4, 4, 128, 256, 256};
  if (text == "gpt2") return {name, Style::gpt, 12, 12, 768, 50257, 1024};
  if (text == "gpt3-175b") return {name, Style::gpt, 96, 96, 12288, 50257, 2048};
  if (text == "llama-70b-like") return {name, Style::gpt, 80, 64, 8192, 32000, 4096};
  if (text == "bert-base") return {name, Style::bert, 12, 12, 768, 30522, 512};
  if (text == "bert-large") return {name, Style::bert, 24, 16, 1024, 30522, 512};
  TransformerSpec spec{name, Style::gpt, 0, 0, 0, 258, 1024};
  if (text.starts_with("gpt:")) {
    parse_shape(text, text.substr(4), spec);
  } else if (text.starts_with("bert:")) {
    spec.style = Style::bert;
    spec.positions = 512;
    parse_shape(text, text.substr(5), spec);
  } else {
    bad_model(text,
              "is unknown; known: bytes-gpt, gpt2, gpt3-175b, llama-70b-like, bert-base, bert-large, "
              "gpt:LAYERS-HEADS-WIDTH, bert:...");
  }
  return spec;
}

std::vector<TensorShape> tensors_of(const TransformerSpec& spec, const Slice& slice) {
  if (slice.parts == 0 || spec.heads % slice.parts != 0 || slice.part >= slice.parts)
    throw std::invalid_argument(std::to_string(slice.parts) + " parts do not divide " + std::to_string(spec.heads) +
                                " heads");
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

std::size_t TransformerSpec::parameters() const {
  std::size_t sum = 0;
  visit_whole(*this, [&](const Place& p) { sum = checked_sum(sum, checked_product(p.rows, p.columns)); });
  return sum;
}

}  // namespace oomlab::nn
