#pragma once
// Steps of tiny transformers: their tokens, what layers keep, the forms of a step, and the gradients that come out.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "device.h"
#include "nn/models/transformer.h"
#include "nn/ops/values.h"
#include "plan/step.h"

namespace oomlab::test {

using namespace nn;

struct Tokens {
  std::vector<int> tokens, labels;
  std::size_t sequences, seq;
  // Every fifth place has no target.
  Tokens(const TransformerSpec& spec, std::size_t sequences, std::size_t seq, unsigned seed)
      : tokens(random_labels(sequences * seq, spec.vocabulary, seed)),
        labels(random_labels(sequences * seq, spec.vocabulary, seed + 1)),
        sequences(sequences),
        seq(seq) {
    for (std::size_t i = 4; i < labels.size(); i += 5) labels[i] = -1;
  }
  TokenBatch batch(Context& context) const { return make_token_batch(context, tokens, labels, sequences, seq); }
};

inline std::vector<std::vector<Keep>> keeps(std::size_t layers) {
  std::vector<std::vector<Keep>> all{{}};
  for (int bits = 0; bits < 9; ++bits)
    all.emplace_back(layers, Keep{bits < 8, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
  all.emplace_back(layers, Keep::selective_recompute());
  all.emplace_back(layers, Keep{.post_attention_residual = false});
  std::vector<Keep> mixed(layers);
  for (std::size_t l = 0; l < layers; ++l) mixed[l] = Keep{l % 2 == 0, true, l % 3 != 0, false};
  all.push_back(mixed);
  return all;
}

inline std::vector<StepForm> forms() {
  std::vector<StepForm> all;
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    for (const LossForm loss : {LossForm::full, LossForm::chunked})
      for (const Keep& keep : {Keep{}, Keep::selective_recompute()})
        for (const bool by_rows : {false, true}) all.push_back({attention, loss, keep, by_rows});
  for (const LossForm loss : {LossForm::full, LossForm::chunked})
    for (const Keep& keep : {Keep{}, Keep::selective_recompute()})
      all.push_back({AttentionForm::textbook, loss, keep, loss == LossForm::full, 3});
  return all;
}

inline TransformerSpec tiny(const char* name, std::size_t vocabulary = 29) {
  TransformerSpec spec = parse_transformer(name);
  spec.vocabulary = vocabulary;
  spec.positions = 16;
  if (spec.llama() && spec.layers % 2 == 0) spec.tied = false, spec.qkv_bias = true;  // both kinds are tested
  return spec;
}

// Values that every nonlinearity feels, and biases that are not zero, as they are at the start of training.
template <class T>
void make_wide(Device& device, Transformer<T>& model) {
  for (const auto& p : model.parameters()) {
    std::vector<T> values;
    for (const float v : random_floats(p.count, unsigned(p.count), 0.4f))
      values.push_back(static_cast<T>(p.name.ends_with("gamma") ? v + 1 : v));
    device.put(p.value, values);
  }
}

template <class T>
std::vector<std::vector<T>> gradients(Device& device, Transformer<T>& model) {
  std::vector<std::vector<T>> all;
  for (const auto& p : model.parameters()) all.push_back(device.download(p.gradient, p.count));
  return all;
}

template <class T>
bool same_bits(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) return false;
  return a.size() == b.size();
}

}  // namespace oomlab::test
