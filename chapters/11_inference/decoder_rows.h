#pragma once
// Rows of tokens on their way through a decoder whose keys and values are in a cache: their buffers, and how a step of
// nn::decoder_layer() is done with them.

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "cached_attention.h"
#include "decoder.h"
#include "nn/ops/norms.h"
#include "nn/ops/rotary.h"
#include "nn/ops/swiglu.h"
#include "row_products.h"

namespace oomlab::inference {

// ------------------------------------------------------------------------------------------------------------- kernels

/// to[row] = from[index[row]], rows of `width`: what a token's embedding is; and the rows of a step that get an answer.
template <class T>
__global__ void gather_rows_kernel(const T* __restrict__ from, const int* __restrict__ index, T* __restrict__ to,
                                   std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T* const source = from + static_cast<std::size_t>(index[row]) * width;
    nn::for_packs<T>(nn::BlockRange{}, width, packs,
                     [&](auto v, std::size_t i) { nn::store(to + row * width, i, nn::load<decltype(v)>(source, i)); });
  }
}

/// token[row]: where the row's largest logit is; of equal ones the first. NaNs do not count.
inline __global__ void largest_logit_kernel(const float* __restrict__ logits, int* __restrict__ token, std::size_t rows,
                                            std::size_t classes, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const float* const x = logits + row * classes;
    float largest = -INFINITY;
    nn::for_packs<float>(nn::BlockRange{}, classes, packs, [&](auto v, std::size_t i) {
      v = nn::load<decltype(v)>(x, i);
      nn::each_lane<decltype(v)>([&](std::size_t k) { largest = largest < v[k] ? v[k] : largest; });
    });
    largest = block_max(largest);
    const int none = static_cast<int>(classes);
    int first = none;
    for (std::size_t i : block_range(classes))
      if (x[i] == largest && static_cast<int>(i) < first) first = static_cast<int>(i);
    first = -block_max(-first);
    for ([[maybe_unused]] std::size_t once : block_range(1)) token[row] = first == none ? 0 : first;
  }
}

// ---------------------------------------------------------------------------------------------------------------- rows

/// A pass of rows through a layer (nn::decoder_layer()), of which nothing is kept: a norm and what is attended to are in
/// `narrow`, all that is wider in `wide`, each in the place of what came before. `positions`: as attend_cached() has it.
template <class T>
struct CachedPass {
  Context& context;
  const nn::TransformerSpec& spec;
  const nn::RotaryFrequencies& frequencies;
  const CachedRows& cached;
  bool eight_bits;
  std::size_t rows;
  std::uint64_t positions;
  T *narrow, *wide;

  RowsOf<T> norm(const nn::Norm<T>& norm, const T* x) const {
    nn::rms_norm_forward(context, x, norm.gamma, narrow, nullptr, rows, spec.width, spec.epsilon);
    return {narrow, spec.width};
  }
  template <class W>
  T* linear(const nn::Linear<W>& linear, RowsOf<T> from) const {
    linear.forward(context, from, wide, rows);
    return wide;
  }
  void rotate(T* qkv) const {
    nn::rotate_heads(context, qkv, spec.qkv_width(), rows, spec.heads + spec.keys(), spec.depth(), frequencies,
                     {.of_row = cached.position});
  }
  RowsOf<T> attend(const T* qkv) const {
    attend_cached(context, qkv, narrow, cached, eight_bits, rows, spec.heads, positions);
    return {narrow, spec.width};
  }
  RowsOf<T> activate(T* hidden) const {
    nn::swiglu_forward(context, hidden, hidden, spec.before_activation(), rows, spec.hidden());
    return {hidden, spec.before_activation()};
  }
  template <class W>
  T* residual(const nn::Linear<W>& linear, RowsOf<T> from, T* x) const {
    linear.forward(context, from, x, rows, /*add=*/true);
    return x;
  }
};

template <class T>
class DecoderRows {
 public:
  /// Buffers for up to `rows` rows, and for the logits of `logit_rows` of them (category activations). Throws OutOfMemory,
  /// and std::invalid_argument for a spec that is not llama's.
  DecoderRows(Context& context, const nn::TransformerSpec& spec, std::size_t rows, std::size_t logit_rows)
      : spec_(spec) {
    if (!spec.llama()) throw std::invalid_argument("'" + spec.name + "' is not a decoder with rotary positions");
    frequencies_ = nn::rotary_frequencies(spec.rotary, spec.depth());
    const auto buffer = [&](auto& to, std::size_t of_rows, std::size_t width, const char* tag) {
      using Buffer = std::remove_reference_t<decltype(to)>;
      to = Buffer(context.memory(), context.stream(), checked_product(of_rows, width), Category::activations, tag);
    };
    buffer(residual_, rows, spec.width, "residual rows");
    buffer(narrow_, rows, spec.width, "norm, or what is attended to");
    buffer(wide_, rows, std::max(spec.qkv_width(), spec.before_activation()), "QKV, or gate and up");
    buffer(logits_, logit_rows, spec.vocabulary, "logits");
  }
  T* residual() noexcept { return residual_.data(); }
  T* narrow() noexcept { return narrow_.data(); }
  float* logits() noexcept { return logits_.data(); }

  /// to[row] = from[index[row]]: embeddings of tokens, or some of the rows.
  void gather(Context& context, const T* from, const int* index, T* to, std::size_t rows) {
    launch(gather_rows_kernel<T>, nn::shape_for_packed_rows<T>(rows, spec_.width), context.stream(), from, index, to,
           rows, spec_.width, nn::packs_fit<T>(spec_.width, from, to));
  }
  /// A layer for the first `rows` rows of the residual. `positions`: as attend_cached() has it.
  template <class W>
  void layer(Context& context, const nn::DecoderLayer<W>& w, const CachedRows& cached, bool eight_bits,
             std::size_t rows, std::uint64_t positions) {
    const CachedPass<T> pass{context, spec_,     frequencies_,   cached,      eight_bits,
                             rows,    positions, narrow_.data(), wide_.data()};
    T* x = residual_.data();
    nn::decoder_layer(pass, w, x);
  }
  /// The logits of `rows` rows [C], and the token that each of them makes the most likely.
  void answer(Context& context, const T* from, const T* final_gamma, const T* head, int* tokens, std::size_t rows) {
    const std::size_t c = spec_.width, classes = spec_.vocabulary;
    nn::rms_norm_forward(context, from, final_gamma, narrow_.data(), nullptr, rows, c, spec_.epsilon);
    row_products<T>(context, {narrow_.data(), c}, head, nullptr, logits_.data(), rows, c, classes);
    launch(largest_logit_kernel, nn::shape_for_packed_rows<float>(rows, classes), context.stream(), logits_.data(),
           tokens, rows, classes, nn::packs_fit<float>(classes, logits_.data()));
  }

 private:
  nn::TransformerSpec spec_;
  nn::RotaryFrequencies frequencies_;
  DeviceBuffer<T> residual_, narrow_, wide_;
  DeviceBuffer<float> logits_;
};

}  // namespace oomlab::inference
