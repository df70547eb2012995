// generate(): transformers' generation/utils.py (_prefill, _sample, _beam_search) and cache_utils.py.

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "plan/pytorch/generation.h"
#include "plan/pytorch/hf_modules.h"

namespace oomlab::fit {

using nn::HfFamily;

void HfModules::keep_cache(std::uint64_t longest) {
  for (Parameter& parameter : parameters_) parameter.trained = false;
  cache_.resize(static_cast<std::size_t>(shape_.layers + 1));
  caches_ = true;
  longest_ = longest;
  labels_ = {};
}

// How many of a sequence's tokens a layer keeps.
std::uint64_t HfModules::kept(std::uint64_t layer, std::uint64_t tokens) const {
  return slides(layer) ? std::min(tokens, shape_.window - 1) : tokens;
}

// Cache.update(): what attention reads then.
void HfModules::into_cache(std::uint64_t layer, Tensor& key, Tensor& value) {
  const std::uint64_t token = checked_product(step_.batch, shape_.keys());
  Kept& mine = cache_[static_cast<std::size_t>(layer)];
  if (longest_ > 0) {
    const std::uint64_t tokens = slides(layer) ? std::min(longest_, shape_.window) : longest_;
    if (!mine.keys) mine.keys = tape_.make(checked_product(token, tokens), key.dtype);
    if (!mine.values) mine.values = tape_.make(checked_product(token, tokens), value.dtype);
    key = mine.keys;
    value = mine.values;
    return;
  }
  const std::uint64_t before = checked_product(kept(layer, past_), token);
  const auto grow = [&](Tensor& old, Tensor& now) {
    now = tape_.make(checked_sum(before, now.count), now.dtype);
    if (!slides(layer)) old = now;
    return now;
  };
  const Tensor keys = grow(mine.keys, key);
  const Tensor values = grow(mine.values, value);
  mine.keys = keys;  // of a sliding layer a view of the last ones
  mine.values = values;
}

void HfModules::lengthen_cache(std::uint64_t tokens) {
  past_ = tokens;
  if (longest_ > 0) return;
  const std::uint64_t token = checked_product(step_.batch, shape_.keys());
  for (std::uint64_t layer = 1; layer <= shape_.layers; ++layer) {
    // After a decoding pass a sliding layer has the token that it read beside what it keeps.
    const std::uint64_t there = slides(layer) ? std::min(tokens, shape_.window) : tokens;
    Kept& mine = cache_[static_cast<std::size_t>(layer)];
    const DType dtype = mine.keys.dtype;
    mine = {};
    mine.keys = tape_.make(checked_product(there, token), dtype);
    mine.values = tape_.make(checked_product(there, token), dtype);
  }
}

// index_select() of keys, then of values, layer by layer.
void HfModules::reorder_cache() {
  for (Kept& mine : cache_)
    for (Tensor* tensor : {&mine.keys, &mine.values}) {
      if (!*tensor) continue;
      Tensor copy = tape_.make(tensor->count, tensor->dtype);
      *tensor = std::move(copy);
    }
}

Tensor HfModules::next_logits(std::uint64_t tokens) {
  tape_.memory().moment(past_ == 0 ? "prefill" : "decoding");
  seq_ = tokens;
  rows_ = checked_product(step_.batch, tokens);
  const Tensor seen = tape_.make(checked_product(step_.batch, checked_sum(past_, tokens)), DType::int64);  // a mask
  const Tensor hidden = shape_.family == HfFamily::gpt2 ? gpt2_hidden() : decoder_hidden();
  cos_ = sin_ = mask_ = {};
  past_ = checked_sum(past_, tokens);
  const Tensor last = torch_.slice(hidden, checked_product(step_.batch, shape_.width));
  Tensor logits = torch_.linear(last, head(), nullptr, shape_.width, shape_.vocabulary);
  return shape_.logits_capped ? capped(logits) : logits;
}

HfPeak huggingface_generation_peak(const nn::HfShape& shape, const HfGeneration& generation, bool recorded) {
  if (shape.family == HfFamily::bert || shape.family == HfFamily::vit)
    throw std::invalid_argument(fmt::format("{} does not generate", shape.name));
  if (generation.batch == 0 || generation.prompt == 0 || generation.new_tokens == 0 || generation.beams == 0 ||
      shape.layers == 0)
    throw std::invalid_argument(
        "generate() has at least one sequence, a prompt of one token, one new token and one beam");
  const std::uint64_t longest = checked_sum(generation.prompt, generation.new_tokens) - 1;
  if (longest > shape.positions)
    throw std::invalid_argument(
        fmt::format("{} tokens are more than the {} of {}", longest, shape.positions, shape.name));
  nn::HfShape calm = shape;  // eval()
  calm.embedding_dropout = calm.attention_dropout = calm.hidden_dropout = 0;
  HfStep step{.batch = checked_product(generation.batch, generation.beams), .seq = generation.prompt};
  step.weights = generation.weights;
  step.eager_attention = generation.eager_attention;
  step.device = generation.device;

  TorchMemory memory(step.device == TorchDevice::cuda ? kGranule : 1, recorded);
  HfPeak peak{};
  {
    HfModules modules(memory, calm, step);
    modules.keep_cache(generation.static_cache ? longest : 0);
    Tape& tape = modules.tape();
    memory.forget_peak();
    Tensor logits, scores;  // names in the loop, which live on during the next pass
    const auto pass = [&](std::uint64_t tokens) {
      const Tensor out = modules.next_logits(tokens);
      logits = tape.make(out.count, DType::fp32);
      if (generation.beams == 1) return;
      scores = tape.make(out.count, DType::fp32);
      Tensor sums = tape.make(out.count, DType::fp32);
      scores = std::move(sums);
      modules.reorder_cache();
    };
    pass(generation.prompt);
    // The cache only grows: the last token's pass needs most of those after the prompt's.
    const std::uint64_t passes = generation.new_tokens - 1;
    const std::uint64_t shown = std::min<std::uint64_t>(passes, recorded ? 256 : 1);
    for (std::uint64_t i = 1; i <= shown; ++i) {
      const std::uint64_t past = generation.prompt + passes * i / shown - 1;
      modules.lengthen_cache(past);
      pass(1);
    }
  }
  peak.bytes = memory.at_peak();
  peak.moment = memory.peak_moment();
  const bool batched = shape.experts && generation.device == TorchDevice::cuda && generation.new_tokens > 1;
  peak.checked = generation.weights != DType::fp16 && !batched;
  peak.events = memory.take_events();
  return peak;
}

}  // namespace oomlab::fit
