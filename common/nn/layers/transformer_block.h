#pragma once
// One layer of a transformer at work. What the styles of a block share is here; where the norms stand has a file of its
// own (pre_norm_block.cpp: gpt and llama; bert_block.cpp). Part of the model: others include transformer.h.

#include <algorithm>
#include <functional>

#include "nn/layers/decoder_layer.h"
#include "nn/models/transformer.h"
#include "nn/ops/activation.h"
#include "nn/ops/attention.h"
#include "nn/ops/context_attention.h"
#include "nn/ops/residual.h"
#include "nn/ops/rotary.h"
#include "nn/ops/swiglu.h"

namespace oomlab::nn {

/// Pieces of the rows, of what goes by rows without being told how many.
inline constexpr std::size_t kRowPieces = 4;

/// A layer's tensors, batch and sizes, for the time of one pass through it. A forward pass of whole sequences is what it
/// does as a Pass of decoder_layer(): every value has a buffer of its own, most of them in `kept`, which is freed as soon
/// as neither this pass nor the backward pass reads it.
template <class T>
struct Block {
  using Buffer = DeviceBuffer<T>;
  using Weighted = Linear<BaseWeights<T>>;

  Context& context;
  const TransformerSpec& spec;
  DecoderLayer<BaseWeights<T>> layer;  ///< of this part
  AttentionShape attention;            ///< of this part and its own tokens
  const TokenRanks& tokens;            ///< that share out the tokens of every sequence
  RowPositions positions;              ///< of all rows: of its own tokens
  AttentionForm form;
  bool by_rows;            ///< StepForm's
  std::size_t row_pieces;  ///< of what goes by rows: kRowPieces, or the tiles
  bool tiles_mlp;          ///< StepForm's: all of the MLP goes by rows, and nothing between its products is kept
  const T* x;              ///< the layer's input [R, C]
  bool first_part;         ///< the one that adds what the parts have in common
  const std::function<void(Context&, T* data, std::size_t count)>* sum;  ///< over the parts; null: there is one
  const SharedRows<T>* shared;  ///< null: every part has all rows of everything
  std::size_t row_shares;       ///< parts that have a share each of x, norms and residuals
  Keep keep;                    ///< of a forward pass
  LayerActivations<T>& kept;    ///< of this layer
  bool wants_output;            ///< otherwise only what the backward pass reads
  Buffer output;                ///< of a forward pass

  std::size_t rows() const { return attention.rows(); }
  std::size_t width() const { return layer.qkv.in(); }
  /// F of this part, and of a row before the MLP's activation.
  std::size_t hidden() const { return layer.down.in(); }
  std::size_t before() const { return layer.up.out(); }
  /// Of x, norms and residuals.
  std::size_t own_rows() const { return rows() / row_shares; }
  std::size_t own_count() const { return checked_product(own_rows(), width()); }
  std::size_t count() const { return checked_product(rows(), width()); }
  DeviceBuffer<T> activation(std::size_t count, const char* tag) const {
    return context.buffer<T>(count, Category::activations, tag);
  }

  void sum_over_parts(DeviceBuffer<T>& data) const {
    if (sum && !shared) (*sum)(context, data.data(), data.size());
  }

  /// All rows of what the parts have their rows of; empty where each has all of them.
  Buffer gathered(const T* own, const char* tag) const {
    Buffer all;
    if (!shared) return all;
    all = activation(count(), tag);
    shared->gather(context, own, all.data(), own_count());
    return all;
  }
  static const T* all_of(const Buffer& gathered, const T* own) { return gathered ? gathered.data() : own; }
  /// Room for products of all rows, of which `tag` is what summed() makes.
  Buffer to_be_summed(const char* tag) const { return activation(count(), shared ? "rows to be summed up" : tag); }
  /// Products of all rows, summed up over the parts: all of them, or this part's rows, in a buffer of their own.
  Buffer summed(Buffer y, const char* tag) const {
    sum_over_parts(y);
    if (!shared) return y;
    Buffer own = activation(own_count(), tag);
    shared->sum(context, y.data(), own.data(), own_count());
    return own;
  }

  // ---- forward

  Buffer& norm(const Norm<T>& norm, const T* from) const {
    const bool first = &norm == &layer.norm1;
    Buffer& to = first ? kept.norm1 : kept.norm2;
    NormStatistics& stats = first ? kept.stats1 : kept.stats2;
    to = activation(own_count(), first ? "norm 1" : "norm 2");
    stats = norm.statistics(context, own_rows());
    norm.forward(context, from, to.data(), stats, own_rows());
    return to;
  }
  Buffer& norm(const Norm<T>& of, const Buffer& from) const { return norm(of, from.data()); }
  Buffer& linear(const Weighted& linear, const T* from) const {
    const bool first = &linear == &layer.qkv;
    Buffer& to = first ? kept.qkv : kept.hidden;
    if (!first && tiles_mlp) return to;
    to = activation(checked_product(rows(), linear.out()), first          ? "qkv"
                                                           : spec.llama() ? "gate and up"
                                                                          : "before GELU");
    const Buffer all = gathered(from, first && spec.bert() ? "layer input of all rows" : "norm of all rows");
    linear.forward(context, {all_of(all, from), linear.in()}, to.data(), rows());
    return to;
  }
  /// From a norm that nobody else reads.
  Buffer& linear(const Weighted& of, Buffer& norm) const {
    Buffer& to = linear(of, norm.data());
    if (&norm == &kept.norm2 && tiles_mlp) return to;  // the tiles read it
    if (!keep.layer || !keep.norms || !of.needs_input()) norm.reset();
    return to;
  }
  void rotate(Buffer& qkv) const {
    if (spec.llama()) rotate(qkv.data(), false);
  }
  /// The heads of Q and K, each row's to its position.
  void rotate(T* of_qkv, bool back) const {
    rotate_heads(context, of_qkv, attention.qkv_width(), rows(), attention.heads + attention.keys(), attention.depth(),
                 rotary_frequencies(spec.rotary, attention.depth()), positions, back);
  }
  Buffer& attend(const Buffer& /*qkv*/) const {
    if (tokens.ulysses())
      kept.qkv = rows_to_heads<T>(context, attention, tokens, HeadRows::qkv, std::move(kept.qkv), "qkv");
    const AttentionShape shape = shape_of_heads(attention, tokens);
    const auto attended = [&] { return activation(checked_product(rows(), attention.width), "attended"); };
    switch (form) {
      case AttentionForm::textbook:
        kept.probabilities = attention_probabilities<T>(context, shape, kept.qkv.data());
        kept.attended = attended();
        attention_forward<T>(context, shape, kept.qkv.data(), kept.probabilities.data(), kept.attended.data());
        if (!keep.layer || !keep.probabilities) kept.probabilities.reset();
        break;
      case AttentionForm::tiled:
        kept.attended = attended();
        attention_forward_tiled<T>(context, shape, kept.qkv.data(), kept.attended.data());
        break;
      case AttentionForm::fused:
        if (tokens.ring()) {
          kept.lse = row_values("attention log-sum-exp");
          kept.attended = ring_attention_forward<T>(context, attention, tokens, kept.qkv.data(), kept.lse.data());
        } else {
          kept.attended = attended();
          kept.lse = row_values("attention log-sum-exp");
          attention_forward_fused<T>(context, shape, kept.qkv.data(), kept.attended.data(), kept.lse.data());
        }
        if (!keep.layer) kept.lse.reset();
        break;
    }
    if (!keep.layer) kept.qkv.reset();
    if (tokens.ulysses())
      kept.attended =
          heads_to_rows<T>(context, attention, tokens, HeadRows::attended, std::move(kept.attended), "attended");
    return kept.attended;
  }
  /// x + attention(…), from attended.
  Buffer& residual(const Weighted& projection, const Buffer& from, const T* before) const {
    kept.middle = sum_with(projection, from, before, "middle");
    if (!keeps_attended()) kept.attended.reset();
    return kept.middle;
  }
  /// before + the MLP, from what is activated, or by rows from hidden, or by tiles from the norm.
  Buffer& residual(const Weighted& down, const Buffer& from, Buffer& before) {
    if (wants_output) add_mlp(down, from, before);
    if (tiles_mlp && !(keep.layer && keep.norms)) kept.norm2.reset();
    return output;
  }
  void add_mlp(const Weighted& down, const Buffer& from, Buffer& before) {
    const char* const tag = spec.bert() ? "layer sum" : "layer input";
    if (!activates_by_rows()) {
      output = sum_with(down, from, before.data(), tag);
      if (!keep.layer || !keep.gelu) kept.activated.reset();
    } else if (spec.bert() || (keep.layer && keep.post_attention_residual) || sum) {
      output = to_be_summed(tag);
      contract_by_rows(false, output.data());
      output = summed(std::move(output), tag);
      add_residual(context, before.data(), output.data(), down.bias, output.data(), own_rows(), width());
    } else {
      output = std::move(before);  // which is not kept, so the output may take its place
      contract_by_rows(true, output.data());
      if (down.bias) bias_activation(context, output.data(), down.bias, rows(), width(), Activation::none);
    }
  }
  /// before + linear(from).
  Buffer sum_with(const Weighted& linear, const Buffer& from, const T* before, const char* tag) const {
    Buffer y = to_be_summed(tag);
    const std::size_t row_stride = from.size() / rows();  // SwiGLU's output may lie where gate and up lay
    linear.product(context, {from.data(), row_stride}, y.data(), rows());
    y = summed(std::move(y), tag);
    add_residual(context, before, y.data(), linear.bias, y.data(), own_rows(), width());
    return y;
  }
  /// One float a row and head.
  DeviceBuffer<float> row_values(const char* tag) const {
    return context.buffer<float>(checked_product(rows(), attention.heads), Category::activations, tag);
  }
  /// Whether the backward pass reads what attention gives: for the projection's gradients, or those of fused attention,
  /// or to compute the residual behind it again.
  bool keeps_attended() const {
    const bool read = layer.projection.needs_input() || form == AttentionForm::fused;
    return keep.layer && (read || !keep.post_attention_residual);
  }
  /// Whether the MLP's activation is not kept, and done for some rows at a time, when they are multiplied.
  bool activates_by_rows() const { return tiles_mlp || (by_rows && keep.layer && !keep.gelu); }
  Buffer& activate(const Buffer& /*hidden*/) const {
    if (activates_by_rows() || (!wants_output && !keep.gelu)) return kept.activated;
    if (keep.layer) {
      activate_beside_hidden(spec.llama() ? "SwiGLU" : "GELU");
    } else {  // nobody will ask what came before
      kept.activated = std::move(kept.hidden);
      activate_in_place(kept.activated.data(), rows());
    }
    return kept.activated;
  }
  /// Rows stay as far apart as they were.
  void activate_in_place(T* data, std::size_t count) const {
    if (spec.llama())
      swiglu_forward(context, data, data, before(), count, hidden());
    else
      bias_activation(context, data, nullptr, count, hidden(), Activation::gelu);
  }
  /// A buffer of its own for the activation's output.
  void activate_beside_hidden(const char* tag) const {
    kept.activated = activation(checked_product(rows(), hidden()), tag);
    activate_rows(kept.hidden.data(), kept.activated.data(), rows());
  }
  /// From some rows before the activation to as many after it.
  void activate_rows(T* from, T* to, std::size_t count) const {
    if (spec.llama())
      swiglu_forward(context, from, to, hidden(), count, hidden());
    else
      bias_activation_keep(context, from, nullptr, to, count, hidden(), Activation::gelu);
  }
  /// y = activation(hidden) · Wᵀ (+ y, with `add`).
  void contract_by_rows(bool add, T* y) const {
    if (tiles_mlp) return mlp_by_tiles(add, y);
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden()), "activation of some rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      activate_rows(kept.hidden.data() + first * before(), chunk.data(), count);
      layer.down.product(context, {chunk.data(), hidden()}, y + first * width(), count, add, first);
    });
  }

  /// What the MLP reads.
  Buffer& mlp_input() const { return spec.bert() ? kept.norm1 : kept.norm2; }
  DeviceBuffer<T> hidden_tile() const {
    return activation(checked_product(chunk_rows(), before()), "MLP tile before its activation");
  }
  /// The same from the norm, of which nothing stays.
  void mlp_by_tiles(bool add, T* y) const {
    DeviceBuffer<T> tile = hidden_tile();
    const Buffer all = gathered(mlp_input().data(), "norm of all rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      const T* const from = all_of(all, mlp_input().data()) + first * width();
      layer.up.forward(context, {from, width()}, tile.data(), count, false, first);
      activate_in_place(tile.data(), count);
      layer.down.product(context, {tile.data(), before()}, y + first * width(), count, add, first);
    });
  }

  // ---- what was dropped, computed once more when it is needed

  void recompute_norm(const Norm<T>& norm, const T* before, DeviceBuffer<T>& output, const NormStatistics& kept) const {
    if (output) return;
    output = activation(own_count(), "recomputed norm");
    norm.recompute(context, before, output.data(), kept, 0, own_rows());
  }
  void recompute_middle() const {
    if (!kept.middle) kept.middle = sum_with(layer.projection, kept.attended, x, "middle");
  }
  void recompute_activation() const {
    if (!kept.activated) activate_beside_hidden(spec.llama() ? "recomputed SwiGLU" : "recomputed GELU");
  }
  /// Rows that are worked on at a time, by rows.
  std::size_t chunk_rows() const { return (rows() + row_pieces - 1) / row_pieces; }
  /// Calls body(first, count) for all rows, chunk_rows() at a time.
  template <class Body>
  void each_chunk(Body body) const {
    for (std::size_t first = 0; first < rows(); first += chunk_rows())
      body(first, std::min(chunk_rows(), rows() - first));
  }

  // ---- backward

  /// Consumes the norm's statistics; `into` is dy itself, or the residual that the gradient is added to.
  void norm_backward(const Norm<T>& norm, const DeviceBuffer<T>& dy, const T* before, NormStatistics& kept,
                     DeviceBuffer<T>& into, bool accumulate) const {
    norm.backward(context, dy.data(), before, kept, into.data(), 0, own_rows(), &into != &dy, accumulate);
    kept = {};
  }
  /// From d, the gradient of the MLP's output, to that of `hidden`.
  DeviceBuffer<T> contract_backward(const DeviceBuffer<T>& d, bool accumulate) const {
    const Buffer all = gathered(d.data(), "residual gradient of all rows");
    const T* const dy = all_of(all, d.data());
    if (!kept.activated && by_rows) return contract_backward_by_rows(dy, accumulate);
    if (layer.down.needs_input()) recompute_activation();
    layer.down.backward_weights(context, dy, kept.activated.data(), rows(), accumulate);
    kept.activated.reset();
    DeviceBuffer<T> d_hidden = activation(checked_product(rows(), hidden()), "MLP gradient");
    layer.down.backward_input(context, dy, d_hidden.data(), rows());
    if (spec.llama()) {  // whose gradient takes the place of gate and up
      swiglu_backward(context, d_hidden.data(), kept.hidden.data(), rows(), hidden());
      return std::move(kept.hidden);
    }
    activation_backward(context, d_hidden.data(), kept.hidden.data(), d_hidden.size(), Activation::gelu);
    kept.hidden.reset();
    return d_hidden;
  }
  /// The same where the activation's output was not kept, by rows: some of it at a time, and the gradient takes the
  /// place of `hidden`.
  DeviceBuffer<T> contract_backward_by_rows(const T* d, bool accumulate) const {
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden()), "activation of some rows");
    each_chunk([&](std::size_t first, std::size_t count) {
      T* const from = kept.hidden.data() + first * before();
      const T* const dy = d + first * width();
      if (layer.down.needs_input()) activate_rows(from, chunk.data(), count);
      layer.down.backward_weights(context, dy, chunk.data(), count, accumulate || first > 0, first);
      layer.down.backward_input(context, dy, chunk.data(), count, false, first);
      if (spec.llama())
        swiglu_backward(context, chunk.data(), from, count, hidden());
      else
        gelu_backward_over(context, chunk.data(), from, count * hidden());
    });
    return std::move(kept.hidden);
  }
  /// From d, the gradient of the MLP's output, by tiles. input_of(first, count) are the rows that the MLP has read: they
  /// become their gradient; with `onto_d` d does, and where `add` is true, too, the gradient is added to it. When a tile is
  /// done, done(first, count).
  template <class InputOf, class Done>
  void mlp_backward_by_tiles(DeviceBuffer<T>& d, bool accumulate, InputOf input_of, bool onto_d, bool add,
                             Done done) const {
    DeviceBuffer<T> tile = hidden_tile();
    DeviceBuffer<T> chunk = activation(checked_product(chunk_rows(), hidden()), "activation of a tile");
    Buffer all = gathered(d.data(), "residual gradient of all rows");
    T* const d_all = all ? all.data() : d.data();
    each_chunk([&](std::size_t first, std::size_t count) {
      T* const input = input_of(first, count);
      T* const dy = d_all + first * width();
      const bool more = accumulate || first > 0;
      layer.up.forward(context, {input, width()}, tile.data(), count, false, first);
      if (layer.down.needs_input()) activate_rows(tile.data(), chunk.data(), count);
      layer.down.backward_weights(context, dy, chunk.data(), count, more, first);
      layer.down.backward_input(context, dy, chunk.data(), count, false, first);
      if (spec.llama())
        swiglu_backward(context, chunk.data(), tile.data(), count, hidden());
      else
        gelu_backward_over(context, chunk.data(), tile.data(), count * hidden());
      layer.up.backward_weights(context, tile.data(), input, count, more, first);
      layer.up.backward_input(context, tile.data(), onto_d ? dy : input, count, onto_d && add, first);
      done(first, count);
    });
  }
  /// From d, the gradient of `middle`, to that of qkv.
  DeviceBuffer<T> attend_backward(const DeviceBuffer<T>& d, bool accumulate) const {
    DeviceBuffer<T> d_qkv = projection_backward(d, accumulate);
    if (spec.llama()) rotate(d_qkv.data(), true);
    return d_qkv;
  }
  DeviceBuffer<T> projection_backward(const DeviceBuffer<T>& d, bool accumulate) const {
    kept.middle.reset();
    Buffer all = gathered(d.data(), "residual gradient of all rows");
    const T* const dy = all_of(all, d.data());
    layer.projection.backward_weights(context, dy, kept.attended.data(), rows(), accumulate);
    if (form != AttentionForm::fused) kept.attended.reset();
    DeviceBuffer<T> d_attended = activation(checked_product(rows(), layer.projection.in()), "attended gradient");
    layer.projection.backward_input(context, dy, d_attended.data(), rows());
    all.reset();
    if (tokens.ring()) {
      DeviceBuffer<float> dots = row_dots(attention, d_attended);
      return ring_attention_backward<T>(context, attention, tokens, kept.qkv, kept.lse, dots, std::move(d_attended));
    }
    if (!tokens.ulysses()) return scores_backward(attention, std::move(d_attended));
    d_attended =
        rows_to_heads<T>(context, attention, tokens, HeadRows::attended, std::move(d_attended), "attended gradient");
    if (form == AttentionForm::fused)
      kept.attended =
          rows_to_heads<T>(context, attention, tokens, HeadRows::attended, std::move(kept.attended), "attended");
    DeviceBuffer<T> d_qkv = scores_backward(shape_of_heads(attention, tokens), std::move(d_attended));
    return heads_to_rows<T>(context, attention, tokens, HeadRows::qkv, std::move(d_qkv), "qkv gradient");
  }
  /// From the gradient of what is attended to that of qkv.
  DeviceBuffer<T> scores_backward(const AttentionShape& shape, DeviceBuffer<T> d_attended) const {
    if (form == AttentionForm::tiled)
      return attention_backward_tiled<T>(context, shape, kept.qkv, std::move(d_attended));
    if (form == AttentionForm::fused) {
      DeviceBuffer<float> dots = row_dots(shape, d_attended);
      return attention_backward_fused<T>(context, shape, kept.qkv, kept.lse, dots, std::move(d_attended));
    }
    if (!kept.probabilities) kept.probabilities = attention_probabilities<T>(context, shape, kept.qkv.data());
    return attention_backward<T>(context, shape, kept.qkv, kept.probabilities, std::move(d_attended));
  }
  /// Of what is attended with its gradient; nobody reads the former any more.
  DeviceBuffer<float> row_dots(const AttentionShape& shape, const DeviceBuffer<T>& d_attended) const {
    DeviceBuffer<float> dots = row_values("attention row dots");
    attention_row_dots<T>(context, shape, kept.attended.data(), d_attended.data(), dots.data());
    kept.attended.reset();
    return dots;
  }
};

// The styles. Forward: the layer's output, which is empty where it is not wanted. Backward: `d` [R, C] is the gradient
// with respect to the output before, and to x afterwards; what block.kept lacks is computed again, and the rest freed.

/// gpt2 and llama: norm, attention, residual; norm, MLP, residual. Returns x of the next layer [R, C], or an empty
/// buffer. Throws OutOfMemory; what was allocated is freed.
template <class T>
DeviceBuffer<T> pre_norm_forward(Block<T> block);
/// Its backward pass. Gradients of the layer's tensors are overwritten, or added to with `accumulate`.
template <class T>
void pre_norm_backward(const Block<T>& block, DeviceBuffer<T>& d, bool accumulate);

/// bert: the norms come after the residuals. As pre_norm_forward(), but that without `output` the sum is made, too.
template <class T>
DeviceBuffer<T> bert_forward(Block<T> block, bool output);
/// Its backward pass, as pre_norm_backward().
template <class T>
void bert_backward(const Block<T>& block, DeviceBuffer<T>& d, bool accumulate);

}  // namespace oomlab::nn
