#pragma once
// Folk advice about long sequences, put to the test.

#include "longest.h"

namespace oomlab::long_sequences {

/// One sequence of llama-3.1-8b.
inline Work llama_8b(std::size_t tokens) { return {of_any_length(nn::parse_transformer("llama-3.1-8b")), 1, tokens}; }

/// Packed, each of 8 data-parallel cards has as many tokens as its sequences have, and all wait for the one that has
/// most.
inline std::optional<double> most_of_packed_cards() {
  constexpr std::size_t kCards = 8, kSequences = 64, kLongest = 2048;
  Work work{nn::parse_transformer("llama-3.1-8b"), kSequences, kLongest};
  work.lengths = data::paragraph_lengths(data::course_text(), kLongest);
  work.lengths.resize(kSequences);
  Levers levers = levers_of_row(kHalf);
  levers.pack = true;
  const double all = plan_of(work, levers).price.flops;
  levers.ranks = {.dp = kCards, .zero = 3};
  return ratio(plan_of(work, levers).price.flops, all / double(kCards));
}

inline std::vector<Claim> claims_of() {
  constexpr std::size_t kShort = 8192, kLong = 131'072, kTimes = 8, kMillion = kTimes * kLong, kCards = 8;
  const auto peak = [](std::size_t tokens, const Levers& levers) { return plan_of(llama_8b(tokens), levers).peak; };
  const auto activations = [=](std::size_t cards, bool sequence_parallel) {
    const Levers levers = by_heads(levers_of_row(kChunked), cards, sequence_parallel);
    return double(peak(kLong, levers)[Category::activations]);
  };
  const auto share = [=](bool sequence_parallel) {
    return [=] { return ratio(activations(kCards, sequence_parallel), activations(1, false)); };
  };
  const auto ring = [=](std::size_t tokens, std::size_t cards) {
    return double(peak(tokens, by_tokens(levers_of_row(kHalf), cards, nn::ContextForm::ring)).total());
  };
  const std::string large = "llama-3.1-8b, 1 x 131,072";
  return {
      {.text = "FlashAttention made long context free",
       .what = "peak of 131,072 tokens / peak of 8,192, both with fused attention and no state on the device",
       .range = at_most(1.1),
       .size = "llama-3.1-8b, one sequence",
       .at_size =
           [=] {
             const Levers fused = levers_of_row(kFused);
             return ratio(double(peak(kLong, fused).total()), double(peak(kShort, fused).total()));
           }},
      {.text = "tensor parallelism divides activations",
       .what = "activations at the peak of each of 8 cards / those of one card; 1/8 is 0.125",
       .range = at_most(0.1375),
       .size = large,
       .at_size = share(false)},
      {.text = "with sequence parallelism it divides them",
       .what = "the same share, with --sequence-parallel",
       .range = at_most(0.1375),
       .size = large,
       .at_size = share(true)},
      {.text = "ring attention needs no more memory however long",
       .what = "peak of each of 8 cards for 1,048,576 tokens / for 131,072, both with --cp 8",
       .range = at_most(1.1),
       .size = "llama-3.1-8b, one sequence",
       .at_size = [=] { return ratio(ring(kMillion, kCards), ring(kLong, kCards)); }},
      {.text = "with as many times the cards it needs no more",
       .what = "peak of each of 64 cards for 1,048,576 tokens / of each of 8 for 131,072",
       .range = at_most(1.1),
       .size = "llama-3.1-8b, one sequence",
       .at_size = [=] { return ratio(ring(kMillion, kTimes * kCards), ring(kLong, kCards)); }},
      {.text = "packing is free",
       .what = "operations of the card that has most tokens of 8 / the mean of all, 8 paragraphs of this course each",
       .range = at_most(1.1),
       .size = "llama-3.1-8b, 64 paragraphs of up to 2,048 tokens",
       .at_size = most_of_packed_cards},
      {.text = "a million tokens need a cluster",
       .what = "GB at the peak of one card, with the levers of 'bf16'",
       .range = at_least(80),
       .size = "llama-3.1-8b, 1 x 1,048,576",
       .at_size = [=] { return std::optional(double(peak(kMillion, levers_of_row(kHalf)).total()) / 1e9); }},
  };
}

}  // namespace oomlab::long_sequences
