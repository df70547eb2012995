#include "plan/image/walk.h"

namespace oomlab::image {

namespace {

class FluxWalk {
 public:
  FluxWalk(Simulation& simulation, Weights& weights, const FluxSpec& spec, std::uint64_t images, nn::InputSize latents,
           std::uint64_t tokens)
      : simulation_(simulation),
        weights_(weights),
        spec_(spec),
        batch_(images),
        width_(spec.width),
        pixels_(checked_product(images, checked_product(latents.height / spec.patch, latents.width / spec.patch))),
        texts_(checked_product(images, tokens)) {}

  Buffer forward() {
    Buffer time = embeddings();
    for (std::uint64_t i = 0; i < spec_.double_blocks; ++i) double_block(numbered("transformer_blocks", i));
    joined_ = simulation_.rows(all(), width_);
    simulation_.free({&text_, &x_});
    for (std::uint64_t i = 0; i < spec_.single_blocks; ++i) single_block(numbered("single_transformer_blocks", i));

    Buffer lease = weights_.block({"norm_out", "proj_out"});
    x_ = simulation_.rows(pixels_, width_);
    simulation_.free(joined_);
    Buffer modulation = simulation_.linear(batch_, 2 * width_, width_);
    Buffer packed = simulation_.linear(pixels_, spec_.in_channels, width_);
    simulation_.free({&x_, &modulation, &cosines_, &sines_, &time});
    const Buffer output = simulation_.rows(pixels_, spec_.in_channels);
    simulation_.free(packed);
    weights_.end(lease);
    return output;
  }

 private:
  std::uint64_t all() const { return checked_sum(pixels_, texts_); }
  nn::AttentionShape shape() const { return {batch_, all() / batch_, spec_.heads, width_, false}; }

  // Two linear layers, which add to `time` where it is there.
  void embed(Buffer& time, std::uint64_t in, bool has_sinusoids) {
    Buffer sinusoids;
    if (has_sinusoids) sinusoids = simulation_.rows(batch_, in);
    Buffer hidden = simulation_.linear(batch_, width_, in);
    simulation_.free(sinusoids);
    if (time.bytes)
      simulation_.add_linear(batch_, width_, width_);
    else
      time = simulation_.linear(batch_, width_, width_);
    simulation_.free(hidden);
  }

  Buffer embeddings() {
    Buffer lease = weights_.block({"time_text_embed", "context_embedder", "x_embedder"});
    Buffer time;
    embed(time, spec_.time, true);
    if (spec_.guidance) embed(time, spec_.time, true);
    embed(time, spec_.pooled, false);
    Buffer packed = simulation_.rows(pixels_, spec_.in_channels);
    x_ = simulation_.linear(pixels_, width_, spec_.in_channels);
    simulation_.free(packed);
    text_ = simulation_.linear(texts_, width_, spec_.context);
    cosines_ = simulation_.floats(checked_product(all() / batch_, spec_.depth()));
    sines_ = simulation_.floats(checked_product(all() / batch_, spec_.depth()));
    weights_.end(lease);
    return time;
  }

  // What is added to x through a gate.
  void gated(std::uint64_t rows, std::uint64_t in) {
    Buffer update = simulation_.linear(rows, width_, in);
    simulation_.free(update);
  }
  void mlp(std::uint64_t rows) {
    Buffer normed = simulation_.rows(rows, width_);
    Buffer hidden = simulation_.linear(rows, 4 * width_, width_);
    simulation_.free(normed);
    Buffer update = simulation_.linear(rows, width_, 4 * width_);
    simulation_.free({&hidden, &update});
  }

  void double_block(const std::string& name) {
    Buffer lease = weights_.block(name);
    Buffer modulation = simulation_.linear(batch_, 6 * width_, width_);
    Buffer text_modulation = simulation_.linear(batch_, 6 * width_, width_);
    Buffer normed = simulation_.rows(pixels_, width_);
    Buffer q = simulation_.rows(all(), width_), k = simulation_.rows(all(), width_),
           v = simulation_.rows(all(), width_);
    simulation_.add_linear(pixels_, 3 * width_, width_);
    simulation_.free(normed);
    normed = simulation_.rows(texts_, width_);
    simulation_.add_linear(texts_, 3 * width_, width_);
    simulation_.free(normed);
    Buffer attended = simulation_.attention(shape(), q, k, v);
    gated(pixels_, width_);
    gated(texts_, width_);
    simulation_.free(attended);
    mlp(pixels_);
    mlp(texts_);
    simulation_.free({&modulation, &text_modulation});
    weights_.end(lease);
  }

  void single_block(const std::string& name) {
    Buffer lease = weights_.block(name);
    Buffer modulation = simulation_.linear(batch_, 3 * width_, width_);
    Buffer normed = simulation_.rows(all(), width_);
    Buffer q = simulation_.linear(all(), width_, width_);
    Buffer k = simulation_.linear(all(), width_, width_);
    Buffer v = simulation_.linear(all(), width_, width_);
    Buffer joined = simulation_.rows(all(), 5 * width_);
    simulation_.add_linear(all(), 4 * width_, width_);
    simulation_.free(normed);
    Buffer attended = simulation_.attention(shape(), q, k, v);
    simulation_.free(attended);
    gated(all(), 5 * width_);
    simulation_.free({&joined, &modulation});
    weights_.end(lease);
  }

  Simulation& simulation_;
  Weights& weights_;
  const FluxSpec& spec_;
  std::uint64_t batch_, width_, pixels_, texts_;
  Buffer x_, text_, joined_, cosines_, sines_;
};

}  // namespace

Buffer denoise(Simulation& simulation, Weights& weights, const FluxSpec& spec, std::uint64_t images,
               nn::InputSize latents, std::uint64_t tokens) {
  weights.read();
  return FluxWalk(simulation, weights, spec, images, latents, tokens).forward();
}

}  // namespace oomlab::image
