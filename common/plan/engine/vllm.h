#pragma once
// How vLLM divides a card: of gpu_memory_utilization times its memory it takes the weights, what a pass over
// max_num_batched_tokens holds at its peak, and what is not PyTorch's; the rest is its cache of keys and values, in blocks
// of 16 tokens. CUDA graphs come out of the rest since version 0.21, before out of what it leaves to others.
//
// Read in vllm/v1/worker/gpu_worker.py, engine/arg_utils.py and the models' files. The peak of a pass agrees with what
// logs print ("PyTorch activation peak memory takes"); graphs are only known from logs. docs/fit_engines.md has them.

#include <cstdint>
#include <optional>

#include "plan/model/huggingface.h"

namespace oomlab::fit {

/// In what the linear layers are stored. Embedding and output keep 16 bits.
enum class VllmWeights {
  as_is,  ///< in the type it computes in
  eight,  ///< FP8, a scale for each tensor
  four,   ///< AWQ or GPTQ: groups of 128 with a scale and a zero
};

struct VllmRun {
  DType compute = DType::bf16;
  VllmWeights weights = VllmWeights::as_is;
  bool narrow_cache = false;            ///< kv_cache_dtype="fp8"
  std::uint64_t cards = 1;              ///< tensor_parallel_size
  std::uint64_t batched_tokens = 2048;  ///< max_num_batched_tokens
  std::uint64_t sequences = 256;        ///< max_num_seqs
  bool graphs = true;                   ///< not enforce_eager
};
/// What a server has where nobody says otherwise: more on cards of 70 GiB and more, but for an A100.
void set_defaults(VllmRun& run, std::uint64_t memory, bool a100);

/// Two figures where one is not known.
struct Between {
  std::uint64_t low = 0, high = 0;
};

/// Bytes of each card.
struct VllmNeed {
  std::uint64_t weights = 0;  ///< with the rotary table
  Between activations{};      ///< the higher one: sampling sorts all logits
  Between graphs{};
  std::uint64_t token = 0;  ///< of keys and values
};

/// Throws std::invalid_argument for a model that is no decoder and for heads that the cards do not share evenly, and
/// std::length_error where 64 bits do not hold a figure.
VllmNeed vllm_need(const nn::HfShape& shape, const VllmRun& run);

/// Tokens of whole blocks in so many bytes.
std::uint64_t vllm_tokens(const VllmNeed& need, std::uint64_t bytes);

}  // namespace oomlab::fit
