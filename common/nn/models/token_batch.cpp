#include "nn/models/token_batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/check.h"

namespace oomlab::nn {

TokenBatch plan_token_batch(Context& context, std::size_t sequences, std::size_t seq) {
  const std::size_t rows = checked_product(sequences, seq);
  TokenBatch batch;
  batch.sequences = sequences;
  batch.seq = seq;
  batch.targets = sequences;
  batch.tokens = context.buffer<int>(rows, Category::data, "tokens");
  batch.labels = context.buffer<int>(rows, Category::data, "labels");
  return batch;
}

TokenBatch plan_packed_batch(Context& context, std::span<const std::uint64_t> lengths) {
  TokenBatch batch;
  batch.packed = offsets_of(lengths);
  batch.sequences = batch.targets = lengths.size();
  batch.seq = *std::ranges::max_element(lengths);
  const std::size_t rows = batch.rows();
  batch.tokens = context.buffer<int>(rows, Category::data, "tokens");
  batch.labels = context.buffer<int>(rows, Category::data, "labels");
  batch.positions = context.buffer<int>(rows, Category::data, "positions");
  batch.offsets = context.buffer<int>(lengths.size() + 1, Category::data, "offsets");
  batch.packed->on_device = batch.offsets.data();
  return batch;
}

static void copy_to(Context& context, DeviceBuffer<int>& there, std::span<const int> values) {
  CUDA_CHECK(
      cudaMemcpyAsync(there.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice, context.stream()));
}

// Labels that are targets. Throws std::invalid_argument where there are none, and the batch is no part of a larger one.
static std::size_t targets_among(std::span<const int> labels, bool part) {
  const auto targets = std::count_if(labels.begin(), labels.end(), [](int l) { return l >= 0; });
  if (targets == 0 && !part) throw std::invalid_argument("a batch without targets has no mean loss");
  return static_cast<std::size_t>(targets);
}

TokenBatch make_token_batch(Context& context, std::span<const int> tokens, std::span<const int> labels,
                            std::size_t sequences, std::size_t seq, bool part) {
  const std::size_t rows = checked_product(sequences, seq);
  if (rows == 0 || tokens.size() != rows || labels.size() != rows)
    throw std::invalid_argument("tokens and labels are not " + std::to_string(sequences) + " sequences of " +
                                std::to_string(seq));
  const std::size_t targets = targets_among(labels, part);
  TokenBatch batch = plan_token_batch(context, sequences, seq);
  batch.targets = targets;
  copy_to(context, batch.tokens, tokens);
  copy_to(context, batch.labels, labels);
  return batch;
}

TokenBatch make_packed_batch(Context& context, std::span<const int> tokens, std::span<const int> labels,
                             std::span<const std::uint64_t> lengths) {
  const std::size_t rows = offsets_of(lengths).rows();
  if (lengths.empty() || std::ranges::count(lengths, 0u) > 0 || tokens.size() != rows || labels.size() != rows)
    throw std::invalid_argument("tokens and labels are not " + std::to_string(lengths.size()) + " sequences of " +
                                std::to_string(rows) + " tokens in all");
  const std::size_t targets = targets_among(labels, false);
  TokenBatch batch = plan_packed_batch(context, lengths);
  batch.targets = targets;
  copy_to(context, batch.tokens, tokens);
  copy_to(context, batch.labels, labels);
  std::vector<int> positions;
  for (const std::uint64_t length : lengths)
    for (std::uint64_t place = 0; place < length; ++place) positions.push_back(static_cast<int>(place));
  copy_to(context, batch.positions, positions);
  copy_to(context, batch.offsets, std::vector<int>(batch.packed->first.begin(), batch.packed->first.end()));
  return batch;
}

}  // namespace oomlab::nn
