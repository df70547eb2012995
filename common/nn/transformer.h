#pragma once
// A transformer with hand-written backward, in three published shapes. What memory it needs: step_walk.h.
//
//   gpt    pre-norm, causal, learned positions, final norm, head tied to the token embedding (GPT-2; Radford et al.,
//          2019)
//   bert   post-norm, every token sees every token, token types, embedding norm, masked-token head: dense, GELU, norm,
//          decoder tied to the token embedding (BERT; Devlin et al., 2018)
//   llama  pre-norm, causal, RMS norms, rotary positions, grouped-query attention, SwiGLU, no biases (Qwen2: one at Q,
//          K and V), final norm, head of its own or tied (Touvron et al., 2023; Qwen2 and Mistral have the same form)
//
// Attention and loss have several forms (StepForm); by default they are the textbook's, whose probabilities and logits
// are matrices in memory. GELU is the tanh form, epsilon of layer norms 1e-5, no dropout. Values are stored as T
// (float, __half, __nv_bfloat16) and added up in FP32.
//
// Sizes: B sequences of S tokens are R = B·S rows of width C; H heads of d values, of which K and V have Hk; F hidden
// units of the MLP; V the vocabulary.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/context.h"
#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/optimizer.h"
#include "nn/rotary.h"

namespace oomlab::nn {

struct TransformerSpec {
  enum class Style { gpt, bert, llama };
  std::string name;
  Style style = Style::gpt;
  std::size_t layers = 0, heads = 0, width = 0;
  std::size_t vocabulary = 256;
  std::size_t positions = 0;  ///< longest sequence

  // Only llama has others than these.
  std::size_t kv_heads = 0;  ///< Hk, which divide the heads; 0: as many
  std::size_t mlp = 0;       ///< F; 0: 4 · C
  bool tied = true;          ///< the head's matrix is the token embedding
  bool qkv_bias = true;
  float epsilon = 1e-5f;  ///< of the norms
  Rotary rotary{};
  std::string stored_as{};  ///< of a config.json: how its file's weights are quantised; empty: they are not

  bool bert() const noexcept { return style == Style::bert; }
  bool llama() const noexcept { return style == Style::llama; }
  std::size_t depth() const noexcept { return width / heads; }  ///< d
  std::size_t keys() const noexcept { return kv_heads ? kv_heads : heads; }
  /// Of a row of Q, K and V together: (H + 2 Hk) · d.
  std::size_t qkv_width() const { return checked_product(checked_sum(heads, 2 * keys()), depth()); }
  /// F.
  std::size_t hidden() const { return mlp ? mlp : checked_product(width, 4); }
  /// Of a row before the MLP's activation: SwiGLU reads two values for each that it makes.
  std::size_t before_activation() const { return checked_product(hidden(), llama() ? 2 : 1); }
  /// Throws std::length_error when that does not fit a size_t.
  std::size_t parameters() const;
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
///   mistral-7b 7,241,732,096 parameters (v0.1, whose window of 4,096 positions is its longest sequence here)
///   bytes-llama   3 layers, 4 heads over 2, width 64, 172 hidden units, 2,048 positions, vocabulary 256, tied
///   gpt:LAYERS-HEADS-WIDTH, bert:LAYERS-HEADS-WIDTH     any shape, 1,024 or 512 positions, vocabulary 258
///   llama:LAYERS-HEADS-KVHEADS-WIDTH-MLP                the same with 2,048 positions, tied
/// Throws std::invalid_argument with one line that says what is allowed.
TransformerSpec parse_transformer(std::string_view text);
/// Those that have a name of their own.
const std::vector<TransformerSpec>& named_transformers();

/// The part of a model that one rank has: consecutive layers (a stage of a pipeline), and of these layers a share of
/// the heads and of the hidden units (tensor parallel; Shoeybi et al., "Megatron-LM", 2019). The first layer comes with
/// the embeddings, the last one with the head and a token embedding of its own.
struct Slice {
  std::size_t first_layer = 0;
  std::size_t layers = SIZE_MAX;    ///< SIZE_MAX: all from there on
  std::size_t part = 0, parts = 1;  ///< of heads and hidden units
  bool embeds() const noexcept { return first_layer == 0; }
  std::size_t end(const TransformerSpec& spec) const noexcept {
    return layers == SIZE_MAX ? spec.layers : first_layer + layers;
  }
  bool has_head(const TransformerSpec& spec) const noexcept { return end(spec) == spec.layers; }
};

/// One tensor of a model.
struct TensorShape {
  std::string name;
  std::string unit;           ///< "token", "embedding", "layer 3", "head": tensors that are used together
  std::size_t rows, columns;  ///< a vector has one row
  std::size_t count() const { return checked_product(rows, columns); }
};
/// Every tensor in the order in which a model, or a slice of one, keeps them: embeddings, layers, head. Throws
/// std::invalid_argument where the parts do not divide the heads, or the layers are not there.
std::vector<TensorShape> tensors_of(const TransformerSpec& spec, const Slice& slice = {});

/// Token ids on the device, and what should come out at each place.
struct TokenBatch {
  DeviceBuffer<int> tokens;  ///< [sequences · seq], category data, tag "tokens"
  DeviceBuffer<int> labels;  ///< [sequences · seq]; negative: no target here; category data, tag "labels"
  std::size_t sequences = 0, seq = 0;
  std::size_t targets = 0;  ///< labels that are not negative
  std::size_t rows() const noexcept { return sequences * seq; }
};
/// Uploads token ids and labels, both [sequences · seq]. Throws OutOfMemory, and std::invalid_argument when the sizes
/// do not fit together or no label is a target.
TokenBatch make_token_batch(Context& context, std::span<const int> tokens, std::span<const int> labels,
                            std::size_t sequences, std::size_t seq);
/// The same without any token, for plan mode. Throws OutOfMemory.
TokenBatch plan_token_batch(Context& context, std::size_t sequences, std::size_t seq);

/// What a layer keeps from its forward pass until its backward pass. What is not kept is computed again, to the same
/// bits: a whole layer before its backward pass, by rebuild_layer(); single tensors in the backward pass, when they are
/// needed.
struct Keep {
  bool layer = true;          ///< false: nothing; the layer is computed again from its input
  bool norms = true;          ///< outputs of layer norms, R·C each: two in gpt, one in bert
  bool gelu = true;           ///< the output of the MLP's activation, R·F: GELU's, or SwiGLU's
  bool probabilities = true;  ///< of textbook attention, B·H·S²; the other forms have none to keep
  bool middle = true;         ///< x + attention(x), R·C: one product of R·C² to compute again
  friend bool operator==(const Keep&, const Keep&) = default;

  /// Without everything that is cheap to compute again: 9 R·C of gpt's 16 are left.
  static Keep lean() { return {.norms = false, .gelu = false, .probabilities = false, .middle = false}; }
};

/// How logits become a loss and gradients.
enum class LossForm {
  full,     ///< all logits at once, R·V
  chunked,  ///< head, loss and both gradients for some rows after the other: see loss_chunk_rows()
};
/// "full", "chunked".
const char* name_of(LossForm form) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
LossForm parse_loss(std::string_view name);
/// Rows of a chunk: so many that their logits take at most as much as the residual, R·C, and at most a quarter of all
/// rows.
std::size_t loss_chunk_rows(const TransformerSpec& spec, std::size_t rows);

/// How a model goes about a step, to the same result. By default as textbooks have it.
struct StepForm {
  AttentionForm attention = AttentionForm::textbook;
  LossForm loss = LossForm::full;
  Keep keep{};  ///< of every layer, in forward_backward()
  /// What an MLP computes again in its backward pass comes a quarter of the rows at a time: less memory at that moment.
  /// Its weights' gradients are then added up in another order: not the bits of an MLP that kept everything.
  bool by_rows = false;
  friend bool operator==(const StepForm&, const StepForm&) = default;

  /// No scores, no logits, nothing kept that is cheap to compute again.
  static StepForm lean() { return {AttentionForm::tiled, LossForm::chunked, Keep::lean(), true}; }
};

/// The buffers between a layer's forward and its backward pass. Which ones exist: see Keep.
template <class T>
struct LayerActivations {
  DeviceBuffer<T> norm1;          ///< gpt: norm(x), what attention reads; bert: norm(middle), what the MLP reads
  DeviceBuffer<T> qkv;            ///< [R, H + Hk + Hk, d]
  DeviceBuffer<T> probabilities;  ///< textbook attention: [B, H, S, S]
  DeviceBuffer<float> lse;        ///< fused attention: [B, H, S]
  DeviceBuffer<T> attended;       ///< [R, C]
  DeviceBuffer<T> middle;         ///< x + attention(…)
  DeviceBuffer<T> norm2;          ///< gpt: norm(middle), what the MLP reads
  DeviceBuffer<T> hidden;         ///< [R, F], before GELU; llama: [R, 2F], gate and up
  DeviceBuffer<T> activated;      ///< [R, F], after GELU or SwiGLU
  DeviceBuffer<T> sum;            ///< bert: norm1 + MLP(norm1), whose norm is the layer's output
  DeviceBuffer<float> mean1, rstd1, mean2, rstd2;  ///< [R], of the two norms; RMS norms have no mean
};

template <class T>
struct Block;  // one layer at work: transformer_block.h
struct Place;  // a tensor: transformer_tensors.h

template <class T>
class Transformer {
 public:
  /// Allocates and initialises the parameters (weights uniform with a standard deviation of 0.02 · √(768 / C), GPT-2's
  /// at its width, projections onto the residual smaller by √(2·layers); biases 0, norms 1), and with gradients
  /// also gradients and loss. Throws OutOfMemory: nothing stays allocated.
  Transformer(Context& context, const TransformerSpec& spec, std::uint64_t seed, bool with_gradients = true);
  /// A slice of the model, whose tensors live where the caller says: see bind(). Allocates the loss, where the head is.
  /// `sum_over_parts` adds up data[count] over the ranks that have the parts of these layers, in place and in stream
  /// order; not called when there is one part. Throws as tensors_of().
  using SumOverParts = std::function<void(Context&, T* data, std::size_t count)>;
  Transformer(Context& context, const TransformerSpec& spec, const Slice& slice, SumOverParts sum_over_parts);
  /// Where tensor i of tensors_of(spec, slice) is, and its gradient: neither is owned. Null: not now.
  void bind(std::size_t i, T* value, T* gradient) noexcept {
    tensors_[i].value = value;
    tensors_[i].gradient = gradient;
  }
  /// Tensor i without its name: null where it is not now.
  ParameterOf<T> parameter(std::size_t i) noexcept { return tensors_[i]; }
  /// Fills tensor i with what it is at the start of training: of a slice, the bits that the whole model has there.
  void initialise(Context& context, std::size_t i, T* value, std::uint64_t seed) const;

  /// How the steps from now on are done.
  void set_form(const StepForm& form) noexcept { form_ = form; }
  const StepForm& form() const noexcept { return form_; }

  const Slice& slice() const noexcept { return slice_; }
  const TransformerSpec& spec() const noexcept { return spec_; }
  /// Every tensor in the order of tensors_of(). Valid as long as the model lives.
  std::vector<ParameterOf<T>> parameters();

  /// Forward and backward: fills the gradients and the loss, the mean over the batch's targets, or over
  /// `options.total_batch` targets. `scale_on_device`, where not null, multiplies the gradients (not the loss). Every
  /// layer keeps what form() says. Throws OutOfMemory as Mlp::forward_backward().
  void forward_backward(Context& context, TokenBatch batch, StepOptions options = {},
                        const float* scale_on_device = nullptr);
  /// The loss of the last forward_backward, copied from the device (waits for the stream). 0 in plan mode.
  float loss(Context& context) const;
  /// The device float that loss() reads.
  float* loss_buffer() noexcept { return loss_.data(); }
  /// FNV-1a over the bits of all parameters; 0 in plan mode.
  std::uint64_t fingerprint(Context& context) const;
  /// Inference: [R, V]; nothing is kept.
  DeviceBuffer<T> logits(Context& context, const TokenBatch& batch);

  // The pieces of forward_backward(), for mitigations that arrange the step themselves. x of layer 0 is what embed()
  // gives, x of layer l + 1 what forward_layer(l) gives.

  /// What embed() keeps for embed_backward(): bert only.
  struct EmbeddingActivations {
    DeviceBuffer<T> sum;             ///< [R, C], before the embedding norm
    DeviceBuffer<float> mean, rstd;  ///< [R]
  };
  /// x of layer 0.
  DeviceBuffer<T> embed(Context& context, const TokenBatch& batch, EmbeddingActivations& kept);
  /// Layer l = 0… of x [R, C]: its output [R, C].
  DeviceBuffer<T> forward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x, const Keep& keep,
                                LayerActivations<T>& kept);
  /// What the head keeps from its forward to its backward pass; `logits` [R, V] become their gradient in between.
  struct HeadActivations {
    DeviceBuffer<T> x, dense, activated, normed, logits;  ///< dense, activated: bert only
    DeviceBuffer<float> mean, rstd;
  };
  HeadActivations head_forward(Context& context, const TokenBatch& batch, DeviceBuffer<T> x);
  /// The loss of these logits (see loss()), and in their place their gradient.
  void cross_entropy(Context& context, const TokenBatch& batch, T* logits, StepOptions options,
                     const float* scale_on_device);
  DeviceBuffer<T> head_backward(Context& context, HeadActivations kept, bool accumulate);
  /// The three above, or in one pass over chunks of rows, as form() says: head, loss, and the gradient with respect to
  /// the last layer's output, which it consumes.
  DeviceBuffer<T> head(Context& context, const TokenBatch& batch, DeviceBuffer<T> x, StepOptions options,
                       const float* scale_on_device);
  /// A layer of which nothing was kept: its forward pass again, which now keeps what form() says. Nothing where
  /// something was kept.
  void rebuild_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x, LayerActivations<T>& kept);
  /// The layer's gradients; `gradient` [R, C] is with respect to its output before and to x afterwards. Computes again
  /// what `kept` lacks of Keep's tensors, and frees what was kept on the way. Throws std::logic_error when nothing was.
  void backward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x, LayerActivations<T> kept,
                      DeviceBuffer<T>& gradient, bool accumulate);
  void embed_backward(Context& context, const TokenBatch& batch, EmbeddingActivations kept, DeviceBuffer<T> gradient,
                      bool accumulate);

 private:
  const T* value(std::size_t i) const noexcept { return tensors_[i].value; }
  T* gradient(std::size_t i) noexcept { return tensors_[i].gradient; }
  std::size_t first_of_layer(std::size_t l) const noexcept;
  std::size_t first_of_head() const noexcept { return first_of_layer(slice_.end(spec_)); }
  DeviceBuffer<T> activation(Context& context, std::size_t count, const char* tag);
  Block<T> block(Context& context, std::size_t l, const TokenBatch& batch, const T* x) const;
  void make_logits(Context& context, const T* normed, T* logits, std::size_t rows);
  std::size_t head_weight() const noexcept;
  void head_weight_gradient(Context& context, const T* d_logits, const T* normed, std::size_t rows, bool accumulate);
  HeadActivations head_before_logits(Context& context, const TokenBatch& batch, const T* x);
  HeadActivations run_head(Context& context, const TokenBatch& batch, const T* x);
  DeviceBuffer<T> chunked_head(Context& context, const TokenBatch& batch, DeviceBuffer<T> x, StepOptions options,
                               const float* scale_on_device);
  DeviceBuffer<T> before_logits_backward(Context& context, HeadActivations kept, DeviceBuffer<T> d, bool accumulate);

  TransformerSpec spec_;
  Slice slice_;
  std::shared_ptr<const std::vector<Place>> places_;  // of the tensors
  SumOverParts sum_over_parts_;
  StepForm form_;
  std::vector<ParameterOf<T>> tensors_;  // without their names
  std::vector<DeviceBuffer<T>> owned_;   // values and gradients of a whole model
  DeviceBuffer<float> loss_;
};

/// A forward pass through all layers of a whole model, kept as its form says, and the backward pass that reads it: the
/// loop over layers of Transformer::forward_backward(). Mitigations that arrange the step themselves use
/// nn/scheduled_step.h.
template <class T>
class ForwardPass {
 public:
  /// Phase "forward". Throws OutOfMemory: nothing stays allocated.
  ForwardPass(Context& context, Transformer<T>& model, const TokenBatch& batch);
  /// The head up to the logits [R, V], whatever the form of the loss: everything stays for a backward pass, which may
  /// not come. To be called once.
  const DeviceBuffer<T>& logits(Context& context, Transformer<T>& model, const TokenBatch& batch);
  /// Head, loss, and all gradients; frees on the way what the forward pass has left. To be called once, with what the
  /// constructor got.
  void backward(Context& context, Transformer<T>& model, const TokenBatch& batch, StepOptions options,
                const float* scale_on_device);

 private:
  typename Transformer<T>::EmbeddingActivations embedding_;
  std::vector<DeviceBuffer<T>> x_;  // each layer's input, and the last one's output
  std::vector<LayerActivations<T>> kept_;
  typename Transformer<T>::HeadActivations head_;  // of logits()
};

}  // namespace oomlab::nn
