#include "plan/resnet_step.h"

#include <algorithm>

#include "plan/mlp_step.h"
#include "plan/tensor_bytes.h"

namespace oomlab::nn {

namespace {

TensorBytes tensor_bytes_of(const ResNetSpec& spec) {
  TensorBytes bytes;
  for (const ConvolutionUnit& unit : spec.units()) {
    bytes.add_parameter(unit.weights());
    bytes.add_norm(unit.out);
  }
  bytes.add_parameter(checked_product(spec.classes, spec.features()));
  bytes.add_parameter(spec.classes);
  return bytes;
}

class ResNetWalk {
 public:
  ResNetWalk(const ResNetSpec& spec, std::uint64_t batch, InputSize size, const ResNetForm& form,
             const ByCategory& resident)
      : spec_(spec), form_(form), shapes_(shapes_of(spec, batch, size)), batch_(batch), tracker_(resident) {}

  PeakBytes training() {
    tracker_.add(Category::data, label_bytes(batch_));
    add(in(0));
    train_forward();
    const std::uint64_t features = float_bytes(checked_product(batch_, spec_.features())),
                        logits = float_bytes(checked_product(batch_, spec_.classes));
    add(features), add(logits);
    workspace(float_bytes(batch_));  // the row losses
    drop(logits);
    const std::size_t last = blocks().back().last;
    add(out(last));  // its gradient
    drop(features);
    train_backward();
    return tracker_.peak();
  }

  PeakBytes inference() {
    add(in(0));
    run(0);
    drop(in(0));
    std::uint64_t x = out(0);
    if (spec_.pooled) {
      const std::uint64_t pooled = float_bytes(shapes_.pool.output_elements());
      add(pooled), drop(x);
      x = pooled;
    }
    for (const Block& block : blocks()) {
      std::uint64_t at = 0;
      for (std::size_t i = block.first; i < block.last; ++i) {
        run(i);
        drop(at);
        at = out(i);
      }
      if (block.projected) {
        run(block.last + 1);
        drop(x);
        x = out(block.last + 1);
      }
      run(block.last);
      drop(x), drop(at);
      x = out(block.last);
    }
    add(float_bytes(checked_product(batch_, spec_.features())));
    drop(x);
    add(float_bytes(checked_product(batch_, spec_.classes)));
    return tracker_.peak();
  }

 private:
  struct Block {
    std::size_t first, last;  // units of the branch; the projection comes behind them
    bool projected;
  };
  std::vector<Block> blocks() const {
    std::vector<Block> all;
    std::size_t next = 1;
    for (const ResidualBlock& block : spec_.blocks) {
      all.push_back({next, next + block.branch.size() - 1, !block.projection.empty()});
      next = all.back().last + 1 + block.projection.size();
    }
    return all;
  }

  std::uint64_t in(std::size_t unit) const { return float_bytes(shapes_.units[unit].input_elements()); }
  std::uint64_t out(std::size_t unit) const { return float_bytes(shapes_.units[unit].output_elements()); }
  std::uint64_t statistic(std::size_t unit) const { return float_bytes(shapes_.units[unit].out_channels); }

  void add(std::uint64_t bytes) { tracker_.add(Category::activations, bytes); }
  void drop(std::uint64_t bytes) { tracker_.drop(Category::activations, bytes); }
  void workspace(std::uint64_t bytes) {
    tracker_.add(Category::workspace, bytes);
    tracker_.drop(Category::workspace, bytes);
  }
  void columns(std::size_t unit) {
    workspace(convolution_workspace(shapes_.units[unit], form_.way, sizeof(float)).columns);
  }

  // Inference: the norm works where the convolution has written.
  void run(std::size_t unit) {
    add(out(unit));
    columns(unit);
  }

  void unit_forward(std::size_t unit, std::uint64_t dead = 0, bool has_room = false) {
    add(out(unit));
    columns(unit);
    drop(dead);  // its input
    add(statistic(unit)), add(statistic(unit));
    if (!has_room) add(out(unit));
  }
  void norm_backward(std::size_t unit) { drop(statistic(unit)), drop(statistic(unit)); }
  void input_backward(std::size_t unit) {
    columns(unit);  // for the weight's gradient, too
    add(in(unit));
    columns(unit);
    drop(out(unit));
  }

  void train_forward() {
    unit_forward(0);
    if (spec_.pooled) {
      add(round_to_granule(shapes_.pool.output_elements()));  // which is the maximum: a byte each
      add(float_bytes(shapes_.pool.output_elements()));
    }
    for (const Block& block : blocks()) {
      const auto dead = [&](std::size_t i) { return form_.recompute_norms && i > block.first ? in(i) : 0; };
      for (std::size_t i = block.first; i < block.last; ++i) unit_forward(i, dead(i));
      if (block.projected) unit_forward(block.last + 1);
      unit_forward(block.last, dead(block.last), /*has_room=*/block.projected);
    }
  }

  // The gradient of the last block's output is there.
  void train_backward() {
    const std::vector<Block> all = blocks();
    for (std::size_t b = all.size(); b-- > 0;) {
      const Block& block = all[b];
      drop(out(block.last));  // the output
      norm_backward(block.last);
      if (block.projected) norm_backward(block.last + 1), drop(out(block.last));
      for (std::size_t i = block.last; i > block.first; --i) {
        if (form_.recompute_norms) add(out(i - 1));
        input_backward(i);
        drop(out(i - 1));
        norm_backward(i - 1);
        drop(in(i));
      }
      input_backward(block.first);
      if (block.projected) input_backward(block.last + 1);
      drop(block.projected ? in(block.first) : out(block.last));  // what is added
    }
    if (spec_.pooled) {
      const std::uint64_t pooled = float_bytes(shapes_.pool.output_elements());
      drop(pooled);  // the first block's input
      add(out(0));
      drop(pooled);  // its gradient
      drop(round_to_granule(shapes_.pool.output_elements()));
    }
    drop(out(0));
    norm_backward(0);
    drop(out(0));
    columns(0);
    drop(out(0));
  }

  const ResNetSpec& spec_;
  const ResNetForm& form_;
  ResNetShapes shapes_;
  std::uint64_t batch_;
  PeakTracker tracker_;
};

}  // namespace

ByCategory resident_for_inference(const ResNetSpec& spec) { return tensor_bytes_of(spec).for_inference(); }

ByCategory resident_for_training(const ResNetSpec& spec, OptimizerKind optimizer) {
  return tensor_bytes_of(spec).for_training(optimizer);
}

PeakBytes predict_training(const ResNetSpec& spec, std::uint64_t batch, InputSize size, OptimizerKind optimizer,
                           const ResNetForm& form) {
  return ResNetWalk(spec, batch, size, form, resident_for_training(spec, optimizer)).training();
}

PeakBytes predict_inference(const ResNetSpec& spec, std::uint64_t batch, InputSize size, const ResNetForm& form) {
  return ResNetWalk(spec, batch, size, form, resident_for_inference(spec)).inference();
}

double step_flops(const ResNetSpec& spec, std::uint64_t batch, InputSize size) {
  double flops = 0;
  const ResNetShapes shapes = shapes_of(spec, batch, size);
  for (std::size_t i = 0; i < shapes.units.size(); ++i) flops += (i == 0 ? 2 : 3) * convolution_flops(shapes.units[i]);
  const auto figure = [](std::uint64_t n) { return static_cast<double>(n); };
  return flops + 6 * figure(batch) * figure(spec.features()) * figure(spec.classes);
}

}  // namespace oomlab::nn
