// GPT-2, BERT and ViT: layer norms, biases, dropout. From transformers' modeling files of the same names.

#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

using nn::HfFamily;

// ------------------------------------------------------------------------------------------------------------- GPT-2

Tensor HfModules::gpt2_layer(std::uint64_t layer, Tensor hidden) {
  Tensor residual = hidden;
  Tensor weights;
  hidden = layer_norm(hidden, "ln_1", layer);
  Tensor attended;
  {
    const std::uint64_t part = checked_product(rows_, shape_.width);
    const std::vector<Tensor> parts = torch_.split(project(hidden, linear("c_attn", layer)), {part, part, part});
    const bool copied = copied_back(false);
    Tensor key = torch_.view(parts[1], copied);
    Tensor value = torch_.view(parts[2], copied);
    const Tensor query = torch_.view(parts[0], copied);
    if (caches_) into_cache(layer, key, value);
    attended = attend(query, key, value, true, eager() || longest_ > 0, weights);
    attended = project(attended, linear("attn.c_proj", layer));
    attended = torch_.dropout(attended, shape_.hidden_dropout);
  }
  hidden = torch_.add(attended, residual);

  residual = hidden;
  hidden = layer_norm(hidden, "ln_2", layer);
  Tensor forward;
  {
    Tensor states = project(hidden, linear("c_fc", layer));
    states = activate(states);
    states = project(states, linear("mlp.c_proj", layer));
    forward = torch_.dropout(states, shape_.hidden_dropout);
  }
  return torch_.add(residual, forward);
}

Tensor HfModules::gpt2_hidden() {
  Tensor hidden;
  {
    const Tensor words = with_gradient(torch_.embedding(rows_, weight("wte.weight"), shape_.width, tokens_));
    const std::uint64_t tokens = caches_ ? rows_ : seq_;  // generate() numbers those of each sequence
    const Tensor numbers = tape_.make(tokens, DType::int64);
    const Tensor positions = torch_.embedding(tokens, weight("wpe.weight"), shape_.width, numbers);
    hidden = torch_.add(words, positions);
    make_mask();
    hidden = torch_.dropout(hidden, shape_.embedding_dropout);
    Tensor after = each_layer(std::move(hidden));
    hidden = layer_norm(after, "ln_f");
  }
  return hidden;
}

Tensor HfModules::gpt2_loss() { return language_loss(gpt2_hidden(), true); }

// -------------------------------------------------------------------------------------------------------------- BERT

Tensor HfModules::encoder_attention(std::uint64_t layer, const Tensor& hidden, Tensor& weights) {
  const bool copied = copied_back(false);
  const Tensor query = torch_.view(project(hidden, linear("query", layer)), copied);
  const Tensor key = torch_.view(project(hidden, linear("key", layer)), copied);
  const Tensor value = torch_.view(project(hidden, linear("value", layer)), copied);
  return attend(query, key, value, false, false, weights);
}

Tensor HfModules::bert_layer(std::uint64_t layer, Tensor hidden) {
  Tensor weights;
  Tensor attention = encoder_attention(layer, hidden, weights);
  {
    Tensor states = project(attention, linear("attention.output.dense", layer));
    states = torch_.dropout(states, shape_.hidden_dropout);
    const Tensor sum = torch_.add(states, hidden);
    attention = layer_norm(sum, "attention.output.LayerNorm", layer);
  }
  Tensor intermediate;
  {
    const Tensor states = project(attention, linear("intermediate.dense", layer));
    intermediate = activate(states);
  }
  Tensor states = project(intermediate, linear("output.dense", layer));
  states = torch_.dropout(states, shape_.hidden_dropout);
  const Tensor sum = torch_.add(states, attention);
  return layer_norm(sum, "output.LayerNorm", layer);
}

Tensor HfModules::bert_loss() {
  Tensor hidden;
  {
    const Tensor numbers = tape_.make(seq_, DType::int64);
    const Tensor words =
        with_gradient(torch_.embedding(rows_, weight("word_embeddings.weight"), shape_.width, tokens_));
    const Tensor kinds = torch_.embedding(rows_, weight("token_type_embeddings.weight"), shape_.width, numbers);
    Tensor sum = torch_.add(words, kinds);
    const Tensor positions = torch_.embedding(seq_, weight("position_embeddings.weight"), shape_.width, numbers);
    sum = torch_.add(sum, positions);
    sum = layer_norm(sum, "embeddings.LayerNorm");
    hidden = torch_.dropout(sum, shape_.embedding_dropout);
  }
  make_mask();
  hidden = each_layer(std::move(hidden));
  tape_.memory().moment("loss");
  Tensor logits;
  {
    Tensor states = project(hidden, linear("transform.dense"));
    states = activate(states);
    states = layer_norm(states, "transform.LayerNorm");
    Parameter& matrix = weight(shape_.tied ? "word_embeddings.weight" : "decoder.weight");
    logits = torch_.linear(states, matrix, &weight("predictions.bias"), shape_.width, shape_.vocabulary);
  }
  if (step_.autocast && step_.device == TorchDevice::cpu) logits = torch_.cast(logits, DType::fp32);
  return torch_.cross_entropy(logits, labels_);
}

// --------------------------------------------------------------------------------------------------------------- ViT

Tensor HfModules::vit_layer(std::uint64_t layer, Tensor hidden) {
  Tensor weights;
  Tensor residual = hidden;
  hidden = layer_norm(hidden, "layernorm_before", layer);
  {
    Tensor attention = encoder_attention(layer, hidden, weights);
    attention = project(attention, linear("attention.output.dense", layer));
    hidden = torch_.dropout(attention, shape_.hidden_dropout);
  }
  hidden = torch_.add(hidden, residual);

  residual = hidden;
  hidden = layer_norm(hidden, "layernorm_after", layer);
  {
    Tensor states = project(hidden, linear("intermediate.dense", layer));
    states = activate(states);
    states = project(states, linear("output.dense", layer));
    hidden = torch_.dropout(states, shape_.hidden_dropout);
  }
  return torch_.add(hidden, residual);
}

Tensor HfModules::vit_loss() {
  const Tensor pixels = step_.autocast ? tokens_ : torch_.cast(tokens_, weights_);
  Tensor hidden;
  {
    const HfLinear patches = linear("projection");
    Tensor embedded = torch_.linear(pixels, *patches.weight, patches.bias, patches.in, patches.out);
    const Tensor flat = with_gradient(torch_.contiguous(embedded));
    embedded = {};
    const Tensor classes = torch_.repeat(tape_.leaf(weight("cls_token")), step_.batch);
    const Tensor whole = torch_.concatenate(classes, flat);
    hidden = torch_.add(whole, tape_.leaf(weight("position_embeddings")));
    hidden = torch_.dropout(hidden, shape_.embedding_dropout);
  }
  hidden = each_layer(std::move(hidden));
  hidden = layer_norm(hidden, "layernorm");
  tape_.memory().moment("loss");
  const Tensor first = torch_.slice(hidden, checked_product(step_.batch, shape_.width));
  const HfLinear classifier = linear("classifier");
  const Tensor logits = torch_.linear(first, *classifier.weight, classifier.bias, classifier.in, classifier.out);
  return torch_.cross_entropy(logits, labels_);
}

}  // namespace oomlab::fit
