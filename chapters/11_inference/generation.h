#pragma once
// One step of generation: some tokens, each of some request at some position, go through a decoder together. The rows
// of a step need not have anything to do with each other: one may be the next token of a request, the next hundred the
// prompt of another (continuous batching; Yu et al., "Orca", 2022). A row reads the cache of its own request, and
// leaves its keys and values there.
//
// What a row becomes depends on its request's tokens alone, to the last bit (row_products.h, cached_attention.h).

#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cached_attention.h"
#include "cuda/check.h"
#include "nn/decoder_ops.h"
#include "plan/serve/server.h"
#include "processor_layers.h"
#include "row_products.h"

namespace oomlab::inference {

using serve::kLogitRows;  // logits are the widest rows of a step with a large vocabulary

// ------------------------------------------------------------------------------------------------------------- kernels

/// to[row] = from[index[row]], rows of `width`: what a token's embedding is; and the rows of a step that get an answer.
template <class T>
__global__ void gather_rows_kernel(const T* __restrict__ from, const int* __restrict__ index, T* __restrict__ to,
                                   std::size_t rows, std::size_t width, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T* const source = from + static_cast<std::size_t>(index[row]) * width;
    nn::for_packs<T>(nn::BlockRange{}, width, packs,
                     [&](auto v, std::size_t i) { nn::store(to + row * width, i, nn::load<decltype(v)>(source, i)); });
  }
}

/// token[row]: where the row's largest logit is; of equal ones the first. NaNs do not count.
inline __global__ void largest_logit_kernel(const float* __restrict__ logits, int* __restrict__ token, std::size_t rows,
                                            std::size_t classes, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const float* const x = logits + row * classes;
    float largest = -INFINITY;
    nn::for_packs<float>(nn::BlockRange{}, classes, packs, [&](auto v, std::size_t i) {
      v = nn::load<decltype(v)>(x, i);
      nn::each_lane<decltype(v)>([&](std::size_t k) { largest = largest < v[k] ? v[k] : largest; });
    });
    largest = block_max(largest);
    const int none = static_cast<int>(classes);
    int first = none;
    for (std::size_t i : block_range(classes))
      if (x[i] == largest && static_cast<int>(i) < first) first = static_cast<int>(i);
    first = -block_max(-first);
    for ([[maybe_unused]] std::size_t once : block_range(1)) token[row] = first == none ? 0 : first;
  }
}

// ---------------------------------------------------------------------------------------------------------------- step

/// The buffers of a step of up to `most_rows` rows (category activations, but for the table: workspace), and the step.
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
        most_rows_(most_rows),
        longest_(longest) {
    if (!spec.llama()) throw std::invalid_argument("'" + spec.name + "' is not a decoder with rotary positions");
    frequencies_ = nn::rotary_frequencies(spec.rotary, spec.depth());
    const auto each = [&](auto& buffer, std::size_t count, Category category, const char* tag) {
      using Buffer = std::remove_reference_t<decltype(buffer)>;
      buffer = Buffer(context.memory(), context.stream(), count, category, tag);
    };
    each(x_, checked_product(most_rows, spec.width), Category::activations, "residual rows");
    each(narrow_, x_.size(), Category::activations, "norm, or what is attended to");
    each(wide_, checked_product(most_rows, std::max(spec.qkv_width(), spec.before_activation())), Category::activations,
         "QKV, or gate and up");
    each(logits_, checked_product(std::min(most_rows, kLogitRows), spec.vocabulary), Category::activations, "logits");
    each(rows_, checked_product(most_rows, kRowNumbers), Category::workspace, "rows of a step");
    each(table_, checked_product(most_rows, cache.blocks_for(longest)), Category::workspace, "tables of blocks");
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
    gather(context, weights_.token, tokens(), x_.data(), rows.size());
    std::uint64_t positions = 0;
    for (const Row& row : rows) positions += row.position + 1;
    for (std::size_t l = 0; l < cache.shape().layers; ++l) {
      CachedRows of_layer = cached;
      of_layer.layer = l;
      layer(context, weights_.layers[l], of_layer, cache.shape().scaled(), rows.size(), positions);
    }
    if (processor_.layers()) processor_.run(context, cache, rows, x_.data());
    return answers(context, rows, logits);
  }

 private:
  // Of each row: token, position, where its table begins; and which rows answer, and with what.
  static constexpr std::size_t kRowNumbers = 5;
  int* tokens() { return rows_.data(); }
  int* positions() { return rows_.data() + most_rows_; }
  int* tables() { return rows_.data() + 2 * most_rows_; }
  int* answering() { return rows_.data() + 3 * most_rows_; }
  int* next_tokens() { return rows_.data() + 4 * most_rows_; }

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
    copy(rows_, numbers);
    copy(table_, blocks);
    const CacheShape& shape = cache.shape();
    return {table_.data(),  tables(),    positions(),        0,
            shape.kv_heads, shape.depth, shape.block_tokens, shape.scales_at()};
  }
  void gather(Context& context, const T* from, const int* index, T* to, std::size_t rows) {
    launch(gather_rows_kernel<T>, nn::shape_for_packed_rows<T>(rows, spec_.width), context.stream(), from, index, to,
           rows, spec_.width, nn::packs_fit<T>(spec_.width, from, to));
  }

  void layer(Context& context, const DecoderLayer<T>& w, const CachedRows& cached, bool eight_bits, std::size_t rows,
             std::uint64_t positions) {
    const std::size_t c = spec_.width, qkv = spec_.qkv_width(), hidden = spec_.hidden();
    T *const x = x_.data(), *const narrow = narrow_.data(), *const wide = wide_.data();
    nn::rms_norm_forward(context, x, w.norm1, narrow, nullptr, rows, c, spec_.epsilon);
    row_products<T>(context, {narrow, c}, w.qkv, w.qkv_bias, wide, rows, c, qkv);
    nn::rotate_heads(context, wide, qkv, rows, spec_.heads + spec_.keys(), spec_.depth(), frequencies_,
                     {.of_row = cached.position});
    attend_cached(context, wide, narrow, cached, eight_bits, rows, spec_.heads, positions);
    row_products<T>(context, {narrow, c}, w.projection, nullptr, x, rows, c, c, /*add=*/true);
    nn::rms_norm_forward(context, x, w.norm2, narrow, nullptr, rows, c, spec_.epsilon);
    row_products<T>(context, {narrow, c}, w.gate_up, nullptr, wide, rows, c, 2 * hidden);
    nn::swiglu_forward(context, wide, wide, 2 * hidden, rows, hidden);
    row_products<T>(context, {wide, 2 * hidden}, w.contract, nullptr, x, rows, hidden, c, /*add=*/true);
  }

  std::vector<int> answers(Context& context, std::span<const Row> rows, std::vector<std::vector<float>>* logits) {
    std::size_t wanted = 0;
    for (const Row& row : rows) wanted += row.answers;
    std::vector<int> next(wanted);
    const std::size_t c = spec_.width, classes = spec_.vocabulary;
    if (logits) logits->assign(wanted, std::vector<float>(classes));
    for (std::size_t first = 0; first < wanted; first += kLogitRows) {
      const std::size_t count = std::min(kLogitRows, wanted - first);
      gather(context, x_.data(), answering() + first, narrow_.data(), count);
      nn::rms_norm_forward(context, narrow_.data(), weights_.final_gamma, narrow_.data(), nullptr, count, c,
                           spec_.epsilon);
      row_products<T>(context, {narrow_.data(), c}, weights_.head, nullptr, logits_.data(), count, c, classes);
      launch(largest_logit_kernel, nn::shape_for_packed_rows<float>(count, classes), context.stream(), logits_.data(),
             next_tokens() + first, count, classes, nn::packs_fit<float>(classes, logits_.data()));
      for (std::size_t r = 0; logits && r < count; ++r)
        copy_down(context, (*logits)[first + r], logits_.data() + r * classes);
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
  std::size_t most_rows_, longest_;
  nn::RotaryFrequencies frequencies_;
  DeviceBuffer<T> x_, narrow_, wide_;
  DeviceBuffer<float> logits_;
  DeviceBuffer<int> rows_;
  DeviceBuffer<std::byte*> table_;
};

}  // namespace oomlab::inference
