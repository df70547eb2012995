#include "plan/pytorch/hf_modules.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>

namespace oomlab::fit {

using nn::HfActivation, nn::HfFamily, nn::HfTensor;

namespace {

std::string key_of(const std::string& name, std::uint64_t layer) {
  return layer ? std::to_string(layer) + "." + name : name;
}

std::uint64_t split_of(const HfStep& step) {
  return step.ranks && step.ranks->parallel == HfParallel::tensor ? step.ranks->count : 1;
}

// What a rank has of a layer in tensor parallelism: heads, and values within the MLP.
nn::HfShape part_of(nn::HfShape shape, const HfStep& step) {
  const std::uint64_t split = split_of(step);
  shape.heads /= split;
  shape.kv_heads /= split;
  shape.mlp /= split;
  return shape;
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}

}  // namespace

HfModules::HfModules(TorchMemory& memory, const nn::HfShape& shape, const HfStep& step, HfUnits* units)
    : shape_(part_of(shape, step)),
      step_(step),
      units_(units),
      weights_(step.ranks && step.ranks->compute ? *step.ranks->compute : step.weights),
      split_(split_of(step)),
      tape_(memory),
      torch_(tape_, step.device, step.autocast),
      seq_(step.seq),
      rows_(checked_product(step.batch, shape.family == HfFamily::vit ? shape.positions : step.seq)) {
  make_parameters();
  if (units_) {
    units_->begin();
    tape_.after_accumulation([units](Parameter& parameter) { units->accumulated(parameter); });
  }
  if (shape.family == HfFamily::vit) {
    const std::uint64_t pixels = checked_product(checked_product(shape.positions - 1, shape.patch), shape.patch);
    tokens_ =
        tape_.make(checked_product(step.batch, checked_product(pixels, shape.channels)), DType::fp32, Category::data);
    labels_ = tape_.make(step.batch, DType::int64, Category::data);
    return;
  }
  tokens_ = tape_.make(rows_, DType::int64, Category::data);
  labels_ = tape_.make(rows_, DType::int64, Category::data);
}

void HfModules::make_parameters() {
  const bool four_bits = step_.lora && step_.lora->four_bits;
  const bool in_shards = step_.ranks && step_.ranks->parallel == HfParallel::fsdp2;
  for (HfTensor& tensor : nn::parameters_of(shape_)) {
    const bool head = tensor.name.starts_with("lm_head") || tensor.name.starts_with("decoder");
    if (head && split_ > 1) tensor.rows /= split_;
    const std::string key = key_of(tensor.name, tensor.layer);
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const std::uint64_t count = tensor.count();
    const bool convolution = module == "projection";
    if (tensor.linear) linears_[key_of(module, tensor.layer)] = {tensor.columns, tensor.rows};
    // transformers leaves a model's last module as it is (get_keys_to_not_convert()): of an image's classes, the classifier.
    const bool coded = four_bits && tensor.linear && !head && !convolution && module != "classifier";
    if (coded) {  // half a byte each, a byte for 64, 4 for 256 of these
      const std::uint64_t blocks = (count + 63) / 64;
      if (in_shards)
        add_codes((count + 1) / 2, tensor.layer);
      else
        other_.push_back(tape_.make((count + 1) / 2, DType::int8, Category::parameters));
      other_.push_back(tape_.make(blocks, DType::int8, Category::parameters));
      other_.push_back(tape_.make((blocks + 255) / 256 + 1, DType::fp32, Category::parameters));
    } else {
      // prepare_model_for_kbit_training() makes FP32 of what has no four bits. Shards have one type, without it.
      const DType dtype = four_bits && !in_shards ? DType::fp32 : step_.weights;
      const bool one_row = tensor.name == "cls_token" || tensor.name == "position_embeddings";
      const bool turned = shape_.family == HfFamily::gpt2 && tensor.linear;  // Conv1D's are [in, out]
      const std::uint64_t first = one_row ? 1 : tensor.rows == 1 ? count : turned ? tensor.columns : tensor.rows;
      Parameter& parameter = add_parameter(tensor.rows, tensor.columns, dtype, !step_.lora, tensor.layer, first);
      parameter.divided = split_ > 1 && (tensor.linear || tensor.name.ends_with("_proj.bias"));
      by_name_[key] = &parameter;
      if (!step_.lora) {
        if (ends_with_any(tensor.name, {"embed_tokens.weight", "wte.weight", "wpe.weight", "embeddings.weight"}))
          trained_.embeddings = checked_sum(trained_.embeddings, count);
      }
    }
    if (step_.lora && tensor.linear && !head && !convolution)
      adapt(linears_[key_of(module, tensor.layer)], module, tensor.layer);
  }
}

// `first`: the first dimension in PyTorch.
Parameter& HfModules::add_parameter(std::uint64_t rows, std::uint64_t columns, DType dtype, bool trained,
                                    std::uint64_t layer, std::uint64_t first) {
  const std::uint64_t count = checked_product(rows, columns);
  if (trained) note_trained(rows, columns);
  // FSDP2's policy and DeepSpeed make one type of all; else adapters keep theirs.
  const bool one_type = step_.ranks && (step_.ranks->compute || step_.ranks->parallel >= HfParallel::zero1);
  const DType computed = one_type ? weights_ : dtype;
  parameters_.push_back({Tensor{nullptr, count, computed}, trained});
  Parameter& parameter = parameters_.back();
  if (!units_ || !units_->adopt(parameter, layer, first, dtype))
    parameter.value = tape_.make(count, computed, Category::parameters);
  return parameter;
}

// Of four bits, two a byte, which FSDP divides as it does weights (bnb_4bit_quant_storage). The scales stay whole.
void HfModules::add_codes(std::uint64_t bytes, std::uint64_t layer) {
  parameters_.push_back({Tensor{nullptr, bytes, DType::int8}, false});
  Parameter& parameter = parameters_.back();
  if (!units_ || !units_->adopt(parameter, layer, bytes, DType::int8))
    parameter.value = tape_.make(bytes, DType::int8, Category::parameters);
}

void HfModules::note_trained(std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t count = checked_product(rows, columns);
  trained_.count = checked_sum(trained_.count, count);
  trained_.rows_and_columns = checked_sum(trained_.rows_and_columns, rows == 1 ? count : checked_sum(rows, columns));
  trained_.largest = std::max(trained_.largest, count);
}

// Which matrices peft adapts: all but the head, or its default of the family.
void HfModules::adapt(HfLinear& linear, const std::string& name, std::uint64_t layer) {
  const bool chosen =
      step_.lora->all_linear || ends_with_any(name, {"q_proj", "v_proj", "qkv_proj", "c_attn", "query", "value"});
  if (!chosen) return;
  const std::uint64_t rank = step_.lora->rank;
  linear.a = &add_parameter(rank, linear.in, DType::fp32, true, layer, rank);
  linear.b = &add_parameter(linear.out, rank, DType::fp32, true, layer, linear.out);
}

Parameter& HfModules::weight(const std::string& name, std::uint64_t layer) { return *by_name_.at(key_of(name, layer)); }

HfLinear HfModules::linear(const std::string& name, std::uint64_t layer) {
  const std::string key = key_of(name, layer);
  HfLinear linear = linears_.at(key);
  const auto weight = by_name_.find(key + ".weight");
  if (weight != by_name_.end()) linear.weight = weight->second;
  const auto bias = by_name_.find(key + ".bias");
  if (bias != by_name_.end()) linear.bias = bias->second;
  if (split_ > 1)
    linear.part = ends_with_any(name, {"o_proj", "down_proj"}) ? HfLinear::Part::rows : HfLinear::Part::columns;
  return linear;
}

// peft's lora.Linear.forward() around torch's. Several ranks: torch/distributed/tensor/parallel/style.py. By columns a
// rank has some of the outputs, and gradients of the input are summed over ranks; by rows some of the inputs, and outputs
// are summed.
Tensor HfModules::project(const Tensor& input, const HfLinear& linear) {
  const Tensor x = linear.part == HfLinear::Part::columns ? torch_.summed_back(input) : input;
  const DType compute = step_.autocast.value_or(weights_);
  Tensor result = linear.weight ? torch_.linear(x, *linear.weight, linear.bias, linear.in, linear.out)
                                : torch_.linear_4bit(x, linear.in, linear.out, compute, linear.bias);
  if (linear.part == HfLinear::Part::rows) result = torch_.summed(result);
  if (!linear.a) return result;
  const DType dtype = result.dtype;
  const Tensor cast = torch_.cast(x, linear.a->value.dtype);
  Tensor dropped = torch_.dropout(cast, step_.lora->dropout);
  Tensor low = torch_.linear(dropped, *linear.a, nullptr, linear.in, step_.lora->rank);
  dropped = {};
  Tensor high = torch_.linear(low, *linear.b, nullptr, step_.lora->rank, linear.out);
  low = {};
  const Tensor scaled = torch_.scale(high);
  high = {};
  result = torch_.add(result, scaled);
  return torch_.cast(result, dtype);
}

Tensor HfModules::rms_norm(const Tensor& x, Parameter& weight, std::uint64_t rows) {
  Tensor hidden = torch_.cast(x, DType::fp32);
  Tensor variance;
  {
    const Tensor squares = torch_.power(hidden);
    variance = torch_.mean(squares, rows);
  }
  {
    const Tensor shifted = torch_.shift(variance);
    const Tensor inverse = torch_.rsqrt(shifted);
    hidden = torch_.mul(hidden, inverse);
  }
  const Tensor narrow = torch_.cast(hidden, x.dtype);
  return torch_.mul(tape_.leaf(weight), narrow);
}

Tensor HfModules::gemma_norm(const Tensor& x, Parameter& weight, std::uint64_t rows) {
  Tensor output;
  {
    const Tensor wide = torch_.cast(x, DType::fp32);
    Tensor squares = torch_.power(wide);
    const Tensor variance = torch_.mean(squares, rows);
    squares = {};
    const Tensor shifted = torch_.shift(variance);
    const Tensor inverse = torch_.rsqrt(shifted);
    output = torch_.mul(wide, inverse);
  }
  {
    const Tensor wide = torch_.cast(tape_.leaf(weight), DType::fp32);
    const Tensor plus_one = torch_.shift(wide);
    output = torch_.mul(output, plus_one);
  }
  return torch_.cast(output, x.dtype);
}

Tensor HfModules::norm(const Tensor& x, Parameter& weight, std::uint64_t rows) {
  return shape_.gemma() ? gemma_norm(x, weight, rows) : rms_norm(x, weight, rows);
}

Tensor HfModules::layer_norm(const Tensor& x, const std::string& name, std::uint64_t layer) {
  return torch_.layer_norm(x, weight(name + ".weight", layer), weight(name + ".bias", layer), x.count / shape_.width);
}

// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), as it is written.
Tensor HfModules::gelu_new(const Tensor& x) {
  const Tensor half = torch_.scale(x);
  Tensor inner =
      step_.autocast && step_.device == TorchDevice::cuda ? torch_.power(torch_.cast(x, DType::fp32)) : torch_.power(x);
  inner = torch_.scale(inner);
  inner = torch_.add(x, inner);
  inner = torch_.scale(inner);
  inner = torch_.tanh(inner);
  inner = torch_.shift(inner);
  return torch_.mul(half, inner);
}

Tensor HfModules::activate(const Tensor& x) {
  switch (shape_.activation) {
    case HfActivation::silu: return torch_.silu(x);
    case HfActivation::gelu: return torch_.gelu(x);
    case HfActivation::gelu_new: return gelu_new(x);
  }
  throw std::invalid_argument("an activation that is not known");
}

Tensor HfModules::capped(Tensor x) {
  x = torch_.scale(x);
  x = torch_.tanh(x);
  return torch_.scale(x);
}

bool HfModules::slides(std::uint64_t layer) const {
  return shape_.window != 0 && (shape_.full_every == 0 || layer % shape_.full_every != 0);
}

bool HfModules::sees_all(std::uint64_t layer) const {
  if (!slides(layer)) return true;
  return past_ == 0 ? seq_ <= shape_.window : checked_sum(past_, seq_) < shape_.window;
}

// What FSDP2's hooks do around a layer. Within a checkpoint they are part of what is computed again.
Tensor HfModules::entered(std::uint64_t number, Tensor hidden) {
  units_->before_forward(number);
  if (tape_.recomputing() || !hidden.differentiable()) return hidden;
  const Tensor same = hidden.detached();
  return tape_.record(same, {&hidden}, {}, [this, number](BackwardCall& call) {
    units_->after_backward(number);
    call.results[0] = call.gradients[0];
  });
}

void HfModules::left(std::uint64_t number, const Tensor& out) {
  if (tape_.recomputing()) return;
  units_->after_forward(number);
  if (out.differentiable()) tape_.before(out, [this, number] { units_->before_backward(number); });
}

Tensor HfModules::layer(std::uint64_t number, Tensor hidden) {
  if (!units_) return layer_itself(number, std::move(hidden));
  Tensor out = layer_itself(number, entered(number, std::move(hidden)));
  left(number, out);
  return out;
}

Tensor HfModules::layer_itself(std::uint64_t number, Tensor hidden) {
  switch (shape_.family) {
    case HfFamily::gpt2: return gpt2_layer(number, std::move(hidden));
    case HfFamily::bert: return bert_layer(number, std::move(hidden));
    case HfFamily::vit: return vit_layer(number, std::move(hidden));
    default: return decoder_layer(number, std::move(hidden));
  }
}

// enable_input_require_grads(): peft does so beside checkpoints, and then embeddings that nobody trains have a gradient.
Tensor HfModules::with_gradient(Tensor embedded) {
  if (!step_.lora || !step_.checkpoint) return embedded;
  embedded_.value = std::move(embedded);
  return tape_.leaf(embedded_);
}

Tensor HfModules::each_layer(Tensor hidden) {
  for (std::uint64_t i = 1; i <= shape_.layers; ++i) {
    if (step_.checkpoint) {
      // What all layers read is a region's, too: it is there for as long as a region may run again.
      const std::array<Tensor, 3> shared{cos_, sin_, mask_};
      hidden = tape_.checkpoint(
          hidden,
          [this, i, shared](Tensor x) {
            std::tie(cos_, sin_, mask_) = std::tie(shared[0], shared[1], shared[2]);
            return layer(i, std::move(x));
          },
          [this](const std::function<void()>& run) {
            run_then(run, [this] {
              cos_ = sin_ = mask_ = {};
              torch_.end_autocast();
            });
          });
    } else {
      Tensor next = layer(i, hidden);
      hidden = std::move(next);
    }
  }
  return hidden;
}

Tensor HfModules::loss() {
  Tensor loss;
  tape_.memory().moment("forward pass");
  if (units_) units_->before_forward(0);
  switch (shape_.family) {
    case HfFamily::gpt2: loss = gpt2_loss(); break;
    case HfFamily::bert: loss = bert_loss(); break;
    case HfFamily::vit: loss = vit_loss(); break;
    default: loss = decoder_loss(); break;
  }
  cos_ = sin_ = mask_ = {};
  if (units_) left(0, loss);
  torch_.end_autocast();
  return loss;
}

}  // namespace oomlab::fit
