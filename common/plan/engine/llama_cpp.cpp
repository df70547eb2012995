#include "plan/engine/llama_cpp.h"

#include <algorithm>
#include <stdexcept>

namespace oomlab::fit {

namespace {

constexpr std::uint64_t kCells = 256;  // a cache has a multiple of so many
constexpr std::uint64_t kCopies = 4;   // of a pass's inputs, where several cards work at the same time

std::uint64_t padded(std::uint64_t tokens) {
  return checked_product((checked_sum(tokens, kCells - 1)) / kCells, kCells);
}

class LlamaCpp {
 public:
  LlamaCpp(const nn::HfShape& shape, const LlamaCppRun& run)
      : shape_(shape),
        run_(run),
        layers_(shape.layers),
        cells_(padded(checked_product(run.sequences, run.tokens))),
        pass_(std::min(run.micro_batch, cells_)) {
    if (run.kind == nullptr || run.sequences == 0 || run.tokens == 0 || run.micro_batch == 0 || run.cards == 0)
      throw std::invalid_argument("llama.cpp: a kind, a sequence of a token and a card are the least");
    if (block_of(run.cache) > 1 && !run.flash_attention)
      throw std::invalid_argument("llama.cpp: a cache of fewer than 16 bits needs flash attention");
    if (shape.keys() % block_of(run.cache) != 0)
      throw std::invalid_argument("llama.cpp: keys of a layer are no whole blocks of the cache's type");
    on_cards_ = std::min(run.layers_on_cards, layers_ + 1);
  }

  LlamaCppNeed need() const {
    LlamaCppNeed need;
    need.cards.resize(static_cast<std::size_t>(run_.cards));
    place_weights(need);
    place_cache(need);
    for (std::size_t card = 0; card < need.cards.size(); ++card) {
      LlamaCppPart& part = need.cards[card];
      if (part.layers == 0) continue;
      part.compute = compute_bytes(card);
      part.scratch = block_of(run_.cache) > 1 ? two_of(checked_product(cells_, shape_.keys()), 2) : 0;
    }
    // What goes in: the embedded tokens, and the mask.
    need.host.compute = checked_sum(of_pass(shape_.width), of_pass(cells_));
    if (on_cards_ == 0) need.host.compute = checked_sum(need.host.compute, compute_bytes(run_.cards));
    return need;
  }

 private:
  static std::uint64_t two_of(std::uint64_t count, std::uint64_t bytes) {
    return checked_product(checked_product(count, 2), bytes);
  }
  // `width` FP32 values for each token of a pass.
  std::uint64_t of_pass(std::uint64_t width) const {
    return checked_product(checked_product(pass_, width), sizeof(float));
  }

  // Of layer 0…layers_ - 1; layers_ is the output. run_.cards: on the host.
  std::uint64_t card_of(std::uint64_t layer) const {
    const std::uint64_t first = layers_ + 1 - on_cards_;
    if (layer < first) return run_.cards;
    return (layer - first) * run_.cards / on_cards_;
  }
  LlamaCppPart& part_of(LlamaCppNeed& need, std::uint64_t layer) const {
    const std::uint64_t card = card_of(layer);
    return card == run_.cards ? need.host : need.cards[static_cast<std::size_t>(card)];
  }

  void place_weights(LlamaCppNeed& need) const {
    for (std::uint64_t layer = 0; layer <= layers_; ++layer) ++part_of(need, layer).layers;
    for (const GgufTensor& tensor : gguf_tensors(shape_, *run_.kind)) {
      const bool embedding = tensor.name == "embed_tokens.weight" || tensor.name == "wte.weight";
      const bool first = embedding || tensor.name == "wpe.weight";
      LlamaCppPart& part = first ? need.host : part_of(need, tensor.layer ? tensor.layer - 1 : layers_);
      part.weights = checked_sum(part.weights, tensor.bytes());
      // A tied output is a second copy, where it is on a card.
      if (embedding && shape_.tied && card_of(layers_) != run_.cards) {
        LlamaCppPart& output = part_of(need, layers_);
        output.weights = checked_sum(output.weights, tensor.bytes());
      }
    }
  }

  // Of gemma's layers with a window only what they see, and the pass.
  bool slides(std::uint64_t layer) const {
    return shape_.gemma() && shape_.window > 0 && (shape_.full_every == 0 || (layer + 1) % shape_.full_every != 0);
  }
  std::uint64_t cells_of(std::uint64_t layer) const {
    if (!slides(layer)) return cells_;
    const std::uint64_t seen = checked_sum(checked_product(shape_.window, run_.sequences), run_.micro_batch);
    return std::min(cells_, padded(seen));
  }
  void place_cache(LlamaCppNeed& need) const {
    for (std::uint64_t layer = 0; layer < layers_; ++layer) {
      LlamaCppPart& part = part_of(need, layer);
      part.cache = checked_sum(part.cache, two_of(cells_of(layer), gguf_bytes(run_.cache, 1, shape_.keys())));
    }
  }

  // The largest moment of a pass.
  std::uint64_t compute_bytes(std::uint64_t card) const {
    const std::uint64_t width = of_pass(shape_.width), queries = of_pass(shape_.queries());
    const std::uint64_t mask = of_pass(cells_);
    std::uint64_t attention = 0,
                  mlp = checked_sum({of_pass(checked_product(shape_.mlp, 2)), checked_product(width, 3)});
    if (run_.flash_attention) {  // the mask in FP32 and in 16 bits; what goes in, its norm, queries, what comes out
      const std::uint64_t masks = checked_sum(mask, mask / 2);
      attention = checked_sum({masks, checked_product(width, 3), checked_product(queries, 2)});
      mlp = checked_sum(mlp, masks);
    } else {
      attention = checked_sum(
          {checked_product(mask, shape_.heads), mask, checked_product(width, 2), checked_product(queries, 2)});
      mlp = checked_sum(mlp, mask);
    }
    std::uint64_t most = std::max(attention, mlp);
    if (card_of(layers_) == card) most = std::max(most, checked_sum(of_pass(shape_.vocabulary), width));
    const bool at_the_same_time = run_.cards > 1 && on_cards_ == layers_ + 1;
    if (at_the_same_time)  // copies of the mask, and of what comes from the card before
      most = checked_sum({most, checked_product(mask, kCopies - 1), checked_product(width, kCopies)});
    return most;
  }

  const nn::HfShape& shape_;
  const LlamaCppRun& run_;
  std::uint64_t layers_, cells_, pass_;
  std::uint64_t on_cards_ = 0;  // the output is one of them
};

}  // namespace

const LlamaCppPart& LlamaCppNeed::fullest() const {
  return *std::ranges::max_element(cards, {}, [](const LlamaCppPart& part) { return part.total(); });
}

LlamaCppNeed llama_cpp_need(const nn::HfShape& shape, const LlamaCppRun& run) { return LlamaCpp(shape, run).need(); }

std::uint64_t gguf_file_bytes(const nn::HfShape& shape, const GgufKind& kind) {
  std::uint64_t sum = 0;
  for (const GgufTensor& tensor : gguf_tensors(shape, kind)) sum = checked_sum(sum, tensor.bytes());
  return sum;
}

}  // namespace oomlab::fit
