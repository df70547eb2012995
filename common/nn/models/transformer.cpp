#include "nn/models/transformer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/layers/transformer_block.h"
#include "nn/models/read_loss.h"
#include "nn/ops/column_sum.h"
#include "nn/ops/embedding.h"
#include "nn/ops/instances.h"
#include "nn/ops/values.h"
#include "plan/model/transformer_tensors.h"

namespace oomlab::nn {

// --------------------------------------------------------------------------------------------------------------- model

// Once for all tensors: a model of a thousand layers has twelve thousand.
static std::shared_ptr<const std::vector<Place>> places_of(const TransformerSpec& spec, const Slice& slice) {
  auto places = std::make_shared<std::vector<Place>>();
  visit_tensors(spec, slice, [&](const Place& place) { places->push_back(place); });
  return places;
}

template <class T>
Transformer<T>::Transformer(Context& context, const TransformerSpec& spec, std::uint64_t seed, bool with_gradients)
    : spec_(spec), places_(places_of(spec, slice_)) {
  const std::vector<TensorShape> shapes = tensors_of(spec);
  tensors_.resize(shapes.size());
  const auto own = [&](std::size_t count, Category category, const std::string& tag) {
    owned_.push_back(context.buffer<T>(count, category, tag));
    return owned_.back().data();
  };
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::size_t count = tensors_[i].count = shapes[i].count();
    tensors_[i].value = own(count, Category::parameters, shapes[i].name);
    if (with_gradients) tensors_[i].gradient = own(count, Category::gradients, shapes[i].name + " gradient");
    initialise(context, i, tensors_[i].value, seed);
  }
  if (with_gradients) {
    loss_ = context.buffer<float>(1, Category::workspace, "loss");
    fill(context, loss_.data(), 1, 0.0f);
  }
}

template <class T>
Transformer<T>::Transformer(Context& context, const TransformerSpec& spec, const Slice& slice,
                            SumOverParts sum_over_parts)
    : spec_(spec), slice_(slice), places_(places_of(spec, slice)), sum_over_parts_(std::move(sum_over_parts)) {
  for (const TensorShape& shape : tensors_of(spec, slice)) tensors_.push_back({{}, nullptr, nullptr, shape.count()});
  if (!slice.has_head(spec)) return;
  loss_ = context.buffer<float>(1, Category::workspace, "loss");
  fill(context, loss_.data(), 1, 0.0f);
}

template <class T>
template <class RowsAt>
void Transformer<T>::each_rows(const Place& place, RowsAt rows_at) const {
  if (slice_.parts == 1 || place.split != Split::groups)
    return rows_at(place.rows, place.split == Split::rows ? slice_.part * place.rows : 0);
  std::size_t before = 0;  // rows of the whole tensor
  for (const std::size_t rows : place.groups) {
    if (rows != 0) rows_at(rows, before + slice_.part * rows);
    before += rows * slice_.parts;
  }
}

// Some rows and columns of what this slice has of a matrix; columns are counted from the slice's first one.
template <class T>
template <class To>
void Transformer<T>::fill_rows(Context& context, const Place& place, MatrixPart part, To* values,
                               std::uint64_t seed) const {
  // GPT-2's standard deviation at its width of 768, and at others what makes sums over the width as large; uniform in
  // ±√3 σ has the standard deviation σ.
  const float bound = 0.02f * std::sqrt(768.0f / static_cast<float>(spec_.width)) * std::sqrt(3.0f);
  const std::string_view name = place.name;
  const bool onto_residual = place.layer && (name == "projection" || name == "contract");
  const float scale = onto_residual ? 1.0f / std::sqrt(2.0f * static_cast<float>(spec_.layers)) : 1.0f;
  const bool by_columns = place.split == Split::columns;
  if (by_columns) part.first_column += slice_.part * place.columns;
  part.all_columns = place.columns * (by_columns ? slice_.parts : 1);
  fill_uniform_part(context, values, part, bound * scale, seed, place.number);
}

template <class T>
void Transformer<T>::initialise(Context& context, std::size_t i, T* value, std::uint64_t seed) const {
  const Place& place = places_->at(i);
  if (place.rows == 1) {
    fill(context, value, place.columns, std::string_view(place.what) == " gamma" ? 1.0f : 0.0f);
    return;
  }
  each_rows(place, [&](std::size_t rows, std::size_t first_row) {
    fill_rows(context, place, {.rows = rows, .columns = place.columns, .first_row = first_row, .all_columns = 0}, value,
              seed);
    value += rows * place.columns;
  });
}

template <class T>
void Transformer<T>::initialise_piece(Context& context, std::size_t i, std::size_t first, std::size_t count,
                                      float* values, std::uint64_t seed) const {
  const Place& place = places_->at(i);
  const std::size_t width = place.columns;
  std::size_t at = 0;  // element of this slice's matrix
  each_rows(place, [&](std::size_t rows, std::size_t first_row) {
    const std::size_t begin = std::max(first, at);
    const std::size_t end = std::min(first + count, at + rows * width);
    // The end of a row, whole rows, the beginning of one.
    for (std::size_t now = begin; now < end;) {
      const std::size_t row = (now - at) / width;
      const std::size_t column = (now - at) % width;
      const std::size_t whole = column == 0 ? (end - now) / width : 0;
      const std::size_t columns = whole ? width : std::min(width - column, end - now);
      const MatrixPart part{.rows = std::max<std::size_t>(whole, 1),
                            .columns = columns,
                            .first_row = first_row + row,
                            .first_column = column,
                            .all_columns = 0};
      fill_rows(context, place, part, values + (now - first), seed);
      now += part.rows * part.columns;
    }
    at += rows * width;
  });
}

template <class T>
std::vector<ParameterOf<T>> Transformer<T>::parameters() {
  const std::vector<TensorShape> shapes = tensors_of(spec_, slice_);
  std::vector<ParameterOf<T>> all;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    all.push_back({shapes[i].name, tensors_[i].value, tensors_[i].gradient, tensors_[i].count});
  return all;
}

// Where tensors_of() puts the layer's first tensor, of all layers' numbers.
template <class T>
std::size_t Transformer<T>::first_of_layer(std::size_t l) const noexcept {
  const std::size_t before =
      slice_.embeds() ? embedding_tensors(spec_) : static_cast<std::size_t>(spec_.tied && slice_.has_head(spec_));
  return before + (l - slice_.first_layer) * static_cast<std::size_t>(layer_slots(spec_).count);
}

template <class T>
float Transformer<T>::loss(Context& context) const {
  return planning() ? 0 : read_loss(context, loss_);
}

template <class T>
std::uint64_t Transformer<T>::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  for (const ParameterOf<T>& tensor : tensors_)
    hash = nn::fingerprint(context, tensor.value, tensor.count * sizeof(T), hash);
  return hash;
}

template <class T>
DeviceBuffer<T> Transformer<T>::activation(Context& context, std::size_t count, const char* tag) {
  return context.buffer<T>(count, Category::activations, tag);
}

// -------------------------------------------------------------------------------------------------------- forward pass

template <class T>
DeviceBuffer<T> Transformer<T>::embed(Context& context, const TokenBatch& batch, EmbeddingActivations& kept) {
  if (all_seq(batch) > spec_.positions)
    throw std::invalid_argument("a sequence of " + std::to_string(all_seq(batch)) + " is longer than the " +
                                std::to_string(spec_.positions) + " positions of " + spec_.name);
  const std::size_t rows = batch.rows() / row_shares(), width = spec_.width;
  const std::size_t first = row_shares() > 1 ? slice_.part * rows : 0;
  DeviceBuffer<T> x = activation(context, checked_product(rows, width), spec_.bert() ? "embedding sum" : "layer input");
  // Text is one segment: token type 0 everywhere.
  embedding_forward(context, batch.tokens.data() + first, value(kToken), spec_.llama() ? nullptr : value(kPosition),
                    spec_.bert() ? value(kType) : nullptr, x.data(), rows, share_of(batch), width, first,
                    batch.positions.data());
  if (!spec_.bert()) return x;
  kept.sum = std::move(x);
  kept.stats = norm(kEmbedNorm).statistics(context, rows);
  x = activation(context, kept.sum.size(), "layer input");
  norm(kEmbedNorm).forward(context, kept.sum.data(), x.data(), kept.stats, rows);
  return x;
}

template <class T>
DeviceBuffer<T> Transformer<T>::all_rows(Context& context, DeviceBuffer<T> own, const char* tag) {
  if (row_shares() == 1) return own;
  DeviceBuffer<T> all = activation(context, own.size() * row_shares(), tag);
  shared_.gather(context, own.data(), all.data(), own.size());
  return all;
}

template <class T>
DeviceBuffer<T> Transformer<T>::own_rows(Context& context, DeviceBuffer<T> all) {
  if (row_shares() == 1) return all;
  DeviceBuffer<T> own = activation(context, all.size() / row_shares(), "residual gradient");
  const T* const from = all.data() + slice_.part * own.size();
  CUDA_CHECK(cudaMemcpyAsync(own.data(), from, own.bytes(), cudaMemcpyDeviceToDevice, context.stream()));
  return own;
}

// Layer l at work, on x.
template <class T>
Block<T> Transformer<T>::block(Context& context, std::size_t l, const TokenBatch& batch, const T* x, const Keep& keep,
                               LayerActivations<T>& kept, bool wants_output) const {
  const ParameterOf<T>* const tensors = &tensors_[first_of_layer(l)];
  const FrozenMatrix<T>* const* const frozen = frozen_.empty() ? nullptr : &frozen_[first_of_layer(l)];
  DecoderLayer<BaseWeights<T>> layer = make_decoder_layer<BaseWeights<T>>(
      spec_, slice_.parts,
      [=](int i, std::size_t in, std::size_t out) {
        return BaseWeights<T>{tensors[i].value, in, out, frozen ? frozen[i] : nullptr};
      },
      [=](int i) { return i < 0 ? nullptr : tensors[i].value; },
      [=, all = trains_all()](int i) { return i < 0 || !all ? nullptr : tensors[i].gradient; });
  for (auto* linear : {&layer.qkv, &layer.projection, &layer.up, &layer.down}) linear->trained = trains_all();
  if (adapters_) adapters_->attach(l, kept.masks, layer);
  Keep kept_of_layer = keep;
  kept_of_layer.gelu = keep.gelu && layer.down.needs_input();
  return {.context = context,
          .spec = spec_,
          .layer = layer,
          .attention = {batch.sequences, batch.seq, spec_.heads / slice_.parts, spec_.width / slice_.parts,
                        !spec_.bert(), spec_.keys() / slice_.parts, batch.offsets_of_packed()},
          .tokens = token_ranks_,
          .positions = {share_of(batch), batch.positions.data()},
          .form = form_.attention,
          .by_rows = form_.by_rows,
          .row_pieces = form_.tiles_mlp() ? std::size_t(form_.mlp_tiles) : kRowPieces,
          .tiles_mlp = form_.tiles_mlp(),
          .x = x,
          .first_part = slice_.part == 0,
          .sum = slice_.parts > 1 ? &sum_over_parts_ : nullptr,
          .shared = row_shares() > 1 ? &shared_ : nullptr,
          .row_shares = row_shares(),
          .keep = kept_of_layer,
          .kept = kept,
          .wants_output = wants_output,
          .output = {}};
}

template <class T>
std::vector<typename AdapterSet<T>::RowRun> Transformer<T>::runs_of(const TokenBatch& batch) const {
  const TokenShare share = share_of(batch);
  if (share.seq == all_seq(batch)) return {{batch.rows(), batch.first_row}};
  std::vector<typename AdapterSet<T>::RowRun> runs;
  for (std::size_t sequence = 0; sequence < batch.sequences; ++sequence)
    for (const bool second : {false, true}) {
      const std::size_t rows = second ? share.seq - share.half() : share.half();
      const std::size_t position = share.position(second ? share.half() : 0);
      if (rows > 0) runs.push_back({rows, batch.first_row + sequence * all_seq(batch) + position});
    }
  return runs;
}

template <class T>
DeviceBuffer<T> Transformer<T>::forward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                              const Keep& keep, LayerActivations<T>& kept) {
  draw_masks(context, l, batch, kept);
  Block<T> layer = block(context, l, batch, x, keep, kept, true);
  DeviceBuffer<T> output = spec_.bert() ? bert_forward(std::move(layer), true) : pre_norm_forward(std::move(layer));
  if (draws_masks_again()) kept.masks.clear();
  return output;
}

template <class T>
void Transformer<T>::train_only(Trained trained) {
  if (trained == Trained::adapters && spec_.bert())
    throw std::invalid_argument("adapters are for decoders, gpt and llama, and '" + spec_.name + "' is none");
  if (trained == Trained::head && spec_.tied)
    throw std::invalid_argument("the head of '" + spec_.name +
                                "' is the token embedding: whoever trains it trains that, too");
  trained_ = trained;
}

template <class T>
DeviceBuffer<T> Transformer<T>::logits(Context& context, const TokenBatch& batch) {
  struct Evaluating {
    bool& evaluating;
    explicit Evaluating(bool& flag) : evaluating(flag) { evaluating = true; }
    ~Evaluating() { evaluating = false; }
  };
  const Evaluating evaluating(evaluating_);
  DeviceBuffer<T> x;
  {
    EmbeddingActivations dropped;
    x = embed(context, batch, dropped);
  }
  for (std::size_t l = 0; l < spec_.layers; ++l) {
    LayerActivations<T> dropped;
    x = forward_layer(context, l, batch, x.data(), {.layer = false}, dropped);
  }
  return run_head(context, batch, x.data()).logits;
}

// ------------------------------------------------------------------------------------------------------- backward pass

template <class T>
void Transformer<T>::rebuild_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                   LayerActivations<T>& kept) {
  if (kept.qkv) return;
  Keep keep = form_.keep;
  keep.layer = keep.post_attention_residual = keep.probabilities = true;  // what is there, and soon needed
  draw_masks(context, l, batch, kept);
  Block<T> layer = block(context, l, batch, x, keep, kept, spec_.bert());
  (void)(spec_.bert() ? bert_forward(std::move(layer), false) : pre_norm_forward(std::move(layer)));
  if (draws_masks_again()) kept.masks.clear();
}

template <class T>
void Transformer<T>::backward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                    LayerActivations<T> kept, DeviceBuffer<T>& gradient, bool accumulate) {
  if (!kept.qkv)
    throw std::logic_error("backward_layer() reads a layer of which nothing was kept: call rebuild_layer() first");
  if (draws_masks_again()) draw_masks(context, l, batch, kept);
  const Block<T> layer = block(context, l, batch, x, {}, kept, true);
  if (spec_.bert()) return bert_backward(layer, gradient, accumulate);
  pre_norm_backward(layer, gradient, accumulate);
}

template <class T>
void Transformer<T>::embed_backward(Context& context, const TokenBatch& batch, EmbeddingActivations kept,
                                    DeviceBuffer<T> d, bool accumulate) {
  if (!trains_all()) return;
  const std::size_t rows = batch.rows(), width = spec_.width, used = batch.seq * width;
  const TokenShare share = share_of(batch);
  const auto zero = [&](std::size_t tensor, std::size_t from) {
    const std::size_t count = tensors_[tensor].count;
    if (!accumulate && from < count)
      CUDA_CHECK(cudaMemsetAsync(gradient(tensor) + from, 0, (count - from) * sizeof(T), context.stream()));
  };
  if (spec_.bert()) {
    norm(kEmbedNorm)
        .backward(context, d.data(), kept.sum.data(), kept.stats, d.data(), 0, rows / row_shares(), false, accumulate);
    kept = {};
  }
  d = all_rows(context, std::move(d), "residual gradient of all rows");
  if (spec_.bert()) {
    column_sum(context, d.data(), gradient(kType), rows, width, accumulate);
    zero(kType, width);  // no token is of the other type
  }
  if (!spec_.tied) zero(kToken, 0);  // a tied head's gradient is there already
  T* const d_position = spec_.llama() ? nullptr : gradient(kPosition);
  const bool whole = share.whole();
  if (d_position) zero(kPosition, whole ? used : 0);  // of positions that this rank has no token of
  embedding_backward(context, batch.tokens.data(), d.data(), gradient(kToken), d_position, rows, share, width,
                     accumulate || !whole, batch.offsets_of_packed());
}

// ---------------------------------------------------------------------------------------------------------- whole step

template <class T>
ForwardPass<T>::ForwardPass(Context& context, Transformer<T>& model, const TokenBatch& batch)
    : kept_(model.spec().layers) {
  x_.reserve(kept_.size() + 1);
  const Phase phase(context.ledger(), "forward");
  x_.push_back(model.embed(context, batch, embedding_));
  for (std::size_t l = 0; l < kept_.size(); ++l)
    x_.push_back(model.forward_layer(context, l, batch, x_[l].data(), model.form().keep, kept_[l]));
}

template <class T>
const DeviceBuffer<T>& ForwardPass<T>::logits(Context& context, Transformer<T>& model, const TokenBatch& batch) {
  head_ = model.head_forward(context, batch, std::move(x_.back()));
  return head_.logits;
}

template <class T>
void ForwardPass<T>::backward(Context& context, Transformer<T>& model, const TokenBatch& batch, StepOptions options,
                              const float* scale_on_device) {
  DeviceBuffer<T> gradient = model.head(context, batch, std::move(x_.back()), options, scale_on_device);
  const Phase phase(context.ledger(), "backward");
  for (std::size_t l = kept_.size(); l-- > 0;) {
    model.backward_layer(context, l, batch, x_[l].data(), std::move(kept_[l]), gradient, options.accumulate);
    x_[l].reset();
  }
  model.embed_backward(context, batch, std::move(embedding_), std::move(gradient), options.accumulate);
}

// Nothing below the head is trained: no layer keeps anything, and no gradient goes through one.
template <class T>
void Transformer<T>::train_head(Context& context, const TokenBatch& batch, StepOptions options,
                                const float* scale_on_device) {
  DeviceBuffer<T> x;
  {
    const Phase phase(context.ledger(), "forward");
    EmbeddingActivations dropped;
    x = embed(context, batch, dropped);
    for (std::size_t l = 0; l < spec_.layers; ++l) {
      LayerActivations<T> none;
      x = forward_layer(context, l, batch, x.data(), {.layer = false}, none);
    }
  }
  head(context, batch, std::move(x), options, scale_on_device);
}

template <class T>
void Transformer<T>::forward_backward(Context& context, TokenBatch batch, StepOptions options,
                                      const float* scale_on_device) {
  if (trained_ == Trained::head) return train_head(context, batch, options, scale_on_device);
  ForwardPass<T> pass(context, *this, batch);
  pass.backward(context, *this, batch, options, scale_on_device);
}

#define OOMLAB_TRANSFORMER(T)    \
  template class Transformer<T>; \
  template class ForwardPass<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_TRANSFORMER)

}  // namespace oomlab::nn
