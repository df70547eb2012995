#include "plan/image/unet_walk.h"

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

Buffer UNetWalk::forward() {
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
  const Buffer output = end();
  simulation_.free(time);
  return output;
}

void UNetWalk::wait() {
  waiting_.push_back({x_, channels_, trained_});
  if (keeps()) kept_.emplace_back(Waited{});
}

Buffer UNetWalk::time_embedding() {
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

void UNetWalk::residual(const std::string& name, std::uint64_t out, bool waits) {
  if (keeps()) return residual_kept(out, waits);
  Buffer lease = weights_.block(name);
  x_ = residual_block(simulation_, x_, waits, batch_, size_, channels_, out, spec_.time_width());
  channels_ = out;
  weights_.end(lease);
}

void UNetWalk::residual_kept(std::uint64_t out, bool waits) {
  if (waits) waiting_.back().kept = true;
  const std::uint64_t in = channels_, groups = checked_product(batch_, spec_.groups);
  Buffer normed = simulation_.rows(pixels(), in);
  const Norm norm1 = norm(groups);
  const Buffer hidden = simulation_.convolution(same_size(batch_, size_, in, out));
  simulation_.free(normed);
  Buffer of_image = simulation_.linear(batch_, out, spec_.time_width());
  simulation_.free(of_image);
  normed = simulation_.rows(pixels(), out);
  const Norm norm2 = norm(groups);
  const Buffer output = simulation_.convolution(same_size(batch_, size_, out, out));
  simulation_.free(normed);
  if (in != out) simulation_.add_linear(pixels(), out, in);
  kept_.emplace_back(Residual{x_, hidden, norm1, norm2, in, out});
  x_ = output;
  channels_ = out;
}

void UNetWalk::down(std::uint64_t level) {
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
  if (keeps()) kept_.emplace_back(Halved{});
  size_ = {shape.out_height, shape.out_width};
  weights_.end(lease);
  wait();
}

void UNetWalk::join() {
  Waiting skip = waiting_.back();
  waiting_.pop_back();
  const std::uint64_t both = checked_sum(channels_, skip.channels);
  const Buffer joined = simulation_.rows(pixels(), both);
  simulation_.free(x_);
  if (!skip.kept) simulation_.free(skip.buffer);
  if (keeps()) kept_.emplace_back(Joined{channels_, skip.channels, skip.trained});
  x_ = joined;
  channels_ = both;
}

void UNetWalk::go_up(std::uint64_t up) {
  const std::uint64_t level = spec_.levels() - 1 - up;
  const std::string block = numbered("up_blocks", up);
  for (std::uint64_t i = 0; i <= spec_.layers_per_block; ++i) {
    join();
    residual(numbered(block + ".resnets", i), spec_.channels[level], false);
    transformer(numbered(block + ".attentions", i), spec_.transformers[level], spec_.heads[level]);
  }
  if (level == 0) return;
  Buffer lease = weights_.block(block + ".upsamplers.0");
  x_ = upsampled(simulation_, x_, batch_, size_, channels_);
  if (keeps()) kept_.emplace_back(Doubled{});
  size_ = doubled(size_);
  weights_.end(lease);
}

Buffer UNetWalk::end() {
  Buffer lease = weights_.block({"conv_norm_out", "conv_out"});
  const nn::ConvolutionShape shape = same_size(batch_, size_, channels_, spec_.out_channels);
  if (!keeps()) {
    const Buffer output = simulation_.convolution(shape);
    simulation_.free(x_);
    weights_.end(lease);
    return output;
  }
  Buffer normed = simulation_.rows(pixels(), channels_);
  const Norm statistics = norm(checked_product(batch_, spec_.groups));
  const Buffer output = simulation_.convolution(shape);
  simulation_.free(normed);
  kept_.emplace_back(End{x_, statistics});
  return output;
}

void UNetWalk::transformer(const std::string& name, std::uint64_t layers, std::uint64_t heads) {
  if (layers == 0) return;
  Transformer kept{trained_, {}, {}, std::vector<Layer>(layers)};
  Buffer y;
  for (std::uint64_t i = 0; i < layers; ++i) {
    const bool is_first = i == 0, is_last = i + 1 == layers;
    Buffer lease = weights_.block(numbered(name + ".transformer_blocks", i));
    Buffer around_first, around_last;
    if (is_first) around_first = weights_.block({name + ".norm", name + ".proj_in"});
    if (is_last) around_last = weights_.block(name + ".proj_out");
    if (is_first) {
      Buffer normed = simulation_.rows(pixels(), channels_);
      if (keeps()) kept.norm = norm(checked_product(batch_, spec_.groups));
      y = simulation_.linear(pixels(), channels_, channels_);
      simulation_.free(normed);
    }
    y = transformer_layer(y, heads, rank_ ? &kept.layers[i] : nullptr);
    if (is_last) {
      if (keeps()) {
        kept.x = x_;
        x_ = copy_of(x_);
      }
      simulation_.add_linear(pixels(), channels_, channels_);
      simulation_.free(y);
    }
    weights_.end(lease);
    weights_.end(around_first);
    weights_.end(around_last);
  }
  if (rank_ == 0) return;
  kept_.emplace_back(std::move(kept));
  trained_ = true;
}

// Gives y: another buffer, where the one that there was is kept.
Buffer UNetWalk::transformer_layer(Buffer y, std::uint64_t heads, Layer* kept) {
  const std::uint64_t of_image = checked_product(size_.height, size_.width), rows = pixels(), width = channels_;
  nn::AttentionShape shape{batch_, of_image, heads, width, false};
  y = attend(y, shape, false, kept ? &kept->pixels : nullptr);
  shape.key_seq = tokens_;
  y = attend(y, shape, true, kept ? &kept->text : nullptr);

  Buffer normed = simulation_.rows(rows, width);
  if (kept) kept->mlp.norm = norm(rows);
  Buffer wide = simulation_.linear(rows, 8 * width, width);
  simulation_.free(normed);
  Buffer gated = simulation_.rows(rows, 4 * width);
  if (kept) {
    kept->mlp.gated = wide;
    kept->mlp.x = y;
    y = copy_of(y);
  } else {
    simulation_.free(wide);
  }
  simulation_.add_linear(rows, width, 4 * width);
  simulation_.free(gated);
  return y;
}

Buffer UNetWalk::attend(Buffer y, const nn::AttentionShape& shape, bool of_text, Attention* kept) {
  if (!kept && !of_text) {
    simulation_.add_self_attention(shape, channels_);
    return y;
  }
  const std::uint64_t rows = pixels(), width = channels_;
  const std::uint64_t key_rows = checked_product(batch_, shape.key_length()),
                      key_width = of_text ? spec_.context : width;
  Buffer normed = simulation_.rows(rows, width);
  if (kept) kept->norm = norm(rows);
  Buffer q = projected(rows, width, width);
  if (of_text) simulation_.free(normed);
  Buffer k = projected(key_rows, width, key_width);
  Buffer v = projected(key_rows, width, key_width);
  if (!of_text) simulation_.free(normed);
  if (!kept) {
    Buffer attended = simulation_.attention(shape, q, k, v);
    project(rows, width, width);
    simulation_.free(attended);
    return y;
  }
  kept->q = q;
  kept->k = k;
  kept->v = v;
  kept->shape = shape;
  kept->of_text = of_text;
  kept->attended = attended(shape, *kept);
  kept->x = y;
  const Buffer sum = copy_of(y);
  project(rows, width, width);
  return sum;
}

// Attention of a training step, which keeps Q, K and V, and what its form keeps beside them.
Buffer UNetWalk::attended(const nn::AttentionShape& shape, Attention& kept) {
  for (int product = 0; product < 2; ++product) simulation_.add_linear(shape.rows(), shape.key_length(), shape.width);
  const nn::AttentionForm form = simulation_.run().attention;
  if (form == nn::AttentionForm::textbook)
    kept.probabilities = simulation_.rows(checked_product(shape.matrices(), shape.seq), shape.key_length());
  if (form == nn::AttentionForm::fused) kept.lse = simulation_.floats(checked_product(shape.matrices(), shape.seq));
  const Buffer output = simulation_.rows(shape.rows(), shape.width);
  if (form == nn::AttentionForm::tiled) {
    const nn::AttentionTile tile = nn::attention_tile(shape);
    Buffer scores = simulation_.rows(checked_product(tile.matrices, tile.rows), shape.key_length());
    simulation_.free(scores);
  }
  return output;
}

Buffer UNetWalk::projected(std::uint64_t rows, std::uint64_t out, std::uint64_t in) {
  const Buffer output = simulation_.rows(rows, out);
  project(rows, out, in);
  return output;
}

// A projection of attention to a buffer that is there, with its adapter.
void UNetWalk::project(std::uint64_t rows, std::uint64_t out, std::uint64_t in) {
  simulation_.add_linear(rows, out, in);
  if (rank_ == 0) return;
  Buffer product = simulation_.linear(rows, rank_, in);
  simulation_.add_linear(rows, out, rank_);
  simulation_.free(product);
}

Buffer denoise(Simulation& simulation, Weights& weights, const UNetSpec& spec, std::uint64_t images,
               nn::InputSize latents, std::uint64_t tokens) {
  weights.read();
  return UNetWalk(simulation, weights, spec, images, latents, tokens).forward();
}

}  // namespace oomlab::image
