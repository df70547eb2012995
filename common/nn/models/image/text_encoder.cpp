#include "nn/models/image/text_encoder.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/check.h"
#include "nn/ops/activation.h"
#include "nn/ops/embedding.h"
#include "nn/ops/instances.h"
#include "nn/ops/norms.h"
#include "plan/attention.h"

namespace oomlab::image {

namespace {

const std::string kModel = "text_model.";

const TextEncoderSpec& supported(const TextEncoderSpec& spec) {
  if (spec.kind != TextKind::clip || spec.activation == TextActivation::gated_gelu)
    throw std::invalid_argument("text encoders that run here are CLIP's");
  return spec;
}

nn::Activation activation_of(TextActivation activation) {
  return activation == TextActivation::quick_gelu ? nn::Activation::quick_gelu : nn::Activation::exact_gelu;
}

}  // namespace

template <class T>
TextEncoder<T>::TextEncoder(Context& context, const TextEncoderSpec& spec, Residency residency, const ReadTensor& read)
    : spec_(supported(spec)), weights_(context, tensors_of(spec), residency, read) {}

template <class T>
typename TextEncoder<T>::Output TextEncoder<T>::forward(Context& context, const int* tokens, std::size_t texts,
                                                        const Form& form, std::span<const std::size_t> ends) {
  if (!ends.empty() && (ends.size() != texts || std::ranges::max(ends) >= spec_.positions))
    throw std::invalid_argument("texts end at one of their " + std::to_string(spec_.positions) + " positions each");
  const Phase phase(context.ledger(), "text encoder");
  const std::size_t rows = checked_product(texts, spec_.positions), width = spec_.width;
  const auto buffer = [&](const char* tag) {
    return context.buffer<T>(checked_product(rows, width), Category::activations, tag);
  };
  DeviceBuffer<T> x;
  {
    const auto weights = weights_.block({kModel + "embeddings"});
    x = buffer("embedding");
    nn::embedding_forward<T>(context, tokens, weights_[kModel + "embeddings.token_embedding.weight"],
                             weights_[kModel + "embeddings.position_embedding.weight"], nullptr, x.data(), rows,
                             {.seq = spec_.positions}, width);
  }
  for (std::size_t i = 0; i < spec_.layers; ++i)
    layer(context, kModel + "encoder.layers." + std::to_string(i), x, texts, form);
  const auto weights = spec_.projection ? weights_.block({kModel + "final_layer_norm", "text_projection"})
                                        : weights_.block({kModel + "final_layer_norm"});
  Output output;
  output.rows = buffer("text rows");
  nn::layer_norm_forward<T>(context, x.data(), weights_[kModel + "final_layer_norm.weight"],
                            weights_[kModel + "final_layer_norm.bias"], output.rows.data(), nullptr, nullptr, rows,
                            width);
  x.reset();
  if (!spec_.projection) return output;
  auto last = context.buffer<T>(checked_product(texts, width), Category::activations, "rows of the texts' ends");
  for (std::size_t i = 0; i < texts; ++i) {
    const std::size_t end = ends.empty() ? spec_.positions - 1 : ends[i];
    CUDA_CHECK(cudaMemcpyAsync(last.data() + i * width, output.rows.data() + (i * spec_.positions + end) * width,
                               width * sizeof(T), cudaMemcpyDeviceToDevice, context.stream()));
  }
  const std::size_t pooled = checked_product(texts, spec_.projection);
  output.pooled = context.buffer<T>(pooled, Category::activations, "pooled rows");
  weights_.linear("text_projection").forward(context, {last.data(), width}, output.pooled.data(), texts);
  return output;
}

// x + attention(norm(x)), then that + MLP(norm(that)), in place.
template <class T>
void TextEncoder<T>::layer(Context& context, const std::string& name, DeviceBuffer<T>& x, std::size_t texts,
                           const Form& form) {
  const auto weights = weights_.block({name});
  const std::size_t rows = checked_product(texts, spec_.positions), width = spec_.width;
  const auto buffer = [&](std::size_t columns, const char* tag) {
    return context.buffer<T>(checked_product(rows, columns), Category::activations, tag);
  };
  const auto normed = [&](const std::string& norm) {
    DeviceBuffer<T> y = buffer(width, "norm");
    nn::layer_norm_forward<T>(context, x.data(), weights_[norm + ".weight"], weights_[norm + ".bias"], y.data(),
                              nullptr, nullptr, rows, width);
    return y;
  };
  // y = x Wᵀ + b, a new buffer.
  const auto projected = [&](const std::string& linear, const DeviceBuffer<T>& from, const char* tag) {
    const auto layer = weights_.linear(linear);
    DeviceBuffer<T> y = buffer(layer.out(), tag);
    layer.forward(context, {from.data(), layer.in()}, y.data(), rows);
    return y;
  };
  {
    const std::string attention = name + ".self_attn.";
    DeviceBuffer<T> from = normed(name + ".layer_norm1");
    DeviceBuffer<T> q = projected(attention + "q_proj", from, "to_q");
    DeviceBuffer<T> k = projected(attention + "k_proj", from, "to_k");
    DeviceBuffer<T> v = projected(attention + "v_proj", from, "to_v");
    from.reset();
    const nn::AttentionShape shape{
        .sequences = texts, .seq = spec_.positions, .heads = spec_.heads, .width = width, .causal = true};
    const DeviceBuffer<T> y = attended<T>(context, shape, form.attention, std::move(q), std::move(k), std::move(v));
    weights_.linear(attention + "out_proj").forward(context, {y.data(), width}, x.data(), rows, true);
  }
  DeviceBuffer<T> from = normed(name + ".layer_norm2");
  DeviceBuffer<T> hidden = projected(name + ".mlp.fc1", from, "MLP");
  from.reset();
  nn::bias_activation<T>(context, hidden.data(), nullptr, rows, spec_.mlp, activation_of(spec_.activation));
  weights_.linear(name + ".mlp.fc2").forward(context, {hidden.data(), spec_.mlp}, x.data(), rows, true);
}

#define OOMLAB_TEXT_ENCODER(T) template class TextEncoder<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_TEXT_ENCODER)

}  // namespace oomlab::image
