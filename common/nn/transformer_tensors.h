#pragma once
// The tensors of a transformer, visited in their one order. Part of the model: others include transformer.h.

#include "nn/transformer.h"

namespace oomlab::nn {

// Where tensors_of() puts them.
inline constexpr std::size_t kToken = 0, kPosition = 1, kType = 2, kEmbedNorm = 3;
inline constexpr std::size_t kDense = 0, kHeadNorm = 2, kDecoderBias = 4;

// What a part of a layer has of a tensor: all; rows; rows of Q, of K and of V; columns.
enum class Split { none, rows, thirds, columns };

struct Place {
  std::size_t number;       // in the whole model
  std::size_t layer;        // from 1; 0: none
  const char *name, *what;  // "qkv", " weight". No strings are made: the closed form asks for bytes many times.
  std::size_t rows, columns;
  Split split;
  enum class Unit { token, embedding, layer, head } unit;
};

// Every tensor of a whole model in order.
template <class Visit>
void visit_whole(const TransformerSpec& spec, Visit visit) {
  using Unit = Place::Unit;
  const std::size_t c = spec.width, hidden = spec.hidden();
  std::size_t number = 0, layer = 0;
  Unit unit = Unit::token;
  const auto tensor = [&](const char* name, const char* what, std::size_t rows, std::size_t columns,
                          Split split = Split::none) {
    visit(Place{number++, layer, name, what, rows, columns, split, unit});
  };
  const auto norm = [&](const char* name) {
    tensor(name, " gamma", 1, c);
    tensor(name, " beta", 1, c);
  };
  const auto linear = [&](const char* name, std::size_t out, std::size_t in, Split weight, Split bias) {
    tensor(name, " weight", out, in, weight);
    tensor(name, " bias", 1, out, bias);
  };
  tensor("token", " embedding", spec.vocabulary, c);
  unit = Unit::embedding;
  tensor("position", " embedding", spec.positions, c);
  if (spec.bert()) {
    tensor("type", " embedding", 2, c);
    norm("embedding norm");
  }
  unit = Unit::layer;
  for (layer = 1; layer <= spec.layers; ++layer) {
    linear("qkv", checked_product(c, 3), c, Split::thirds, Split::columns);
    linear("projection", c, c, Split::columns, Split::none);
    norm("norm 1");
    linear("expand", hidden, c, Split::rows, Split::columns);
    linear("contract", c, hidden, Split::columns, Split::none);
    norm("norm 2");
  }
  layer = 0;
  unit = Unit::head;
  if (spec.bert()) {
    linear("head dense", c, c, Split::none, Split::none);
    norm("head norm");
    tensor("head", " bias", 1, spec.vocabulary);
  } else {
    norm("final norm");
  }
}

// Those of a slice, with the shapes they have there.
template <class Visit>
void visit_tensors(const TransformerSpec& spec, const Slice& slice, Visit visit) {
  using Unit = Place::Unit;
  visit_whole(spec, [&](Place place) {
    const bool there = place.unit == Unit::token       ? slice.embeds() || slice.has_head(spec)
                       : place.unit == Unit::embedding ? slice.embeds()
                       : place.unit == Unit::head      ? slice.has_head(spec)
                                                  : place.layer > slice.first_layer && place.layer <= slice.end(spec);
    if (!there) return;
    (place.split == Split::columns ? place.columns : place.rows) /= place.split == Split::none ? 1 : slice.parts;
    visit(place);
  });
}

}  // namespace oomlab::nn
