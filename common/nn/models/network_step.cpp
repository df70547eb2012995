// One pass of a network: forward, and backward.

#include <stdexcept>
#include <utility>

#include "nn/models/network.h"
#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/channels.h"
#include "nn/ops/convolution.h"
#include "nn/ops/loss.h"
#include "nn/ops/matmul.h"
#include "nn/ops/pooling.h"
#include "nn/ops/residual.h"
#include "nn/ops/upsample.h"

namespace oomlab::nn {

namespace {

using Image = DeviceBuffer<float>;

}  // namespace

// What one pass makes, and what it keeps from the forward to the backward pass.
struct Network::Step {
  Network& model;
  Context& context;
  const NetworkForm& form;
  const bool training;
  NetworkShapes shapes;

  std::vector<Image> values;  // made, and not yet freed
  std::vector<Image> gradients;
  struct Kept {
    Image z, mean, inv_std;             // convolutions; of a linear layer z, of squeeze and excitation mean
    Image hidden, factors;              // squeeze and excitation
    DeviceBuffer<unsigned char> which;  // maxima
  };
  std::vector<Kept> kept;
  std::vector<std::size_t> last_use;      // of each value, the last layer that reads it
  std::vector<bool> needed;               // values that the backward pass reads
  std::vector<bool> weight_has_gradient;  // of layers, so far

  Step(Network& model, Context& context, const NetworkForm& form, std::size_t batch, InputSize size, bool training)
      : model(model),
        context(context),
        form(form),
        training(training),
        shapes(shapes_of(model.spec_, batch, size)),
        values(layers().size() + 1),
        gradients(layers().size() + 1),
        kept(layers().size()),
        last_use(layers().size() + 1, 0),
        needed(layers().size() + 1, false),
        weight_has_gradient(layers().size(), false) {
    last_use.back() = layers().size();
    for (std::size_t i = 0; i < layers().size(); ++i) {
      const Layer& layer = layers()[i];
      last_use[layer.from] = i;
      if (layer.also != Layer::kNone) last_use[layer.also] = i;
      if (!training) continue;
      const bool has_weights =
          layer.has_norm() || layer.kind == LayerKind::linear || layer.kind == LayerKind::squeeze_excite;
      if (has_weights && !can_come_again(layer.from)) needed[layer.from] = true;
      const bool is_relu_of_linear = layer.kind == LayerKind::linear && layer.activation == Activation::relu;
      if (is_relu_of_linear || (layer.also != Layer::kNone && layer.activation != Activation::none))
        needed[i + 1] = true;
    }
    if (training) needed[0] = true;
  }

  const std::vector<Layer>& layers() const { return model.spec_.layers; }
  bool can_come_again(std::size_t value) const {
    return form.recompute_norms && value > 0 && layers()[value - 1].has_norm() &&
           layers()[value - 1].also == Layer::kNone;
  }
  Image image(std::size_t elements, const std::string& tag) {
    return context.buffer<float>(elements, Category::activations, tag);
  }
  Image output(std::size_t i) { return image(shapes.elements(i + 1), layers()[i].name + " output"); }
  float* tensor(std::size_t i, std::size_t number) { return model.units_[i].tensors[number].value.data(); }
  float* gradient(std::size_t i, std::size_t number) { return model.units_[i].tensors[number].gradient.data(); }
  float* weight(std::size_t i) { return tensor(model.owner(i), 0); }
  // Where gamma stands in a layer's tensors; beta follows.
  std::size_t gamma(std::size_t i) const { return layers()[i].shares == Layer::kNone ? 1 : 0; }

  void free_after(std::size_t i, std::size_t value) {
    if (value != Layer::kNone && last_use[value] == i && !needed[value]) values[value].reset();
  }

  // ------------------------------------------------------------------------------------------------------- forward

  void forward() {
    for (std::size_t i = 0; i < layers().size(); ++i) {
      const Layer& layer = layers()[i];
      switch (layer.kind) {
        case LayerKind::convolution:
        case LayerKind::depthwise: unit_forward(i); break;
        case LayerKind::linear: linear_layer_forward(i); break;
        case LayerKind::squeeze_excite: squeeze_excite_forward(i); break;
        default: reshape_forward(i);
      }
      free_after(i, layer.from);
      free_after(i, layer.also);
    }
  }

  void convolve(std::size_t i, const float* x, float* z) {
    const ConvolutionShape& window = shapes.windows[i];
    if (layers()[i].kind == LayerKind::depthwise)
      depthwise_forward(context, window, x, weight(i), z);
    else
      convolution_forward(context, window, form.way, x, weight(i), z);
  }

  void unit_forward(std::size_t i) {
    const Layer& layer = layers()[i];
    const std::size_t rows = shapes.rows(i + 1), channels = layer.out;
    const float *const scale = tensor(i, gamma(i)), *const shift = tensor(i, gamma(i) + 1);
    const BatchNormState running{model.units_[i].running_mean.data(), model.units_[i].running_variance.data()};
    Image z = output(i);
    convolve(i, values[layer.from].data(), z.data());
    if (layer.from != layer.also) free_after(i, layer.from);
    Image* const residual = layer.also == Layer::kNone ? nullptr : &values[layer.also];
    const float* const added = residual ? residual->data() : nullptr;
    if (!training) {
      batch_norm_inference(context, z.data(), scale, shift, added, z.data(), running, rows, channels, layer.activation);
      values[i + 1] = std::move(z);
      return;
    }
    Kept& k = kept[i];
    k.z = std::move(z);
    k.mean = image(channels, layer.name + " mean");
    k.inv_std = image(channels, layer.name + " 1/sigma");
    // What is added, where nobody needs it any more, makes room for the sum.
    const bool has_room = residual && last_use[layer.also] == i && !needed[layer.also];
    Image y = has_room ? std::move(*residual) : image(shapes.elements(i + 1), layer.name + " norm");
    const bool apart = !form.activation_in_place && layer.activation != Activation::none;
    batch_norm_forward(context, k.z.data(), scale, shift, added, y.data(), k.mean.data(), k.inv_std.data(), running,
                       rows, channels, apart ? Activation::none : layer.activation);
    if (apart) {
      values[i + 1] = image(shapes.elements(i + 1), layer.name + " activation");
      bias_activation_keep(context, y.data(), nullptr, values[i + 1].data(), rows, channels, layer.activation);
    } else {
      values[i + 1] = std::move(y);
    }
  }

  void linear_layer_forward(std::size_t i) {
    const Layer& layer = layers()[i];
    const std::size_t rows = shapes.rows(i + 1), in = shapes.channels[layer.from];
    Image y = output(i);
    linear_forward(context, values[layer.from].data(), weight(i), y.data(), rows, in, layer.out);
    if (training && layer.activation == Activation::hard_swish) {
      kept[i].z = std::move(y);
      y = image(shapes.elements(i + 1), layer.name + " activation");
      bias_activation_keep(context, kept[i].z.data(), tensor(i, 1), y.data(), rows, layer.out, layer.activation);
    } else {
      bias_activation(context, y.data(), tensor(i, 1), rows, layer.out, layer.activation);
    }
    values[i + 1] = std::move(y);
  }

  void squeeze_excite_forward(std::size_t i) {
    const Layer& layer = layers()[i];
    const std::size_t batch = shapes.batch, pixels = shapes.pixels(i + 1), channels = layer.out;
    Image& x = values[layer.from];
    Kept& k = kept[i];
    k.mean = image(checked_product(batch, channels), layer.name + " means");
    global_pool_forward(context, x.data(), k.mean.data(), batch, pixels, channels, share_of(i + 1));
    k.hidden = image(checked_product(batch, layer.squeeze), layer.name + " hidden");
    linear_forward(context, k.mean.data(), tensor(i, 0), k.hidden.data(), batch, channels, layer.squeeze);
    bias_activation(context, k.hidden.data(), tensor(i, 1), batch, layer.squeeze, Activation::relu);
    if (!training) k.mean.reset();
    k.factors = image(checked_product(batch, channels), layer.name + " factors");
    linear_forward(context, k.hidden.data(), tensor(i, 2), k.factors.data(), batch, layer.squeeze, channels);
    bias_activation(context, k.factors.data(), tensor(i, 3), batch, channels, Activation::hard_sigmoid);
    if (!training) k.hidden.reset();
    const bool in_place = last_use[layer.from] == i && !needed[layer.from];
    Image y = in_place ? std::move(x) : output(i);
    scale_channels(context, in_place ? y.data() : x.data(), k.factors.data(), y.data(), batch, pixels, channels);
    if (!training) k.factors.reset();
    values[i + 1] = std::move(y);
  }

  // Layers without weights.
  void reshape_forward(std::size_t i) {
    const Layer& layer = layers()[i];
    const InputSize in = shapes.sizes[layer.from];
    const std::size_t channels = shapes.channels[layer.from], batch = shapes.batch;
    const float* const x = values[layer.from].data();
    if (layer.kind == LayerKind::max_pool && training)
      kept[i].which =
          context.buffer<unsigned char>(shapes.elements(i + 1), Category::activations, layer.name + " maxima");
    Image& y = values[i + 1] = output(i);
    if (layer.kind == LayerKind::max_pool)
      max_pool_forward(context, shapes.windows[i], x, y.data(), kept[i].which.data());
    else if (layer.kind == LayerKind::global_pool)
      global_pool_forward(context, x, y.data(), batch, shapes.pixels(layer.from), channels, share_of(layer.from));
    else if (layer.kind == LayerKind::upsample)
      upsample_forward(context, x, y.data(), batch, in.height, in.width, channels, layer.factor);
    else
      concatenate_channels(context, x, std::as_const(values[layer.also]).data(), y.data(), shapes.rows(i + 1), channels,
                           shapes.channels[layer.also]);
  }
  float share_of(std::size_t value) const { return 1.0f / static_cast<float>(shapes.pixels(value)); }

  // ------------------------------------------------------------------------------------------------------ backward

  // The gradient of the logits is there.
  void backward() {
    for (std::size_t i = layers().size(); i-- > 0;) {
      Image dy = std::move(gradients[i + 1]);
      switch (layers()[i].kind) {
        case LayerKind::convolution:
        case LayerKind::depthwise: unit_backward(i, std::move(dy)); break;
        case LayerKind::linear: linear_layer_backward(i, std::move(dy)); break;
        case LayerKind::squeeze_excite: squeeze_excite_backward(i, std::move(dy)); break;
        default: reshape_backward(i, std::move(dy));
      }
      values[i + 1].reset();
      kept[i] = {};
    }
  }

  // One more gradient of a value: the first is kept as it is.
  void add_gradient(std::size_t value, Image more) {
    if (gradients[value])
      add_to(context, gradients[value].data(), more.data(), more.size());
    else
      gradients[value] = std::move(more);
  }

  // A value that a weight's gradient needs: kept, or made again.
  const float* input_of(std::size_t i) {
    const std::size_t value = layers()[i].from;
    if (!values[value]) {
      const std::size_t made = value - 1;
      Kept& k = kept[made];
      values[value] = image(shapes.elements(value), layers()[made].name + " norm");
      batch_norm_again(context, k.z.data(), tensor(made, gamma(made)), tensor(made, gamma(made) + 1),
                       values[value].data(), k.mean.data(), k.inv_std.data(), shapes.rows(value), layers()[made].out,
                       layers()[made].activation);
    }
    return values[value].data();
  }

  void unit_backward(std::size_t i, Image dy) {
    const Layer& layer = layers()[i];
    const ConvolutionShape& window = shapes.windows[i];
    const std::size_t rows = shapes.rows(i + 1), channels = layer.out;
    Kept& k = kept[i];
    if (layer.activation != Activation::none) {
      // ReLU's derivative follows from its output, where that is still there: one pass over memory without the norm.
      if (layer.also != Layer::kNone || (layer.activation == Activation::relu && values[i + 1]))
        activation_backward(context, dy.data(), values[i + 1].data(), dy.size(), layer.activation);
      else
        norm_activation_backward(context, dy.data(), k.z.data(), tensor(i, gamma(i)), tensor(i, gamma(i) + 1),
                                 k.mean.data(), k.inv_std.data(), rows, channels, layer.activation);
    }
    values[i + 1].reset();
    batch_norm_backward(context, k.z.data(), dy.data(), tensor(i, gamma(i)), k.mean.data(), k.inv_std.data(),
                        gradient(i, gamma(i)), gradient(i, gamma(i) + 1), rows, channels);
    k.mean.reset(), k.inv_std.reset();
    if (layer.also != Layer::kNone) add_gradient(layer.also, std::move(dy));
    dy.reset();
    const float* const x = input_of(i);
    const std::size_t own = model.owner(i);
    const bool is_more = weight_has_gradient[own];
    weight_has_gradient[own] = true;
    if (layer.kind == LayerKind::depthwise)
      depthwise_backward_weight(context, window, k.z.data(), x, gradient(own, 0), is_more);
    else
      convolution_backward_weight(context, window, form.way, k.z.data(), x, gradient(own, 0), is_more);
    if (layer.from == 0) return;
    Image dx = image(shapes.elements(layer.from), layer.name + " input gradient");
    if (layer.kind == LayerKind::depthwise)
      depthwise_backward_input(context, window, k.z.data(), weight(i), dx.data());
    else
      convolution_backward_input(context, window, form.way, k.z.data(), weight(i), dx.data());
    k.z.reset();
    add_gradient(layer.from, std::move(dx));
  }

  void linear_layer_backward(std::size_t i, Image dy) {
    const Layer& layer = layers()[i];
    const std::size_t rows = shapes.rows(i + 1), in = shapes.channels[layer.from];
    const Image& saved = layer.activation == Activation::hard_swish ? kept[i].z : values[i + 1];
    activation_backward(context, dy.data(), saved.data(), dy.size(), layer.activation);
    linear_backward_weight(context, dy.data(), input_of(i), gradient(i, 0), gradient(i, 1), rows, in, layer.out);
    if (layer.from == 0) return;
    Image dx = image(shapes.elements(layer.from), layer.name + " input gradient");
    linear_backward_input(context, dy.data(), weight(i), dx.data(), rows, in, layer.out);
    add_gradient(layer.from, std::move(dx));
  }

  void squeeze_excite_backward(std::size_t i, Image dy) {
    const Layer& layer = layers()[i];
    const std::size_t batch = shapes.batch, pixels = shapes.pixels(i + 1), channels = layer.out, q = layer.squeeze;
    Kept& k = kept[i];
    Image small = image(checked_product(batch, channels), layer.name + " factors gradient");
    scale_channels_backward_factors(context, dy.data(), input_of(i), small.data(), batch, pixels, channels);
    activation_backward(context, small.data(), k.factors.data(), small.size(), Activation::hard_sigmoid);
    linear_backward_weight(context, small.data(), k.hidden.data(), gradient(i, 2), gradient(i, 3), batch, q, channels);
    Image hidden = image(checked_product(batch, q), layer.name + " hidden gradient");
    linear_backward_input(context, small.data(), tensor(i, 2), hidden.data(), batch, q, channels);
    activation_backward(context, hidden.data(), k.hidden.data(), hidden.size(), Activation::relu);
    linear_backward_weight(context, hidden.data(), k.mean.data(), gradient(i, 0), gradient(i, 1), batch, channels, q);
    // The means' gradient, where that of the factors was.
    linear_backward_input(context, hidden.data(), tensor(i, 0), small.data(), batch, channels, q);
    scale_channels_backward_input(context, dy.data(), k.factors.data(), small.data(), share_of(i + 1), batch, pixels,
                                  channels);
    small.reset(), hidden.reset();
    add_gradient(layer.from, std::move(dy));
  }

  void reshape_backward(std::size_t i, Image dy) {
    const Layer& layer = layers()[i];
    const InputSize in = shapes.sizes[layer.from];
    const std::size_t channels = shapes.channels[layer.from], batch = shapes.batch;
    Image dx = image(shapes.elements(layer.from), layer.name + " input gradient"), other;
    if (layer.kind == LayerKind::max_pool) {
      max_pool_backward(context, shapes.windows[i], dy.data(), kept[i].which.data(), dx.data());
    } else if (layer.kind == LayerKind::global_pool) {
      global_pool_backward(context, dy.data(), dx.data(), batch, shapes.pixels(layer.from), channels,
                           share_of(layer.from));
    } else if (layer.kind == LayerKind::upsample) {
      upsample_backward(context, dy.data(), dx.data(), batch, in.height, in.width, channels, layer.factor);
    } else {
      other = image(shapes.elements(layer.also), layer.name + " other gradient");
      split_channels(context, dy.data(), dx.data(), other.data(), shapes.rows(i + 1), channels,
                     shapes.channels[layer.also]);
    }
    dy.reset();
    add_gradient(layer.from, std::move(dx));
    if (other) add_gradient(layer.also, std::move(other));
  }
};

void Network::forward_backward(Context& context, Batch batch, InputSize size, const NetworkForm& form) {
  if (!loss_) throw std::logic_error("this model was made without gradients");
  Step step(*this, context, form, batch.size, size, /*training=*/true);
  require_input(step.shapes, batch.input.size());
  const std::size_t rows = step.shapes.labels();
  if (batch.labels.size() != rows)
    throw std::invalid_argument(std::to_string(batch.labels.size()) + " labels instead of " + std::to_string(rows));
  const float mean = 1.0f / static_cast<float>(rows);
  step.values[0] = std::move(batch.input);
  {
    const Phase phase(context.ledger(), "forward");
    step.forward();
    Image& logits = step.values.back();
    auto row_loss = context.buffer<float>(rows, Category::workspace, "row losses");
    softmax_cross_entropy(context, logits.data(), batch.labels.data(), row_loss.data(), rows, spec_.classes, mean);
    scaled_sum(context, row_loss.data(), rows, mean, loss_.data());
    step.gradients.back() = std::move(logits);
  }
  const Phase phase(context.ledger(), "backward");
  step.backward();
}

void Network::train_step(Context& context, Batch batch, InputSize size, Optimizer<float>& optimizer,
                         const NetworkForm& form) {
  forward_backward(context, std::move(batch), size, form);
  optimizer.step(context);
}

DeviceBuffer<float> Network::forward(Context& context, DeviceBuffer<float> input, std::size_t batch, InputSize size,
                                     const NetworkForm& form) {
  Step step(*this, context, form, batch, size, /*training=*/false);
  require_input(step.shapes, input.size());
  const Phase phase(context.ledger(), "inference");
  step.values[0] = std::move(input);
  step.forward();
  return std::move(step.values.back());
}

}  // namespace oomlab::nn
