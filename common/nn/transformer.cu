#include "nn/transformer.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/transformer_ops.h"

namespace oomlab::nn {

// --------------------------------------------------------------------------------------------------------------- names

namespace {

[[noreturn]] void bad_model(std::string_view text, const std::string& why) {
  throw std::invalid_argument("model '" + std::string(text) + "' " + why);
}

// LAYERS-HEADS-WIDTH
void parse_shape(std::string_view text, std::string_view list, TransformerSpec& spec) {
  for (std::size_t* figure : {&spec.layers, &spec.heads, &spec.width}) {
    const std::size_t dash = figure == &spec.width ? std::string_view::npos : list.find('-');
    const std::string_view word = list.substr(0, dash);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *figure);
    if (error == std::errc::result_out_of_range)
      bad_model(text, "has a figure that is too large: " + std::string(word));
    if (error != std::errc() || end != word.data() + word.size() || *figure == 0)
      bad_model(text, "is not a shape; write gpt:LAYERS-HEADS-WIDTH, for example gpt:4-4-128");
    list.remove_prefix(dash == std::string_view::npos ? list.size() : dash + 1);
  }
  if (spec.width % spec.heads != 0)
    bad_model(text, "has a width of " + std::to_string(spec.width) + ", which " + std::to_string(spec.heads) +
                        " heads do not divide");
  if (spec.layers > 1'000'000) bad_model(text, "has more than a million layers");
  try {
    (void)tensor_bytes(spec, sizeof(float));
  } catch (const std::length_error&) {
    bad_model(text, "has more parameters than 64 bits of bytes can hold");
  }
}

}  // namespace

TransformerSpec parse_transformer(std::string_view text) {
  using Style = TransformerSpec::Style;
  const std::string name(text);
  if (text == "bytes-gpt") return {name, Style::gpt, 4, 4, 128, 256, 256};
  if (text == "gpt2") return {name, Style::gpt, 12, 12, 768, 50257, 1024};
  if (text == "gpt3-175b") return {name, Style::gpt, 96, 96, 12288, 50257, 2048};
  if (text == "llama-70b-like") return {name, Style::gpt, 80, 64, 8192, 32000, 4096};
  if (text == "bert-base") return {name, Style::bert, 12, 12, 768, 30522, 512};
  if (text == "bert-large") return {name, Style::bert, 24, 16, 1024, 30522, 512};
  TransformerSpec spec{name, Style::gpt, 0, 0, 0, 258, 1024};
  if (text.starts_with("gpt:")) {
    parse_shape(text, text.substr(4), spec);
  } else if (text.starts_with("bert:")) {
    spec.style = Style::bert;
    spec.positions = 512;
    parse_shape(text, text.substr(5), spec);
  } else {
    bad_model(text,
              "is unknown; known: bytes-gpt, gpt2, gpt3-175b, llama-70b-like, bert-base, bert-large, "
              "gpt:LAYERS-HEADS-WIDTH, bert:...");
  }
  return spec;
}

// ------------------------------------------------------------------------------------------------------------- tensors

namespace {

// Where tensors_of() puts them.
constexpr std::size_t kToken = 0, kPosition = 1, kType = 2, kEmbedNorm = 3;
constexpr std::size_t kQkv = 0, kProjection = 2, kNorm1 = 4, kExpand = 6, kContract = 8, kNorm2 = 10, kOfLayer = 12;
constexpr std::size_t kDense = 0, kHeadNorm = 2, kDecoderBias = 4;

// What a part of a layer has of a tensor: all; rows; rows of Q, of K and of V; columns.
enum class Split { none, rows, thirds, columns };

struct Place {
  std::size_t number;       // in the whole model
  std::size_t layer;        // from 1; 0: none
  const char *name, *what;  // "qkv", " weight". No strings are made: the closed form asks for bytes many times.
  std::size_t rows, columns;
  Split split;
  enum class Unit { token, embedding, layer, head } unit;
};

// Every tensor of a whole model in order.
template <class Visit>
void visit_whole(const TransformerSpec& spec, Visit visit) {
  using Unit = Place::Unit;
  const std::size_t c = spec.width, hidden = spec.hidden();
  std::size_t number = 0, layer = 0;
  Unit unit = Unit::token;
  const auto tensor = [&](const char* name, const char* what, std::size_t rows, std::size_t columns,
                          Split split = Split::none) {
    visit(Place{number++, layer, name, what, rows, columns, split, unit});
  };
  const auto norm = [&](const char* name) {
    tensor(name, " gamma", 1, c);
    tensor(name, " beta", 1, c);
  };
  const auto linear = [&](const char* name, std::size_t out, std::size_t in, Split weight, Split bias) {
    tensor(name, " weight", out, in, weight);
    tensor(name, " bias", 1, out, bias);
  };
  tensor("token", " embedding", spec.vocabulary, c);
  unit = Unit::embedding;
  tensor("position", " embedding", spec.positions, c);
  if (spec.bert()) {
    tensor("type", " embedding", 2, c);
    norm("embedding norm");
  }
  unit = Unit::layer;
  for (layer = 1; layer <= spec.layers; ++layer) {
    linear("qkv", checked_product(c, 3), c, Split::thirds, Split::columns);
    linear("projection", c, c, Split::columns, Split::none);
    norm("norm 1");
    linear("expand", hidden, c, Split::rows, Split::columns);
    linear("contract", c, hidden, Split::columns, Split::none);
    norm("norm 2");
  }
  layer = 0;
  unit = Unit::head;
  if (spec.bert()) {
    linear("head dense", c, c, Split::none, Split::none);
    norm("head norm");
    tensor("head", " bias", 1, spec.vocabulary);
  } else {
    norm("final norm");
  }
}

// Those of a slice, with the shapes they have there.
template <class Visit>
void visit_tensors(const TransformerSpec& spec, const Slice& slice, Visit visit) {
  using Unit = Place::Unit;
  visit_whole(spec, [&](Place place) {
    const bool there = place.unit == Unit::token       ? slice.embeds() || slice.has_head(spec)
                       : place.unit == Unit::embedding ? slice.embeds()
                       : place.unit == Unit::head      ? slice.has_head(spec)
                                                  : place.layer > slice.first_layer && place.layer <= slice.end(spec);
    if (!there) return;
    (place.split == Split::columns ? place.columns : place.rows) /= place.split == Split::none ? 1 : slice.parts;
    visit(place);
  });
}

}  // namespace

std::vector<TensorShape> tensors_of(const TransformerSpec& spec, const Slice& slice) {
  if (slice.parts == 0 || spec.heads % slice.parts != 0 || slice.part >= slice.parts)
    throw std::invalid_argument(std::to_string(slice.parts) + " parts do not divide " + std::to_string(spec.heads) +
                                " heads");
  if (slice.end(spec) > spec.layers || slice.first_layer >= slice.end(spec))
    throw std::invalid_argument(spec.name + " has " + std::to_string(spec.layers) + " layers");
  std::vector<TensorShape> all;
  visit_tensors(spec, slice, [&](const Place& p) {
    const std::string layer = p.layer ? "layer " + std::to_string(p.layer) : "";
    const char* const units[] = {"token", "embedding", layer.c_str(), "head"};
    all.push_back({layer + (p.layer ? " " : "") + p.name + p.what, units[static_cast<int>(p.unit)], p.rows, p.columns});
  });
  return all;
}

std::size_t TransformerSpec::parameters() const {
  std::size_t sum = 0;
  visit_whole(*this, [&](const Place& p) { sum = checked_sum(sum, checked_product(p.rows, p.columns)); });
  return sum;
}

// --------------------------------------------------------------------------------------------------------------- batch

TokenBatch make_token_batch(Context& context, std::span<const int> tokens, std::span<const int> labels,
                            std::size_t sequences, std::size_t seq) {
  const std::size_t rows = checked_product(sequences, seq);
  if (rows == 0 || tokens.size() != rows || labels.size() != rows)
    throw std::invalid_argument("tokens and labels are not " + std::to_string(sequences) + " sequences of " +
                                std::to_string(seq));
  TokenBatch batch;
  batch.sequences = sequences;
  batch.seq = seq;
  batch.targets = static_cast<std::size_t>(std::count_if(labels.begin(), labels.end(), [](int l) { return l >= 0; }));
  if (batch.targets == 0) throw std::invalid_argument("a batch without targets has no mean loss");
  batch.tokens = context.buffer<int>(rows, Category::data, "tokens");
  batch.labels = context.buffer<int>(rows, Category::data, "labels");
  CUDA_CHECK(cudaMemcpyAsync(batch.tokens.data(), tokens.data(), tokens.size_bytes(), cudaMemcpyHostToDevice,
                             context.stream()));
  CUDA_CHECK(cudaMemcpyAsync(batch.labels.data(), labels.data(), labels.size_bytes(), cudaMemcpyHostToDevice,
                             context.stream()));
  return batch;
}

// --------------------------------------------------------------------------------------------------------------- model

template <class T>
Transformer<T>::Transformer(Context& context, const TransformerSpec& spec, std::uint64_t seed, bool with_gradients)
    : spec_(spec) {
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
    : spec_(spec), slice_(slice), sum_over_parts_(std::move(sum_over_parts)) {
  for (const TensorShape& shape : tensors_of(spec, slice)) tensors_.push_back({nullptr, nullptr, shape.count()});
  if (!slice.has_head(spec)) return;
  loss_ = context.buffer<float>(1, Category::workspace, "loss");
  fill(context, loss_.data(), 1, 0.0f);
}

template <class T>
void Transformer<T>::initialise(Context& context, std::size_t i, T* value, std::uint64_t seed) const {
  // GPT-2's standard deviation at its width of 768, and at others what makes sums over the width as large; uniform in
  // ±√3 σ has the standard deviation σ.
  const float bound = 0.02f * std::sqrt(768.0f / static_cast<float>(spec_.width)) * std::sqrt(3.0f);
  std::size_t at = 0;
  visit_tensors(spec_, slice_, [&](const Place& p) {
    if (at++ != i) return;
    if (p.rows == 1) {
      fill(context, value, p.columns, std::string_view(p.what) == " gamma" ? 1.0f : 0.0f);
      return;
    }
    const std::string_view name = p.name;
    const bool onto_stream = p.layer && (name == "projection" || name == "contract");
    const float scale = onto_stream ? 1.0f / std::sqrt(2.0f * static_cast<float>(spec_.layers)) : 1.0f;
    const std::size_t row_parts = p.split == Split::rows || p.split == Split::thirds ? slice_.parts : 1;
    const std::size_t column_parts = p.split == Split::columns ? slice_.parts : 1;
    fill_uniform_part(context, value,
                      {p.rows, p.columns, p.split == Split::thirds ? 3u : 1u, row_parts, column_parts, slice_.part},
                      bound * scale, seed, p.number);
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
  const std::size_t before = slice_.embeds() ? (spec_.bert() ? 5 : 2) : slice_.has_head(spec_) ? 1 : 0;
  return before + (l - slice_.first_layer) * kOfLayer;
}

template <class T>
float Transformer<T>::loss(Context& context) const {
  if (planning()) return 0;
  float loss = 0;
  CUDA_CHECK(cudaMemcpyAsync(&loss, loss_.data(), sizeof loss, cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return loss;
}

template <class T>
std::uint64_t Transformer<T>::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  for (const Tensor& tensor : tensors_) hash = nn::fingerprint(context, tensor.value, tensor.count * sizeof(T), hash);
  return hash;
}

template <class T>
DeviceBuffer<T> Transformer<T>::activation(Context& context, std::size_t count, const char* tag) {
  return context.buffer<T>(count, Category::activations, tag);
}

namespace {

struct Statistics {
  DeviceBuffer<float>&mean, &rstd;
  void allocate(Context& context, std::size_t rows) {
    mean = context.buffer<float>(rows, Category::activations, "norm mean");
    rstd = context.buffer<float>(rows, Category::activations, "norm rstd");
  }
};

}  // namespace

// -------------------------------------------------------------------------------------------------------- forward pass

template <class T>
DeviceBuffer<T> Transformer<T>::embed(Context& context, const TokenBatch& batch, EmbeddingActivations& kept) {
  if (batch.seq > spec_.positions)
    throw std::invalid_argument("a sequence of " + std::to_string(batch.seq) + " is longer than the " +
                                std::to_string(spec_.positions) + " positions of " + spec_.name);
  const std::size_t rows = batch.rows(), width = spec_.width;
  DeviceBuffer<T> x = activation(context, checked_product(rows, width), spec_.bert() ? "embedding sum" : "layer input");
  // Text is one segment: token type 0 everywhere.
  embedding_forward(context, batch.tokens.data(), value(kToken), value(kPosition),
                    spec_.bert() ? value(kType) : nullptr, x.data(), rows, batch.seq, width);
  if (!spec_.bert()) return x;
  kept.sum = std::move(x);
  Statistics{kept.mean, kept.rstd}.allocate(context, rows);
  x = activation(context, kept.sum.size(), "layer input");
  layer_norm_forward(context, kept.sum.data(), value(kEmbedNorm), value(kEmbedNorm + 1), x.data(), kept.mean.data(),
                     kept.rstd.data(), rows, width);
  return x;
}

// Where Q, K and V of one sequence lie in qkv[S, 3, H, D]: one matrix a head.
namespace {
template <class T>
struct Heads {
  Strided<T> q, k, v;
};
template <class T>
Heads<T> heads_of(T* qkv, std::size_t sequence, std::size_t seq, std::size_t heads, std::size_t width) {
  T* const first = qkv + sequence * seq * 3 * width;
  const std::size_t depth = width / heads;
  return {{first, 3 * width, depth}, {first + width, 3 * width, depth}, {first + 2 * width, 3 * width, depth}};
}
}  // namespace

template <class T>
DeviceBuffer<T> Transformer<T>::attention_probabilities(Context& context, const TokenBatch& batch, const T* qkv) {
  const std::size_t seq = batch.seq, heads = this->heads(), depth = spec_.width / spec_.heads;
  const std::size_t matrix = checked_product(seq, seq), matrices = checked_product(batch.sequences, heads);
  DeviceBuffer<T> p = activation(context, checked_product(matrices, matrix), "attention probabilities");
  for (std::size_t b = 0; b < batch.sequences; ++b) {
    const auto in = heads_of(qkv, b, seq, heads, inner());
    gemm_strided<T>(context, false, true, seq, seq, depth, 1.0f, in.q, in.k, 0.0f,
                    {p.data() + b * heads * matrix, seq, matrix}, heads);
  }
  softmax_forward(context, p.data(), matrices, seq, 1.0f / std::sqrt(static_cast<float>(depth)), !spec_.bert());
  return p;
}

// The layer's output, or without `output` only what its backward pass reads.
template <class T>
DeviceBuffer<T> Transformer<T>::run_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                          const Keep& keep, LayerActivations<T>& kept, bool output) {
  const std::size_t rows = batch.rows(), seq = batch.seq, heads = this->heads(), width = spec_.width;
  const std::size_t inner = this->inner(), hidden = this->hidden();
  const std::size_t count = checked_product(rows, width), at = first_of_layer(l);
  const bool bert = spec_.bert();
  const bool keep_norms = keep.layer && keep.norms;
  const auto norm = [&](const T* from, std::size_t which, DeviceBuffer<float>& mean, DeviceBuffer<float>& rstd, T* to) {
    Statistics{mean, rstd}.allocate(context, rows);
    layer_norm_forward(context, from, value(at + which), value(at + which + 1), to, mean.data(), rstd.data(), rows,
                       width);
  };

  if (!bert) {
    kept.norm1 = activation(context, count, "norm 1");
    norm(x, kNorm1, kept.mean1, kept.rstd1, kept.norm1.data());
  }
  kept.qkv = activation(context, checked_product(checked_product(rows, inner), 3), "qkv");
  linear_forward(context, bert ? x : kept.norm1.data(), value(at + kQkv), kept.qkv.data(), rows, width, 3 * inner);
  bias_activation(context, kept.qkv.data(), value(at + kQkv + 1), rows, 3 * inner, Activation::none);
  if (!bert && !keep_norms) kept.norm1.reset();

  kept.probabilities = attention_probabilities(context, batch, kept.qkv.data());
  kept.attended = activation(context, checked_product(rows, inner), "attended");
  for (std::size_t b = 0; b < batch.sequences; ++b) {
    const auto in = heads_of<const T>(kept.qkv.data(), b, seq, heads, inner);
    gemm_strided<T>(context, false, false, seq, inner / heads, seq, 1.0f,
                    {kept.probabilities.data() + b * heads * seq * seq, seq, seq * seq}, in.v, 0.0f,
                    {kept.attended.data() + b * seq * inner, inner, inner / heads}, heads);
  }
  if (!keep.layer || !keep.probabilities) kept.probabilities.reset();
  if (!keep.layer) kept.qkv.reset();

  kept.middle = activation(context, count, "middle");
  linear_forward(context, kept.attended.data(), value(at + kProjection), kept.middle.data(), rows, inner, width);
  sum_over_parts(context, kept.middle);
  add_residual(context, x, kept.middle.data(), value(at + kProjection + 1), kept.middle.data(), rows, width);
  if (!keep.layer) kept.attended.reset();

  DeviceBuffer<T>& mlp_input = bert ? kept.norm1 : kept.norm2;
  mlp_input = activation(context, count, bert ? "norm 1" : "norm 2");
  if (bert)
    norm(kept.middle.data(), kNorm1, kept.mean1, kept.rstd1, mlp_input.data());
  else
    norm(kept.middle.data(), kNorm2, kept.mean2, kept.rstd2, mlp_input.data());
  if (bert && !keep.layer) kept.middle.reset();
  kept.hidden = activation(context, checked_product(rows, hidden), "before GELU");
  linear_forward(context, mlp_input.data(), value(at + kExpand), kept.hidden.data(), rows, width, hidden);
  if (!bert && !keep_norms) kept.norm2.reset();
  if (keep.layer) {
    kept.activated = activation(context, kept.hidden.size(), "GELU");
    bias_activation_keep(context, kept.hidden.data(), value(at + kExpand + 1), kept.activated.data(), rows, hidden,
                         Activation::gelu);
  } else {  // nobody will ask what came before GELU
    kept.activated = std::move(kept.hidden);
    bias_activation(context, kept.activated.data(), value(at + kExpand + 1), rows, hidden, Activation::gelu);
  }
  if (!bert && !output) return {};

  // The stream that the MLP adds to is `middle` in gpt and the norm's output in bert.
  DeviceBuffer<T> y = activation(context, count, bert ? "layer sum" : "layer input");
  linear_forward(context, kept.activated.data(), value(at + kContract), y.data(), rows, hidden, width);
  sum_over_parts(context, y);
  add_residual(context, bert ? mlp_input.data() : kept.middle.data(), y.data(), value(at + kContract + 1), y.data(),
               rows, width);
  if (!keep.layer || !keep.gelu) kept.activated.reset();
  if (bert) {
    if (!keep_norms) kept.norm1.reset();
    kept.sum = std::move(y);
    if (output) y = activation(context, count, "layer input");
    norm(kept.sum.data(), kNorm2, kept.mean2, kept.rstd2, y.data());
  }
  if (!keep.layer) kept = {};
  return y;
}

template <class T>
DeviceBuffer<T> Transformer<T>::forward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                              const Keep& keep, LayerActivations<T>& kept) {
  return run_layer(context, l, batch, x, keep, kept, true);
}

// Of `x` nothing is kept here.
template <class T>
typename Transformer<T>::HeadActivations Transformer<T>::run_head(Context& context, const TokenBatch& batch,
                                                                  const T* x) {
  const std::size_t rows = batch.rows(), width = spec_.width, count = checked_product(rows, width);
  const std::size_t at = first_of_head(), norm = at + (spec_.bert() ? kHeadNorm : 0);
  HeadActivations kept;
  if (spec_.bert()) {
    kept.dense = activation(context, count, "head before GELU");
    kept.activated = activation(context, count, "head GELU");
    linear_forward(context, x, value(at + kDense), kept.dense.data(), rows, width, width);
    bias_activation_keep(context, kept.dense.data(), value(at + kDense + 1), kept.activated.data(), rows, width,
                         Activation::gelu);
    x = kept.activated.data();
  }
  kept.normed = activation(context, count, "head norm");
  Statistics{kept.mean, kept.rstd}.allocate(context, rows);
  layer_norm_forward(context, x, value(norm), value(norm + 1), kept.normed.data(), kept.mean.data(), kept.rstd.data(),
                     rows, width);
  kept.logits = activation(context, checked_product(rows, spec_.vocabulary), "logits");
  linear_forward(context, kept.normed.data(), value(kToken), kept.logits.data(), rows, width, spec_.vocabulary);
  if (spec_.bert())
    bias_activation(context, kept.logits.data(), value(at + kDecoderBias), rows, spec_.vocabulary, Activation::none);
  return kept;
}

template <class T>
DeviceBuffer<T> Transformer<T>::logits(Context& context, const TokenBatch& batch) {
  DeviceBuffer<T> x;
  {
    EmbeddingActivations dropped;
    x = embed(context, batch, dropped);
  }
  for (std::size_t l = 0; l < spec_.layers; ++l) {
    LayerActivations<T> dropped;
    x = run_layer(context, l, batch, x.data(), {.layer = false}, dropped, true);
  }
  return run_head(context, batch, x.data()).logits;
}

// ------------------------------------------------------------------------------------------------------- backward pass

template <class T>
typename Transformer<T>::HeadActivations Transformer<T>::head_forward(Context& context, const TokenBatch& batch,
                                                                      DeviceBuffer<T> x) {
  HeadActivations kept = run_head(context, batch, x.data());
  kept.x = std::move(x);
  return kept;
}

template <class T>
void Transformer<T>::cross_entropy(Context& context, const TokenBatch& batch, T* logits, StepOptions options,
                                   const float* scale_on_device) {
  if (!loss_) throw std::logic_error("this model was made without gradients");
  const std::size_t rows = batch.rows();
  const float mean_of = 1.0f / static_cast<float>(options.total_batch ? options.total_batch : batch.targets);
  DeviceBuffer<float> row_loss = context.buffer<float>(rows, Category::workspace, "row losses");
  cross_entropy_with_gradient(context, logits, batch.labels.data(), row_loss.data(), rows, spec_.vocabulary, mean_of,
                              scale_on_device);
  scaled_sum(context, row_loss.data(), rows, mean_of, loss_.data(), options.accumulate);
}

template <class T>
DeviceBuffer<T> Transformer<T>::head_backward(Context& context, HeadActivations kept, bool accumulate) {
  const std::size_t width = spec_.width, vocabulary = spec_.vocabulary, rows = kept.x.size() / width;
  const std::size_t at = first_of_head(), norm = at + (spec_.bert() ? kHeadNorm : 0);
  // The tied embedding gets its gradient as a head here, and as an embedding in embed_backward().
  linear_backward_weight(context, kept.logits.data(), kept.normed.data(), gradient(kToken),
                         spec_.bert() ? gradient(at + kDecoderBias) : nullptr, rows, width, vocabulary, accumulate);
  kept.normed.reset();
  DeviceBuffer<T> d = activation(context, kept.x.size(), "stream gradient");
  linear_backward_input(context, kept.logits.data(), value(kToken), d.data(), rows, width, vocabulary);
  kept.logits.reset();
  const T* before_norm = spec_.bert() ? kept.activated.data() : kept.x.data();
  layer_norm_backward_weight(context, d.data(), before_norm, kept.mean.data(), kept.rstd.data(), gradient(norm),
                             gradient(norm + 1), rows, width, accumulate);
  layer_norm_backward_input(context, d.data(), before_norm, kept.mean.data(), kept.rstd.data(), value(norm), d.data(),
                            rows, width, false);
  if (!spec_.bert()) return d;
  kept.activated.reset();
  activation_backward(context, d.data(), kept.dense.data(), d.size(), Activation::gelu);
  kept.dense.reset();
  linear_backward_weight(context, d.data(), kept.x.data(), gradient(at + kDense), gradient(at + kDense + 1), rows,
                         width, width, accumulate);
  kept.x.reset();
  DeviceBuffer<T> below = activation(context, d.size(), "stream gradient");
  linear_backward_input(context, d.data(), value(at + kDense), below.data(), rows, width, width);
  return below;
}

template <class T>
DeviceBuffer<T> Transformer<T>::head(Context& context, const TokenBatch& batch, DeviceBuffer<T> x, StepOptions options,
                                     const float* scale_on_device) {
  HeadActivations kept;
  {
    const Phase phase(context.ledger(), "forward");
    kept = head_forward(context, batch, std::move(x));
    cross_entropy(context, batch, kept.logits.data(), options, scale_on_device);
  }
  const Phase phase(context.ledger(), "backward");
  return head_backward(context, std::move(kept), options.accumulate);
}

// From the gradient of `attended` to that of qkv [R, 3C].
template <class T>
DeviceBuffer<T> Transformer<T>::attention_backward(Context& context, const TokenBatch& batch, LayerActivations<T>& kept,
                                                   DeviceBuffer<T> d_attended) {
  const std::size_t seq = batch.seq, heads = this->heads(), inner = this->inner(), depth = inner / heads;
  const std::size_t matrix = seq * seq, matrices = batch.sequences * heads;
  DeviceBuffer<T> d_qkv = activation(context, kept.qkv.size(), "qkv gradient");
  DeviceBuffer<T> d_p = activation(context, kept.probabilities.size(), "attention gradient");
  const auto of = [&](auto* base, std::size_t b) {
    return Strided<std::remove_pointer_t<decltype(base)>>{base + b * heads * matrix, seq, matrix};
  };
  const auto p = [&](std::size_t b) { return of(static_cast<const T*>(kept.probabilities.data()), b); };
  for (std::size_t b = 0; b < batch.sequences; ++b) {
    const auto in = heads_of<const T>(kept.qkv.data(), b, seq, heads, inner);
    const auto out = heads_of(d_qkv.data(), b, seq, heads, inner);
    const Strided<const T> d{d_attended.data() + b * seq * inner, inner, depth};
    gemm_strided<T>(context, true, false, seq, depth, seq, 1.0f, p(b), d, 0.0f, out.v, heads);
    gemm_strided<T>(context, false, true, seq, seq, depth, 1.0f, d, in.v, 0.0f, of(d_p.data(), b), heads);
  }
  d_attended.reset();
  softmax_backward(context, kept.probabilities.data(), d_p.data(), matrices, seq,
                   1.0f / std::sqrt(static_cast<float>(depth)), !spec_.bert());
  kept.probabilities.reset();
  for (std::size_t b = 0; b < batch.sequences; ++b) {
    const auto in = heads_of<const T>(kept.qkv.data(), b, seq, heads, inner);
    const auto out = heads_of(d_qkv.data(), b, seq, heads, inner);
    const auto d = of(static_cast<const T*>(d_p.data()), b);
    gemm_strided<T>(context, false, false, seq, depth, seq, 1.0f, d, in.k, 0.0f, out.q, heads);
    gemm_strided<T>(context, true, false, seq, depth, seq, 1.0f, d, in.q, 0.0f, out.k, heads);
  }
  kept.qkv.reset();
  return d_qkv;
}

template <class T>
void Transformer<T>::rebuild_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                   LayerActivations<T>& kept) {
  if (!kept.qkv) {
    run_layer(context, l, batch, x, {}, kept, false);
    return;
  }
  const std::size_t rows = batch.rows(), width = spec_.width, hidden = this->hidden(), at = first_of_layer(l);
  const auto norm = [&](DeviceBuffer<T>& output, std::size_t which, const T* before, const DeviceBuffer<float>& mean,
                        const DeviceBuffer<float>& rstd) {
    if (output) return;
    output = activation(context, checked_product(rows, width), "norm, again");
    layer_norm_again(context, before, mean.data(), rstd.data(), value(at + which), value(at + which + 1), output.data(),
                     rows, width);
  };
  norm(kept.norm1, kNorm1, spec_.bert() ? kept.middle.data() : x, kept.mean1, kept.rstd1);
  if (!spec_.bert()) norm(kept.norm2, kNorm2, kept.middle.data(), kept.mean2, kept.rstd2);
  if (!kept.probabilities) kept.probabilities = attention_probabilities(context, batch, kept.qkv.data());
  if (kept.activated) return;
  kept.activated = activation(context, kept.hidden.size(), "GELU, again");
  bias_activation_keep(context, kept.hidden.data(), nullptr, kept.activated.data(), rows, hidden, Activation::gelu);
}

template <class T>
void Transformer<T>::backward_layer(Context& context, std::size_t l, const TokenBatch& batch, const T* x,
                                    LayerActivations<T> kept, DeviceBuffer<T>& gradient_of_stream, bool accumulate) {
  const std::size_t rows = batch.rows(), width = spec_.width, inner = this->inner(), hidden = this->hidden();
  const std::size_t at = first_of_layer(l), count = checked_product(rows, width);
  // In bert the gradient through a branch is added to the stream's: with several parts, in the first of them.
  const float on_top = slice_.part == 0 ? 1.0f : 0.0f;
  const bool bert = spec_.bert();
  DeviceBuffer<T>& d = gradient_of_stream;
  for (const auto* read : {&kept.norm1, bert ? &kept.sum : &kept.norm2, &kept.qkv, &kept.probabilities, &kept.attended,
                           &kept.middle, &kept.hidden, &kept.activated})
    if (!*read) throw std::logic_error("backward_layer() reads what was not kept: call rebuild_layer() first");

  const auto weights = [&](std::size_t which, const DeviceBuffer<T>& dy, const T* in_values, std::size_t in,
                           std::size_t out) {
    linear_backward_weight(context, dy.data(), in_values, gradient(at + which), gradient(at + which + 1), rows, in, out,
                           accumulate);
  };
  // Consumes the norm's statistics; `into` is dy itself, or the stream that the gradient is added to.
  const auto norm = [&](std::size_t which, const DeviceBuffer<T>& dy, const T* before, DeviceBuffer<float>& mean,
                        DeviceBuffer<float>& rstd, DeviceBuffer<T>& into) {
    layer_norm_backward_weight(context, dy.data(), before, mean.data(), rstd.data(), gradient(at + which),
                               gradient(at + which + 1), rows, width, accumulate);
    layer_norm_backward_input(context, dy.data(), before, mean.data(), rstd.data(), value(at + which), into.data(),
                              rows, width, &into != &dy);
    mean.reset();
    rstd.reset();
  };

  if (bert) {
    norm(kNorm2, d, kept.sum.data(), kept.mean2, kept.rstd2, d);
    kept.sum.reset();
  }
  weights(kContract, d, kept.activated.data(), hidden, width);
  kept.activated.reset();
  DeviceBuffer<T> d_hidden = activation(context, kept.hidden.size(), "MLP gradient");
  linear_backward_input(context, d.data(), value(at + kContract), d_hidden.data(), rows, hidden, width);
  activation_backward(context, d_hidden.data(), kept.hidden.data(), d_hidden.size(), Activation::gelu);
  kept.hidden.reset();
  if (bert) {
    weights(kExpand, d_hidden, kept.norm1.data(), width, hidden);
    kept.norm1.reset();
    gemm(context, false, false, rows, width, hidden, 1.0f, static_cast<const T*>(d_hidden.data()), value(at + kExpand),
         on_top, d.data());
    sum_over_parts(context, d);
    d_hidden.reset();
    norm(kNorm1, d, kept.middle.data(), kept.mean1, kept.rstd1, d);
  } else {
    weights(kExpand, d_hidden, kept.norm2.data(), width, hidden);
    kept.norm2.reset();
    DeviceBuffer<T> d_norm = activation(context, count, "norm gradient");
    linear_backward_input(context, d_hidden.data(), value(at + kExpand), d_norm.data(), rows, width, hidden);
    sum_over_parts(context, d_norm);
    d_hidden.reset();
    norm(kNorm2, d_norm, kept.middle.data(), kept.mean2, kept.rstd2, d);
  }
  kept.middle.reset();

  weights(kProjection, d, kept.attended.data(), inner, width);
  kept.attended.reset();
  DeviceBuffer<T> d_attended = activation(context, checked_product(rows, inner), "attended gradient");
  linear_backward_input(context, d.data(), value(at + kProjection), d_attended.data(), rows, inner, width);
  DeviceBuffer<T> d_qkv = attention_backward(context, batch, kept, std::move(d_attended));
  if (bert) {
    weights(kQkv, d_qkv, x, width, 3 * inner);
    gemm(context, false, false, rows, width, 3 * inner, 1.0f, static_cast<const T*>(d_qkv.data()), value(at + kQkv),
         on_top, d.data());
    sum_over_parts(context, d);
    return;
  }
  weights(kQkv, d_qkv, kept.norm1.data(), width, 3 * inner);
  kept.norm1.reset();
  DeviceBuffer<T> d_norm = activation(context, count, "norm gradient");
  linear_backward_input(context, d_qkv.data(), value(at + kQkv), d_norm.data(), rows, width, 3 * inner);
  sum_over_parts(context, d_norm);
  d_qkv.reset();
  norm(kNorm1, d_norm, x, kept.mean1, kept.rstd1, d);
}

template <class T>
void Transformer<T>::embed_backward(Context& context, const TokenBatch& batch, EmbeddingActivations kept,
                                    DeviceBuffer<T> d, bool accumulate) {
  const std::size_t rows = batch.rows(), width = spec_.width, used = batch.seq * width;
  const auto zero = [&](std::size_t tensor, std::size_t from) {
    const std::size_t count = tensors_[tensor].count;
    if (!accumulate && from < count)
      CUDA_CHECK(cudaMemsetAsync(gradient(tensor) + from, 0, (count - from) * sizeof(T), context.stream()));
  };
  if (spec_.bert()) {
    layer_norm_backward_weight(context, d.data(), kept.sum.data(), kept.mean.data(), kept.rstd.data(),
                               gradient(kEmbedNorm), gradient(kEmbedNorm + 1), rows, width, accumulate);
    layer_norm_backward_input(context, d.data(), kept.sum.data(), kept.mean.data(), kept.rstd.data(), value(kEmbedNorm),
                              d.data(), rows, width, false);
    column_sum(context, d.data(), gradient(kType), rows, width, accumulate);
    zero(kType, width);  // no token is of the other type
  }
  embedding_backward(context, batch.tokens.data(), d.data(), gradient(kToken), gradient(kPosition), rows, batch.seq,
                     width, accumulate);
  zero(kPosition, used);
}

template <class T>
void Transformer<T>::forward_backward(Context& context, TokenBatch batch, StepOptions options,
                                      const float* scale_on_device) {
  std::vector<DeviceBuffer<T>> x(spec_.layers);
  std::vector<LayerActivations<T>> kept(spec_.layers);
  EmbeddingActivations embedding;
  DeviceBuffer<T> d;
  {
    const Phase phase(context.ledger(), "forward");
    DeviceBuffer<T> out = embed(context, batch, embedding);
    for (std::size_t l = 0; l < spec_.layers; ++l) {
      x[l] = std::move(out);
      out = forward_layer(context, l, batch, x[l].data(), {}, kept[l]);
    }
    d = std::move(out);
  }
  d = head(context, batch, std::move(d), options, scale_on_device);
  const Phase phase(context.ledger(), "backward");
  for (std::size_t l = spec_.layers; l-- > 0;) {
    backward_layer(context, l, batch, x[l].data(), std::move(kept[l]), d, options.accumulate);
    x[l].reset();
  }
  embed_backward(context, batch, std::move(embedding), std::move(d), options.accumulate);
}

template class Transformer<float>;
template class Transformer<__half>;
template class Transformer<__nv_bfloat16>;

// --------------------------------------------------------------------------------------------------------- closed form

std::size_t tensor_bytes(const TransformerSpec& spec, std::size_t element_bytes) {
  std::size_t sum = 0;
  visit_whole(spec, [&](const Place& p) {
    sum = checked_sum(sum, round_to_granule(checked_product(checked_product(p.rows, p.columns), element_bytes)));
  });
  return sum;
}

std::size_t token_batch_bytes(std::size_t sequences, std::size_t seq) {
  return 2 * round_to_granule(checked_product(checked_product(sequences, seq), sizeof(int)));
}

namespace {

// The buffers of a step, in bytes.
struct Sizes {
  std::size_t u;           // [R, C]
  std::size_t a, q, h, p;  // of a part: [R, C], [R, 3C], [R, 4C], [B, H, S, S]
  std::size_t s;           // [R] floats: a mean, an rstd, the row losses
  std::size_t v;           // [R, V]

  Sizes(const TransformerSpec& spec, std::size_t element, std::size_t sequences, std::size_t seq,
        std::size_t parts = 1) {
    const std::size_t rows = checked_product(sequences, seq);
    const auto bytes = [&](std::size_t a, std::size_t b, std::size_t size) {
      return round_to_granule(checked_product(checked_product(a, b), size));
    };
    u = bytes(rows, spec.width, element);
    a = bytes(rows, spec.width / parts, element);
    q = bytes(rows, checked_product(spec.width / parts, 3), element);
    h = bytes(rows, spec.hidden() / parts, element);
    p = bytes(checked_product(sequences, spec.heads / parts), checked_product(seq, seq), element);
    s = bytes(rows, 1, sizeof(float));
    v = bytes(rows, spec.vocabulary, element);
    // Every sum below is of at most 64 of these.
    if (std::max({h, p, v, s, q}) > SIZE_MAX / 64) throw std::length_error("a size does not fit 64 bits");
  }
};

// With k(…) a buffer that is kept only if Keep says so:
//
//   kept, gpt       2 k(u) + q + k(p) + a + u + h + k(h) + 4 s    norms, qkv, probabilities, attended, middle, MLP
//   kept, bert        k(u) + q + k(p) + a + u + h + k(h) + 4 s + u    one norm less, the sum before norm 2 more
//
// A layer's forward pass is fullest when its probabilities, or its output, have just come into being. Before its
// backward pass all is there again; that pass is fullest at its start, or where the gradients of the probabilities and
// of qkv stand beside these.
LayerBytes layer_bytes(const Sizes& z, bool bert, const Keep& keep) {
  const auto if_kept = [](bool kept, std::size_t bytes) { return kept ? bytes : 0; };
  const std::size_t norms = bert ? 1 : 2;
  const auto kept_with = [&](const Keep& k) {
    return if_kept(k.norms, norms * z.u) + z.q + if_kept(k.probabilities, z.p) + z.a + z.u + z.h +
           if_kept(k.gelu, z.h) + 4 * z.s + (bert ? z.u : 0);
  };
  LayerBytes bytes{};
  bytes.kept = keep.layer ? kept_with(keep) : 0;

  // Forward, moment by moment; `live` is what is there before.
  std::size_t peak = 0, live = 0;
  const auto add = [&](std::size_t more) { peak = std::max(peak, live += more); };
  const auto drop = [&](bool when, std::size_t less) { live -= when ? less : 0; };
  const bool drop_norms = !keep.layer || !keep.norms, drop_p = !keep.layer || !keep.probabilities;
  const bool drop_gelu = !keep.layer || !keep.gelu, drop_all = !keep.layer;
  if (!bert) add(z.u + 2 * z.s);
  add(z.q);
  drop(!bert && drop_norms, z.u);
  add(z.p);
  add(z.a);  // attended
  drop(drop_p, z.p);
  drop(drop_all, z.q);
  add(z.u);  // middle
  drop(drop_all, z.a);
  add(z.u + 2 * z.s);  // the norm before the MLP
  drop(bert && drop_all, z.u);
  add(z.h);
  drop(!bert && drop_norms, z.u);
  add(if_kept(keep.layer, z.h));  // GELU: in place when nothing is kept
  add(z.u);                       // the output, in bert the sum before the norm
  if (bert) {
    drop(drop_gelu, z.h);
    drop(drop_norms, z.u);
    add(z.u + 2 * z.s);
  }
  bytes.forward_peak = peak;

  const std::size_t attention = (bert ? 0 : z.u + 2 * z.s) + 2 * z.q + 2 * z.p + z.a;
  bytes.backward_peak = std::max(attention, kept_with(Keep{}));
  return bytes;
}

}  // namespace

LayerBytes layer_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences, std::size_t seq,
                       const Keep& keep, std::size_t parts) {
  return layer_bytes(Sizes(spec, element_bytes, sequences, seq, parts), spec.bert(), keep);
}

namespace {
HeadBytes head_bytes(const Sizes& z, bool bert) { return {(bert ? 3 : 1) * z.u + 2 * z.s + z.v, z.s}; }
std::size_t embedding_bytes(const Sizes& z, bool bert) { return bert ? z.u + 2 * z.s : 0; }
}  // namespace

HeadBytes head_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences, std::size_t seq) {
  return head_bytes(Sizes(spec, element_bytes, sequences, seq), spec.bert());
}

std::size_t embedding_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                            std::size_t seq) {
  return embedding_bytes(Sizes(spec, element_bytes, sequences, seq), spec.bert());
}

std::size_t stream_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                         std::size_t seq) {
  return Sizes(spec, element_bytes, sequences, seq).u;
}

// With u = one stream, in the order of the moments (E: what embed() keeps, in bert u + 2 s):
//
//   forward of l    E + (l + 1) u + kept(0) + … + kept(l−1) + forward_peak(l)
//   the loss        E + (L + 1) u + kept(0) + … + kept(L−1) + head + V R + row losses (workspace)
//   backward of l   E + (l + 2) u + kept(0) + … + kept(l−1) + backward_peak(l)
PeakBytes predict_step(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences, std::size_t seq,
                       std::span<const Keep> keep, const ByCategory& resident) {
  const Sizes z(spec, element_bytes, sequences, seq);
  std::vector<std::size_t> below(spec.layers + 1, embedding_bytes(z, spec.bert()));
  std::vector<LayerBytes> layers;
  for (std::size_t l = 0; l < spec.layers; ++l) {
    layers.push_back(layer_bytes(z, spec.bert(), keep.empty() ? Keep{} : keep[l]));
    below[l + 1] = checked_sum(below[l], z.u + layers[l].kept);
  }
  PeakBytes base{resident};
  base.at_peak[Category::data] = checked_sum(base.at_peak[Category::data], token_batch_bytes(sequences, seq));
  PeakBytes peak = base;
  const auto moment = [&](std::size_t activations, std::size_t workspace) {
    PeakBytes now = base;
    now.at_peak[Category::activations] = checked_sum(now.at_peak[Category::activations], activations);
    now.at_peak[Category::workspace] += workspace;
    peak = later_peak(peak, now);
  };
  for (std::size_t l = 0; l < spec.layers; ++l) moment(checked_sum(below[l], z.u + layers[l].forward_peak), 0);
  const HeadBytes head = head_bytes(z, spec.bert());
  moment(checked_sum(below[spec.layers], z.u + head.activations), head.workspace);
  for (std::size_t l = spec.layers; l-- > 0;) moment(checked_sum(below[l], 2 * z.u + layers[l].backward_peak), 0);
  return peak;
}

LayerFlops layer_flops(const TransformerSpec& spec, std::size_t sequences, std::size_t seq) {
  const std::uint64_t rows = sequences * seq, square = std::uint64_t(spec.width) * spec.width;
  const std::uint64_t scores = 2 * rows * seq * spec.width;  // H · D = C
  return {24 * rows * square + 2 * scores, spec.bert() ? 0 : 8 * rows * square, scores};
}

std::uint64_t step_flops(const TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                         std::span<const Keep> keep) {
  const std::uint64_t rows = sequences * seq;
  const LayerFlops layer = layer_flops(spec, sequences, seq);
  std::uint64_t forward = layer.forward * spec.layers + 2 * rows * spec.width * spec.vocabulary, again = 0;
  if (spec.bert()) forward += 2 * rows * spec.width * spec.width;
  for (const Keep& k : keep)
    again += !k.layer ? layer.forward - layer.last_product : !k.probabilities ? layer.probabilities : 0;
  return 3 * forward + again;
}

}  // namespace oomlab::nn
