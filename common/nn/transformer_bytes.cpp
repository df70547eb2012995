// The closed form: peak bytes and operations of a step. It shares nothing with the code it predicts but the shapes.

#include <algorithm>
#include <stdexcept>

#include "nn/transformer_tensors.h"

namespace oomlab::nn {

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

std::size_t residual_bytes(const TransformerSpec& spec, std::size_t element_bytes, std::size_t sequences,
                           std::size_t seq) {
  return Sizes(spec, element_bytes, sequences, seq).u;
}

// With u = one residual, in the order of the moments (E: what embed() keeps, in bert u + 2 s):
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
  std::uint64_t forward = layer.forward * spec.layers + 2 * rows * spec.width * spec.vocabulary, recompute = 0;
  if (spec.bert()) forward += 2 * rows * spec.width * spec.width;
  for (const Keep& k : keep)
    recompute += !k.layer ? layer.forward - layer.last_product : !k.probabilities ? layer.probabilities : 0;
  return 3 * forward + recompute;
}

}  // namespace oomlab::nn
