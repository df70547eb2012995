#pragma once
// One layer of a decoder (GPT-2, Llama), forward: y = x + attention(norm(x)), then y + MLP(norm(y)). It is written down
// here and nowhere else; a Pass says how a step of it is done:
//
//   training       every value has a buffer of its own, and some are kept for the backward pass; keys and values are
//                  those of the whole sequence (pre_norm_block.cpp)
//   inference      three buffers, each used again as soon as nobody reads it; keys and values are in a cache,
//                  contiguous or in pages (chapters 11 and 12)
//   on the CPU     plain C++, and a cache in host memory (chapter 11)

#include <cstddef>
#include <type_traits>

#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "plan/model/transformer_tensors.h"

namespace oomlab::nn {

/// The tensors of a layer. Nothing is owned.
template <StoredWeights W>
struct DecoderLayer {
  Norm<typename W::Value> norm1;
  Linear<W> qkv;         ///< C to (H + 2 Hk) · d
  Linear<W> projection;  ///< C to C
  Norm<typename W::Value> norm2;
  Linear<W> up;    ///< C to F; llama: to 2F, gate and up
  Linear<W> down;  ///< F to C
};

/// For layers without gradients.
struct Frozen {
  std::nullptr_t operator()(int) const noexcept { return nullptr; }
};
/// A layer, or its share of `parts`: from weights(i, in, out), vector(i) and gradient(i) of its tensor i in the order of
/// tensors_of(); vector(-1) and gradient(-1), of what this style does not have, are null. Without `gradient` it is
/// frozen.
template <StoredWeights W, class WeightsAt, class VectorAt, class GradientAt = Frozen>
DecoderLayer<W> make_decoder_layer(const TransformerSpec& spec, std::size_t parts, WeightsAt weights, VectorAt vector,
                                   GradientAt gradient = {}) {
  constexpr bool kTrained = !std::is_same_v<GradientAt, Frozen>;
  const auto norm = [&](int gamma, int beta) {
    return Norm<typename W::Value>{spec.llama(), spec.width,      spec.epsilon,  vector(gamma),
                                   vector(beta), gradient(gamma), gradient(beta)};
  };
  const auto linear = [&](int weight, int bias, std::size_t in, std::size_t out) {
    return Linear<W>{weights(weight, in, out), vector(bias), kTrained, gradient(weight), gradient(bias)};
  };
  const std::size_t c = spec.width;
  const LayerSlots of = layer_slots(spec);
  return {.norm1 = norm(of.norm1, of.norm1_beta),
          .qkv = linear(of.qkv, of.qkv_bias, c, spec.qkv_width() / parts),
          .projection = linear(of.projection, of.projection_bias, c / parts, c),
          .norm2 = norm(of.norm2, of.norm2_beta),
          .up = linear(of.up, of.up_bias, c, spec.before_activation() / parts),
          .down = linear(of.down, of.down_bias, spec.hidden() / parts, c)};
}

/// The layer, from x [rows, C] to its output. What a Pass does, and where its results are: norm(); linear(), with the
/// bias; rotate(), which turns the heads of Q and K to their positions, where the style has rotary ones; attend(), to
/// keys and values wherever they are, those of these rows included; activate(), GELU or SwiGLU; residual(l, from,
/// before), which is before + l(from). Throws what the pass throws.
template <class Pass, StoredWeights W, class X>
decltype(auto) decoder_layer(Pass& pass, const DecoderLayer<W>& layer, X& x) {
  auto&& qkv = pass.linear(layer.qkv, pass.norm(layer.norm1, x));
  pass.rotate(qkv);
  auto&& middle = pass.residual(layer.projection, pass.attend(qkv), x);
  auto&& hidden = pass.linear(layer.up, pass.norm(layer.norm2, middle));
  return pass.residual(layer.down, pass.activate(hidden), middle);
}

}  // namespace oomlab::nn
