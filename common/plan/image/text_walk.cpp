#include "plan/image/walk.h"

namespace oomlab::image {

namespace {

// Norm, attention, norm, MLP of x [rows, width].
void text_layer(Simulation& simulation, const TextEncoderSpec& spec, std::uint64_t texts) {
  const std::uint64_t rows = checked_product(texts, spec.positions), width = spec.width;
  const nn::AttentionShape shape{texts, spec.positions, spec.heads, spec.inner(), spec.kind == TextKind::clip};
  simulation.add_self_attention(shape, width);

  Buffer normed = simulation.rows(rows, width);
  Buffer hidden = simulation.linear(rows, spec.mlp, width);
  Buffer gate;
  if (spec.activation == TextActivation::gated_gelu) gate = simulation.linear(rows, spec.mlp, width);
  simulation.free({&gate, &normed});
  simulation.add_linear(rows, width, spec.mlp);
  simulation.free(hidden);
}

Encoded encode_clip(Simulation& simulation, Weights& weights, const TextEncoderSpec& spec, std::uint64_t texts) {
  const std::uint64_t rows = checked_product(texts, spec.positions);
  Buffer lease = weights.block("text_model.embeddings");
  Buffer x = simulation.rows(rows, spec.width);
  weights.end(lease);
  for (std::uint64_t i = 0; i < spec.layers; ++i) {
    lease = weights.block(numbered("text_model.encoder.layers", i));
    text_layer(simulation, spec, texts);
    weights.end(lease);
  }
  lease = spec.projection ? weights.block({"text_model.final_layer_norm", "text_projection"})
                          : weights.block("text_model.final_layer_norm");
  Encoded encoded{simulation.rows(rows, spec.width), {}};
  simulation.free(x);
  if (spec.projection) {
    Buffer last = simulation.rows(texts, spec.width);
    encoded.pooled = simulation.linear(texts, spec.projection, spec.width);
    simulation.free(last);
  }
  weights.end(lease);
  return encoded;
}

Encoded encode_t5(Simulation& simulation, Weights& weights, const TextEncoderSpec& spec, std::uint64_t texts) {
  const std::uint64_t rows = checked_product(texts, spec.positions);
  Buffer lease = weights.block("shared");
  Buffer x = simulation.rows(rows, spec.width);
  weights.end(lease);
  Buffer bias = simulation.rows(checked_product(spec.heads, spec.positions), spec.positions);
  for (std::uint64_t i = 0; i < spec.layers; ++i) {
    lease = weights.block(numbered("encoder.block", i));
    text_layer(simulation, spec, texts);
    weights.end(lease);
  }
  simulation.free(bias);
  lease = weights.block("encoder.final_layer_norm");
  const Buffer output = simulation.rows(rows, spec.width);
  simulation.free(x);
  weights.end(lease);
  return {output, {}};
}

}  // namespace

Encoded encode_text(Simulation& simulation, Weights& weights, const TextEncoderSpec& spec, std::uint64_t texts) {
  weights.read();
  return spec.kind == TextKind::clip ? encode_clip(simulation, weights, spec, texts)
                                     : encode_t5(simulation, weights, spec, texts);
}

}  // namespace oomlab::image
