#include "plan/quantised/decoder.h"

#include <algorithm>

#include "plan/bytes.h"
#include "plan/peak.h"
#include "plan/serve/server.h"

namespace oomlab::quantised {

bool is_quantised(const nn::TensorShape& shape) {
  return shape.name.starts_with("layer ") && shape.name.ends_with(" weight");
}

Format format_of(const nn::TensorShape& shape, const Format& format) { return is_quantised(shape) ? format : Format{}; }

std::vector<ModelFormat> model_formats(std::uint64_t int4_group, DType rest) {
  return {{kFp32, {}, DType::fp32},
          {kBf16, {}, DType::bf16},
          {kInt8Tensor, {.scheme = Scheme::int8_tensor}, rest},
          {kInt8, {.scheme = Scheme::int8_row}, rest},
          {kInt4, {.scheme = Scheme::int4, .group = int4_group}, rest},
          {kNf4, {.scheme = Scheme::nf4}, rest},
          {kDynamic, {.scheme = Scheme::int8_row, .dynamic = true}, rest}};
}

ModelBytes model_bytes(const nn::TransformerSpec& spec, const Format& linear, DType rest) {
  ModelBytes bytes;
  for (const nn::TensorShape& shape : nn::tensors_of(spec)) {
    const Format format = format_of(shape, linear);
    const MatrixBytes matrix = matrix_bytes(format, shape.rows, shape.columns, element_bytes(rest));
    bytes.all.add(matrix);
    if (is_quantised(shape)) bytes.quantised.add(matrix);
    bytes.loading.at_least(loading_bytes(format, shape.rows, shape.columns));
  }
  return bytes;
}

std::uint64_t dynamic_product_bytes(std::uint64_t rows, std::uint64_t in, std::uint64_t out) {
  const std::uint64_t codes = buffer_bytes(rows, in, DType::int8);
  const std::uint64_t scales = buffer_bytes(rows, 1, DType::fp32);
  const std::uint64_t sums = buffer_bytes(rows, out, DType::int32);
  return checked_sum(checked_sum(codes, scales), sums);
}

ByCategory reading_bytes(const nn::TransformerSpec& spec, const Format& linear, DType rest, const Read& read) {
  const ModelBytes model = model_bytes(spec, linear, rest);
  PeakTracker ledger;
  ledger.add(Category::parameters, model.all.allocated);
  ledger.add(Category::workspace, model.loading.total());
  ledger.drop(Category::workspace, model.loading.total());

  const std::uint64_t all_tokens = checked_product(checked_product(read.sequences, read.seq), read.batches);
  const std::uint64_t widest_input = std::max(spec.width, spec.hidden());                    // max(C, F)
  const std::uint64_t widest_output = std::max(spec.qkv_width(), spec.before_activation());  // max((H + 2 Hk) · d, 2F)
  const serve::CacheShape cache = serve::cache_shape(rest, spec, {.block_tokens = read.seq});
  const auto of_sequences = [&](std::uint64_t width, DType type) { return buffer_bytes(read.sequences, width, type); };

  const std::uint64_t rows = serve::row_bytes(rest, spec, read.sequences, read.sequences);
  const std::uint64_t caches =
      checked_product(read.sequences, cache.counted_block_bytes());  // a block of S tokens each
  ledger.add(Category::activations, checked_sum(rows, caches));

  const std::uint64_t tokens = of_sequences(read.seq, DType::int32);  // [B, S]
  const std::uint64_t labels = of_sequences(read.seq, DType::int32);  // [B, S]
  ledger.add(Category::data, checked_sum(tokens, labels));

  const std::uint64_t positions = of_sequences(read.seq, DType::int32);              // [B, S]
  const std::uint64_t cache_of_row = of_sequences(1, DType::int32);                  // [B]
  const std::uint64_t addresses = of_sequences(1, kAddress);                         // [B]: where caches are
  const std::uint64_t losses = buffer_bytes(all_tokens, 1, DType::fp32);             // [batches, B, S]
  const std::uint64_t likeliest_tokens = buffer_bytes(all_tokens, 1, DType::int32);  // [batches, B, S]
  const std::uint64_t loss = buffer_bytes(1, 1, DType::fp32);                        // [1]
  ledger.add(Category::workspace, checked_sum({positions, cache_of_row, addresses, losses, likeliest_tokens, loss}));
  // [B, widest input], [B] and [B, widest output]
  if (linear.dynamic)
    ledger.add(Category::workspace, dynamic_product_bytes(read.sequences, widest_input, widest_output));
  return ledger.peak().at_peak;
}

}  // namespace oomlab::quantised
