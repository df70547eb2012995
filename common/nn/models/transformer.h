#pragma once
// A transformer with hand-written backward, of the shapes of plan/model/transformer.h. What memory it needs:
// plan/step.h.
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
#include <vector>

#include "memory/context.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/models/adapters.h"
#include "nn/models/mlp.h"
#include "nn/models/token_batch.h"
#include "nn/ops/attention.h"
#include "nn/ops/context_attention.h"
#include "nn/ops/loss.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"
#include "plan/model/transformer.h"
#include "plan/step_form.h"

namespace oomlab::nn {

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
  NormStatistics stats1, stats2;  ///< of the two norms
  DropoutMasks masks;             ///< of adapters with dropout
};

/// What the parts of a layer do that share out the rows of norms and residuals (Korthikanti et al., "Reducing activation
/// recomputation", 2022), in stream order. Part p of n has rows p · R / n … of all R.
template <class T>
struct SharedRows {
  /// own[count] of every part, one behind the other, to all[n · count].
  std::function<void(Context&, const T* own, T* all, std::size_t count)> gather;
  /// The sum over the parts of these rows of all[n · count], to own[count].
  std::function<void(Context&, const T* all, T* own, std::size_t count)> sum;
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
  /// The same of `count` elements of matrix i in FP32, from number `first` on.
  void initialise_piece(Context& context, std::size_t i, std::size_t first, std::size_t count, float* values,
                        std::uint64_t seed) const;

  /// Tensor i is frozen, and somebody else stores it: a matrix of a layer. It must outlive the model.
  void bind_frozen(std::size_t i, const FrozenMatrix<T>* matrix) {
    frozen_.resize(tensors_.size());
    frozen_[i] = matrix;
  }
  /// What the steps from now on train. Where that is not all, no gradient of another tensor is computed, and nothing is
  /// kept that only those would read. Throws std::invalid_argument for adapters of bert, and for a head that is the token
  /// embedding.
  void train_only(Trained trained);
  Trained trained() const noexcept { return trained_; }
  /// These are added to the layers from now on; null: none. They must outlive the model, or be taken away before.
  void set_adapters(const AdapterSet<T>* adapters) noexcept { adapters_ = adapters; }

  /// From now on the parts share out rows: x, residuals and their gradients are this part's rows of them, [R / parts, C],
  /// but for those of the head, which has all (see all_rows()). The parts must divide the rows of a batch. Gradients of
  /// norms are then those of this part's rows: somebody has to sum them up.
  void share_rows(SharedRows<T> shared) { shared_ = std::move(shared); }
  /// Ranks that have a share each of the rows.
  std::size_t row_shares() const noexcept { return shared_.gather ? slice_.parts : 1; }
  /// From now on these ranks share out the tokens of every sequence (nn/ops/context_attention.h): a batch has this rank's,
  /// and gradients are those of its rows. They must outlive the model.
  void share_tokens(TokenRanks ranks) { token_ranks_ = std::move(ranks); }
  /// Which tokens this rank has of a sequence of so many.
  TokenShare own_tokens(std::size_t all_seq) const {
    return token_ranks_.share_of(token_ranks_.rank, all_seq, !spec_.bert());
  }
  /// All rows, from this part's; and back. As it is where every part has all.
  DeviceBuffer<T> all_rows(Context& context, DeviceBuffer<T> own, const char* tag);
  DeviceBuffer<T> own_rows(Context& context, DeviceBuffer<T> all);

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
    DeviceBuffer<T> sum;   ///< [R, C], before the embedding norm
    NormStatistics stats;  ///< the norm's
  };
  /// x of layer 0.
  DeviceBuffer<T> embed(Context& context, const TokenBatch& batch, EmbeddingActivations& kept);
  /// Layer l = 0… of x [R, C]: its output [R, C].
  DeviceBuffer<T> forward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x, const Keep& keep,
                                LayerActivations<T>& kept);
  /// What the head keeps from its forward to its backward pass; `logits` [R, V] become their gradient in between.
  struct HeadActivations {
    DeviceBuffer<T> x, dense, activated, normed, logits;  ///< dense, activated: bert only
    NormStatistics stats;
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
  T* gradient(std::size_t i) const noexcept { return tensors_[i].gradient; }
  // Calls rows_at(rows, first row of the whole matrix) for rows of this part that lie together in the whole one.
  template <class RowsAt>
  void each_rows(const Place& place, RowsAt rows_at) const;
  template <class To>
  void fill_rows(Context& context, const Place& place, MatrixPart part, To* values, std::uint64_t seed) const;
  std::size_t first_of_layer(std::size_t l) const noexcept;
  std::size_t first_of_head() const noexcept { return first_of_layer(slice_.end(spec_)); }
  DeviceBuffer<T> activation(Context& context, std::size_t count, const char* tag);
  Block<T> block(Context& context, std::size_t l, const TokenBatch& batch, const T* x, const Keep& keep,
                 LayerActivations<T>& kept, bool wants_output) const;
  void draw_masks(Context& context, std::size_t l, const TokenBatch& batch, LayerActivations<T>& kept) const {
    if (adapters_ && !evaluating_) kept.masks = adapters_->draw_masks(context, l, runs_of(batch));
  }
  std::size_t all_seq(const TokenBatch& batch) const { return batch.seq * token_ranks_.ranks; }
  TokenShare share_of(const TokenBatch& batch) const { return own_tokens(all_seq(batch)); }
  // The rows of a batch among all of a step.
  std::vector<typename AdapterSet<T>::RowRun> runs_of(const TokenBatch& batch) const;
  // Masks are of all rows: where parts share rows out, no part keeps them.
  bool draws_masks_again() const noexcept { return row_shares() > 1; }
  Norm<T> norm(std::size_t gamma) const {
    T* const d_gamma = trains_all() ? gradient(gamma) : nullptr;
    if (spec_.llama()) return {true, spec_.width, spec_.epsilon, value(gamma), nullptr, d_gamma, nullptr};
    T* const d_beta = trains_all() ? gradient(gamma + 1) : nullptr;
    return {false, spec_.width, 0.0f, value(gamma), value(gamma + 1), d_gamma, d_beta};
  }
  bool trains_all() const noexcept { return trained_ == Trained::all; }
  Norm<T> head_norm() const;
  Linear<DenseWeights<T>> dense() const;
  Linear<DenseWeights<T>> to_vocabulary() const;
  HeadActivations head_before_logits(Context& context, const TokenBatch& batch, const T* x);
  HeadActivations run_head(Context& context, const TokenBatch& batch, const T* x);
  void train_head(Context& context, const TokenBatch& batch, StepOptions options, const float* scale_on_device);
  DeviceBuffer<T> chunked_head(Context& context, const TokenBatch& batch, DeviceBuffer<T> x, StepOptions options,
                               const float* scale_on_device);
  DeviceBuffer<T> before_logits_backward(Context& context, HeadActivations kept, DeviceBuffer<T> d, bool accumulate);

  TransformerSpec spec_;
  Slice slice_;
  std::shared_ptr<const std::vector<Place>> places_;  // of the tensors
  SumOverParts sum_over_parts_;
  SharedRows<T> shared_;    // or none
  TokenRanks token_ranks_;  // one has all tokens
  StepForm form_;
  Trained trained_ = Trained::all;
  bool evaluating_ = false;  // nothing is dropped
  const AdapterSet<T>* adapters_ = nullptr;
  std::vector<const FrozenMatrix<T>*> frozen_;  // of tensors that others store; empty: none
  std::vector<ParameterOf<T>> tensors_;         // without their names
  std::vector<DeviceBuffer<T>> owned_;          // values and gradients of a whole model
  DeviceBuffer<float> loss_;
};

/// A forward pass through all layers of a whole model, kept as its form says, and the backward pass that reads it: the
/// loop over layers of Transformer::forward_backward(). Mitigations that arrange the step themselves use
/// nn/models/scheduled_step.h.
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
