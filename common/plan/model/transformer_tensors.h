#pragma once
// The tensors of a transformer, visited in their one order. Part of transformer.h.

#include <cstddef>
#include <cstdint>

#include "plan/model/transformer.h"

namespace oomlab::nn {

// Where tensors_of() puts them.
inline constexpr std::size_t kToken = 0, kPosition = 1, kType = 2, kEmbedNorm = 3;
inline constexpr std::size_t kDense = 0, kHeadNorm = 2, kDecoderBias = 4;
// In the head, where that is not tied: behind the final norm.
inline std::size_t own_head(const TransformerSpec& spec) { return spec.llama() ? 1 : 2; }
// And how many come before the layers.
inline std::size_t embedding_tensors(const TransformerSpec& spec) { return spec.llama() ? 1 : spec.bert() ? 5 : 2; }

// What a part of a layer has of a tensor: all; rows; columns; rows of each group: of Q, of K and of V, or of gate and
// up.
enum class Split { none, rows, groups, columns };

struct Place {
  std::size_t number;       // in the whole model
  std::uint64_t layer;      // from 1; 0: none
  const char *name, *what;  // "qkv", " weight". No strings are made: the closed form asks for bytes many times.
  std::uint64_t rows, columns;
  Split split;
  std::uint64_t groups[3];  // their rows, where the split is by groups
  enum class Unit { token, embedding, layer, head } unit;
};

// Every tensor of a whole model in order.
template <class Visit>
void visit_whole(const TransformerSpec& spec, Visit visit) {
  using Unit = Place::Unit;
  const std::uint64_t c = spec.width, hidden = spec.hidden();
  std::size_t number = 0;
  std::uint64_t layer = 0;
  Unit unit = Unit::token;
  struct Groups {
    std::uint64_t rows[3];
  };
  const auto tensor = [&](const char* name, const char* what, std::uint64_t rows, std::uint64_t columns,
                          Split split = Split::none, const Groups& groups = {}) {
    const auto& [a, b, d] = groups.rows;
    visit(Place{number++, layer, name, what, rows, columns, split, {a, b, d}, unit});
  };
  const auto norm = [&](const char* name) {
    tensor(name, " gamma", 1, c);
    if (!spec.llama()) tensor(name, " beta", 1, c);
  };
  const std::uint64_t keys = checked_product(spec.keys(), spec.depth()), qkv = spec.qkv_width();
  const Groups of_qkv{{c, keys, keys}};
  const auto linear = [&](const char* name, std::uint64_t out, std::uint64_t in, Split weight, Split bias) {
    tensor(name, " weight", out, in, weight);
    tensor(name, " bias", 1, out, bias);
  };
  tensor("token", " embedding", spec.vocabulary, c);
  unit = Unit::embedding;
  if (!spec.llama()) tensor("position", " embedding", spec.positions, c);
  if (spec.bert()) {
    tensor("type", " embedding", 2, c);
    norm("embedding norm");
  }
  unit = Unit::layer;
  for (layer = 1; layer <= spec.layers; ++layer) {
    if (spec.llama()) {
      norm("norm 1");
      tensor("qkv", " weight", qkv, c, Split::groups, of_qkv);
      if (spec.qkv_bias) tensor("qkv", " bias", 1, qkv, Split::columns);
      tensor("projection", " weight", c, c, Split::columns);
      norm("norm 2");
      tensor("gate and up", " weight", checked_product(hidden, 2), c, Split::groups, {{hidden, hidden, 0}});
      tensor("contract", " weight", c, hidden, Split::columns);
      continue;
    }
    tensor("qkv", " weight", qkv, c, Split::groups, of_qkv);
    tensor("qkv", " bias", 1, qkv, Split::columns);
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
    if (!spec.tied) tensor("head", " weight", spec.vocabulary, c);
  }
}

// What a slice has of them: the embeddings or not, the head or not, and of the layers those of which has_layer(number)
// is true, from 1 on; with the shapes they have there.
template <class HasLayer, class Visit>
void visit_part(const TransformerSpec& spec, bool embeds, bool has_head, std::uint64_t parts, HasLayer has_layer,
                Visit visit) {
  using Unit = Place::Unit;
  visit_whole(spec, [&](Place place) {
    const bool there = place.unit == Unit::token       ? embeds || (spec.tied && has_head)
                       : place.unit == Unit::embedding ? embeds
                       : place.unit == Unit::head      ? has_head
                                                       : has_layer(place.layer);
    if (!there) return;
    (place.split == Split::columns ? place.columns : place.rows) /= place.split == Split::none ? 1 : parts;
    for (std::uint64_t& rows : place.groups) rows /= parts;
    visit(place);
  });
}
/// visit(place) for each tensor of the slice, in the order in which models have them.
template <class Visit>
void visit_tensors(const TransformerSpec& spec, const Slice& slice, Visit visit) {
  visit_part(
      spec, slice.embeds(), slice.has_head(spec), slice.parts,
      [&](std::uint64_t layer) { return layer > slice.first_layer && layer <= slice.end(spec); }, visit);
}

// Where a layer's tensors are among those of the layer, in the order above; -1: the style has none.
struct LayerSlots {
  std::int8_t qkv, qkv_bias, projection, projection_bias, norm1, norm1_beta, up, up_bias, down, down_bias, norm2,
      norm2_beta;
  std::int8_t count;
};
/// Of the model's style.
inline LayerSlots layer_slots(const TransformerSpec& spec) {
  if (!spec.llama()) return {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  if (spec.qkv_bias) return {1, 2, 3, -1, 0, -1, 5, -1, 6, -1, 4, -1, 7};
  return {1, -1, 2, -1, 0, -1, 4, -1, 5, -1, 3, -1, 6};
}

}  // namespace oomlab::nn
