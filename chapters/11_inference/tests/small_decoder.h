#pragma once
// A small decoder with numbers that do something in every tensor, and a server for it below a budget.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "../../../tests/nn/device.h"
#include "plan/serve/server.h"
#include "serving.h"

namespace oomlab::test {

using namespace inference;

/// 3 heads over 1, or 4 over 2, with a head of its own and without biases.
inline nn::TransformerSpec small_spec(bool three_heads) {
  nn::TransformerSpec spec{.name = "small", .style = nn::TransformerSpec::Style::llama, .layers = 2};
  spec.heads = three_heads ? 3 : 4;
  spec.kv_heads = three_heads ? 1 : 2;
  spec.width = three_heads ? 36 : 32;
  spec.mlp = 40;
  spec.vocabulary = 64;
  spec.positions = 64;
  spec.tied = spec.qkv_bias = three_heads;
  return spec;
}

inline std::vector<float> tensor_values(const nn::TensorShape& shape, unsigned seed) {
  const bool gamma = shape.name.ends_with("gamma"), matrix = shape.name.ends_with("weight");
  std::vector<float> values = random_floats(shape.count(), seed,
                                            matrix  ? 2.5f / std::sqrt(float(shape.columns))
                                            : gamma ? 0.3f
                                                    : 1.0f);
  for (float& v : values) v += gamma ? 1.0f : 0.0f;
  return values;
}

struct Decoder {
  nn::TransformerSpec spec;
  std::vector<std::vector<float>> values;  // of nn::tensors_of()
  std::vector<DeviceBuffer<float>> tensors;

  Decoder(Device& device, const nn::TransformerSpec& of) : spec(of) {
    unsigned seed = 1;
    for (const nn::TensorShape& shape : nn::tensors_of(spec)) {
      values.push_back(tensor_values(shape, seed++));
      tensors.push_back(device.upload(values.back()));
    }
  }
  DecoderWeights<float> weights() const {
    std::vector<const float*> pointers;
    for (const auto& tensor : tensors) pointers.push_back(tensor.data());
    return decoder_weights<float>(spec, pointers);
  }
};

/// How a stream is served.
struct ServerSetup {
  std::size_t block_tokens = 16, most_rows = 8;
  std::size_t blocks = kUnlimited;  ///< that fit into the budget
  std::optional<DType> cache_dtype = {};
};

inline constexpr std::size_t kLongestHere = 32;

/// A server of its own, in a context of its own.
struct Server {
  ServerSetup way;
  CacheShape shape;
  CudaResource resource;
  LimitingResource limit;
  Ledger ledger;
  Context context;
  KvCache cache;
  Generation<float> generation;
  std::vector<Serving<float>::Logits> logits;
  Serving<float> serving;

  Server(const Decoder& decoder, std::span<const Request> requests, const ServerSetup& w,
         std::size_t longest = kLongestHere, bool careful = true, bool with_logits = true)
      : way(w),
        shape(cache_shape(DType::fp32, decoder.spec, {.block_tokens = w.block_tokens, .cache_dtype = w.cache_dtype})),
        limit(resource, budget(decoder.spec, shape, w, longest)),
        context(limit, ledger, kGranule),
        cache(context, shape, careful),
        generation(context, decoder.spec, decoder.weights(), shape, w.most_rows, longest),
        serving(context, generation, cache, requests, w.most_rows, with_logits ? &logits : nullptr) {}

  // The weights are elsewhere.
  static ByCategory buffers(const nn::TransformerSpec& spec, const CacheShape& shape, const ServerSetup& way,
                            std::size_t longest, std::size_t blocks) {
    ByCategory bytes = server_bytes(DType::fp32, spec, shape, way.most_rows, longest, blocks);
    bytes[Category::parameters] = 0;
    bytes[Category::workspace] += kGranule;
    return bytes;
  }
  static std::size_t budget(const nn::TransformerSpec& spec, const CacheShape& shape, const ServerSetup& way,
                            std::size_t longest) {
    return way.blocks == kUnlimited ? kUnlimited
                                    : buffers(spec, shape, way, longest, way.blocks).total() + kGranule - 1;
  }
  ByCategory predicted(const nn::TransformerSpec& spec, std::size_t longest, std::size_t most_blocks) const {
    return buffers(spec, shape, way, longest, most_blocks);
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Requests of up to kLongestHere tokens; about half of them belong to a group.
inline std::vector<Request> small_requests(unsigned seed, std::size_t vocabulary) {
  std::mt19937 random(seed);
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  std::vector<Request> requests(between(3, 8));
  std::vector<int> prefix(between(1, 12));
  for (int& token : prefix) token = static_cast<int>(random() % vocabulary);
  for (Request& request : requests) {
    const std::size_t length = between(2, kLongestHere);
    request.prompt.resize(between(1, length));
    request.answer = length + 1 - request.prompt.size();
    for (int& token : request.prompt) token = static_cast<int>(random() % vocabulary);
    if (request.prompt.size() <= prefix.size() || random() % 3 == 0) continue;
    request.group = 7, request.shared = prefix.size();
    std::copy(prefix.begin(), prefix.end(), request.prompt.begin());
  }
  return requests;
}
inline std::vector<Request> without_groups(std::vector<Request> requests) {
  for (Request& request : requests) request.group = request.shared = 0;
  return requests;
}

}  // namespace oomlab::test
