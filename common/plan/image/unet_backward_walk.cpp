#include "plan/image/unet_walk.h"

namespace oomlab::image {

void UNetWalk::backward(Buffer gradient) {
  d_ = gradient;
  for (; !kept_.empty(); kept_.pop_back()) std::visit([&](auto& kept) { back(kept); }, kept_.back());
}

void UNetWalk::back(End& kept) {
  Buffer dn = simulation_.rows(pixels(), channels_);
  simulation_.convolve(same_size(batch_, size_, channels_, spec_.out_channels));
  simulation_.free(d_);
  simulation_.free(kept.x);
  free(kept.norm);
  d_ = dn;
}

void UNetWalk::back(Residual& kept) {
  Buffer dm = simulation_.rows(pixels(), kept.out);
  simulation_.convolve(same_size(batch_, size_, kept.out, kept.out));
  simulation_.free(kept.hidden);
  free(kept.norm2);
  Buffer dn = simulation_.rows(pixels(), kept.in);
  simulation_.convolve(same_size(batch_, size_, kept.in, kept.out));
  simulation_.free(dm);
  if (kept.in != kept.out) {
    simulation_.add_linear(pixels(), kept.in, kept.out);
    std::swap(d_, dn);
  }
  simulation_.free({&dn, &kept.x});
  free(kept.norm1);
  channels_ = kept.in;
}

void UNetWalk::back(Joined& kept) {
  const Buffer of_x = simulation_.rows(pixels(), kept.x_channels);
  Buffer of_skip = simulation_.rows(pixels(), kept.skip_channels);
  simulation_.free(d_);
  d_ = of_x;
  channels_ = kept.x_channels;
  if (kept.skip_trained)
    waiting_gradients_.push_back(of_skip);
  else
    simulation_.free(of_skip);
}

void UNetWalk::back(Waited&) {
  simulation_.free(waiting_gradients_.back());
  waiting_gradients_.pop_back();
}

void UNetWalk::back(Halved&) {
  size_ = doubled(size_);
  const Buffer dx = simulation_.rows(pixels(), channels_);
  simulation_.convolve(nn::convolution_shape(batch_, size_.height, size_.width, channels_, channels_, 3, 2, 1));
  simulation_.free(d_);
  d_ = dx;
}

void UNetWalk::back(Doubled&) {
  Buffer dn = simulation_.rows(pixels(), channels_);
  simulation_.convolve(same_size(batch_, size_, channels_, channels_));
  simulation_.free(d_);
  size_ = {size_.height / 2, size_.width / 2};
  d_ = simulation_.rows(pixels(), channels_);
  simulation_.free(dn);
}

void UNetWalk::back(Transformer& kept) {
  Buffer dy = simulation_.linear(pixels(), channels_, channels_);
  for (std::size_t i = kept.layers.size(); i-- > 0;) back(kept.layers[i], i > 0 || kept.reaches_x);
  if (!kept.reaches_x) return simulation_.free({&dy, &d_});
  Buffer dn = simulation_.linear(pixels(), channels_, channels_);
  simulation_.free({&dy, &dn, &kept.x});
  free(kept.norm);
}

void UNetWalk::back(Layer& kept, bool reaches_x) {
  back(kept.mlp);
  back(kept.text, true);
  back(kept.pixels, reaches_x);
}

void UNetWalk::back(Mlp& kept) {
  const std::uint64_t rows = pixels(), width = channels_;
  Buffer d_hidden = simulation_.linear(rows, 4 * width, width);
  simulation_.free(d_hidden);
  Buffer dn = simulation_.linear(rows, width, 8 * width);
  simulation_.free({&kept.gated, &dn, &kept.x});
  free(kept.norm);
}

void UNetWalk::back(Attention& kept, bool reaches_x) {
  const std::uint64_t rows = pixels(), width = channels_;
  const std::uint64_t key_rows = checked_product(batch_, kept.shape.key_length());
  const std::uint64_t key_width = kept.of_text ? spec_.context : width;
  back_adapter_weights(rows, width, width);
  Buffer d_attended = simulation_.rows(rows, width);
  back_project(rows, width, width);
  Buffer d_q, d_k, d_v;
  back_attended(kept, d_attended, d_q, d_k, d_v);
  Buffer normed = simulation_.rows(rows, width);
  back_adapter_weights(rows, width, width);
  for (int of_k_and_v = 0; of_k_and_v < 2; ++of_k_and_v) back_adapter_weights(key_rows, width, key_width);
  simulation_.free(normed);
  if (kept.of_text || !reaches_x) simulation_.free({&d_k, &d_v});
  if (reaches_x) {
    Buffer dn = simulation_.rows(rows, width);
    back_project(rows, width, width);
    simulation_.free(d_q);
    for (Buffer* const d : {&d_k, &d_v}) {
      if (kept.of_text) break;
      back_project(rows, width, width);
      simulation_.free(*d);
    }
    simulation_.free(dn);
  }
  simulation_.free({&d_q, &kept.x});
  free(kept.norm);
}

void UNetWalk::back_attended(Attention& kept, Buffer& d_attended, Buffer& d_q, Buffer& d_k, Buffer& d_v) {
  const nn::AttentionShape& shape = kept.shape;
  const nn::AttentionForm form = simulation_.run().attention;
  const std::uint64_t scores = checked_product(checked_product(shape.matrices(), shape.seq), shape.key_length());
  Buffer dots;
  if (form == nn::AttentionForm::fused) dots = simulation_.floats(checked_product(shape.matrices(), shape.seq));
  simulation_.free(kept.attended);
  d_q = copy_of(kept.q);
  d_k = copy_of(kept.k);
  d_v = copy_of(kept.v);
  int products = 0;
  switch (form) {
    case nn::AttentionForm::textbook: {
      products = 4;
      Buffer d_probabilities = simulation_.rows(scores, 1);
      simulation_.free(d_probabilities);
      break;
    }
    case nn::AttentionForm::tiled: {
      products = 5;  // the scores again
      const nn::AttentionTile tile = nn::attention_tile(shape);
      const std::uint64_t of_tile = checked_product(tile.matrices, tile.rows);
      Buffer probabilities = simulation_.rows(of_tile, shape.key_length());
      Buffer d_probabilities = simulation_.rows(of_tile, shape.key_length());
      Buffer sums;
      if (tile.rows < shape.seq && simulation_.element_bytes() < sizeof(float))
        sums =
            simulation_.floats(checked_product(2 * tile.matrices, checked_product(shape.key_length(), shape.depth())));
      simulation_.free({&probabilities, &d_probabilities, &sums});
      break;
    }
    case nn::AttentionForm::fused: products = 7; break;  // the scores twice, and the gradient of the probabilities
  }
  for (int i = 0; i < products; ++i) simulation_.add_linear(shape.rows(), shape.key_length(), shape.width);
  simulation_.free({&d_attended, &kept.q, &kept.k, &kept.v, &kept.probabilities, &kept.lse, &dots});
}

// x Aᵀ and dy B, and the gradients of B and of A made of them.
void UNetWalk::back_adapter_weights(std::uint64_t rows, std::uint64_t out, std::uint64_t in) {
  Buffer product = simulation_.linear(rows, rank_, in);
  Buffer d_product = simulation_.linear(rows, rank_, out);
  simulation_.add_linear(rank_, out, rows);
  simulation_.add_linear(rank_, in, rows);
  simulation_.free({&product, &d_product});
}

// dx, of a buffer that is there, through a projection of attention and through its adapter.
void UNetWalk::back_project(std::uint64_t rows, std::uint64_t out, std::uint64_t in) {
  simulation_.add_linear(rows, out, in);
  Buffer d_product = simulation_.linear(rows, rank_, out);
  simulation_.add_linear(rows, in, rank_);
  simulation_.free(d_product);
}

}  // namespace oomlab::image
