#pragma once
// Transformers in three published shapes: their names, their tensors, how many parameters they have.
//
//   gpt    pre-norm, causal, learned positions, final norm, head tied to the token embedding (GPT-2; Radford et al.,
//          2019)
//   bert   post-norm, every token sees every token, token types, embedding norm, masked-token head: dense, GELU, norm,
//          decoder tied to the token embedding (BERT; Devlin et al., 2018)
//   llama  pre-norm, causal, RMS norms, rotary positions, grouped-query attention, SwiGLU, no biases (Qwen2: one at Q,
//          K and V), final norm, head of its own or tied (Touvron et al., 2023; Qwen2 and Mistral have the same form)
//
// Sizes: B sequences of S tokens are R = B·S rows of width C; H heads of d values, of which K and V have Hk; F hidden
// units of the MLP; V the vocabulary.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/bytes.h"
#include "plan/model/rotary.h"

namespace oomlab::nn {

struct TransformerSpec {
  enum class Style { gpt, bert, llama };
  std::string name;
  Style style = Style::gpt;
  std::uint64_t layers = 0, heads = 0, width = 0;
  std::uint64_t vocabulary = 256;
  std::uint64_t positions = 0;  ///< longest sequence

  // Only llama has others than these.
  std::uint64_t kv_heads = 0;  ///< Hk, which divide the heads; 0: as many
  std::uint64_t mlp = 0;       ///< F; 0: 4 · C
  bool tied = true;            ///< the head's matrix is the token embedding
  bool qkv_bias = true;
  float epsilon = 1e-5f;  ///< of the norms
  Rotary rotary{};
  std::string stored_as{};  ///< of a config.json: how its file's weights are quantised; empty: they are not

  bool bert() const noexcept { return style == Style::bert; }
  bool llama() const noexcept { return style == Style::llama; }
  std::uint64_t depth() const noexcept { return width / heads; }  ///< d
  std::uint64_t keys() const noexcept { return kv_heads ? kv_heads : heads; }
  /// Of a row of Q, K and V together: (H + 2 Hk) · d.
  std::uint64_t qkv_width() const { return checked_product(checked_sum(heads, 2 * keys()), depth()); }
  /// F.
  std::uint64_t hidden() const { return mlp ? mlp : checked_product(width, 4); }
  /// Of a row before the MLP's activation: SwiGLU reads two values for each that it makes.
  std::uint64_t before_activation() const { return checked_product(hidden(), llama() ? 2 : 1); }
  /// Throws std::length_error when that does not fit 64 bits.
  std::uint64_t parameters() const;
};

/// Reads a model name:
///   bytes-gpt     4 layers, 4 heads, width 128, 256 positions, vocabulary 256: learns bytes of text on a laptop
///   gpt2          12 layers, 12 heads, width 768, 1,024 positions, vocabulary 50,257: 124,439,808 parameters
///   gpt2-medium 354,823,168, gpt2-large 774,030,080, gpt2-xl 1,557,611,200 parameters
///   gpt3-175b     96 layers, 96 heads, width 12,288, 2,048 positions (Brown et al., 2020): 174.6 x 10^9 parameters,
///                 head tied and dense attention everywhere, published as 175 x 10^9
///   bert-base     12 layers, 12 heads, width 768, 512 positions, vocabulary 30,522: 109,514,298 parameters with the
///                 masked-token head and without the pooler
///   bert-large    24 layers, 16 heads, width 1,024: 335,174,458 parameters, counted alike
///   llama-3.2-1b  1,235,814,400, llama-3.1-8b 8,030,261,248, llama-3.1-70b 70,553,706,496, qwen2.5-7b 7,615,616,512,
///   llama-2-7b 6,738,415,616, mistral-7b 7,241,732,096 parameters (v0.1, whose window of 4,096 positions is its longest
///                 sequence here)
///   bytes-llama   3 layers, 4 heads over 2, width 64, 172 hidden units, 2,048 positions, vocabulary 256, tied
///   gpt:LAYERS-HEADS-WIDTH, bert:LAYERS-HEADS-WIDTH     any shape, 1,024 or 512 positions, vocabulary 258
///   llama:LAYERS-HEADS-KVHEADS-WIDTH-MLP                the same with 2,048 positions, tied
/// Throws std::invalid_argument with one line that says what is allowed.
TransformerSpec parse_transformer(std::string_view text);
/// Those that have a name of their own.
const std::vector<TransformerSpec>& named_transformers();

/// The same model with so many layers: with one, where all are alike; with none, the embeddings and the head alone.
inline TransformerSpec with_layers(TransformerSpec spec, std::uint64_t layers) {
  spec.layers = layers;
  return spec;
}

/// The part of a model that one rank has: consecutive layers (a stage of a pipeline), and of these layers a share of
/// the heads and of the hidden units (tensor parallel; Shoeybi et al., "Megatron-LM", 2019). The first layer comes with
/// the embeddings, the last one with the head and a token embedding of its own.
struct Slice {
  std::uint64_t first_layer = 0;
  std::uint64_t layers = UINT64_MAX;  ///< UINT64_MAX: all from there on
  std::uint64_t part = 0, parts = 1;  ///< of heads and hidden units
  bool embeds() const noexcept { return first_layer == 0; }
  std::uint64_t end(const TransformerSpec& spec) const noexcept {
    return layers == UINT64_MAX ? spec.layers : first_layer + layers;
  }
  bool has_head(const TransformerSpec& spec) const noexcept { return end(spec) == spec.layers; }
};

/// One tensor of a model.
struct TensorShape {
  std::string name;
  std::string unit;             ///< "token", "embedding", "layer 3", "head": tensors that are used together
  std::uint64_t rows, columns;  ///< a vector has one row
  std::uint64_t count() const { return checked_product(rows, columns); }
};
/// Every tensor in the order in which a model, or a slice of one, keeps them: embeddings, layers, head. Throws
/// std::invalid_argument where the parts do not divide the heads, or the layers are not there.
std::vector<TensorShape> tensors_of(const TransformerSpec& spec, const Slice& slice = {});
/// All tensors of a model, values of `element_bytes` each, each tensor rounded on its own.
std::uint64_t tensor_bytes(const TransformerSpec& spec, std::uint64_t element_bytes);

}  // namespace oomlab::nn
