#include "plan/pytorch/torch_ops.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace oomlab::fit {

namespace {

// What two operands are computed in.
DType promoted(DType a, DType b) {
  if (a == b) return a;
  return a == DType::fp32 || b == DType::fp32 ? DType::fp32 : b;
}

// What a CPU makes of an operand in another type than the result, for as long as the operator runs; a GPU's kernels cast
// as they read.
Tensor widened(Tape& tape, TorchDevice device, const Tensor& a, const Tensor& b) {
  if (device == TorchDevice::cuda || a.dtype == b.dtype) return {};
  const Tensor& narrow = a.dtype == promoted(a.dtype, b.dtype) ? b : a;
  return tape.make(narrow.count, promoted(a.dtype, b.dtype));
}

}  // namespace

void Torch::end_autocast() {
  for (Parameter* parameter : cached_) parameter->cast = {};
  cached_.clear();
}

// --------------------------------------------------------------------------------------------------------- products

Tensor Torch::cast_leaf(Parameter& parameter) {
  if (!autocast_ || parameter.value.dtype != DType::fp32) return tape_.leaf(parameter);
  if (parameter.cast) return parameter.cast;
  Tensor copy = cast(tape_.leaf(parameter), *autocast_);
  if (!parameter.trained) return copy;  // only what has a gradient is cached
  parameter.cast = copy;
  cached_.push_back(&parameter);
  return copy;
}

Tensor Torch::linear(const Tensor& x, Parameter& weight, Parameter* bias, std::uint64_t in, std::uint64_t out) {
  // Right to left, as the compiler of PyTorch's builds evaluates the arguments.
  const Tensor b = bias ? cast_leaf(*bias) : Tensor{};
  const Tensor w = cast_leaf(weight);
  const Tensor a = autocast_ ? cast(x, *autocast_) : x;
  const std::uint64_t rows = a.count / in;
  const Tensor y = tape_.make(checked_product(rows, out), a.dtype);
  return tape_.record(y, {&a, &w, &b}, {w.differentiable() ? a : Tensor{}, a.differentiable() ? w : Tensor{}},
                      [=](BackwardCall& call) {
                        const DType dtype = call.gradients[0].dtype;
                        if (call.wanted[0]) {
                          call.results[0] = call.tape.make(checked_product(rows, in), dtype);
                          call.results[0].view = true;  // of [R, in], reshaped
                        }
                        if (call.wanted[1]) {
                          call.results[1] = call.tape.make(checked_product(in, out), dtype);
                          call.results[1].view = true;  // transposed
                        }
                        if (call.wanted[2]) call.results[2] = call.gradients[0];
                      });
}

Tensor Torch::linear_4bit(const Tensor& x, std::uint64_t in, std::uint64_t out, DType compute, Parameter* bias) {
  const Tensor b = bias ? cast_leaf(*bias) : Tensor{};
  const Tensor a = cast(x, compute);
  const std::uint64_t rows = a.count / in;
  const Tensor decoded = tape_.make(checked_product(in, out), compute);
  const Tensor y = tape_.make(checked_product(rows, out), compute);
  return tape_.record(y, {&a, &b}, {}, [=](BackwardCall& call) {
    if (call.wanted[1]) call.results[1] = call.gradients[0];
    if (!call.wanted[0]) return;
    const Tensor again = call.tape.make(checked_product(in, out), compute);
    call.results[0] = call.tape.make(checked_product(rows, in), compute);
    call.results[0].view = true;
  });
}

Tensor Torch::bmm(const Tensor& left, const Tensor& right, std::uint64_t out) {
  const Tensor b = autocast_ ? cast(right, *autocast_) : right;
  const Tensor a = autocast_ ? cast(left, *autocast_) : left;
  return product(a, b, out);
}

Tensor Torch::product(const Tensor& a, const Tensor& b, std::uint64_t out) {
  const Tensor y = tape_.make(out, a.dtype);
  return tape_.record(y, {&a, &b}, {b.differentiable() ? a : Tensor{}, a.differentiable() ? b : Tensor{}},
                      [counts = std::pair(a.count, b.count)](BackwardCall& call) {
                        const DType dtype = call.gradients[0].dtype;
                        if (call.wanted[0]) call.results[0] = call.tape.make(counts.first, dtype);
                        if (call.wanted[1]) call.results[1] = call.tape.make(counts.second, dtype);
                        for (Tensor& result : call.results) result.view = true;  // [B · H, ...], reshaped
                      });
}

Tensor Torch::grouped(const Tensor& input, Parameter& weight, std::uint64_t in, std::uint64_t out) {
  const Tensor w = tape_.leaf(weight);
  const Tensor x = cast(input, w.dtype);
  const std::uint64_t rows = x.count / in;
  const Tensor y = tape_.make(checked_product(rows, out), w.dtype);
  return tape_.record(y, {&x, &w}, {w.differentiable() ? x : Tensor{}, x.differentiable() ? w : Tensor{}},
                      [rows, in, count = w.count](BackwardCall& call) {
                        const DType dtype = call.gradients[0].dtype;
                        if (call.wanted[0]) call.results[0] = call.tape.make(checked_product(rows, in), dtype);
                        if (!call.wanted[1]) return;
                        call.results[1] = call.tape.make(count, dtype);
                        call.results[1].view = true;  // transposed
                      });
}

Tensor Torch::embedding(std::uint64_t rows, Parameter& weight, std::uint64_t width, const Tensor& tokens) {
  const Tensor w = tape_.leaf(weight);
  const Tensor y = tape_.make(checked_product(rows, width), w.dtype);
  return tape_.record(y, {&w}, {tokens}, [count = w.count](BackwardCall& call) {
    call.results[0] = call.tape.make(count, call.gradients[0].dtype);
  });
}

// The composite of aten/native/transformers/attention.cpp, for where no kernel does it at once: in FP32.
Tensor Torch::scores_and_values(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape,
                                double p) {
  const Tensor wide_q = cast(q, DType::fp32);
  const Tensor wide_k = cast(k, DType::fp32);
  const Tensor wide_v = cast(v, DType::fp32);
  Tensor scores;
  {
    const Tensor queries = scale(wide_q);
    const Tensor keys = scale(wide_k);
    const Tensor rows = contiguous(queries);
    const Tensor columns = contiguous(keys);
    scores = product(rows, columns, shape.scores());  // the mask is added in place
    Tensor probabilities = softmax(scores);
    const Tensor without_empty_rows = scale(probabilities);  // _safe_softmax
    scores = without_empty_rows;
  }
  scores = dropout(scores, p);
  const Tensor values = contiguous(wide_v);
  const Tensor wide = product(scores, values, shape.queries());
  const Tensor y = cast(wide, q.dtype);
  return contiguous(y);
}

Tensor Torch::attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
                        const AttentionShape& shape, double p) {
  const Tensor v = autocast_ ? cast(value, *autocast_) : value;
  const Tensor k = autocast_ ? cast(key, *autocast_) : key;
  const Tensor q = autocast_ ? cast(query, *autocast_) : query;
  if (p > 0 && device_ == TorchDevice::cpu) return scores_and_values(q, k, v, shape, p);
  const Tensor added = mask ? tape_.make(mask.count, q.dtype) : Tensor{};  // the mask as numbers
  const Tensor y = tape_.make(shape.queries(), q.dtype);
  const Tensor logsumexp = tape_.make(checked_product(shape.rows(), shape.heads), DType::fp32);
  return tape_.record(y, {&q, &k, &v}, {q, k, v, y, logsumexp, added}, [](BackwardCall& call) {
    for (std::size_t i = 0; i < 3; ++i)
      if (call.saved[i]) call.results[i] = call.tape.make(call.saved[i].count, call.saved[i].dtype);
  });
}

// ----------------------------------------------------------------------------------------------------- value by value

Tensor Torch::cast(const Tensor& x, DType dtype) {
  if (x.dtype == dtype) return x;
  const Tensor y = tape_.make(x.count, dtype);
  return tape_.record(y, {&x}, {}, [was = x.dtype](BackwardCall& call) {
    call.results[0] = call.tape.make(call.gradients[0].count, was);
  });
}

Tensor Torch::add(const Tensor& a, const Tensor& b) {
  const Tensor wide = widened(tape_, device_, a, b);
  const Tensor y = tape_.make(std::max(a.count, b.count), promoted(a.dtype, b.dtype));
  return tape_.record(y, {&a, &b}, {}, same_gradient);
}

Tensor Torch::mul(const Tensor& a, const Tensor& b) {
  const Tensor wide = widened(tape_, device_, a, b);
  const Tensor y = tape_.make(std::max(a.count, b.count), promoted(a.dtype, b.dtype));
  return tape_.record(y, {&a, &b}, {b.differentiable() ? a : Tensor{}, a.differentiable() ? b : Tensor{}},
                      [device = device_](BackwardCall& call) {
                        const Tensor& gradient = call.gradients[0];
                        for (std::size_t i = 0; i < 2; ++i) {
                          if (!call.wanted[i]) continue;
                          const Tensor cast = widened(call.tape, device, gradient, call.saved[1 - i]);
                          const DType dtype = promoted(gradient.dtype, call.saved[1 - i].dtype);
                          call.results[i] = call.tape.make(gradient.count, dtype);
                        }
                      });
}

Tensor Torch::scale(const Tensor& x) { return tape_.record(tape_.make(x.count, x.dtype), {&x}, {}, fresh_gradient); }
Tensor Torch::shift(const Tensor& x) { return tape_.record(tape_.make(x.count, x.dtype), {&x}, {}, same_gradient); }
Tensor Torch::neg(const Tensor& x) { return tape_.record(tape_.make(x.count, x.dtype), {&x}, {}, fresh_gradient); }

Tensor Torch::power(const Tensor& x) {
  return tape_.record(tape_.make(x.count, x.dtype), {&x}, {x}, [](BackwardCall& call) {
    const Tensor& input = call.saved[0];
    const Tensor lower = call.tape.make(input.count, input.dtype);
    const Tensor times = call.tape.make(input.count, input.dtype);
    call.results[0] = call.tape.make(input.count, input.dtype);
  });
}

Tensor Torch::tanh(const Tensor& x) {
  const Tensor y = tape_.make(x.count, x.dtype);
  return tape_.record(y, {&x}, {y}, fresh_gradient);
}

Tensor Torch::of_input(const Tensor& x) {
  return tape_.record(tape_.make(x.count, x.dtype), {&x}, {x}, fresh_gradient);
}

Tensor Torch::dropout(const Tensor& x, double p) {
  if (p == 0) return x;
  const Tensor mask = tape_.make(x.count, device_ == TorchDevice::cpu ? x.dtype : DType::boolean);
  const Tensor y = tape_.make(x.count, x.dtype);
  return tape_.record(y, {&x}, {mask}, fresh_gradient);
}

// ------------------------------------------------------------------------------------------------------------ by rows

Tensor Torch::mean(const Tensor& x, std::uint64_t rows) {
  return tape_.record(tape_.make(rows, x.dtype), {&x}, {}, [count = x.count](BackwardCall& call) {
    call.results[0] = call.tape.make(count, call.gradients[0].dtype);  // expanded, and divided
  });
}

// Its gradient is expanded, and copied where it is reshaped.
Tensor Torch::sum(const Tensor& x, std::uint64_t count) {
  const bool wide = autocast_ && device_ == TorchDevice::cuda;
  return tape_.record(tape_.make(count, wide ? DType::fp32 : x.dtype), {&x}, {}, [whole = x.count](BackwardCall& call) {
    call.results[0] = call.tape.make(whole, call.gradients[0].dtype);
  });
}

Tensor Torch::rsqrt(const Tensor& x) {
  const Tensor y = tape_.make(x.count, x.dtype);
  return tape_.record(y, {&x}, {y}, fresh_gradient);
}

Tensor Torch::softmax(const Tensor& input) {
  if (autocast_ && device_ == TorchDevice::cuda && input.dtype != DType::fp32) return softmax_fp32(input);
  const Tensor y = tape_.make(input.count, input.dtype);
  return tape_.record(y, {&input}, {y}, fresh_gradient);
}

Tensor Torch::softmax_fp32(const Tensor& x) {
  if (device_ == TorchDevice::cpu || x.dtype != DType::fp16) return softmax(cast(x, DType::fp32));
  const Tensor y = tape_.make(x.count, DType::fp32);  // a GPU's reads FP16 and writes FP32, and back; BF16 is copied
  return tape_.record(y, {&x}, {y}, [was = x.dtype](BackwardCall& call) {
    call.results[0] = call.tape.make(call.gradients[0].count, was);
  });
}

Tensor Torch::layer_norm(const Tensor& input, Parameter& weight, Parameter& bias, std::uint64_t rows) {
  const Tensor b = tape_.leaf(bias), w = tape_.leaf(weight);
  const Tensor x = autocast_ && device_ == TorchDevice::cuda ? cast(input, DType::fp32) : input;
  const Tensor y = tape_.make(x.count, x.dtype);
  // Mean and 1 / deviation: FP32, but on a CPU of 16-bit values with 16-bit weights in their type.
  const bool narrow = device_ == TorchDevice::cpu && w.dtype == x.dtype;
  const Tensor statistics = tape_.make(2 * rows, narrow ? x.dtype : DType::fp32);
  return tape_.record(y, {&x, &w, &b}, {x, statistics}, [counts = std::pair(w.count, b.count)](BackwardCall& call) {
    fresh_gradient(call);
    const DType dtype = call.gradients[0].dtype;
    if (call.wanted[1]) call.results[1] = call.tape.make(counts.first, dtype);
    if (call.wanted[2]) call.results[2] = call.tape.make(counts.second, dtype);
  });
}

Tensor Torch::cross_entropy(const Tensor& logits, const Tensor& targets) {
  const Tensor log_softmax = tape_.make(logits.count, logits.dtype);
  const Tensor narrow = tape_.record(log_softmax, {&logits}, {log_softmax}, fresh_gradient);
  const Tensor log_p = autocast_ && device_ == TorchDevice::cuda ? cast(narrow, DType::fp32) : narrow;
  const Tensor loss = tape_.make(1, log_p.dtype);
  return tape_.record(loss, {&log_p}, {log_p, targets}, [](BackwardCall& call) {
    call.results[0] = call.tape.make(call.saved[0].count, call.saved[0].dtype);
  });
}

Tensor Torch::fused_cross_entropy(const Tensor& x, Parameter& weight, std::uint64_t in, std::uint64_t out) {
  const Tensor w = tape_.leaf(weight);
  const DType compute = autocast_.value_or(x.dtype);
  const std::uint64_t rows = x.count / in;
  const std::uint64_t chunks = (out + in - 1) / in;
  const std::uint64_t chunk = std::min(rows, std::bit_ceil((rows + chunks - 1) / chunks));
  const Tensor of_x = tape_.make(x.count, x.dtype);
  const Tensor of_w = w.differentiable() ? tape_.make(w.count, w.dtype) : Tensor{};
  const Tensor losses = tape_.make(rows, DType::fp32);
  // All chunks take the same, the last one at most that.
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(2, (rows + chunk - 1) / chunk); ++i) {
    const auto narrow = [&] { return compute == w.dtype ? Tensor{} : tape_.make(w.count, compute); };
    Tensor cast_weight = narrow();  // of a transposed weight autocast keeps no copy
    const Tensor logits = tape_.make(checked_product(chunk, out), compute);
    cast_weight = {};
    cast_weight = narrow();
    const Tensor part = tape_.make(checked_product(chunk, in), compute);
    cast_weight = {};
    if (!of_w) continue;
    const Tensor product = tape_.make(w.count, compute);
    const Tensor wide = compute == DType::fp32 ? Tensor{} : tape_.make(w.count, DType::fp32);
  }
  const Tensor loss = tape_.make(1, DType::fp32);
  return tape_.record(loss, {&x, &w}, {of_x, of_w}, [](BackwardCall& call) {
    call.results[0] = call.saved[0];
    if (call.wanted[1]) call.results[1] = call.saved[1];
  });
}

// ------------------------------------------------------------------------------------------------------------- shapes

Tensor Torch::view(const Tensor& x, bool copied_back) {
  Tensor y = x.detached();
  y.view = true;
  return tape_.record(y, {&x}, {}, [copied_back](BackwardCall& call) {
    if (copied_back)
      fresh_gradient(call);
    else
      same_gradient(call);
    call.results[0].view = true;
  });
}

Tensor Torch::contiguous(const Tensor& x) {
  return tape_.record(tape_.make(x.count, x.dtype), {&x}, {}, same_gradient);
}

Tensor Torch::slice(const Tensor& x, std::uint64_t count) {
  Tensor y = x.detached();
  y.count = count;
  y.view = true;
  return tape_.record(y, {&x}, {}, [whole = x.count](BackwardCall& call) {
    call.results[0] = call.tape.make(whole, call.gradients[0].dtype);
  });
}

std::vector<Tensor> Torch::split(const Tensor& x, const std::vector<std::uint64_t>& counts) {
  std::vector<Tensor> parts;
  for (const std::uint64_t count : counts) {
    parts.push_back(x.detached());
    parts.back().count = count;
    parts.back().view = true;
  }
  std::vector<Tensor*> outs;
  for (Tensor& part : parts) outs.push_back(&part);
  tape_.record(outs, {&x}, {}, [whole = x.count, dtype = x.dtype](BackwardCall& call) {
    call.results[0] = call.tape.make(whole, dtype);
  });
  return parts;
}

Tensor Torch::concatenate(const Tensor& a, const Tensor& b) {
  const Tensor y = tape_.make(checked_sum(a.count, b.count), promoted(a.dtype, b.dtype));
  return tape_.record(y, {&a, &b}, {}, [counts = std::pair(a.count, b.count)](BackwardCall& call) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (!call.wanted[i]) continue;
      call.results[i] = call.gradients[0];
      call.results[i].count = i == 0 ? counts.first : counts.second;
      call.results[i].view = true;
    }
  });
}

Tensor Torch::select(const Tensor& x, const Tensor& index, std::uint64_t count) {
  return tape_.record(tape_.make(count, x.dtype), {&x}, {index}, [whole = x.count](BackwardCall& call) {
    call.results[0] = call.tape.make(whole, call.gradients[0].dtype);
  });
}

Tensor Torch::repeat(const Tensor& x, std::uint64_t groups) {
  if (groups == 1) return x;
  return tape_.record(
      tape_.make(checked_product(x.count, groups), x.dtype), {&x}, {},
      [count = x.count](BackwardCall& call) { call.results[0] = call.tape.make(count, call.gradients[0].dtype); });
}

// -------------------------------------------------------------------------------------------------------------- ranks

Tensor Torch::summed(const Tensor& x) { return tape_.record(tape_.make(x.count, x.dtype), {&x}, {}, same_gradient); }

Tensor Torch::summed_back(const Tensor& x) {
  Tensor y = x.detached();
  y.view = true;
  return tape_.record(y, {&x}, {}, fresh_gradient);
}

Tensor Torch::gathered(const Tensor& x, std::uint64_t ranks) {
  const std::uint64_t whole = checked_product(x.count, ranks);
  const Tensor one_after_the_other = tape_.make(whole, x.dtype);
  if (device_ == TorchDevice::cpu) tape_.make(whole, x.dtype);  // gloo's own copy
  return tape_.record(tape_.make(whole, x.dtype), {&x}, {}, [part = x.count](BackwardCall& call) {
    call.results[0] = call.tape.make(part, call.gradients[0].dtype);
  });
}

}  // namespace oomlab::fit
