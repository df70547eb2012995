#pragma once
// Models as Hugging Face's transformers have them: the families whose modules plan/pytorch/huggingface.h follows, their
// shapes, and how many parameters they have. Names of members are config.json's, or say more than these.

#include <cstdint>
#include <string>
#include <vector>

#include "plan/bytes.h"

namespace oomlab::nn {

enum class HfFamily { llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, mixtral, qwen3_moe, gpt2, bert, vit };

/// What stands between an MLP's products.
enum class HfActivation {
  silu,      ///< torch.nn.functional.silu
  gelu,      ///< torch.nn.functional.gelu, exact or by tanh: one operator
  gelu_new,  ///< GPT-2's, written out in Python
};

struct HfShape {
  std::string name;
  HfFamily family = HfFamily::llama;
  std::uint64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0, vocabulary = 0;
  std::uint64_t experts = 0;    ///< of a layer, each an MLP of its own; 0: a layer has one MLP
  std::uint64_t active = 0;     ///< experts that a token goes to
  std::uint64_t positions = 0;  ///< longest sequence; of vit, patches and the class token
  bool tied = false;            ///< the head's matrix is the token embedding
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  HfActivation activation = HfActivation::silu;
  std::uint64_t rotary_dim = 0;  ///< values of a head that are turned; 0: all of them
  std::uint64_t window = 0;      ///< of layers with a sliding window; 0: none has one
  std::uint64_t full_every = 0;  ///< so many layers, the last of which sees everything; 0: all have the window
  bool scores_capped = false, logits_capped = false;                        ///< by tanh
  double embedding_dropout = 0, attention_dropout = 0, hidden_dropout = 0;  ///< in training
  std::uint64_t types = 0;                                                  ///< of tokens (bert)
  std::uint64_t channels = 0, patch = 0, labels = 0;                        ///< of vit

  bool gated() const { return family != HfFamily::gpt2 && family != HfFamily::bert && family != HfFamily::vit; }
  bool head_norms() const {
    return family == HfFamily::qwen3 || family == HfFamily::qwen3_moe || family == HfFamily::gemma3;
  }
  bool gemma() const { return family == HfFamily::gemma2 || family == HfFamily::gemma3; }
  /// H · d and Hk · d.
  std::uint64_t queries() const { return checked_product(heads, head_dim); }
  std::uint64_t keys() const { return checked_product(kv_heads, head_dim); }
  std::uint64_t turned() const { return rotary_dim ? rotary_dim : head_dim; }
};

/// "llama", …: config.json's model_type.
const char* name_of(HfFamily family);

/// A parameter of a model: its name without the layer's number, and its values.
struct HfTensor {
  std::string name;             ///< "q_proj.weight"
  std::uint64_t layer;          ///< from 1; 0: none
  std::uint64_t rows, columns;  ///< a vector has one row
  bool linear;                  ///< of a Linear: its weight, [out, in]
  std::uint64_t count() const { return checked_product(rows, columns); }
};
/// Every parameter, once where it is tied. Throws std::length_error when a figure does not fit 64 bits.
std::vector<HfTensor> parameters_of(const HfShape& shape);
std::uint64_t parameter_count(const HfShape& shape);

}  // namespace oomlab::nn
