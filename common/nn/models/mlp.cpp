#include "nn/models/mlp.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "nn/models/read_loss.h"
#include "nn/ops/activation.h"
#include "nn/ops/loss.h"
#include "nn/ops/matmul.h"
#include "nn/ops/values.h"

namespace oomlab::nn {

Batch make_batch(Context& context, std::size_t batch, std::size_t width) {
  if (batch == 0) throw std::invalid_argument("a batch needs at least one row");
  Batch made;
  made.input = context.buffer<float>(checked_product(batch, width), Category::activations, "input");
  made.labels = context.buffer<int>(batch, Category::data, "batch labels");
  made.size = batch;
  return made;
}

namespace {

std::string tag_of(std::size_t layer, const char* what) { return "layer " + std::to_string(layer) + " " + what; }

void require_input(const MlpSpec& spec, const DeviceBuffer<float>& input, std::size_t batch) {
  if (batch == 0 || input.size() != checked_product(batch, spec.inputs()))
    throw std::invalid_argument("input of " + std::to_string(input.size()) + " values is not a batch of " +
                                std::to_string(batch) + " rows of " + std::to_string(spec.inputs()));
}

}  // namespace

Mlp::Mlp(Context& context, const MlpSpec& spec, std::uint64_t seed, bool with_gradients) : spec_(spec) {
  if (spec.widths.size() < 2) throw std::invalid_argument("a model needs at least two widths");
  layers_.resize(spec.layers());
  for (std::size_t l = 1; l <= spec.layers(); ++l) {
    Layer& layer = layers_[l - 1];
    const std::size_t in = spec.widths[l - 1], out = spec.widths[l], count = checked_product(in, out);
    layer.weight = context.buffer<float>(count, Category::parameters, tag_of(l, "weight"));
    layer.bias = context.buffer<float>(out, Category::parameters, tag_of(l, "bias"));
    if (with_gradients) {
      layer.weight_gradient = context.buffer<float>(count, Category::gradients, tag_of(l, "weight gradient"));
      layer.bias_gradient = context.buffer<float>(out, Category::gradients, tag_of(l, "bias gradient"));
    }
    fill_uniform(context, layer.weight.data(), count, static_cast<float>(std::sqrt(6.0 / static_cast<double>(in))),
                 seed, l);
    fill(context, layer.bias.data(), out, 0.0f);
  }
  if (with_gradients) {
    loss_ = context.buffer<float>(1, Category::workspace, "loss");
    fill(context, loss_.data(), 1, 0.0f);
  }
}

std::vector<Parameter> Mlp::parameters() {
  std::vector<Parameter> all;
  for (std::size_t l = 1; l <= layers_.size(); ++l) {
    Layer& layer = layers_[l - 1];
    all.push_back({tag_of(l, "weight"), layer.weight.data(), layer.weight_gradient.data(), layer.weight.size()});
    all.push_back({tag_of(l, "bias"), layer.bias.data(), layer.bias_gradient.data(), layer.bias.size()});
  }
  return all;
}

void Mlp::forward_backward(Context& context, Batch batch, StepOptions options) {
  if (!loss_) throw std::logic_error("this model was made without gradients");
  require_input(spec_, batch.input, batch.size);
  const std::size_t rows = batch.size, layers = spec_.layers();
  const float mean = 1.0f / static_cast<float>(options.total_batch ? options.total_batch : rows);

  // activation[l] is what layer l + 1 reads: the input, then each layer's output. before[l] is what the
  // derivative of the activation is computed from, where that is another buffer (GELU).
  std::vector<DeviceBuffer<float>> activation(layers + 1), before(layers + 1);
  activation[0] = std::move(batch.input);
  {
    const Phase phase(context.ledger(), "forward");
    for (std::size_t l = 1; l <= layers; ++l) {
      const std::size_t in = spec_.widths[l - 1], out = spec_.widths[l], count = checked_product(rows, out);
      const bool last = l == layers;
      DeviceBuffer<float> y = context.buffer<float>(count, Category::activations,
                                                    last                                   ? std::string("logits")
                                                    : spec_.activation == Activation::gelu ? tag_of(l, "pre-activation")
                                                                                           : tag_of(l, "activation"));
      linear_forward(context, activation[l - 1].data(), weight(l), y.data(), rows, in, out);
      if (!last && spec_.activation == Activation::gelu) {
        before[l] = std::move(y);
        activation[l] = context.buffer<float>(count, Category::activations, tag_of(l, "activation"));
        bias_activation_keep(context, before[l].data(), bias(l), activation[l].data(), rows, out, spec_.activation);
      } else {
        bias_activation(context, y.data(), bias(l), rows, out, last ? Activation::none : spec_.activation);
        activation[l] = std::move(y);
      }
    }
    DeviceBuffer<float> row_loss = context.buffer<float>(rows, Category::workspace, "row losses");
    softmax_cross_entropy(context, activation[layers].data(), batch.labels.data(), row_loss.data(), rows,
                          spec_.classes(), mean);
    scaled_sum(context, row_loss.data(), rows, mean, loss_.data(), options.accumulate);
  }

  const Phase phase(context.ledger(), "backward");
  DeviceBuffer<float> gradient = std::move(activation[layers]);  // of the logits, in their place
  for (std::size_t l = layers; l >= 1; --l) {
    const std::size_t in = spec_.widths[l - 1], out = spec_.widths[l];
    linear_backward_weight(context, gradient.data(), activation[l - 1].data(), weight_gradient(l), bias_gradient(l),
                           rows, in, out, options.accumulate);
    if (l == 1) break;
    if (spec_.activation != Activation::relu) activation[l - 1].reset();
    DeviceBuffer<float> below =
        context.buffer<float>(checked_product(rows, in), Category::activations, tag_of(l - 1, "activation gradient"));
    linear_backward_input(context, gradient.data(), weight(l), below.data(), rows, in, out);
    gradient = std::move(below);
    activation_backward(context, gradient.data(),
                        spec_.activation == Activation::relu ? activation[l - 1].data() : before[l - 1].data(),
                        gradient.size(), spec_.activation);
    activation[l - 1].reset();
    before[l - 1].reset();
  }
}

void Mlp::train_step(Context& context, Batch batch, Optimizer<float>& optimizer) {
  forward_backward(context, std::move(batch));
  optimizer.step(context);
}

float Mlp::loss(Context& context) const { return read_value(context, loss_); }

DeviceBuffer<float> Mlp::forward(Context& context, DeviceBuffer<float> input, std::size_t batch) {
  require_input(spec_, input, batch);
  const Phase phase(context.ledger(), "forward");
  DeviceBuffer<float> x = std::move(input);
  for (std::size_t l = 1; l <= spec_.layers(); ++l) {
    const std::size_t in = spec_.widths[l - 1], out = spec_.widths[l];
    const bool last = l == spec_.layers();
    DeviceBuffer<float> y = context.buffer<float>(checked_product(batch, out), Category::activations,
                                                  last ? std::string("logits") : tag_of(l, "activation"));
    linear_forward(context, x.data(), weight(l), y.data(), batch, in, out);
    bias_activation(context, y.data(), bias(l), batch, out, last ? Activation::none : spec_.activation);
    x = std::move(y);
  }
  return x;
}

std::size_t Mlp::count_correct(Context& context, Batch batch) {
  auto count = context.buffer<unsigned long long>(1, Category::workspace, "correct count");
  const DeviceBuffer<float> logits = forward(context, std::move(batch.input), batch.size);
  nn::count_correct(context, logits.data(), batch.labels.data(), batch.size, spec_.classes(), count.data());
  return read_value(context, count);
}

std::uint64_t Mlp::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  for (const Layer& layer : layers_) {
    hash = nn::fingerprint(context, layer.weight.data(), layer.weight.bytes(), hash);
    hash = nn::fingerprint(context, layer.bias.data(), layer.bias.bytes(), hash);
  }
  return hash;
}

}  // namespace oomlab::nn
