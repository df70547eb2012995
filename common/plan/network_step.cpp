#include "plan/network_step.h"

#include <algorithm>

#include "plan/mlp_step.h"
#include "plan/tensor_bytes.h"

namespace oomlab::nn {

namespace {

TensorBytes tensor_bytes_of(const NetworkSpec& spec) {
  TensorBytes bytes;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const Layer& layer = spec.layers[i];
    if (spec.weights(i)) bytes.add_parameter(spec.weights(i));
    if (layer.has_norm()) bytes.add_norm(layer.out);
    if (layer.kind == LayerKind::linear) bytes.add_parameter(layer.out);
    if (layer.kind == LayerKind::squeeze_excite) {
      const std::uint64_t weight = checked_product(layer.squeeze, layer.out);
      bytes.add_parameter(weight);
      bytes.add_parameter(weight);
      bytes.add_parameter(layer.squeeze);
      bytes.add_parameter(layer.out);
    }
  }
  return bytes;
}

bool is_sum(const Layer& layer) { return layer.has_norm() && layer.also != Layer::kNone; }

// The buffers of a layer in bytes, 0 where it has none of the kind. "saved" is from its forward to its backward pass.
struct LayerBuffers {
  std::uint64_t output = 0;              // [rows, out]         every layer: see Value; and its gradient
  std::uint64_t convolution_output = 0;  // [rows, out]         with a norm: saved, its gradient takes its place
  std::uint64_t norm_statistics = 0;     // 2 [out]             with a norm: saved; mean and 1/sigma
  std::uint64_t before_activation = 0;   // [rows, out]         linear with hard swish: saved
  std::uint64_t maxima = 0;              // [rows, out] bytes   max_pool: saved; which one was the maximum
  std::uint64_t means = 0;               // [batch, out]        squeeze_excite: saved
  std::uint64_t hidden = 0;              // [batch, squeeze]    squeeze_excite: saved
  std::uint64_t factors = 0;             // [batch, out]        squeeze_excite: saved
  std::uint64_t factors_gradient = 0;    // [batch, out]        squeeze_excite: backward
  std::uint64_t hidden_gradient = 0;     // [batch, squeeze]    squeeze_excite: backward

  LayerBuffers(const Layer& layer, const NetworkShapes& shapes, std::size_t value)
      : output(float_bytes(shapes.elements(value))) {
    if (layer.has_norm()) {
      convolution_output = output;
      norm_statistics = checked_product(2, float_bytes(layer.out));
    } else if (layer.kind == LayerKind::linear && layer.activation == Activation::hard_swish) {
      before_activation = output;
    } else if (layer.kind == LayerKind::max_pool) {
      maxima = round_to_granule(shapes.elements(value));
    } else if (layer.kind == LayerKind::squeeze_excite) {
      means = float_bytes(checked_product(shapes.batch, layer.out));
      hidden = float_bytes(checked_product(shapes.batch, layer.squeeze));
      factors = means;
      factors_gradient = factors;
      hidden_gradient = hidden;
    }
  }
};

// A value's life: who reads it, whether its bytes are there now.
struct Value {
  std::uint64_t bytes = 0;
  std::size_t readers_left = 0;
  bool saved = false;       // until the backward pass; otherwise until its last reader has run
  bool recomputed = false;  // before the backward pass of a layer that reads it
  bool allocated = false;
  bool has_gradient = false;
};

class NetworkSimulation {
 public:
  NetworkSimulation(const NetworkSpec& spec, std::uint64_t batch, InputSize size, const NetworkForm& form,
                    const ByCategory& resident)
      : spec_(spec), form_(form), shapes_(shapes_of(spec, batch, size)), tracker_(resident), values_(count() + 1) {
    values_[0].bytes = float_bytes(shapes_.elements(0));
    for (std::size_t i = 0; i < count(); ++i) {
      buffers_.emplace_back(spec_.layers[i], shapes_, i + 1);
      values_[i + 1].bytes = buffers_[i].output;
    }
    values_.back().readers_left = 1;  // the loss
    for (const Layer& layer : spec_.layers) {
      ++values_[layer.from].readers_left;
      if (layer.also != Layer::kNone) ++values_[layer.also].readers_left;
    }
  }

  PeakBytes training() {
    mark_saved_values();
    const std::uint64_t labels = float_bytes(shapes_.labels());
    const std::uint64_t row_losses = labels;
    tracker_.add(Category::data, labels);
    allocate(0);
    for (std::size_t i = 0; i < count(); ++i) forward(i);
    workspace(row_losses);
    values_.back().allocated = false;  // the gradient of the logits takes their place
    values_.back().has_gradient = true;
    for (std::size_t i = count(); i-- > 0;) backward(i);
    return tracker_.peak();
  }

  PeakBytes inference() {
    allocate(0);
    for (std::size_t i = 0; i < count(); ++i) {
      const Layer& layer = spec_.layers[i];
      if (layer.kind == LayerKind::squeeze_excite) {
        const LayerBuffers& buffers = buffers_[i];
        add(buffers.means);
        add(buffers.hidden);
        drop(buffers.means);
        add(buffers.factors);
        drop(buffers.hidden);
        allocate_or_alias(i, layer.from);
        drop(buffers.factors);
      } else {
        allocate(i + 1);
        columns(i);
      }
      read(layer.from);
      read(layer.also);
    }
    return tracker_.peak();
  }

 private:
  std::size_t count() const { return spec_.layers.size(); }
  void add(std::uint64_t bytes) { tracker_.add(Category::activations, bytes); }
  void drop(std::uint64_t bytes) { tracker_.drop(Category::activations, bytes); }
  void workspace(std::uint64_t bytes) {
    tracker_.add(Category::workspace, bytes);
    tracker_.drop(Category::workspace, bytes);
  }
  void columns(std::size_t i) {
    if (spec_.layers[i].kind == LayerKind::convolution)
      workspace(convolution_workspace(shapes_.windows[i], form_.way, sizeof(float)).columns);
  }

  // ---- values

  void mark_saved_values() {
    values_[0].saved = true;
    for (std::size_t i = 0; i < count(); ++i) {
      const Layer& layer = spec_.layers[i];
      Value& output = values_[i + 1];
      output.recomputed = form_.recompute_norms && layer.has_norm() && layer.also == Layer::kNone;
      const bool activated_sum = layer.also != Layer::kNone && layer.activation != Activation::none;
      const bool relu_of_linear = layer.kind == LayerKind::linear && layer.activation == Activation::relu;
      if (activated_sum || relu_of_linear) output.saved = true;
    }
    for (const Layer& layer : spec_.layers) {
      const bool has_weights =
          layer.has_norm() || layer.kind == LayerKind::linear || layer.kind == LayerKind::squeeze_excite;
      if (has_weights && !values_[layer.from].recomputed) values_[layer.from].saved = true;
    }
  }
  void allocate(std::size_t value) {
    add(values_[value].bytes);
    values_[value].allocated = true;
  }
  void free(std::size_t value) {
    if (!values_[value].allocated) return;
    drop(values_[value].bytes);
    values_[value].allocated = false;
  }
  // Layer i writes its output over `value`, which it is the last to read, or into a buffer of its own.
  void allocate_or_alias(std::size_t i, std::size_t value) {
    if (values_[value].readers_left > 1 || values_[value].saved) return allocate(i + 1);
    values_[value].allocated = false;
    values_[i + 1].allocated = true;
  }
  void read(std::size_t value) {
    if (value != Layer::kNone && --values_[value].readers_left == 0 && !values_[value].saved) free(value);
  }
  void recompute(std::size_t value) {
    if (!values_[value].allocated) allocate(value);
  }
  // A gradient of the value is there: the first one stays, others are added to it.
  void give_gradient(std::size_t value) {
    if (values_[value].has_gradient) drop(values_[value].bytes);
    values_[value].has_gradient = true;
  }

  // ---- forward

  void forward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    if (layer.has_norm()) {
      convolution_forward(i);
    } else if (layer.kind == LayerKind::squeeze_excite) {
      add(buffers_[i].means);
      add(buffers_[i].hidden);
      add(buffers_[i].factors);
      allocate_or_alias(i, layer.from);
      read(layer.from);
    } else {
      add(buffers_[i].before_activation);
      add(buffers_[i].maxima);
      allocate(i + 1);
      read(layer.from);
    }
    read(layer.also);
  }

  void convolution_forward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    add(buffers_[i].convolution_output);
    columns(i);
    read(layer.from);
    add(buffers_[i].norm_statistics);
    if (is_sum(layer))
      allocate_or_alias(i, layer.also);
    else
      allocate(i + 1);
    if (!form_.activation_in_place && layer.activation != Activation::none) {
      add(buffers_[i].output);  // the norm's, which the activation reads
      drop(buffers_[i].output);
    }
  }

  // ---- backward: the gradient of the layer's output is there

  void backward(std::size_t i) {
    values_[i + 1].has_gradient = false;
    switch (spec_.layers[i].kind) {
      case LayerKind::convolution:
      case LayerKind::depthwise: convolution_backward(i); break;
      case LayerKind::linear: linear_backward(i); break;
      case LayerKind::squeeze_excite: squeeze_excite_backward(i); break;
      default: reshape_backward(i);
    }
    if (i == 0) free(0);
  }

  void convolution_backward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    free(i + 1);
    drop(buffers_[i].norm_statistics);
    if (is_sum(layer))
      give_gradient(layer.also);  // the output's, as it is
    else
      drop(buffers_[i].output);  // its gradient
    recompute(layer.from);
    columns(i);
    if (layer.from == 0) {
      drop(buffers_[i].convolution_output);
      return;
    }
    add(values_[layer.from].bytes);  // the input's gradient
    columns(i);
    drop(buffers_[i].convolution_output);
    give_gradient(layer.from);
  }

  void linear_backward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    recompute(layer.from);
    if (layer.from != 0) {
      add(values_[layer.from].bytes);  // the input's gradient
      give_gradient(layer.from);
    }
    drop(buffers_[i].output);  // its gradient
    free(i + 1);
    drop(buffers_[i].before_activation);
  }

  // The gradient of the output becomes that of the input.
  void squeeze_excite_backward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    add(buffers_[i].factors_gradient);
    recompute(layer.from);
    add(buffers_[i].hidden_gradient);
    drop(buffers_[i].factors_gradient);
    drop(buffers_[i].hidden_gradient);
    give_gradient(layer.from);
    free(i + 1);
    drop(buffers_[i].means);
    drop(buffers_[i].hidden);
    drop(buffers_[i].factors);
  }

  // Layers without weights.
  void reshape_backward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    const bool joins = layer.also != Layer::kNone;
    add(values_[layer.from].bytes);  // gradients of the inputs
    if (joins) add(values_[layer.also].bytes);
    drop(buffers_[i].output);  // its gradient
    give_gradient(layer.from);
    if (joins) give_gradient(layer.also);
    free(i + 1);
    drop(buffers_[i].maxima);
  }

  const NetworkSpec& spec_;
  const NetworkForm& form_;
  NetworkShapes shapes_;
  PeakTracker tracker_;
  std::vector<Value> values_;          // 0 is the input, i + 1 what layer i makes
  std::vector<LayerBuffers> buffers_;  // of layer i
};

}  // namespace

ByCategory resident_for_inference(const NetworkSpec& spec) { return tensor_bytes_of(spec).for_inference(); }

ByCategory resident_for_training(const NetworkSpec& spec, UpdateRule optimizer) {
  return tensor_bytes_of(spec).for_training(optimizer);
}

PeakBytes predict_training(const NetworkSpec& spec, std::uint64_t batch, InputSize size, UpdateRule optimizer,
                           const NetworkForm& form) {
  return NetworkSimulation(spec, batch, size, form, resident_for_training(spec, optimizer)).training();
}

PeakBytes predict_inference(const NetworkSpec& spec, std::uint64_t batch, InputSize size, const NetworkForm& form) {
  return NetworkSimulation(spec, batch, size, form, resident_for_inference(spec)).inference();
}

namespace {

// visit(layer, its multiplications in a forward pass) for every layer.
template <class Visit>
void for_each_product(const NetworkSpec& spec, const NetworkShapes& shapes, Visit visit) {
  const auto real = [](std::uint64_t count) { return static_cast<double>(count); };
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const Layer& layer = spec.layers[i];
    if (layer.has_norm()) visit(layer, convolution_flops(shapes.windows[i]) / 2);
    if (layer.kind == LayerKind::linear)
      visit(layer, real(shapes.rows(i + 1)) * real(shapes.channels[layer.from]) * real(layer.out));
    if (layer.kind == LayerKind::squeeze_excite)
      visit(layer, 2 * real(shapes.batch) * real(layer.squeeze) * real(layer.out));
  }
}

}  // namespace

double multiply_adds(const NetworkSpec& spec, std::uint64_t batch, InputSize size) {
  double sum = 0;
  for_each_product(spec, shapes_of(spec, batch, size), [&](const Layer&, double products) { sum += products; });
  return sum;
}

double step_flops(const NetworkSpec& spec, std::uint64_t batch, InputSize size) {
  double sum = 0;
  for_each_product(spec, shapes_of(spec, batch, size), [&](const Layer& layer, double products) {
    if (layer.kind != LayerKind::depthwise) sum += (layer.from == 0 ? 4 : 6) * products;
  });
  return sum;
}

}  // namespace oomlab::nn
