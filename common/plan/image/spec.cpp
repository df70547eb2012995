#include "plan/image/spec.h"

#include "plan/bytes.h"

namespace oomlab::image {

std::uint64_t TensorOf::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) product = checked_product(product, size);
  return product;
}

std::uint64_t PipelineSpec::denoiser_context() const { return unet() ? unet()->context : flux()->context; }

std::uint64_t PipelineSpec::context_tokens() const {
  // Flux reads T5's rows; a U-Net those of all its encoders, side by side.
  return flux() ? text.back().positions : text.front().positions;
}

std::uint64_t parameters(const std::vector<TensorOf>& tensors) {
  std::uint64_t sum = 0;
  for (const TensorOf& tensor : tensors) sum = checked_sum(sum, tensor.elements());
  return sum;
}

bool is_linear(const TensorOf& tensor) {
  return tensor.shape.size() == 2 && tensor.name.find("embedding.weight") == std::string::npos &&
         tensor.name.find("attention_bias") == std::string::npos && tensor.name != "shared.weight";
}

namespace {

// Collects tensors under a name that grows: "down_blocks.0.resnets.1.conv1.weight".
class Tensors {
 public:
  void weight(const std::string& name, std::vector<std::uint64_t> shape) {
    list_.push_back({name + ".weight", std::move(shape)});
  }
  void with_bias(const std::string& name, std::vector<std::uint64_t> shape) {
    const std::uint64_t out = shape.front();
    weight(name, std::move(shape));
    list_.push_back({name + ".bias", {out}});
  }
  void norm(const std::string& name, std::uint64_t channels) { with_bias(name, {channels}); }
  void linear(const std::string& name, std::uint64_t out, std::uint64_t in) { with_bias(name, {out, in}); }
  void convolution(const std::string& name, std::uint64_t out, std::uint64_t in, std::uint64_t kernel = 3) {
    with_bias(name, {out, in, kernel, kernel});
  }
  /// time: width of the time embedding, 0: none.
  void residual(const std::string& name, std::uint64_t in, std::uint64_t out, std::uint64_t time) {
    norm(name + ".norm1", in);
    convolution(name + ".conv1", out, in);
    if (time) linear(name + ".time_emb_proj", out, time);
    norm(name + ".norm2", out);
    convolution(name + ".conv2", out, out);
    if (in != out) convolution(name + ".conv_shortcut", out, in, 1);
  }
  /// Two linear layers with an activation between them.
  void embedding(const std::string& name, std::uint64_t out, std::uint64_t in) {
    linear(name + ".linear_1", out, in);
    linear(name + ".linear_2", out, out);
  }
  std::vector<TensorOf> take() { return std::move(list_); }

 private:
  std::vector<TensorOf> list_;
};

std::vector<TensorOf> tensors_of_clip(const TextEncoderSpec& spec) {
  Tensors tensors;
  const std::string model = "text_model.";
  tensors.weight(model + "embeddings.token_embedding", {spec.vocabulary, spec.width});
  tensors.weight(model + "embeddings.position_embedding", {spec.positions, spec.width});
  for (std::uint64_t i = 0; i < spec.layers; ++i) {
    const std::string layer = numbered(model + "encoder.layers", i);
    tensors.norm(layer + ".layer_norm1", spec.width);
    for (const char* which : {"q_proj", "k_proj", "v_proj", "out_proj"})
      tensors.linear(layer + ".self_attn." + which, spec.width, spec.width);
    tensors.norm(layer + ".layer_norm2", spec.width);
    tensors.linear(layer + ".mlp.fc1", spec.mlp, spec.width);
    tensors.linear(layer + ".mlp.fc2", spec.width, spec.mlp);
  }
  tensors.norm(model + "final_layer_norm", spec.width);
  if (spec.projection) tensors.weight("text_projection", {spec.projection, spec.width});
  return tensors.take();
}

std::vector<TensorOf> tensors_of_t5(const TextEncoderSpec& spec) {
  Tensors tensors;
  tensors.weight("shared", {spec.vocabulary, spec.width});
  for (std::uint64_t i = 0; i < spec.layers; ++i) {
    const std::string block = numbered("encoder.block", i);
    tensors.weight(block + ".layer.0.layer_norm", {spec.width});
    for (const char* which : {"q", "k", "v"})
      tensors.weight(block + ".layer.0.SelfAttention." + which, {spec.inner(), spec.width});
    tensors.weight(block + ".layer.0.SelfAttention.o", {spec.width, spec.inner()});
    if (i == 0)  // the other layers read the first one's
      tensors.weight(block + ".layer.0.SelfAttention.relative_attention_bias", {spec.relative_buckets, spec.heads});
    tensors.weight(block + ".layer.1.layer_norm", {spec.width});
    for (const char* which : {"wi_0", "wi_1"})
      tensors.weight(block + ".layer.1.DenseReluDense." + which, {spec.mlp, spec.width});
    tensors.weight(block + ".layer.1.DenseReluDense.wo", {spec.width, spec.mlp});
  }
  tensors.weight("encoder.final_layer_norm", {spec.width});
  return tensors.take();
}

// Transformer2DModel with `layers` BasicTransformerBlocks.
void pixel_transformer(Tensors& tensors, const UNetSpec& spec, const std::string& name, std::uint64_t channels,
                       std::uint64_t layers) {
  const auto projection = [&](const std::string& which) {
    if (spec.linear_projection)
      tensors.linear(name + which, channels, channels);
    else
      tensors.convolution(name + which, channels, channels, 1);
  };
  tensors.norm(name + ".norm", channels);
  projection(".proj_in");
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = numbered(name + ".transformer_blocks", i);
    for (const bool crossed : {false, true}) {
      const std::string attention = layer + (crossed ? ".attn2" : ".attn1");
      tensors.norm(layer + (crossed ? ".norm2" : ".norm1"), channels);
      tensors.weight(attention + ".to_q", {channels, channels});
      for (const char* which : {".to_k", ".to_v"})
        tensors.weight(attention + which, {channels, crossed ? spec.context : channels});
      tensors.linear(attention + ".to_out.0", channels, channels);
    }
    tensors.norm(layer + ".norm3", channels);
    tensors.linear(layer + ".ff.net.0.proj", 8 * channels, channels);
    tensors.linear(layer + ".ff.net.2", channels, 4 * channels);
  }
  projection(".proj_out");
}

}  // namespace

std::vector<TensorOf> tensors_of(const TextEncoderSpec& spec) {
  return spec.kind == TextKind::clip ? tensors_of_clip(spec) : tensors_of_t5(spec);
}

std::vector<TensorOf> tensors_of(const UNetSpec& spec) {
  Tensors tensors;
  const std::uint64_t first = spec.channels.front(), time = spec.time_width();
  tensors.embedding("time_embedding", time, first);
  if (spec.added_condition) tensors.embedding("add_embedding", time, spec.added_condition);
  tensors.convolution("conv_in", first, spec.in_channels);

  std::vector<std::uint64_t> skips{first};  // channels of what goes up again
  std::uint64_t channels = first;
  for (std::uint64_t level = 0; level < spec.levels(); ++level) {
    const std::string block = numbered("down_blocks", level);
    for (std::uint64_t i = 0; i < spec.layers_per_block; ++i) {
      tensors.residual(numbered(block + ".resnets", i), channels, spec.channels[level], time);
      channels = spec.channels[level];
      if (spec.transformers[level])
        pixel_transformer(tensors, spec, numbered(block + ".attentions", i), channels, spec.transformers[level]);
      skips.push_back(channels);
    }
    if (level + 1 < spec.levels()) {
      tensors.convolution(block + ".downsamplers.0.conv", channels, channels);
      skips.push_back(channels);
    }
  }
  tensors.residual("mid_block.resnets.0", channels, channels, time);
  pixel_transformer(tensors, spec, "mid_block.attentions.0", channels, spec.mid_transformers);
  tensors.residual("mid_block.resnets.1", channels, channels, time);
  for (std::uint64_t up = 0; up < spec.levels(); ++up) {
    const std::uint64_t level = spec.levels() - 1 - up;
    const std::string block = numbered("up_blocks", up);
    for (std::uint64_t i = 0; i <= spec.layers_per_block; ++i) {
      tensors.residual(numbered(block + ".resnets", i), checked_sum(channels, skips.back()), spec.channels[level],
                       time);
      skips.pop_back();
      channels = spec.channels[level];
      if (spec.transformers[level])
        pixel_transformer(tensors, spec, numbered(block + ".attentions", i), channels, spec.transformers[level]);
    }
    if (level > 0) tensors.convolution(block + ".upsamplers.0.conv", channels, channels);
  }
  tensors.norm("conv_norm_out", channels);
  tensors.convolution("conv_out", spec.out_channels, channels);
  return tensors.take();
}

std::vector<TensorOf> tensors_of(const FluxSpec& spec) {
  Tensors tensors;
  const std::uint64_t width = spec.width, mlp = 4 * spec.width;
  tensors.embedding("time_text_embed.timestep_embedder", width, spec.time);
  if (spec.guidance) tensors.embedding("time_text_embed.guidance_embedder", width, spec.time);
  tensors.embedding("time_text_embed.text_embedder", width, spec.pooled);
  tensors.linear("context_embedder", width, spec.context);
  tensors.linear("x_embedder", width, spec.in_channels);
  for (std::uint64_t i = 0; i < spec.double_blocks; ++i) {
    const std::string block = numbered("transformer_blocks", i);
    tensors.linear(block + ".norm1.linear", 6 * width, width);
    tensors.linear(block + ".norm1_context.linear", 6 * width, width);
    for (const char* norm : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"})
      tensors.weight(block + ".attn." + norm, {spec.depth()});
    for (const char* which :
         {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"})
      tensors.linear(block + ".attn." + which, width, width);
    for (const char* which : {".ff", ".ff_context"}) {
      tensors.linear(block + which + ".net.0.proj", mlp, width);
      tensors.linear(block + which + ".net.2", width, mlp);
    }
  }
  for (std::uint64_t i = 0; i < spec.single_blocks; ++i) {
    const std::string block = numbered("single_transformer_blocks", i);
    tensors.linear(block + ".norm.linear", 3 * width, width);
    for (const char* norm : {"norm_q", "norm_k"}) tensors.weight(block + ".attn." + norm, {spec.depth()});
    for (const char* which : {"to_q", "to_k", "to_v"}) tensors.linear(block + ".attn." + which, width, width);
    tensors.linear(block + ".proj_mlp", mlp, width);
    tensors.linear(block + ".proj_out", width, width + mlp);
  }
  tensors.linear("norm_out.linear", 2 * width, width);
  tensors.linear("proj_out", spec.in_channels, width);
  return tensors.take();
}

std::vector<TensorOf> tensors_of(const std::variant<UNetSpec, FluxSpec>& denoiser) {
  return std::visit([](const auto& spec) { return tensors_of(spec); }, denoiser);
}

namespace {

// A residual block, attention with one head, a residual block.
void autoencoder_middle(Tensors& tensors, const std::string& part, std::uint64_t channels) {
  tensors.residual(part + ".mid_block.resnets.0", channels, channels, 0);
  const std::string attention = part + ".mid_block.attentions.0";
  tensors.norm(attention + ".group_norm", channels);
  for (const char* which : {".to_q", ".to_k", ".to_v", ".to_out.0"})
    tensors.linear(attention + which, channels, channels);
  tensors.residual(part + ".mid_block.resnets.1", channels, channels, 0);
}

void encoder_tensors(Tensors& tensors, const AutoencoderSpec& spec) {
  std::uint64_t channels = spec.channels.front();
  tensors.convolution("encoder.conv_in", channels, spec.image_channels);
  for (std::uint64_t level = 0; level < spec.channels.size(); ++level) {
    const std::string block = numbered("encoder.down_blocks", level);
    for (std::uint64_t i = 0; i < spec.layers_per_block; ++i) {
      tensors.residual(numbered(block + ".resnets", i), channels, spec.channels[level], 0);
      channels = spec.channels[level];
    }
    if (level + 1 < spec.channels.size()) tensors.convolution(block + ".downsamplers.0.conv", channels, channels);
  }
  autoencoder_middle(tensors, "encoder", channels);
  tensors.norm("encoder.conv_norm_out", channels);
  const std::uint64_t moments = 2 * spec.latent_channels;  // mean and logarithm of the variance
  tensors.convolution("encoder.conv_out", moments, channels);
  if (spec.quant_convolutions) tensors.convolution("quant_conv", moments, moments, 1);
}

void decoder_tensors(Tensors& tensors, const AutoencoderSpec& spec) {
  std::uint64_t channels = spec.channels.back();
  if (spec.quant_convolutions) tensors.convolution("post_quant_conv", spec.latent_channels, spec.latent_channels, 1);
  tensors.convolution("decoder.conv_in", channels, spec.latent_channels);
  autoencoder_middle(tensors, "decoder", channels);
  for (std::uint64_t up = 0; up < spec.channels.size(); ++up) {
    const std::uint64_t level = spec.channels.size() - 1 - up;
    const std::string block = numbered("decoder.up_blocks", up);
    for (std::uint64_t i = 0; i <= spec.layers_per_block; ++i) {
      tensors.residual(numbered(block + ".resnets", i), channels, spec.channels[level], 0);
      channels = spec.channels[level];
    }
    if (level > 0) tensors.convolution(block + ".upsamplers.0.conv", channels, channels);
  }
  tensors.norm("decoder.conv_norm_out", channels);
  tensors.convolution("decoder.conv_out", spec.image_channels, channels);
}

}  // namespace

std::vector<TensorOf> tensors_of(const AutoencoderSpec& spec, AutoencoderPart part) {
  Tensors tensors;
  if (part != AutoencoderPart::decoder) encoder_tensors(tensors, spec);
  if (part != AutoencoderPart::encoder) decoder_tensors(tensors, spec);
  return tensors.take();
}

}  // namespace oomlab::image
