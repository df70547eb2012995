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
      for (int twice = 0; twice < 2; ++twice) bytes.add_parameter(checked_product(layer.squeeze, layer.out));
      bytes.add_parameter(layer.squeeze), bytes.add_parameter(layer.out);
    }
  }
  return bytes;
}

// A value's life: who reads it, whether its bytes are there now.
struct Value {
  std::uint64_t bytes = 0;
  std::size_t readers_left = 0;
  bool kept = false, again = false, there = false, has_gradient = false;
};

class NetworkWalk {
 public:
  NetworkWalk(const NetworkSpec& spec, std::uint64_t batch, InputSize size, const NetworkForm& form,
              const ByCategory& resident)
      : spec_(spec), form_(form), shapes_(shapes_of(spec, batch, size)), tracker_(resident), values_(count() + 1) {
    for (std::size_t v = 0; v <= count(); ++v) values_[v].bytes = float_bytes(shapes_.elements(v));
    values_.back().readers_left = 1;  // the loss
    for (const Layer& layer : spec_.layers) {
      ++values_[layer.from].readers_left;
      if (layer.also != Layer::kNone) ++values_[layer.also].readers_left;
    }
  }

  PeakBytes training() {
    const auto has_weights = [](const Layer& l) {
      return l.has_norm() || l.kind == LayerKind::linear || l.kind == LayerKind::squeeze_excite;
    };
    values_[0].kept = true;
    for (std::size_t i = 0; i < count(); ++i) {
      const Layer& layer = spec_.layers[i];
      Value& out = values_[i + 1];
      out.again = form_.recompute_norms && layer.has_norm() && layer.also == Layer::kNone;
      const bool sum = layer.also != Layer::kNone && layer.activation != Activation::none;
      if (sum || (layer.kind == LayerKind::linear && layer.activation == Activation::relu)) out.kept = true;
    }
    for (const Layer& layer : spec_.layers)
      if (has_weights(layer) && !values_[layer.from].again) values_[layer.from].kept = true;
    const std::uint64_t labels = float_bytes(shapes_.labels());
    tracker_.add(Category::data, labels);
    appear(0);
    for (std::size_t i = 0; i < count(); ++i) train_forward(i);
    workspace(labels);             // the row losses
    values_.back().there = false;  // the logits are their gradient now
    values_.back().has_gradient = true;
    for (std::size_t i = count(); i-- > 0;) train_backward(i);
    return tracker_.peak();
  }

  PeakBytes inference() {
    appear(0);
    for (std::size_t i = 0; i < count(); ++i) {
      const Layer& layer = spec_.layers[i];
      if (layer.kind == LayerKind::squeeze_excite) {
        const std::uint64_t wide = small(layer.out), narrow = small(layer.squeeze);
        add(wide), add(narrow), drop(wide), add(wide), drop(narrow);
        if (last_read_of(layer.from))
          take_over(i, layer.from);
        else
          appear(i + 1);
        drop(wide);
      } else {
        appear(i + 1);
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
  // So many channels for each image.
  std::uint64_t small(std::uint64_t channels) const { return float_bytes(checked_product(shapes_.batch, channels)); }

  void appear(std::size_t v) {
    add(values_[v].bytes);
    values_[v].there = true;
  }
  void vanish(std::size_t v) {
    if (!values_[v].there) return;
    drop(values_[v].bytes);
    values_[v].there = false;
  }
  bool last_read_of(std::size_t v) const { return values_[v].readers_left == 1 && !values_[v].kept; }
  void read(std::size_t v) {
    if (v != Layer::kNone && --values_[v].readers_left == 0 && !values_[v].kept) vanish(v);
  }
  // The layer writes where what it reads was.
  void take_over(std::size_t i, std::size_t v) { values_[v].there = false, values_[i + 1].there = true; }

  void train_forward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    if (layer.has_norm()) {
      add(values_[i + 1].bytes);  // z
      columns(i);
      read(layer.from);
      add(statistic(i)), add(statistic(i));
      const bool over = layer.also != Layer::kNone && last_read_of(layer.also);
      if (over)
        take_over(i, layer.also);
      else
        appear(i + 1);
      if (!form_.activation_in_place && layer.activation != Activation::none) {
        add(values_[i + 1].bytes);
        drop(values_[i + 1].bytes);
      }
      read(layer.also);
      return;
    }
    if (layer.kind == LayerKind::squeeze_excite) {
      add(small(layer.out)), add(small(layer.squeeze)), add(small(layer.out));
      if (last_read_of(layer.from))
        take_over(i, layer.from);
      else
        appear(i + 1);
    } else {
      if (keeps_z(layer)) add(values_[i + 1].bytes);
      if (layer.kind == LayerKind::max_pool) add(round_to_granule(shapes_.elements(i + 1)));
      appear(i + 1);
    }
    read(layer.from);
    read(layer.also);
  }

  void train_backward(std::size_t i) {
    const Layer& layer = spec_.layers[i];
    const std::uint64_t dy = values_[i + 1].bytes;
    values_[i + 1].has_gradient = false;
    if (layer.has_norm()) {
      vanish(i + 1);
      drop(statistic(i)), drop(statistic(i));
      if (layer.also != Layer::kNone)
        give_gradient(layer.also, dy);
      else
        drop(dy);
      make_again(layer.from);
      columns(i);
      if (layer.from != 0) {
        add(values_[layer.from].bytes);
        columns(i);
      }
      drop(values_[i + 1].bytes);  // z
      if (layer.from != 0) give_gradient(layer.from, values_[layer.from].bytes);
    } else if (layer.kind == LayerKind::linear) {
      make_again(layer.from);
      if (layer.from != 0) {
        add(values_[layer.from].bytes);
        give_gradient(layer.from, values_[layer.from].bytes);
      }
      drop(dy);
      vanish(i + 1);
      if (keeps_z(layer)) drop(values_[i + 1].bytes);
    } else if (layer.kind == LayerKind::squeeze_excite) {
      add(small(layer.out));
      make_again(layer.from);
      add(small(layer.squeeze));
      drop(small(layer.out)), drop(small(layer.squeeze));
      give_gradient(layer.from, dy);
      vanish(i + 1);
      drop(small(layer.out)), drop(small(layer.squeeze)), drop(small(layer.out));
    } else {
      add(values_[layer.from].bytes);
      if (layer.also != Layer::kNone) add(values_[layer.also].bytes);
      drop(dy);
      give_gradient(layer.from, values_[layer.from].bytes);
      if (layer.also != Layer::kNone) give_gradient(layer.also, values_[layer.also].bytes);
      vanish(i + 1);
      if (layer.kind == LayerKind::max_pool) drop(round_to_granule(shapes_.elements(i + 1)));
    }
    if (i == 0) vanish(0);
  }

  static bool keeps_z(const Layer& layer) {
    return layer.kind == LayerKind::linear && layer.activation == Activation::hard_swish;
  }
  std::uint64_t statistic(std::size_t i) const { return float_bytes(spec_.layers[i].out); }
  // A gradient of a value, which is there: the first stays, others are added to it.
  void give_gradient(std::size_t v, std::uint64_t bytes) {
    if (values_[v].has_gradient) drop(bytes);
    values_[v].has_gradient = true;
  }
  void make_again(std::size_t v) {
    if (!values_[v].there) appear(v);
  }

  const NetworkSpec& spec_;
  const NetworkForm& form_;
  NetworkShapes shapes_;
  PeakTracker tracker_;
  std::vector<Value> values_;
};

}  // namespace

ByCategory resident_for_inference(const NetworkSpec& spec) { return tensor_bytes_of(spec).for_inference(); }

ByCategory resident_for_training(const NetworkSpec& spec, OptimizerKind optimizer) {
  return tensor_bytes_of(spec).for_training(optimizer);
}

PeakBytes predict_training(const NetworkSpec& spec, std::uint64_t batch, InputSize size, OptimizerKind optimizer,
                           const NetworkForm& form) {
  return NetworkWalk(spec, batch, size, form, resident_for_training(spec, optimizer)).training();
}

PeakBytes predict_inference(const NetworkSpec& spec, std::uint64_t batch, InputSize size, const NetworkForm& form) {
  return NetworkWalk(spec, batch, size, form, resident_for_inference(spec)).inference();
}

namespace {

// f(layer, its multiplications in a forward pass) for every layer.
template <class F>
void for_each_product(const NetworkSpec& spec, const NetworkShapes& shapes, F f) {
  const auto figure = [](std::uint64_t n) { return static_cast<double>(n); };
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const Layer& layer = spec.layers[i];
    if (layer.has_norm()) f(layer, convolution_flops(shapes.windows[i]) / 2);
    if (layer.kind == LayerKind::linear)
      f(layer, figure(shapes.rows(i + 1)) * figure(shapes.channels[layer.from]) * figure(layer.out));
    if (layer.kind == LayerKind::squeeze_excite)
      f(layer, 2 * figure(shapes.batch) * figure(layer.squeeze) * figure(layer.out));
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
