#include "nn/models/resnet.h"

#include <cmath>
#include <stdexcept>
#include <utility>

#include "nn/models/read_loss.h"
#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/convolution.h"
#include "nn/ops/loss.h"
#include "nn/ops/matmul.h"
#include "nn/ops/pooling.h"
#include "nn/ops/residual.h"
#include "nn/ops/values.h"

namespace oomlab::nn {

using Image = DeviceBuffer<float>;

ResNet::ResNet(Context& context, const ResNetSpec& spec, std::uint64_t seed, bool with_gradients)
    : spec_(spec), shapes_(spec.units()) {
  const auto make = [&](std::size_t count, Category category, const std::string& tag) {
    return context.buffer<float>(count, category, tag);
  };
  const auto variance_two = [](std::size_t fan) { return static_cast<float>(std::sqrt(6.0 / double(fan))); };
  for (const ConvolutionUnit& shape : shapes_) {
    Unit unit;
    const auto tensor = [&](DeviceBuffer<float>& value, DeviceBuffer<float>& gradient, std::size_t count,
                            const char* what) {
      value = make(count, Category::parameters, shape.name + what);
      if (with_gradients) gradient = make(count, Category::gradients, shape.name + what + " gradient");
    };
    tensor(unit.weight, unit.weight_gradient, shape.weights(), " weight");
    tensor(unit.gamma, unit.gamma_gradient, shape.out, " gamma");
    tensor(unit.beta, unit.beta_gradient, shape.out, " beta");
    unit.running_mean = make(shape.out, Category::parameters, shape.name + " running mean");
    unit.running_variance = make(shape.out, Category::parameters, shape.name + " running variance");
    const std::size_t fan = checked_product(checked_product(shape.kernel, shape.kernel), shape.out);
    fill_uniform(context, unit.weight.data(), unit.weight.size(), variance_two(fan), seed, units_.size() + 1);
    fill(context, unit.gamma.data(), shape.out, 1.0f);
    fill(context, unit.beta.data(), shape.out, 0.0f);
    fill(context, unit.running_mean.data(), shape.out, 0.0f);
    fill(context, unit.running_variance.data(), shape.out, 1.0f);
    units_.push_back(std::move(unit));
  }
  const std::size_t features = spec.features(), weights = checked_product(spec.classes, features);
  head_weight_ = make(weights, Category::parameters, "head weight");
  head_bias_ = make(spec.classes, Category::parameters, "head bias");
  fill_uniform(context, head_weight_.data(), weights, 1.0f / std::sqrt(static_cast<float>(features)), seed, 0);
  fill(context, head_bias_.data(), spec.classes, 0.0f);
  if (!with_gradients) return;
  head_weight_gradient_ = make(weights, Category::gradients, "head weight gradient");
  head_bias_gradient_ = make(spec.classes, Category::gradients, "head bias gradient");
  loss_ = make(1, Category::workspace, "loss");
  fill(context, loss_.data(), 1, 0.0f);
}

std::vector<Parameter> ResNet::parameters() {
  std::vector<Parameter> all;
  const auto add = [&](std::string name, DeviceBuffer<float>& value, DeviceBuffer<float>& gradient) {
    all.push_back({std::move(name), value.data(), gradient.data(), value.size()});
  };
  for (std::size_t i = 0; i < units_.size(); ++i) {
    add(shapes_[i].name + " weight", units_[i].weight, units_[i].weight_gradient);
    add(shapes_[i].name + " gamma", units_[i].gamma, units_[i].gamma_gradient);
    add(shapes_[i].name + " beta", units_[i].beta, units_[i].beta_gradient);
  }
  add("head weight", head_weight_, head_weight_gradient_);
  add("head bias", head_bias_, head_bias_gradient_);
  return all;
}

ResNet::UnitTensors ResNet::unit(std::size_t number) noexcept {
  Unit& u = units_[number];
  return {u.weight.data(), u.gamma.data(), u.beta.data(), {u.running_mean.data(), u.running_variance.data()}};
}

void ResNet::head(Context& context, const float* features, float* logits, std::size_t batch) {
  linear_forward(context, features, head_weight_.data(), logits, batch, spec_.features(), spec_.classes);
  bias_activation(context, logits, head_bias_.data(), batch, spec_.classes, Activation::none);
}

// -------------------------------------------------------------------------------------------------------- one step

// What one step makes, and what it keeps from the forward to the backward pass.
struct ResNet::Step {
  ResNet& model;
  Context& context;
  const ResNetForm& form;
  std::size_t batch;
  ResNetShapes shapes;

  struct Kept {
    Image z, y;  // of the convolution; behind norm and ReLU
    DeviceBuffer<float> mean, inv_std;
  };
  std::vector<Kept> kept;
  std::vector<Image> inputs;  // of the blocks, and behind the last one what the head sees
  Image input, stem;          // stem: its output, where a pool follows
  DeviceBuffer<unsigned char> which;

  Step(ResNet& model, Context& context, const ResNetForm& form, std::size_t batch, InputSize size)
      : model(model), context(context), form(form), batch(batch), shapes(shapes_of(model.spec_, batch, size)) {
    kept.resize(model.units_.size());
  }

  Image image(std::size_t elements, const std::string& tag) {
    return context.buffer<float>(elements, Category::activations, tag);
  }

  // Unit i of x, whose buffer goes behind the convolution when it is `dead`; y is made unless `out` has room for it.
  void unit_forward(std::size_t i, const float* x, const float* residual, Activation activation, Image* dead = nullptr,
                    Image out = {}) {
    const ConvolutionShape& shape = shapes.units[i];
    const std::string& name = model.shapes_[i].name;
    Unit& unit = model.units_[i];
    Kept& k = kept[i];
    k.z = image(shape.output_elements(), name + " output");
    convolution_forward(context, shape, form.way, x, unit.weight.data(), k.z.data());
    if (dead) dead->reset();
    k.mean = image(shape.out_channels, name + " mean");
    k.inv_std = image(shape.out_channels, name + " 1/sigma");
    k.y = out ? std::move(out) : image(shape.output_elements(), name + " activation");
    batch_norm_forward(context, k.z.data(), unit.gamma.data(), unit.beta.data(), residual, k.y.data(), k.mean.data(),
                       k.inv_std.data(), {unit.running_mean.data(), unit.running_variance.data()}, shape.out_pixels(),
                       shape.out_channels, activation);
  }

  // From dy, behind the ReLU's derivative: the gradient of z, in z's place.
  void norm_backward(std::size_t i, const Image& dy) {
    Unit& unit = model.units_[i];
    Kept& k = kept[i];
    const ConvolutionShape& shape = shapes.units[i];
    batch_norm_backward(context, k.z.data(), dy.data(), unit.gamma.data(), k.mean.data(), k.inv_std.data(),
                        unit.gamma_gradient.data(), unit.beta_gradient.data(), shape.out_pixels(), shape.out_channels);
    k.mean.reset(), k.inv_std.reset();
  }
  // What unit i made, once more.
  void norm_again(std::size_t i) {
    const ConvolutionShape& shape = shapes.units[i];
    Unit& unit = model.units_[i];
    Kept& k = kept[i];
    k.y = image(shape.output_elements(), model.shapes_[i].name + " activation");
    batch_norm_again(context, k.z.data(), unit.gamma.data(), unit.beta.data(), k.y.data(), k.mean.data(),
                     k.inv_std.data(), shape.out_pixels(), shape.out_channels, Activation::relu);
  }
  void weight_backward(std::size_t i, const float* x) {
    convolution_backward_weight(context, shapes.units[i], form.way, kept[i].z.data(), x,
                                model.units_[i].weight_gradient.data());
  }
  // The gradient of unit i's input; its output's goes.
  Image input_backward(std::size_t i) {
    Image dx = image(shapes.units[i].input_elements(), model.shapes_[i].name + " input gradient");
    convolution_backward_input(context, shapes.units[i], form.way, kept[i].z.data(), model.units_[i].weight.data(),
                               dx.data());
    kept[i].z.reset();
    return dx;
  }

  void forward() {
    unit_forward(0, input.data(), nullptr, Activation::relu);
    if (model.spec_.pooled) {
      stem = std::move(kept[0].y);
      const std::size_t pooled = shapes.pool.output_elements();
      which = context.buffer<unsigned char>(pooled, Category::activations, "pool maxima");
      inputs.push_back(image(pooled, "pool output"));
      max_pool_forward(context, shapes.pool, stem.data(), inputs[0].data(), which.data());
    } else {
      inputs.push_back(std::move(kept[0].y));
    }
    std::size_t i = 1;
    for (const ResidualBlock& block : model.spec_.blocks) {
      const Image& x = inputs.back();
      const float* at = x.data();
      const std::size_t last = i + block.branch.size() - 1;
      Image* dead = nullptr;
      for (; i < last; ++i) {
        unit_forward(i, at, nullptr, Activation::relu, dead);
        at = kept[i].y.data();
        if (form.recompute_norms) dead = &kept[i].y;
      }
      Image shortcut;
      if (!block.projection.empty()) {
        unit_forward(last + 1, x.data(), nullptr, Activation::none);
        shortcut = std::move(kept[last + 1].y);
      }
      const float* const residual = shortcut ? shortcut.data() : x.data();
      unit_forward(last, at, residual, Activation::relu, dead, std::move(shortcut));
      inputs.push_back(std::move(kept[last].y));
      i = last + 1 + block.projection.size();
    }
  }

  // dy of the block whose first unit is `first`, in its place or another: the gradient of its input.
  Image block_backward(const ResidualBlock& block, std::size_t first, const Image& x, Image output, Image dy) {
    const std::size_t last = first + block.branch.size() - 1;
    activation_backward(context, dy.data(), output.data(), dy.size(), Activation::relu);
    output.reset();
    norm_backward(last, dy);
    if (!block.projection.empty()) {
      norm_backward(last + 1, dy);
      dy.reset();
    }
    for (std::size_t i = last; i > first; --i) {
      Image& below = kept[i - 1].y;
      if (form.recompute_norms) norm_again(i - 1);
      weight_backward(i, below.data());
      Image d_below = input_backward(i);
      activation_backward(context, d_below.data(), below.data(), below.size(), Activation::relu);
      below.reset();
      norm_backward(i - 1, d_below);
    }
    weight_backward(first, x.data());
    Image dx = input_backward(first);
    if (!block.projection.empty()) {
      weight_backward(last + 1, x.data());
      dy = input_backward(last + 1);
    }
    add_to(context, dx.data(), dy.data(), dx.size());
    return dx;
  }

  // From the gradient of what the head sees.
  void backward(Image dy) {
    std::size_t end = kept.size();
    for (std::size_t b = model.spec_.blocks.size(); b-- > 0;) {
      const ResidualBlock& block = model.spec_.blocks[b];
      end -= block.branch.size() + block.projection.size();
      Image output = std::move(inputs.back());
      inputs.pop_back();
      dy = block_backward(block, end, inputs.back(), std::move(output), std::move(dy));
    }
    if (model.spec_.pooled) {
      inputs.clear();
      Image d_stem = image(stem.size(), "stem gradient");
      max_pool_backward(context, shapes.pool, dy.data(), which.data(), d_stem.data());
      dy = std::move(d_stem);
      which.reset();
    } else {
      stem = std::move(inputs.back());
    }
    activation_backward(context, dy.data(), stem.data(), dy.size(), Activation::relu);
    stem.reset();
    norm_backward(0, dy);
    dy.reset();
    weight_backward(0, input.data());
  }
};

void ResNet::forward_backward(Context& context, Batch batch, InputSize size, const ResNetForm& form) {
  if (!loss_) throw std::logic_error("this model was made without gradients");
  Step step(*this, context, form, batch.size, size);
  require_input(step.shapes, batch.input.size());
  const std::size_t features = spec_.features(), pixels = step.shapes.last_pixels, rows = batch.size;
  const float mean = 1.0f / static_cast<float>(rows), of_pixel = 1.0f / static_cast<float>(pixels);
  step.input = std::move(batch.input);
  Image pooled, logits;
  {
    const Phase phase(context.ledger(), "forward");
    step.forward();
    pooled = step.image(checked_product(rows, features), "features");
    global_pool_forward(context, step.inputs.back().data(), pooled.data(), rows, pixels, features, of_pixel);
    logits = step.image(checked_product(rows, spec_.classes), "logits");
    head(context, pooled.data(), logits.data(), rows);
    auto row_loss = context.buffer<float>(rows, Category::workspace, "row losses");
    softmax_cross_entropy(context, logits.data(), batch.labels.data(), row_loss.data(), rows, spec_.classes, mean);
    scaled_sum(context, row_loss.data(), rows, mean, loss_.data());
  }
  const Phase phase(context.ledger(), "backward");
  linear_backward_weight(context, logits.data(), pooled.data(), head_weight_gradient_.data(),
                         head_bias_gradient_.data(), rows, features, spec_.classes);
  // The features' gradient, in their place.
  linear_backward_input(context, logits.data(), head_weight_.data(), pooled.data(), rows, features, spec_.classes);
  logits.reset();
  Image dy = step.image(step.inputs.back().size(), "last block gradient");
  global_pool_backward(context, pooled.data(), dy.data(), rows, pixels, features, of_pixel);
  pooled.reset();
  step.backward(std::move(dy));
}

void ResNet::train_step(Context& context, Batch batch, InputSize size, Optimizer& optimizer, const ResNetForm& form) {
  forward_backward(context, std::move(batch), size, form);
  optimizer.step(context);
}

DeviceBuffer<float> ResNet::forward(Context& context, DeviceBuffer<float> input, std::size_t batch, InputSize size,
                                    const ResNetForm& form) {
  const ResNetShapes shapes = shapes_of(spec_, batch, size);
  require_input(shapes, input.size());
  const Phase phase(context.ledger(), "inference");
  const auto image = [&](std::size_t elements, const std::string& tag) {
    return context.buffer<float>(elements, Category::activations, tag);
  };
  const auto run = [&](std::size_t i, const float* x, const float* residual, Activation activation) {
    const ConvolutionShape& shape = shapes.units[i];
    const UnitTensors u = unit(i);
    Image y = image(shape.output_elements(), shapes_[i].name + " output");
    convolution_forward(context, shape, form.way, x, u.weight, y.data());
    batch_norm_inference(context, y.data(), u.gamma, u.beta, residual, y.data(), u.running, shape.out_pixels(),
                         shape.out_channels, activation);
    return y;
  };
  Image x = run(0, input.data(), nullptr, Activation::relu);
  input.reset();
  if (spec_.pooled) {
    Image pooled = image(shapes.pool.output_elements(), "pool output");
    max_pool_forward<float>(context, shapes.pool, x.data(), pooled.data(), nullptr);
    x = std::move(pooled);
  }
  std::size_t i = 1;
  for (const ResidualBlock& block : spec_.blocks) {
    const std::size_t last = i + block.branch.size() - 1;
    Image at;
    for (; i < last; ++i) at = run(i, at ? at.data() : x.data(), nullptr, Activation::relu);
    if (!block.projection.empty()) x = run(last + 1, x.data(), nullptr, Activation::none);
    x = run(last, at.data(), x.data(), Activation::relu);
    i = last + 1 + block.projection.size();
  }
  const float share = 1.0f / static_cast<float>(shapes.last_pixels);
  Image features = image(checked_product(batch, spec_.features()), "features");
  global_pool_forward(context, x.data(), features.data(), batch, shapes.last_pixels, spec_.features(), share);
  x.reset();
  Image logits = image(checked_product(batch, spec_.classes), "logits");
  head(context, features.data(), logits.data(), batch);
  return logits;
}

float ResNet::loss(Context& context) const { return read_loss(context, loss_); }

std::uint64_t ResNet::fingerprint(Context& context) const {
  std::uint64_t hash = kFingerprintStart;
  const auto add = [&](const DeviceBuffer<float>& tensor) {
    hash = nn::fingerprint(context, tensor.data(), tensor.bytes(), hash);
  };
  for (const Unit& unit : units_)
    for (const DeviceBuffer<float>* tensor : {&unit.weight, &unit.gamma, &unit.beta}) add(*tensor);
  add(head_weight_);
  add(head_bias_);
  return hash;
}

}  // namespace oomlab::nn
