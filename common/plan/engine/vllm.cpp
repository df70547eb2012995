#include "plan/engine/vllm.h"

#include <algorithm>
#include <stdexcept>

namespace oomlab::fit {

namespace {

constexpr std::uint64_t kBlock = 16;    // tokens
constexpr std::uint64_t kPadding = 64;  // a vocabulary is a multiple of so many

// Of a logit, while requests are sampled with top-k or top-p: in 16 bits and in FP32, sorted with their places, as much
// again for the sort, probabilities, their sums, a mask. Without sorting: in 16 bits, in FP32, probabilities.
constexpr std::uint64_t kSorted = 2 + 4 + (4 + 8) + (4 + 8) + 4 + 4 + 1;
constexpr std::uint64_t kUnsorted = 2 + 4 + 4;

// Graphs of a server's usual sizes, as logs print them.
constexpr Between kGraphs{.low = std::uint64_t(200) << 20, .high = std::uint64_t(800) << 20};

constexpr std::uint64_t kLarge = std::uint64_t(70) << 30;

std::uint64_t part(std::uint64_t count, std::uint64_t cards) { return (count + cards - 1) / cards; }

class Vllm {
 public:
  Vllm(const nn::HfShape& shape, const VllmRun& run) : shape_(shape), run_(run) {
    if (!shape.gated() && shape.family != nn::HfFamily::gpt2)
      throw std::invalid_argument("vLLM: " + shape.name + " is no decoder that is known");
    if (run.cards == 0 || run.batched_tokens == 0 || run.sequences == 0)
      throw std::invalid_argument("vLLM: a card, a token and a sequence are the least");
    if (shape.experts)
      throw std::invalid_argument("vLLM: mixtures of experts are not known; leave --engine out for PyTorch's");
    if (shape.heads % run.cards != 0)
      throw std::invalid_argument("vLLM: " + std::to_string(shape.heads) + " heads are not shared evenly by " +
                                  std::to_string(run.cards) + " cards");
  }

  VllmNeed need() const {
    VllmNeed need;
    need.weights = checked_sum(weights(), rotary());
    need.activations = activations();
    if (run_.graphs) need.graphs = kGraphs;
    const std::uint64_t values =
        checked_product(checked_product(shape_.layers, 2), checked_product(heads(), shape_.head_dim));
    need.token = checked_product(values, run_.narrow_cache ? element_bytes(DType::fp8_e4m3) : width());
    return need;
  }

 private:
  std::uint64_t width() const { return element_bytes(run_.compute); }
  // Of keys and values on a card. Where there are more cards, some have the same.
  std::uint64_t heads() const { return std::max<std::uint64_t>(1, shape_.kv_heads / run_.cards); }

  std::uint64_t weights() const {
    std::uint64_t sum = 0;
    for (const nn::HfTensor& tensor : nn::parameters_of(shape_)) sum = checked_sum(sum, tensor_bytes(tensor));
    return sum;
  }
  std::uint64_t tensor_bytes(const nn::HfTensor& tensor) const {
    const bool head = tensor.name == "lm_head.weight";
    if (!tensor.linear || head) {
      if (tensor.rows == 1) return checked_product(tensor.columns, width());
      const std::uint64_t rows = tensor.name == "wpe.weight" ? tensor.rows : part(padded(tensor.rows), run_.cards);
      return checked_product(checked_product(rows, tensor.columns), width());
    }
    const bool of_keys = tensor.name == "k_proj.weight" || tensor.name == "v_proj.weight";
    const std::uint64_t rows = of_keys ? checked_product(heads(), shape_.head_dim) : part(tensor.rows, run_.cards);
    const std::uint64_t count = checked_product(rows, tensor.columns);
    switch (run_.weights) {
      case VllmWeights::as_is: return checked_product(count, width());
      case VllmWeights::eight: return checked_sum(bytes_of(DType::fp8_e4m3, count), sizeof(float));
      case VllmWeights::four: return checked_sum(bytes_of(DType::int4, count), scale_bytes(DType::int4, count));
    }
    return 0;
  }
  static std::uint64_t padded(std::uint64_t rows) { return checked_product(part(rows, kPadding), kPadding); }
  // Cosines and sines of all positions, once.
  std::uint64_t rotary() const {
    if (!shape_.gated()) return 0;
    return checked_product(checked_product(shape_.positions, shape_.turned()), width());
  }

  // The larger of two moments: an MLP, whose gate, up-projection and product stand beside what goes in, its norm, the
  // residual and what comes out; and sampling.
  Between activations() const {
    const std::uint64_t tokens = run_.batched_tokens;
    const std::uint64_t residual = checked_product(checked_product(tokens, shape_.width), width());
    const std::uint64_t inner = checked_product(part(shape_.mlp, run_.cards), shape_.gated() ? 3 : 2);
    const std::uint64_t mlp =
        checked_sum(checked_product(checked_product(tokens, inner), width()), checked_product(residual, 4));
    const std::uint64_t logits = checked_product(std::min(run_.sequences, tokens), shape_.vocabulary);
    const auto moment = [&](std::uint64_t bytes) {
      return std::max(mlp, checked_sum(residual, checked_product(logits, bytes)));
    };
    return {moment(kUnsorted), moment(kSorted)};
  }

  const nn::HfShape& shape_;
  const VllmRun& run_;
};

}  // namespace

void set_defaults(VllmRun& run, std::uint64_t memory, bool a100) {
  const bool large = memory >= kLarge && !a100;
  run.batched_tokens = large ? 8192 : 2048;
  run.sequences = large ? 1024 : 256;
}

VllmNeed vllm_need(const nn::HfShape& shape, const VllmRun& run) { return Vllm(shape, run).need(); }

std::uint64_t vllm_tokens(const VllmNeed& need, std::uint64_t bytes) {
  return bytes / checked_product(need.token, kBlock) * kBlock;
}

}  // namespace oomlab::fit
