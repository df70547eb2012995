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

// The buffers of a convolution, its norm and its ReLU, in bytes. "saved" is from the forward to the backward pass.
struct UnitBuffers {
  std::uint64_t convolution_output;   // [B, height, width, out]   saved; its gradient takes its place
  std::uint64_t norm_statistics;      // 2 [out]                   saved; mean and 1/sigma
  std::uint64_t activation;           // [B, height, width, out]   saved; unless recomputed, see ResNetForm
  std::uint64_t activation_gradient;  // [B, height, width, out]   backward
  std::uint64_t input_gradient;       // [B, height, width, in]    backward

  explicit UnitBuffers(const ConvolutionShape& shape)
      : convolution_output(float_bytes(shape.output_elements())),
        norm_statistics(checked_product(2, float_bytes(shape.out_channels))),
        activation(convolution_output),
        activation_gradient(convolution_output),
        input_gradient(float_bytes(shape.input_elements())) {}
};

// The buffers around the blocks, in bytes.
struct ResNetBuffers {
  std::uint64_t images;           // [B, height, width, channels]   always
  std::uint64_t labels;           // [B] int32                      training: always
  std::uint64_t pool_output = 0;  // [B, height, width, out]        pooled: saved; its gradient: backward
  std::uint64_t pool_maxima = 0;  // the same, in bytes             pooled: saved; which one was the maximum
  std::uint64_t features;         // [B, features]                  until the head's backward pass
  std::uint64_t logits;           // [B, classes]                   until the head's backward pass
  std::uint64_t row_losses;       // [B]                            the loss

  ResNetBuffers(const ResNetSpec& spec, const ResNetShapes& shapes, std::uint64_t batch)
      : images(float_bytes(shapes.units[0].input_elements())),
        labels(label_bytes(batch)),
        features(float_bytes(checked_product(batch, spec.features()))),
        logits(float_bytes(checked_product(batch, spec.classes))),
        row_losses(float_bytes(batch)) {
    if (!spec.pooled) return;
    pool_output = float_bytes(shapes.pool.output_elements());
    pool_maxima = round_to_granule(shapes.pool.output_elements());
  }
};

class ResNetSimulation {
 public:
  ResNetSimulation(const ResNetSpec& spec, std::uint64_t batch, InputSize size, const ResNetForm& form,
                   const ByCategory& resident)
      : spec_(spec),
        form_(form),
        shapes_(shapes_of(spec, batch, size)),
        around_(spec, shapes_, batch),
        tracker_(resident) {
    for (const ConvolutionShape& shape : shapes_.units) units_.emplace_back(shape);
    std::size_t next = 1;
    for (const ResidualBlock& block : spec.blocks) {
      blocks_.push_back({next, next + block.branch.size() - 1, !block.projection.empty()});
      next = blocks_.back().last + 1 + block.projection.size();
    }
  }

  PeakBytes training() {
    tracker_.add(Category::data, around_.labels);
    add(around_.images);
    forward();
    add(around_.features);
    add(around_.logits);
    workspace(around_.row_losses);
    drop(around_.logits);
    add(units_[blocks_.back().last].activation_gradient);
    drop(around_.features);
    backward();
    return tracker_.peak();
  }

  // Norms and activations work where the convolution has written.
  PeakBytes inference() {
    add(around_.images);
    convolution_forward(0);
    drop(around_.images);
    std::uint64_t block_input = units_[0].convolution_output;
    if (spec_.pooled) {
      add(around_.pool_output);
      drop(block_input);
      block_input = around_.pool_output;
    }
    for (const Block& block : blocks_) {
      std::uint64_t unit_input = 0;
      for (std::size_t i = block.first; i < block.last; ++i) {
        convolution_forward(i);
        drop(unit_input);
        unit_input = units_[i].convolution_output;
      }
      if (block.projected) {
        convolution_forward(block.projection());
        drop(block_input);
        block_input = units_[block.projection()].convolution_output;
      }
      convolution_forward(block.last);
      drop(block_input);
      drop(unit_input);
      block_input = units_[block.last].convolution_output;
    }
    add(around_.features);
    drop(block_input);
    add(around_.logits);
    return tracker_.peak();
  }

 private:
  // The units of a branch; the projection's comes behind them.
  struct Block {
    std::size_t first;
    std::size_t last;
    bool projected;
    std::size_t projection() const { return last + 1; }
  };

  void add(std::uint64_t bytes) { tracker_.add(Category::activations, bytes); }
  void drop(std::uint64_t bytes) { tracker_.drop(Category::activations, bytes); }
  void workspace(std::uint64_t bytes) {
    tracker_.add(Category::workspace, bytes);
    tracker_.drop(Category::workspace, bytes);
  }
  void columns(std::size_t unit) {
    workspace(convolution_workspace(shapes_.units[unit], form_.way, sizeof(float)).columns);
  }

  // ---- forward

  void convolution_forward(std::size_t unit) {
    add(units_[unit].convolution_output);
    columns(unit);
  }
  void unit_forward(std::size_t unit) {
    convolution_forward(unit);
    add(units_[unit].norm_statistics);
    add(units_[unit].activation);
  }
  // A unit of a branch, without its activation.
  void branch_unit_forward(const Block& block, std::size_t unit) {
    convolution_forward(unit);
    if (form_.recompute_norms && unit > block.first) drop(units_[unit - 1].activation);
    add(units_[unit].norm_statistics);
  }
  void block_forward(const Block& block) {
    for (std::size_t unit = block.first; unit < block.last; ++unit) {
      branch_unit_forward(block, unit);
      add(units_[unit].activation);
    }
    if (block.projected) unit_forward(block.projection());
    branch_unit_forward(block, block.last);
    if (!block.projected) add(units_[block.last].activation);  // otherwise in the place of the projection's
  }
  void forward() {
    unit_forward(0);
    add(around_.pool_maxima);
    add(around_.pool_output);
    for (const Block& block : blocks_) block_forward(block);
  }

  // ---- backward

  void norm_backward(std::size_t unit) { drop(units_[unit].norm_statistics); }
  // From the gradient of the convolution's output to those of weight and input.
  void input_backward(std::size_t unit) {
    columns(unit);  // for the weight's gradient
    add(units_[unit].input_gradient);
    columns(unit);
    drop(units_[unit].convolution_output);
  }
  // The gradient of the block's output is there, and becomes that of its input.
  void block_backward(const Block& block) {
    const UnitBuffers& last = units_[block.last];
    drop(last.activation);
    norm_backward(block.last);
    if (block.projected) {
      norm_backward(block.projection());
      drop(last.activation_gradient);
    }
    for (std::size_t unit = block.last; unit > block.first; --unit) {
      const UnitBuffers& below = units_[unit - 1];
      if (form_.recompute_norms) add(below.activation);
      input_backward(unit);
      drop(below.activation);
      norm_backward(unit - 1);
      drop(units_[unit].input_gradient);
    }
    input_backward(block.first);
    if (block.projected) {
      input_backward(block.projection());
      drop(units_[block.projection()].input_gradient);  // is added to the branch's
    } else {
      drop(last.activation_gradient);  // is added to the branch's
    }
  }
  // The gradient of the last block's output is there.
  void backward() {
    for (std::size_t block = blocks_.size(); block-- > 0;) block_backward(blocks_[block]);
    const UnitBuffers& stem = units_[0];
    if (spec_.pooled) {
      drop(around_.pool_output);
      add(stem.activation_gradient);
      drop(around_.pool_output);  // its gradient
      drop(around_.pool_maxima);
    }
    drop(stem.activation);
    norm_backward(0);
    drop(stem.activation_gradient);
    columns(0);
    drop(stem.convolution_output);
  }

  const ResNetSpec& spec_;
  const ResNetForm& form_;
  ResNetShapes shapes_;
  ResNetBuffers around_;
  std::vector<UnitBuffers> units_;  // in the order of ResNetSpec::units()
  std::vector<Block> blocks_;
  PeakTracker tracker_;
};

}  // namespace

ByCategory resident_for_inference(const ResNetSpec& spec) { return tensor_bytes_of(spec).for_inference(); }

ByCategory resident_for_training(const ResNetSpec& spec, OptimizerKind optimizer) {
  return tensor_bytes_of(spec).for_training(optimizer);
}

PeakBytes predict_training(const ResNetSpec& spec, std::uint64_t batch, InputSize size, OptimizerKind optimizer,
                           const ResNetForm& form) {
  return ResNetSimulation(spec, batch, size, form, resident_for_training(spec, optimizer)).training();
}

PeakBytes predict_inference(const ResNetSpec& spec, std::uint64_t batch, InputSize size, const ResNetForm& form) {
  return ResNetSimulation(spec, batch, size, form, resident_for_inference(spec)).inference();
}

double step_flops(const ResNetSpec& spec, std::uint64_t batch, InputSize size) {
  const ResNetShapes shapes = shapes_of(spec, batch, size);
  double flops = 0;
  for (std::size_t i = 0; i < shapes.units.size(); ++i) {
    const double passes = i == 0 ? 2 : 3;
    flops += passes * convolution_flops(shapes.units[i]);
  }
  const auto real = [](std::uint64_t count) { return static_cast<double>(count); };
  return flops + 6 * real(batch) * real(spec.features()) * real(spec.classes);
}

}  // namespace oomlab::nn
