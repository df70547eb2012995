#include "nn/models/image/denoiser.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "nn/models/image/blocks_backward.h"
#include "nn/ops/activation.h"
#include "nn/ops/channels.h"
#include "nn/ops/instances.h"
#include "nn/ops/residual.h"
#include "nn/ops/time_embedding.h"

namespace oomlab::image {

namespace {

constexpr float kDenoiserEps = 1e-5f;

// "name.3"
std::string at(const std::string& name, std::size_t number) { return name + "." + std::to_string(number); }

void refuse(const UNetSpec& spec, std::size_t text_width, nn::InputSize size, bool has_pooled, bool has_numbers) {
  const std::uint64_t multiple = spec.reduction();
  if (size.height == 0 || size.width == 0 || size.height % multiple || size.width % multiple)
    throw std::invalid_argument("latents of " + std::to_string(size.height) + " x " + std::to_string(size.width) +
                                " are no multiple of " + std::to_string(multiple) + " pixels");
  if (text_width != spec.context)
    throw std::invalid_argument("the denoiser reads rows of " + std::to_string(spec.context) + " values, not of " +
                                std::to_string(text_width));
  if (has_pooled != (spec.added_condition > 0) || has_numbers != (spec.added_condition > 0))
    throw std::invalid_argument(spec.added_condition ? "the denoiser needs added conditions"
                                                     : "the denoiser has no added conditions");
}

// A forward pass, block by block: what x is now, and what waits for its way up. With a tape, what is trained is kept.
template <class T>
class Pass {
 public:
  Pass(Context& context, Blocks<T>& blocks, const T* time, const TextRows<T>& text, Tape<T>* tape)
      : context_(context), blocks_(blocks), time_(time), text_(text), tape_(tape) {}

  void begin(Map<T> x) { become(std::move(x)); }

  void residual(const std::string& name) {
    if (!keeps()) return become(blocks_.residual(name, *x_, time_));
    KeptResidual<T> kept{name, x_, {}, {}, {}};
    become(blocks_.residual(name, *x_, time_, &kept));
    tape_->emplace_back(std::move(kept));
  }

  // Nothing, where it has no layers.
  void transformer(const std::string& name, std::size_t layers, std::size_t heads) {
    if (layers == 0) return;
    if (!tape_) return become(blocks_.transformer(name, std::move(*x_), layers, heads, text_));
    KeptTransformer<T> kept{name, heads, trained_, {}, {}, {}};
    become(blocks_.transformer(name, std::move(*x_), layers, heads, text_, &kept));
    tape_->emplace_back(std::move(kept));
    trained_ = true;
  }

  void wait() {
    waiting_.push_back({x_, trained_});
    if (keeps()) tape_->emplace_back(Waited{});
  }

  void join() {
    Waiting skip = std::move(waiting_.back());
    waiting_.pop_back();
    const std::size_t channels = x_->channels, others = skip.x->channels;
    Map<T> y{{}, x_->batch, x_->size, channels + others};
    y.data =
        context_.buffer<T>(checked_product(y.rows(), y.channels), Category::activations, "with the skip connection");
    nn::concatenate_channels<T>(context_, x_->data.data(), skip.x->data.data(), y.data.data(), y.rows(), channels,
                                others);
    become(std::move(y));
    if (keeps()) tape_->emplace_back(Joined{channels, others, skip.trained});
  }

  void downsample(const std::string& name) {
    const nn::InputSize size = x_->size;
    become(blocks_.downsample(name, *x_, true));
    if (keeps()) tape_->emplace_back(Halved{name, size});
  }
  void upsample(const std::string& name) {
    become(blocks_.upsample(name, std::move(*x_)));
    if (keeps()) tape_->emplace_back(Doubled{name});
  }

  DeviceBuffer<T> end(const std::string& norm, const std::string& name) {
    if (!keeps()) return std::move(blocks_.end(norm, name, std::move(*x_)).data);
    KeptEnd<T> kept{norm, name, {}, {}};
    Map<T> y = blocks_.end(norm, name, std::move(*x_), &kept);
    tape_->emplace_back(std::move(kept));
    return std::move(y.data);
  }

 private:
  struct Waiting {
    std::shared_ptr<Map<T>> x;
    bool trained;
  };
  bool keeps() const { return tape_ && trained_; }
  void become(Map<T> x) { x_ = std::make_shared<Map<T>>(std::move(x)); }

  Context& context_;
  Blocks<T>& blocks_;
  const T* time_;
  TextRows<T> text_;
  Tape<T>* tape_;
  std::shared_ptr<Map<T>> x_;  // what waits, and what a block keeps, is the same
  bool trained_ = false;       // whether something that x comes from is trained
  std::vector<Waiting> waiting_;
};

// The way back through a tape.
template <class T>
class WayBack {
 public:
  WayBack(Context& context, BackwardBlocks<T>& blocks) : context_(context), blocks_(blocks) {}

  Map<T> through(KeptResidual<T>& kept, Map<T> d) { return blocks_.residual(kept, std::move(d)); }
  Map<T> through(KeptTransformer<T>& kept, Map<T> d) { return blocks_.transformer(kept, std::move(d)); }
  Map<T> through(KeptEnd<T>& kept, Map<T> d) { return blocks_.end(kept, std::move(d)); }
  Map<T> through(Halved& kept, Map<T> d) { return blocks_.downsample(kept.name, kept.size, std::move(d)); }
  Map<T> through(Doubled& kept, Map<T> d) { return blocks_.upsample(kept.name, std::move(d)); }
  Map<T> through(Joined& kept, Map<T> d) {
    const auto side = [&](std::size_t channels) {
      Map<T> to{{}, d.batch, d.size, channels};
      to.data = context_.buffer<T>(checked_product(to.rows(), channels), Category::activations, "gradient of a side");
      return to;
    };
    Map<T> dx = side(kept.x_channels), d_skip = side(kept.skip_channels);
    nn::split_channels<T>(context_, d.data.data(), dx.data.data(), d_skip.data.data(), d.rows(), dx.channels,
                          d_skip.channels);
    if (kept.skip_trained) waiting_.push_back(std::move(d_skip.data));
    return dx;
  }
  Map<T> through(Waited&, Map<T> d) {
    nn::add_to<T>(context_, d.data.data(), waiting_.back().data(), d.data.size());
    waiting_.pop_back();
    return d;
  }
  Map<T> through(typename Tape<T>::value_type& kept, Map<T> d) {
    return std::visit([&](auto& one) { return through(one, std::move(d)); }, kept);
  }

 private:
  Context& context_;
  BackwardBlocks<T>& blocks_;
  std::vector<DeviceBuffer<T>> waiting_;  // gradients of what went two ways, from the way that was longer
};

}  // namespace

// What SiLU makes of the embedding: nobody reads it as it is.
template <class T>
DeviceBuffer<T> Denoiser<T>::time_embedding(Context& context, const float* timesteps, std::size_t batch,
                                            const AddedConditions<T>& added) {
  const auto weights =
      added.pooled ? weights_.block({"time_embedding", "add_embedding"}) : weights_.block({"time_embedding"});
  const auto buffer = [&](std::size_t width, const char* tag) {
    return context.buffer<T>(checked_product(batch, width), Category::activations, tag);
  };
  // Two linear layers, SiLU between them. The first one's output, of x, which is freed:
  const auto hidden_of = [&](const std::string& name, DeviceBuffer<T> x) {
    const auto first = weights_.linear(name + ".linear_1");
    DeviceBuffer<T> hidden = buffer(first.out(), "time embedding, hidden");
    first.forward(context, {x.data(), first.in()}, hidden.data(), batch);
    nn::bias_activation<T>(context, hidden.data(), nullptr, batch, first.out(), nn::Activation::silu);
    return hidden;
  };
  DeviceBuffer<T> waves = buffer(spec_.channels.front(), "sinusoids");
  nn::time_embedding<T>(context, timesteps, waves.data(), batch, spec_.channels.front());
  DeviceBuffer<T> hidden = hidden_of("time_embedding", std::move(waves));
  DeviceBuffer<T> time = buffer(spec_.time_width(), "time embedding");
  weights_.linear("time_embedding.linear_2")
      .forward(context, {hidden.data(), hidden.size() / batch}, time.data(), batch);
  hidden.reset();
  if (added.pooled) {
    DeviceBuffer<T> conditions = buffer(spec_.added_condition, "added conditions");
    const std::size_t pooled = spec_.added_condition - 6 * spec_.added_time;
    for (std::size_t i = 0; i < batch; ++i) {  // pooled rows, and sinusoids of six numbers
      T* const to = conditions.data() + i * spec_.added_condition;
      CUDA_CHECK(cudaMemcpyAsync(to, added.pooled + i * pooled, pooled * sizeof(T), cudaMemcpyDeviceToDevice,
                                 context.stream()));
      nn::time_embedding<T>(context, added.numbers + 6 * i, to + pooled, 6, spec_.added_time);
    }
    hidden = hidden_of("add_embedding", std::move(conditions));
    const auto second = weights_.linear("add_embedding.linear_2");
    second.forward(context, {hidden.data(), second.in()}, time.data(), batch, true);
  }
  nn::bias_activation<T>(context, time.data(), nullptr, batch, spec_.time_width(), nn::Activation::silu);
  return time;
}

template <class T>
DeviceBuffer<T> Denoiser<T>::forward(Context& context, const T* latents, const float* timesteps,
                                     const TextRows<T>& text, std::size_t batch, nn::InputSize size, const Form& form,
                                     const AddedConditions<T>& added, Tape<T>* tape) {
  refuse(spec_, text.width, size, added.pooled, added.numbers);
  const Phase phase(context.ledger(), "denoiser");
  Blocks<T> blocks(context, weights_, form, spec_.groups, kDenoiserEps, adapters_);
  const DeviceBuffer<T> time = time_embedding(context, timesteps, batch, added);
  const std::size_t levels = spec_.levels();

  // Every output on the way down goes up again; the last one is also what the next block reads.
  Pass<T> pass(context, blocks, time.data(), text, tape);
  pass.begin(blocks.convolution("conv_in", latents, batch, size, spec_.in_channels));
  pass.wait();
  for (std::size_t level = 0; level < levels; ++level) {
    const std::string block = at("down_blocks", level);
    for (std::size_t i = 0; i < spec_.layers_per_block; ++i) {
      pass.residual(at(block + ".resnets", i));
      pass.transformer(at(block + ".attentions", i), spec_.transformers[level], spec_.heads[level]);
      pass.wait();
    }
    if (level + 1 == levels) break;
    pass.downsample(block + ".downsamplers.0.conv");
    pass.wait();
  }

  pass.residual("mid_block.resnets.0");
  pass.transformer("mid_block.attentions.0", spec_.mid_transformers, spec_.heads.back());
  pass.residual("mid_block.resnets.1");

  for (std::size_t up = 0; up < levels; ++up) {
    const std::size_t level = levels - 1 - up;
    const std::string block = at("up_blocks", up);
    for (std::size_t i = 0; i <= spec_.layers_per_block; ++i) {
      pass.join();
      pass.residual(at(block + ".resnets", i));
      pass.transformer(at(block + ".attentions", i), spec_.transformers[level], spec_.heads[level]);
    }
    if (level > 0) pass.upsample(block + ".upsamplers.0.conv");
  }
  return pass.end("conv_norm_out", "conv_out");
}

template <class T>
void Denoiser<T>::backward(Context& context, Tape<T>& tape, DeviceBuffer<T> d, const TextRows<T>& text,
                           std::size_t batch, nn::InputSize size, const Form& form) {
  const Phase phase(context.ledger(), "backward");
  BackwardBlocks<T> blocks(context, weights_, form, spec_.groups, kDenoiserEps, adapters_, text);
  WayBack<T> way(context, blocks);
  Map<T> gradient{std::move(d), batch, size, spec_.out_channels};
  for (; !tape.empty(); tape.pop_back()) gradient = way.through(tape.back(), std::move(gradient));
}

#define OOMLAB_DENOISER(T) template class Denoiser<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_DENOISER)

}  // namespace oomlab::image
