#include "plan/image/walk.h"

namespace oomlab::image {

nn::InputSize doubled(nn::InputSize size) { return {2 * size.height, 2 * size.width}; }

Buffer residual_block(Simulation& simulation, Buffer x, bool waits, std::uint64_t batch, nn::InputSize size,
                      std::uint64_t in, std::uint64_t out, std::uint64_t time) {
  const std::uint64_t pixels = checked_product(batch, checked_product(size.height, size.width));
  Buffer normed = simulation.rows(pixels, in);
  Buffer hidden = simulation.convolution(same_size(batch, size, in, out));
  simulation.free(normed);
  if (time) {
    Buffer of_image = simulation.linear(batch, out, time);
    simulation.free(of_image);
  }
  const Buffer output = simulation.convolution(same_size(batch, size, out, out));
  simulation.free(hidden);
  if (in != out) simulation.add_linear(pixels, out, in);
  if (!waits) simulation.free(x);
  return output;
}

Buffer upsampled(Simulation& simulation, Buffer x, std::uint64_t batch, nn::InputSize size, std::uint64_t channels) {
  const nn::InputSize twice = doubled(size);
  Buffer nearest = simulation.rows(checked_product(batch, checked_product(twice.height, twice.width)), channels);
  simulation.free(x);
  const Buffer output = simulation.convolution(same_size(batch, twice, channels, channels));
  simulation.free(nearest);
  return output;
}

namespace {

class UNetWalk {
 public:
  UNetWalk(Simulation& simulation, Weights& weights, const UNetSpec& spec, std::uint64_t images, nn::InputSize latents,
           std::uint64_t tokens)
      : simulation_(simulation), weights_(weights), spec_(spec), batch_(images), size_(latents), tokens_(tokens) {}

  Buffer forward() {
    Buffer time = time_embedding();
    Buffer lease = weights_.block("conv_in");
    channels_ = spec_.channels.front();
    x_ = simulation_.convolution(same_size(batch_, size_, spec_.in_channels, channels_));
    weights_.end(lease);
    wait();
    for (std::uint64_t level = 0; level < spec_.levels(); ++level) down(level);
    residual("mid_block.resnets.0", channels_, true);
    transformer("mid_block.attentions.0", spec_.mid_transformers, spec_.heads.back());
    residual("mid_block.resnets.1", channels_, false);
    for (std::uint64_t up = 0; up < spec_.levels(); ++up) go_up(up);

    lease = weights_.block({"conv_norm_out", "conv_out"});
    const Buffer output = simulation_.convolution(same_size(batch_, size_, channels_, spec_.out_channels));
    simulation_.free(x_);
    weights_.end(lease);
    simulation_.free(time);
    return output;
  }

 private:
  struct Waiting {
    Buffer buffer;
    std::uint64_t channels;
  };
  std::uint64_t pixels() const { return checked_product(batch_, checked_product(size_.height, size_.width)); }
  void wait() { waiting_.push_back({x_, channels_}); }

  Buffer time_embedding() {
    Buffer lease =
        spec_.added_condition ? weights_.block({"time_embedding", "add_embedding"}) : weights_.block("time_embedding");
    const std::uint64_t width = spec_.time_width(), sinusoids = spec_.channels.front();
    Buffer input = simulation_.rows(batch_, sinusoids);
    Buffer hidden = simulation_.linear(batch_, width, sinusoids);
    simulation_.free(input);
    const Buffer time = simulation_.linear(batch_, width, width);
    simulation_.free(hidden);
    if (spec_.added_condition) {
      input = simulation_.rows(batch_, spec_.added_condition);
      hidden = simulation_.linear(batch_, width, spec_.added_condition);
      simulation_.free(input);
      simulation_.add_linear(batch_, width, width);
      simulation_.free(hidden);
    }
    weights_.end(lease);
    return time;
  }

  void residual(const std::string& name, std::uint64_t out, bool waits) {
    Buffer lease = weights_.block(name);
    x_ = residual_block(simulation_, x_, waits, batch_, size_, channels_, out, spec_.time_width());
    channels_ = out;
    weights_.end(lease);
  }

  void down(std::uint64_t level) {
    const std::string block = numbered("down_blocks", level);
    for (std::uint64_t i = 0; i < spec_.layers_per_block; ++i) {
      residual(numbered(block + ".resnets", i), spec_.channels[level], true);
      transformer(numbered(block + ".attentions", i), spec_.transformers[level], spec_.heads[level]);
      wait();
    }
    if (level + 1 == spec_.levels()) return;
    Buffer lease = weights_.block(block + ".downsamplers.0");
    const nn::ConvolutionShape shape =
        nn::convolution_shape(batch_, size_.height, size_.width, channels_, channels_, 3, 2, 1);
    x_ = simulation_.convolution(shape);
    size_ = {shape.out_height, shape.out_width};
    weights_.end(lease);
    wait();
  }

  void go_up(std::uint64_t up) {
    const std::uint64_t level = spec_.levels() - 1 - up;
    const std::string block = numbered("up_blocks", up);
    for (std::uint64_t i = 0; i <= spec_.layers_per_block; ++i) {
      Waiting skip = waiting_.back();
      waiting_.pop_back();
      const std::uint64_t both = checked_sum(channels_, skip.channels);
      const Buffer joined = simulation_.rows(pixels(), both);
      simulation_.free({&x_, &skip.buffer});
      x_ = joined;
      channels_ = both;
      residual(numbered(block + ".resnets", i), spec_.channels[level], false);
      transformer(numbered(block + ".attentions", i), spec_.transformers[level], spec_.heads[level]);
    }
    if (level == 0) return;
    Buffer lease = weights_.block(block + ".upsamplers.0");
    x_ = upsampled(simulation_, x_, batch_, size_, channels_);
    size_ = doubled(size_);
    weights_.end(lease);
  }

  void transformer(const std::string& name, std::uint64_t layers, std::uint64_t heads) {
    Buffer y;
    for (std::uint64_t i = 0; i < layers; ++i) {
      const bool is_first = i == 0, is_last = i + 1 == layers;
      Buffer lease = weights_.block(numbered(name + ".transformer_blocks", i));
      Buffer around_first, around_last;
      if (is_first) around_first = weights_.block({name + ".norm", name + ".proj_in"});
      if (is_last) around_last = weights_.block(name + ".proj_out");
      if (is_first) {
        Buffer normed = simulation_.rows(pixels(), channels_);
        y = simulation_.linear(pixels(), channels_, channels_);
        simulation_.free(normed);
      }
      transformer_layer(heads);
      if (is_last) {
        simulation_.add_linear(pixels(), channels_, channels_);
        simulation_.free(y);
      }
      weights_.end(lease);
      weights_.end(around_first);
      weights_.end(around_last);
    }
  }

  void transformer_layer(std::uint64_t heads) {
    const std::uint64_t of_image = checked_product(size_.height, size_.width), rows = pixels(), width = channels_;
    nn::AttentionShape shape{batch_, of_image, heads, width, false};
    simulation_.add_self_attention(shape, width);

    const std::uint64_t of_text = checked_product(batch_, tokens_);
    shape.key_seq = tokens_;
    Buffer normed = simulation_.rows(rows, width);
    Buffer q = simulation_.linear(rows, width, width);
    simulation_.free(normed);
    Buffer k = simulation_.linear(of_text, width, spec_.context);
    Buffer v = simulation_.linear(of_text, width, spec_.context);
    Buffer attended = simulation_.attention(shape, q, k, v);
    simulation_.add_linear(rows, width, width);
    simulation_.free(attended);

    normed = simulation_.rows(rows, width);
    Buffer wide = simulation_.linear(rows, 8 * width, width);
    simulation_.free(normed);
    Buffer gated = simulation_.rows(rows, 4 * width);
    simulation_.free(wide);
    simulation_.add_linear(rows, width, 4 * width);
    simulation_.free(gated);
  }

  Simulation& simulation_;
  Weights& weights_;
  const UNetSpec& spec_;
  std::uint64_t batch_;
  nn::InputSize size_;
  std::uint64_t tokens_;
  Buffer x_;
  std::uint64_t channels_ = 0;
  std::vector<Waiting> waiting_;
};

}  // namespace

Buffer denoise(Simulation& simulation, Weights& weights, const UNetSpec& spec, std::uint64_t images,
               nn::InputSize latents, std::uint64_t tokens) {
  weights.read();
  return UNetWalk(simulation, weights, spec, images, latents, tokens).forward();
}

}  // namespace oomlab::image
