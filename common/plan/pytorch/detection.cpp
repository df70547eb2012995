#include "plan/pytorch/detection.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <stdexcept>
#include <utility>

namespace oomlab::fit {

namespace {

// [batch, channels, height, width].
struct Map {
  Tensor values{};
  std::uint64_t channels = 0;
  nn::InputSize size{};
};

class Backbone {
 public:
  Backbone(TorchMemory& memory, const nn::FpnBackbone& spec, const FpnStep& step)
      : spec_(spec), tape_(memory), batch_(step.batch), stages_(spec.stages()) {
    const std::size_t frozen = stages_.size() - std::min<std::size_t>(stages_.size(), spec.trained_stages);
    stem_ = unit(spec.body.stem, false);
    std::size_t block = 0;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      for (std::uint64_t i = 0; i < stages_[stage]; ++i, ++block) {
        const nn::ResidualBlock& shape = spec.body.blocks[block];
        const bool trained = step.training && stage >= frozen;
        Block made;
        for (const nn::ConvolutionUnit& one : shape.branch) made.branch.push_back(unit(one, trained));
        for (const nn::ConvolutionUnit& one : shape.projection) made.projection.push_back(unit(one, trained));
        blocks_.push_back(std::move(made));
      }
    std::size_t last = 0;
    for (const std::uint64_t blocks : stages_) {
      last += blocks;
      const std::uint64_t channels = spec.body.blocks[last - 1].branch.back().out;
      inner_.push_back(with_bias({"inner", channels, spec.width, 1, 1, 0}, step.training));
      outer_.push_back(with_bias({"layer", spec.width, spec.width, 3, 1, 1}, step.training));
    }
    const nn::InputSize size = spec.padded(step.size);
    images_ = made(spec.body.in_channels(), size, Category::data);
  }

  // The maps of the pyramid.
  std::vector<Map> forward() {
    const std::vector<Map> stages = body();
    return pyramid(stages);
  }

  Tensor loss(const std::vector<Map>& maps) {
    Tensor sum;
    for (const Map& map : maps) {
      const Tensor mean = tape_.record(
          tape_.make(1, DType::fp32), {&map.values}, {},
          [count = map.values.count](BackwardCall& call) { call.results[0] = call.tape.make(count, DType::fp32); });
      sum = sum ? added(sum, mean) : mean;
    }
    return sum;
  }

  Tape& tape() { return tape_; }
  std::deque<Parameter>& parameters() { return parameters_; }

 private:
  struct Unit {
    nn::ConvolutionUnit shape;
    Parameter* weight = nullptr;
    Parameter* bias = nullptr;
    std::vector<Tensor> buffers;  // of a frozen norm: weight, bias, mean, variance
  };
  struct Block {
    std::vector<Unit> branch, projection;
  };

  Parameter& parameter(std::uint64_t count, bool trained) {
    parameters_.push_back({.value = tape_.make(count, DType::fp32, Category::parameters), .trained = trained});
    return parameters_.back();
  }
  Unit convolution(const nn::ConvolutionUnit& shape, bool trained) {
    const std::uint64_t window = checked_product(shape.kernel, shape.kernel);
    return {shape, &parameter(checked_product(window, checked_product(shape.in, shape.out)), trained), nullptr, {}};
  }
  Unit unit(const nn::ConvolutionUnit& shape, bool trained) {
    Unit made = convolution(shape, trained);
    for (int i = 0; i < 4; ++i) made.buffers.push_back(tape_.make(shape.out, DType::fp32, Category::parameters));
    return made;
  }
  Unit with_bias(const nn::ConvolutionUnit& shape, bool trained) {
    Unit made = convolution(shape, trained);
    made.bias = &parameter(shape.out, trained);
    return made;
  }

  // -------------------------------------------------------------------------------------------------------- operators

  Map made(std::uint64_t channels, nn::InputSize size, Category category = Category::activations) {
    const std::uint64_t pixels = checked_product(batch_, checked_product(size.height, size.width));
    return {tape_.make(checked_product(pixels, channels), DType::fp32, category), channels, size};
  }

  Map convolve(const Map& x, const Unit& unit) {
    const nn::ConvolutionUnit& u = unit.shape;
    const nn::ConvolutionShape shape =
        nn::convolution_shape(batch_, x.size.height, x.size.width, u.in, u.out, u.kernel, u.stride, u.padding);
    const Tensor b = unit.bias ? tape_.leaf(*unit.bias) : Tensor{};
    const Tensor w = tape_.leaf(*unit.weight);
    Map y = made(u.out, {shape.out_height, shape.out_width});
    y.values = tape_.record(y.values, {&x.values, &w, &b}, {w.differentiable() ? x.values : Tensor{}, w},
                            [counts = std::array{x.values.count, w.count, b.count}](BackwardCall& call) {
                              for (std::size_t i = 0; i < 3; ++i)
                                if (call.wanted[i]) call.results[i] = call.tape.make(counts[i], DType::fp32);
                            });
    return y;
  }

  // scale = w · (variance + eps).rsqrt(); bias = b − mean · scale; x · scale + bias.
  Map frozen_norm(const Map& x) {
    const auto vector = [&] { return tape_.make(x.channels, DType::fp32); };
    Tensor scale, bias;
    {
      const Tensor shifted = vector(), root = vector();
      scale = vector();
    }
    {
      const Tensor product = vector();
      bias = vector();
    }
    Map y = made(x.channels, x.size);
    const Tensor scaled = tape_.record(y.values, {&x.values}, {scale}, fresh_gradient);
    y = made(x.channels, x.size);
    y.values = tape_.record(y.values, {&scaled}, {}, same_gradient);
    return y;
  }

  Map relu_in_place(Map x) {
    const Tensor y = x.values.detached();
    x.values = tape_.record(y, {&x.values}, {y}, fresh_gradient);
    return x;
  }

  // a += b.
  Map add_in_place(Map a, const Map& b) {
    const Tensor y = a.values.detached();
    a.values = tape_.record(y, {&a.values, &b.values}, {}, same_gradient);
    return a;
  }
  Tensor added(const Tensor& a, const Tensor& b) {
    return tape_.record(tape_.make(a.count, DType::fp32), {&a, &b}, {}, same_gradient);
  }

  Map max_pool(const Map& x, std::uint64_t kernel, std::uint64_t padding) {
    const nn::ConvolutionShape shape = nn::convolution_shape(batch_, x.size.height, x.size.width, x.channels,
                                                             x.channels, kernel, 2, padding, x.channels);
    Map y = made(x.channels, {shape.out_height, shape.out_width});
    const Tensor places = tape_.make(y.values.count, DType::int64);
    y.values = tape_.record(y.values, {&x.values}, {x.values, places}, [](BackwardCall& call) {
      call.results[0] = call.tape.make(call.saved[0].count, DType::fp32);
    });
    return y;
  }

  Map nearest(const Map& x, nn::InputSize size) {
    Map y = made(x.channels, size);
    y.values = tape_.record(y.values, {&x.values}, {}, [count = x.values.count](BackwardCall& call) {
      call.results[0] = call.tape.make(count, DType::fp32);
    });
    return y;
  }

  // ---------------------------------------------------------------------------------------------------------- modules

  // Bottleneck. Its caller has a name for x until it returns.
  Map bottleneck(const Map& x, const Block& block) {
    Map out = x;
    for (const Unit& unit : block.branch) {
      out = convolve(out, unit);
      out = frozen_norm(out);
      if (&unit != &block.branch.back()) out = relu_in_place(std::move(out));
    }
    Map identity = x;
    for (const Unit& unit : block.projection) {
      identity = convolve(x, unit);
      identity = frozen_norm(identity);
    }
    out = add_in_place(std::move(out), identity);
    return relu_in_place(std::move(out));
  }

  // IntermediateLayerGetter: what each stage made. The input of a stage has a name until the stage is over.
  std::vector<Map> body() {
    Map x = convolve(images_, stem_);
    x = frozen_norm(x);
    x = relu_in_place(std::move(x));
    if (spec_.body.pooled) x = max_pool(x, 3, 1);
    std::vector<Map> stages;
    std::size_t block = 0;
    for (const std::uint64_t blocks : stages_) {
      Map input = x;
      for (std::uint64_t i = 0; i < blocks; ++i) input = bottleneck(input, blocks_[block++]);
      x = input;
      stages.push_back(x);
    }
    return stages;
  }

  // FeaturePyramidNetwork, with LastLevelMaxPool.
  std::vector<Map> pyramid(const std::vector<Map>& stages) {
    std::vector<Map> maps(stages.size());
    Map last = convolve(stages.back(), inner_.back());
    maps.back() = convolve(last, outer_.back());
    Map lateral, above;
    for (std::size_t i = stages.size() - 1; i-- > 0;) {
      lateral = convolve(stages[i], inner_[i]);
      above = nearest(last, lateral.size);
      last.values = added(lateral.values, above.values);
      last.size = lateral.size;
      maps[i] = convolve(last, outer_[i]);
    }
    maps.push_back(max_pool(maps.back(), 1, 0));
    return maps;
  }

  const nn::FpnBackbone& spec_;
  Tape tape_;
  std::uint64_t batch_;
  std::vector<std::uint64_t> stages_;
  std::deque<Parameter> parameters_;
  Unit stem_;
  std::vector<Block> blocks_;
  std::vector<Unit> inner_, outer_;
  Map images_;
};

using Storages = std::vector<std::unique_ptr<Storage>>;

// A tensor beside each that is trained, `times` times.
void add_like(Storages& to, Backbone& backbone, int times) {
  for (const Parameter& parameter : backbone.parameters())
    for (int i = 0; parameter.trained && i < times; ++i)
      to.push_back(std::make_unique<Storage>(backbone.tape().memory(),
                                             checked_product(parameter.value.count, element_bytes(DType::fp32)),
                                             Category::optimizer));
}

}  // namespace

FpnPeak fpn_peak(const nn::FpnBackbone& spec, const FpnStep& step, bool recorded) {
  const bool sgd = step.optimizer == HfOptimizer::sgd, foreach = step.optimizer == HfOptimizer::adamw_foreach;
  if (step.batch == 0 || step.size.height == 0 || step.size.width == 0)
    throw std::invalid_argument("a step has at least one image of one pixel");
  if (!sgd && !foreach && step.optimizer != HfOptimizer::adamw_fused)
    throw std::invalid_argument("of a detector's backbone AdamW and SGD with momentum are known");
  TorchMemory memory(step.device == TorchDevice::cuda ? kGranule : 1, recorded);
  FpnPeak peak{};
  {
    Backbone backbone(memory, spec, step);
    Storages state;
    const auto make_state = [&] {
      if (step.training && state.empty()) add_like(state, backbone, sgd ? 1 : 2);
    };
    // The first step makes the state when its backward pass is over: that decides where it lies, and nothing else.
    for (int number = recorded ? 0 : 1; number < 2; ++number) {
      if (number > 0) make_state();
      memory.forget_peak();
      memory.moment("forward pass");
      {
        const std::vector<Map> maps = backbone.forward();
        if (!step.training) continue;
        Tensor loss = backbone.loss(maps);
        memory.moment("backward pass");
        backbone.tape().backward(std::move(loss));
      }
      memory.moment("optimizer's step");
      make_state();
      Storages temporaries;  // lists: of square roots; of gradients with the decay
      if (sgd || foreach) add_like(temporaries, backbone, 1);
      for (Parameter& parameter : backbone.parameters()) parameter.gradient = {};
    }
    peak.bytes = memory.at_peak();
    peak.moment = memory.peak_moment();
  }
  peak.events = memory.take_events();
  return peak;
}

}  // namespace oomlab::fit
