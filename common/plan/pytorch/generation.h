#pragma once
// The peak of generate() of Hugging Face's own modules (transformers 5): the prompt in one pass, then a token at a time
// from a cache, by the same operators as a training step's (huggingface.h). docs/fit_pytorch.md says how far it is from
// what PyTorch measures of itself.

#include "plan/pytorch/huggingface.h"

namespace oomlab::fit {

/// `model.generate(input_ids, max_new_tokens=..., do_sample=False)` of prompts without padding.
struct HfGeneration {
  std::uint64_t batch = 1, prompt = 1, new_tokens = 1;
  std::uint64_t beams = 1;  ///< num_beams; each has a cache of its own
  DType weights = DType::fp32;
  bool static_cache = false;     ///< cache_implementation="static"; else a DynamicCache, which grows by concatenation
  bool eager_attention = false;  ///< attn_implementation="eager", or "sdpa"
  TorchDevice device = TorchDevice::cuda;
};

/// Peak bytes by category; keys and values count as activations. `moment`: "prefill", "decoding". `recorded`: with every
/// allocation and release of the prompt's pass and of at most 256 tokens' after it, spread over all. Throws as
/// huggingface_peak() does, and std::invalid_argument for a model that does not generate (bert, vit).
HfPeak huggingface_generation_peak(const nn::HfShape& shape, const HfGeneration& generation, bool recorded = false);

}  // namespace oomlab::fit
