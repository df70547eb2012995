#pragma once
// One step of generation: some tokens, each of some request at some position, go through a decoder together. The rows
// of a step need not have anything to do with each other: one may be the next token of a request, the next hundred the
// prompt of another (continuous batching; Yu et al., "Orca", 2022). A row reads the cache of its own request, and
// leaves its keys and values there.
//
// What a row becomes depends on its request's tokens alone, to the last bit (row_products.h, cached_attention.h).

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "decoder_rows.h"
#include "plan/serve/server.h"
#include "processor_layers.h"

namespace oomlab::inference {

using serve::kLogitRows;  // logits are the widest rows of a step with a large vocabulary

/// The buffers of a step of up to `most_rows` rows (those of DecoderRows, and in category workspace), and the step.
template <class T>
class Generation {
 public:
  /// For a cache of this shape, and requests of up to `longest` tokens. The last cache.cpu_layers layers of the
  /// weights are in host memory, the others on the device; not owned. Throws OutOfMemory, and std::invalid_argument for
  /// a spec that is not llama's.
  Generation(Context& context, const nn::TransformerSpec& spec, const DecoderWeights<T>& weights,
             const CacheShape& cache, std::size_t most_rows, std::size_t longest)
      : spec_(spec),
        weights_(weights),
        processor_(spec, weights, cache.cpu_layers),
        rows_(context, spec, most_rows, std::min(most_rows, kLogitRows)),
        most_rows_(most_rows),
        longest_(longest) {
    const auto each = [&](auto& buffer, std::size_t width, const char* tag) {
      using Buffer = std::remove_reference_t<decltype(buffer)>;
      const std::size_t count = checked_product(most_rows, width);
      buffer = Buffer(context.memory(), context.stream(), count, Category::workspace, tag);
    };
    each(numbers_, kRowNumbers, "rows of a step");
    each(table_, cache.blocks_for(longest), "tables of blocks");
  }

  /// Runs the rows, of which a request's are side by side and ascending, and whose requests have room for them in
  /// `cache` (KvCache::reserve()). Returns the token after each row that answers: the one with the largest logit, of
  /// equal ones the first (waits for the stream where there are any); `logits`, where not null, gets their logits.
  /// Throws std::invalid_argument for more rows than there are buffers for.
  std::vector<int> step(Context& context, const KvCache& cache, std::span<const Row> rows,
                        std::vector<std::vector<float>>* logits = nullptr) {
    if (planning()) {  // all its buffers are there already
      const auto wanted = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.answers; });
      return std::vector<int>(static_cast<std::size_t>(wanted), 0);
    }
    const CachedRows cached = upload(context, cache, rows);
    rows_.gather(context, weights_.token, tokens(), rows_.residual(), rows.size());
    std::uint64_t positions = 0;
    for (const Row& row : rows) positions += row.position + 1;
    for (std::size_t l = 0; l < cache.shape().layers; ++l) {
      CachedRows of_layer = cached;
      of_layer.layer = l;
      rows_.layer(context, weights_.layers[l], of_layer, cache.shape().scaled(), rows.size(), positions);
    }
    if (processor_.layers()) processor_.run(context, cache, rows, rows_.residual());
    return answers(context, rows, logits);
  }

 private:
  // Of each row: token, position, where its table begins; and which rows answer, and with what.
  static constexpr std::size_t kRowNumbers = 5;
  int* tokens() { return numbers_.data(); }
  int* positions() { return numbers_.data() + most_rows_; }
  int* tables() { return numbers_.data() + 2 * most_rows_; }
  int* answering() { return numbers_.data() + 3 * most_rows_; }
  int* next_tokens() { return numbers_.data() + 4 * most_rows_; }

  CachedRows upload(Context& context, const KvCache& cache, std::span<const Row> rows) {
    if (rows.size() > most_rows_)
      throw std::invalid_argument("a step of " + std::to_string(rows.size()) + " rows, with buffers for " +
                                  std::to_string(most_rows_));
    std::vector<int> numbers(4 * most_rows_);
    std::vector<std::byte*> blocks;
    std::size_t answer = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (r == 0 || rows[r].request != rows[r - 1].request) {
        numbers[2 * most_rows_ + r] = static_cast<int>(blocks.size());
        for (std::size_t i = 0; i < cache.blocks_of(rows[r].request); ++i)
          blocks.push_back(cache.block(rows[r].request, i));
      } else {
        numbers[2 * most_rows_ + r] = numbers[2 * most_rows_ + r - 1];
      }
      numbers[r] = rows[r].token;
      numbers[most_rows_ + r] = static_cast<int>(rows[r].position);
      if (rows[r].answers) numbers[3 * most_rows_ + answer++] = static_cast<int>(r);
    }
    const auto copy = [&](auto& to, const auto& from) {
      CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice,
                                 context.stream()));
    };
    if (blocks.size() > table_.size())
      throw std::invalid_argument("a request of more than " + std::to_string(longest_) + " tokens");
    copy(numbers_, numbers);
    copy(table_, blocks);
    const CacheShape& shape = cache.shape();
    return {table_.data(),  tables(),    positions(),        0,
            shape.kv_heads, shape.depth, shape.block_tokens, shape.scales_at()};
  }
  std::vector<int> answers(Context& context, std::span<const Row> rows, std::vector<std::vector<float>>* logits) {
    std::size_t wanted = 0;
    for (const Row& row : rows) wanted += row.answers;
    std::vector<int> next(wanted);
    const std::size_t classes = spec_.vocabulary;
    if (logits) logits->assign(wanted, std::vector<float>(classes));
    for (std::size_t first = 0; first < wanted; first += kLogitRows) {
      const std::size_t count = std::min(kLogitRows, wanted - first);
      rows_.gather(context, rows_.residual(), answering() + first, rows_.narrow(), count);
      rows_.answer(context, rows_.narrow(), weights_.final_gamma, weights_.head, next_tokens() + first, count);
      for (std::size_t r = 0; logits && r < count; ++r)
        copy_down(context, (*logits)[first + r], rows_.logits() + r * classes);
    }
    if (wanted) copy_down(context, next, next_tokens()), context.synchronize();
    return next;
  }
  template <class Value>
  static void copy_down(Context& context, std::vector<Value>& to, const Value* from) {
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(Value), cudaMemcpyDeviceToHost, context.stream()));
  }

  nn::TransformerSpec spec_;
  DecoderWeights<T> weights_;
  ProcessorLayers<T> processor_;
  DecoderRows<T> rows_;
  std::size_t most_rows_, longest_;
  DeviceBuffer<int> numbers_;  // of rows
  DeviceBuffer<std::byte*> table_;
};

}  // namespace oomlab::inference
