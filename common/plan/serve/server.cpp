#include "plan/serve/server.h"

#include <algorithm>
#include <utility>

#include "plan/bytes.h"
#include "plan/model/transformer_tensors.h"

namespace oomlab::serve {

nn::TransformerSpec served_model(nn::TransformerSpec spec, const ServingConfig& config) {
  if (config.grouped_queries) return spec;
  spec.kv_heads = spec.heads;
  spec.name += ", not grouped";
  return spec;
}

CacheShape cache_shape(DType dtype, const nn::TransformerSpec& spec, const ServingConfig& config) {
  const nn::TransformerSpec served = served_model(spec, config);
  return {.layers = served.layers - config.cpu_layers,
          .cpu_layers = config.cpu_layers,
          .kv_heads = served.keys(),
          .depth = served.depth(),
          .block_tokens = config.block_tokens,
          .dtype = config.cache_dtype.value_or(dtype)};
}

WeightBytes weight_bytes(DType dtype, const nn::TransformerSpec& spec, std::uint64_t cpu_layers) {
  WeightBytes bytes;
  nn::visit_tensors(spec, {}, [&](const nn::Place& tensor) {
    const std::uint64_t stored = bytes_of(dtype, checked_product(tensor.rows, tensor.columns));
    const bool on_cpu = tensor.layer > 0 && tensor.layer + cpu_layers > spec.layers;  // layers count from 1
    if (on_cpu) {
      bytes.host = checked_sum(bytes.host, stored);
      bytes.in_transit = std::max(bytes.in_transit, round_to_granule(stored));
    } else {
      bytes.device = checked_sum(bytes.device, round_to_granule(stored));
    }
  });
  return bytes;
}

std::uint64_t row_bytes(DType dtype, const nn::TransformerSpec& spec, std::uint64_t rows, std::uint64_t logit_rows) {
  const std::uint64_t widest = std::max(spec.qkv_width(), spec.before_activation());     // max((H + 2 Hk) · d, 2F)
  const std::uint64_t residual = buffer_bytes(rows, spec.width, dtype);                  // [R, C]
  const std::uint64_t norm_or_attention_output = buffer_bytes(rows, spec.width, dtype);  // [R, C]
  const std::uint64_t qkv_or_gate_up = buffer_bytes(rows, widest, dtype);                // [R, widest]
  const std::uint64_t logits = buffer_bytes(logit_rows, spec.vocabulary, DType::fp32);   // [logit rows, V]
  return checked_sum({residual, norm_or_attention_output, qkv_or_gate_up, logits});
}

ByCategory server_bytes(DType dtype, const nn::TransformerSpec& spec, const CacheShape& cache, std::uint64_t max_rows,
                        std::uint64_t longest, std::uint64_t blocks) {
  const std::uint64_t rows = row_bytes(dtype, spec, max_rows, std::min(max_rows, kLogitRows));
  const std::uint64_t blocks_of_cache = checked_product(blocks, cache.counted_block_bytes());
  // Token, position, begin of its table; rows that answer, and the tokens after them.
  const std::uint64_t row_numbers = buffer_bytes(max_rows, 5, DType::int32);                       // [5, R]
  const std::uint64_t block_tables = buffer_bytes(max_rows, cache.blocks_for(longest), kAddress);  // [R, blocks]
  ByCategory bytes;
  bytes[Category::parameters] = weight_bytes(dtype, spec, cache.cpu_layers).device;
  bytes[Category::activations] = checked_sum(rows, blocks_of_cache);
  bytes[Category::workspace] = checked_sum(row_numbers, block_tables);
  return bytes;
}

HostBytes host_bytes(DType dtype, const nn::TransformerSpec& spec, const CacheShape& cache, std::uint64_t blocks) {
  return {.weights = weight_bytes(dtype, spec, cache.cpu_layers).host,
          .cache = checked_product(blocks, cache.cpu_block_bytes())};
}

std::uint64_t blocks_within(std::uint64_t budget, DType dtype, const nn::TransformerSpec& spec, const CacheShape& cache,
                            std::uint64_t max_rows, std::uint64_t longest, std::uint64_t others) {
  const std::uint64_t taken = checked_sum(server_bytes(dtype, spec, cache, max_rows, longest, 0).total(), others);
  if (budget <= taken) return 0;
  return cache.counted_block_bytes() ? (budget - taken) / cache.counted_block_bytes() : UINT64_MAX;
}

std::uint64_t fewest_cpu_layers(std::uint64_t budget, DType dtype, const nn::TransformerSpec& spec,
                                std::uint64_t max_rows, std::uint64_t longest, std::uint64_t requests) {
  std::uint64_t too_few = 0;  // less than this is
  std::uint64_t enough = spec.layers + 1;
  while (too_few < enough) {
    const std::uint64_t middle = too_few + (enough - too_few) / 2;
    const CacheShape cache = cache_shape(dtype, spec, {.cpu_layers = middle});
    const std::uint64_t blocks = checked_product(requests, cache.blocks_for(longest));
    if (server_bytes(dtype, spec, cache, max_rows, longest, blocks).total() > budget)
      too_few = middle + 1;
    else
      enough = middle;
  }
  return enough;
}

ServingSchedule schedule_within(std::uint64_t budget, DType dtype, const nn::TransformerSpec& spec,
                                const ServingConfig& config, std::span<const RequestLengths> requests,
                                std::uint64_t longest, std::uint64_t others) {
  const CacheShape cache = cache_shape(dtype, spec, config);
  const std::uint64_t blocks =
      blocks_within(budget, dtype, served_model(spec, config), cache, kMaxRows, longest, others);
  const ServingSchedule schedule = simulate_serving(requests, config.block_tokens, blocks, kMaxRows);
  return schedule.possible ? schedule : simulate_serving(requests, config.block_tokens, UINT64_MAX, kMaxRows);
}

}  // namespace oomlab::serve
