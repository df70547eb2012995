#pragma once
// Hugging Face's modules on a tape: weights, and the forward functions of transformers 5's modeling files. Part of
// huggingface.h. Names in the functions are those of the modules; a name lives as long as there.

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "plan/pytorch/hf_ranks.h"
#include "plan/pytorch/huggingface.h"

namespace oomlab::fit {

/// A Linear, perhaps with peft's adapter, perhaps of four bits.
struct HfLinear {
  std::uint64_t in = 0, out = 0;
  Parameter* weight = nullptr;  ///< none: four bits
  Parameter* bias = nullptr;
  Parameter *a = nullptr, *b = nullptr;  ///< of the adapter
  /// What of the weight a rank has, in tensor parallelism.
  enum class Part { whole, columns, rows } part = Part::whole;
};

class HfModules {
 public:
  /// `units`: what several ranks add, or nothing.
  HfModules(TorchMemory& memory, const nn::HfShape& shape, const HfStep& step, HfUnits* units = nullptr);

  /// Tokens, or pixels, to the loss. The tape has the graph then.
  Tensor loss();
  /// After the backward pass: what only the graph held is gone.
  void forget() { embedded_ = {}; }
  /// From here on as in generate(): nothing has a gradient, and keys and values stay. `longest`: a static cache of so
  /// many tokens; 0: it grows.
  void keep_cache(std::uint64_t longest);
  /// `tokens` more of each sequence, to the logits of the one that follows.
  Tensor next_logits(std::uint64_t tokens);
  /// The cache as after `tokens` tokens in all.
  void lengthen_cache(std::uint64_t tokens);
  /// Each sequence goes on from another one's, as beams do.
  void reorder_cache();
  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Tape& tape() { return tape_; }
  /// Of trained matrices the sums of rows and columns; and the largest trained tensor.
  struct Trained {
    std::uint64_t count = 0, rows_and_columns = 0, largest = 0, embeddings = 0;
  };
  const Trained& trained() const { return trained_; }

 private:
  // hf_modules.cpp: weights, and what all models have.
  void make_parameters();
  Parameter& add_parameter(std::uint64_t rows, std::uint64_t columns, DType dtype, bool trained, std::uint64_t layer,
                           std::uint64_t first);
  void add_codes(std::uint64_t bytes, std::uint64_t layer);
  void note_trained(std::uint64_t rows, std::uint64_t columns);
  Parameter& weight(const std::string& name, std::uint64_t layer = 0);
  HfLinear linear(const std::string& name, std::uint64_t layer = 0);
  void adapt(HfLinear& linear, const std::string& name, std::uint64_t layer);
  Tensor project(const Tensor& input, const HfLinear& linear);
  Tensor rms_norm(const Tensor& x, Parameter& weight, std::uint64_t rows);
  Tensor gemma_norm(const Tensor& x, Parameter& weight, std::uint64_t rows);
  Tensor norm(const Tensor& x, Parameter& weight, std::uint64_t rows);
  Tensor layer_norm(const Tensor& x, const std::string& name, std::uint64_t layer = 0);
  Tensor activate(const Tensor& x);
  Tensor gelu_new(const Tensor& x);
  Tensor capped(Tensor x);
  Tensor with_gradient(Tensor embedded);
  Tensor each_layer(Tensor hidden);
  Tensor layer(std::uint64_t number, Tensor hidden);
  Tensor layer_itself(std::uint64_t number, Tensor hidden);
  Tensor entered(std::uint64_t number, Tensor hidden);
  void left(std::uint64_t number, const Tensor& out);
  bool slides(std::uint64_t layer) const;
  bool sees_all(std::uint64_t layer) const;

  // hf_attention.cpp
  /// transformers has no other attention for gemma2.
  bool eager() const { return step_.eager_attention || shape_.family == nn::HfFamily::gemma2; }
  AttentionShape attention_shape(const Tensor& key, bool causal) const;
  Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, bool causal, bool masked, Tensor& weights);
  Tensor attend_eager(const Tensor& query, const Tensor& key, const Tensor& value, bool masked, Tensor& weights);
  bool copied_back(bool turned) const;
  void make_mask();

  // hf_generate.cpp
  void into_cache(std::uint64_t layer, Tensor& key, Tensor& value);
  std::uint64_t kept(std::uint64_t layer, std::uint64_t tokens) const;

  // hf_decoder.cpp
  void angles(DType dtype);
  Tensor rotate(const Tensor& x);
  Tensor decoder_attention(std::uint64_t layer, const Tensor& hidden, Tensor& weights);
  Tensor decoder_mlp(std::uint64_t layer, const Tensor& hidden);
  Tensor decoder_layer(std::uint64_t layer, Tensor hidden);
  Tensor decoder_hidden();
  Tensor decoder_loss();

  // hf_experts.cpp
  /// What a router says of each token.
  struct Routed {
    Tensor logits, weights, chosen;
  };
  Routed route(std::uint64_t layer, const Tensor& hidden);
  Tensor experts(std::uint64_t layer, const Tensor& hidden);
  Tensor batched_experts(const Tensor& hidden, const Routed& routed);

  // hf_encoders.cpp
  Tensor gpt2_layer(std::uint64_t layer, Tensor hidden);
  Tensor gpt2_hidden();
  Tensor gpt2_loss();
  Tensor encoder_attention(std::uint64_t layer, const Tensor& hidden, Tensor& weights);
  Tensor bert_layer(std::uint64_t layer, Tensor hidden);
  Tensor bert_loss();
  Tensor vit_layer(std::uint64_t layer, Tensor hidden);
  Tensor vit_loss();
  Parameter& head();
  Tensor logits_of(const Tensor& hidden);
  Tensor language_loss(Tensor hidden, bool shifted);
  Tensor chunked_loss(const Tensor& hidden);

  const nn::HfShape shape_;  ///< of this rank
  const HfStep& step_;
  HfUnits* units_;
  DType weights_;        ///< in which the modules have them
  std::uint64_t split_;  ///< ranks that share each matrix; 1: none
  Tape tape_;
  Torch torch_;
  std::uint64_t seq_, rows_;  ///< tokens of a sequence, and of all, in the pass that runs
  std::deque<Parameter> parameters_;
  std::map<std::string, Parameter*> by_name_;
  std::deque<Tensor> other_;  // what stays beside the parameters: four-bit codes
  std::map<std::string, HfLinear> linears_;
  Trained trained_;
  Tensor tokens_, labels_;
  Tensor cos_, sin_, mask_;
  /// Keys and values of a layer, in generate().
  struct Kept {
    Tensor keys, values;
  };
  std::vector<Kept> cache_;
  bool caches_ = false;
  std::uint64_t longest_ = 0, past_ = 0;
  Parameter embedded_;  ///< what with_gradient() made a leaf
};

}  // namespace oomlab::fit
