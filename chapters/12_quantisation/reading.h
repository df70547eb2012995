#pragma once
// Reading a text with a quantised decoder, one token a sequence at a time, as generation does: every token reads all
// weights once. What comes out is the loss of each token, and which token the model would have written there.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../11_inference/decoder_rows.h"
#include "harness/variant.h"
#include "model.h"
#include "nn/models/read_loss.h"
#include "nn/ops/loss.h"
#include "nn/ops/values.h"
#include "plan/serve/server.h"
#include "products.h"
#include "train/text_training.h"

namespace oomlab::quantisation {

/// What reading came to.
struct ReadResult {
  double loss = 0;       ///< mean of a token, in nats; 0 in plan mode
  std::vector<int> top;  ///< of each token, the one that is most likely to follow; empty in plan mode
  double moved = 0;      ///< bytes that a step's kernels read and write, the mean of all steps
  double floor = 0;      ///< of these, weights and past keys and values, each read once
};
using AllRead = std::map<std::string, ReadResult>;

template <class T>
class Reading final : public Workload {
 public:
  /// `save`: where the model is written to, once; empty: nowhere. Throws as Model().
  Reading(Context& context, const Source& source, const Format& format, const QuantisedFile* file,
          const data::TextSampler& text, const Read& of, std::string name, std::shared_ptr<AllRead> all,
          const std::string& save)
      : context_(context),
        of_(of),
        name_(std::move(name)),
        all_(std::move(all)),
        model_(context, source, format, file),
        cache_(serve::cache_shape(kDTypeOf<T>, source.spec(), {.block_tokens = of.seq})),
        scratch_(context, format.dynamic ? of.sequences : 0, std::max(source.spec().width, source.spec().hidden()),
                 std::max(source.spec().qkv_width(), source.spec().before_activation())),
        rows_(context, source.spec(), of.sequences, of.sequences) {
    if (!save.empty() && !planning()) save_quantised(context, model_, save);
    const auto buffer = [&](auto& to, std::size_t count, Category category, const char* tag) {
      using Buffer = std::remove_reference_t<decltype(to)>;
      to = Buffer(context.memory(), context.stream(), count, category, tag);
    };
    const std::size_t b = of.sequences;
    for (std::size_t i = 0; i < b; ++i) {
      caches_.emplace_back();
      buffer(caches_.back(), cache_.block_bytes(), Category::activations, "KV cache");
    }
    buffer(tokens_, checked_product(b, of.seq), Category::data, "tokens");
    buffer(labels_, tokens_.size(), Category::data, "labels");
    buffer(positions_, tokens_.size(), Category::workspace, "positions");
    buffer(first_, b, Category::workspace, "which cache a row has");
    buffer(table_, b, Category::workspace, "where caches are");
    buffer(losses_, checked_product(tokens_.size(), of.batches), Category::workspace, "losses of tokens");
    buffer(top_, losses_.size(), Category::workspace, "most likely tokens");
    buffer(loss_, 1, Category::workspace, "loss");
    upload_tables();
    samples_ = text.samples(0, planning() ? b : b * of.batches);
  }

  /// All sequences.
  void step() override {
    const Phase phase(context_.ledger(), "forward");
    moved_ = floor_ = 0;
    std::size_t steps = 0;
    for (std::size_t batch = 0; batch < of_.batches && !(planning() && batch); ++batch) {
      if (!planning()) upload_batch(batch);
      // What a plan counts grows evenly with the position: the first and the last have the mean of all.
      const std::size_t stride = planning() ? std::max<std::size_t>(1, of_.seq - 1) : 1;
      for (std::size_t p = 0; p < of_.seq; p += stride, ++steps) token(batch * of_.seq + p, p);
    }
    nn::scaled_sum(context_, losses_.data(), losses_.size(), 1.0f / static_cast<float>(losses_.size()), loss_.data());
    ReadResult& result = (*all_)[name_];
    result.moved = moved_ / static_cast<double>(steps);
    result.floor = floor_ / static_cast<double>(steps);
  }
  std::size_t samples_per_step() const override { return of_.sequences * of_.seq * of_.batches; }
  /// The mean loss of a token, in nats.
  double figure() override {
    ReadResult& result = (*all_)[name_];
    result.loss = nn::read_loss(context_, loss_);
    if (planning()) return 0;
    result.top.resize(top_.size());
    CUDA_CHECK(
        cudaMemcpyAsync(result.top.data(), top_.data(), top_.bytes(), cudaMemcpyDeviceToHost, context_.stream()));
    context_.synchronize();
    return result.loss;
  }
  /// Of the losses of all tokens.
  std::uint64_t fingerprint() override {
    return nn::fingerprint(context_, losses_.data(), losses_.size() * sizeof(float));
  }

 private:
  void upload_tables() {
    if (planning()) return;
    const std::size_t b = of_.sequences;
    std::vector<int> positions(b * of_.seq), first(b);
    std::vector<std::byte*> table(b);
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int>(i / b);
    for (std::size_t i = 0; i < b; ++i) first[i] = static_cast<int>(i), table[i] = caches_[i].data();
    copy(positions_, positions), copy(first_, first), copy(table_, table);
    context_.synchronize();
  }
  // Tokens and labels, one position after the other.
  void upload_batch(std::size_t batch) {
    const std::size_t b = of_.sequences;
    std::vector<int> tokens(b * of_.seq), labels(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t from = (batch * b + i % b) * of_.seq + i / b;
      tokens[i] = samples_.tokens[from], labels[i] = samples_.labels[from];
    }
    copy(tokens_, tokens), copy(labels_, labels);
    context_.synchronize();
  }
  template <class Value>
  void copy(DeviceBuffer<Value>& to, const std::vector<Value>& from) {
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof(Value), cudaMemcpyHostToDevice,
                               context_.stream()));
  }

  // The next token of each sequence, at position p; the results go to row `to` of losses and tops.
  void token(std::size_t to, std::size_t p) {
    const nn::TransformerSpec& spec = model_.spec();
    const std::size_t b = of_.sequences, c = spec.width, hidden = spec.hidden(), classes = spec.vocabulary;
    rows_.gather(context_, model_.embedding(), tokens_.data() + p * b, rows_.residual(), b);
    weights_read(double(b * c * sizeof(T)), 1);
    moved_ += double(b * c * sizeof(T));
    inference::CachedRows cached{table_.data(), first_.data(), positions_.data() + p * b, 0, spec.keys(),
                                 spec.depth(),  of_.seq,       cache_.scales_at()};
    for (; cached.layer < spec.layers; ++cached.layer) {
      const nn::DecoderLayer<QuantisedWeights<T>> layer = model_.layer(cached.layer, scratch_);
      rows_.layer(context_, layer, cached, false, b, b * (p + 1));
      for (const auto* linear : {&layer.qkv, &layer.up}) linear_read(*linear, false);
      for (const auto* linear : {&layer.projection, &layer.down}) linear_read(*linear, true);
      norms_read(2);
      attended(p);
      moved_ += double(3 * b * hidden * sizeof(T));  // SwiGLU
    }
    rows_.answer(context_, rows_.residual(), model_.final_norm(), model_.head(), top_.data() + to * b, b);
    norms_read(1);
    weights_read(double(classes * c * sizeof(T)), tiles());
    moved_ += double(b * (c * sizeof(T) + 3 * classes * sizeof(float)));
    nn::cross_entropy(context_, rows_.logits(), labels_.data() + p * b, losses_.data() + to * b, b, classes);
  }
  // Bytes that kernels read and write, as they are written: each of their operands once, but for weights, which are
  // read again for every kRowsOfTile rows.
  std::size_t tiles() const { return (of_.sequences + kRowsOfTile - 1) / kRowsOfTile; }
  void linear_read(const nn::Linear<QuantisedWeights<T>>& linear, bool adds) {
    const std::size_t b = of_.sequences, in = linear.in(), out = linear.out();
    const bool dynamic = linear.weights.matrix->format().dynamic, at_once = dynamic && library_takes(b, in, out);
    linear.weights.each_part(
        [&](const char*, std::size_t bytes) { weights_read(double(bytes), at_once ? 1 : tiles()); });
    if (linear.bias) weights_read(double(out * sizeof(T)), 1);
    moved_ += double(b * sizeof(T) * (in + out * (adds ? 2 : 1)));
    if (dynamic) moved_ += double(2 * b * (in + 4 * out));
  }
  void norms_read(std::size_t count) {
    const std::size_t bytes = count * model_.spec().width * sizeof(T);
    weights_read(double(bytes), 1);
    moved_ += double(2 * of_.sequences * bytes);
  }
  void weights_read(double bytes, std::size_t times) { floor_ += bytes, moved_ += bytes * double(times); }
  void attended(std::size_t p) {
    const nn::TransformerSpec& spec = model_.spec();
    const double b = double(of_.sequences), key_and_value = double(2 * spec.keys() * spec.depth() * sizeof(T));
    floor_ += b * double(p) * key_and_value;
    moved_ += b * double(p + 2) * key_and_value;                            // those of this token are written, and read
    moved_ += b * double((3 * spec.qkv_width() + spec.width) * sizeof(T));  // rotated, and read
  }

  Context& context_;
  Read of_;
  std::string name_;
  std::shared_ptr<AllRead> all_;
  Model<T> model_;
  serve::CacheShape cache_;
  DynamicScratch scratch_;
  inference::DecoderRows<T> rows_;
  DeviceBuffer<float> losses_, loss_;
  std::vector<DeviceBuffer<std::byte>> caches_;
  DeviceBuffer<int> tokens_, labels_, positions_, first_, top_;
  DeviceBuffer<std::byte*> table_;
  data::TokenSamples samples_;
  double moved_ = 0, floor_ = 0;
};

}  // namespace oomlab::quantisation
