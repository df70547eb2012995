// What generation computes against the pass without a cache, which is tested against PyTorch: logits within 1e-5, the
// same tokens; with layers on the processor; in 8 bits; and the kernels that it consists of.

#include <algorithm>
#include <iostream>
#include <numeric>

#include "nn/models/transformer.h"
#include "small_decoder.h"

namespace {

using namespace oomlab;
using namespace oomlab::test;

// The logits [seq, vocabulary] of a whole sequence at once.
std::vector<float> without_cache(Device& device, Decoder& decoder, const std::vector<int>& tokens) {
  nn::Transformer<float> model(device.context, decoder.spec, nn::Slice{}, nullptr);
  for (std::size_t i = 0; i < decoder.tensors.size(); ++i) model.bind(i, decoder.tensors[i].data(), nullptr);
  const std::vector<int> labels(tokens.size(), 0);
  return device.download(
      model.logits(device.context, nn::make_token_batch(device.context, tokens, labels, 1, tokens.size())));
}
std::size_t largest(const float* logits, std::size_t classes) {
  return static_cast<std::size_t>(std::max_element(logits, logits + classes) - logits);
}
void expect_logits_without_cache(Device& device, Decoder& decoder, const Request& request,
                                 const std::vector<int>& answer, const Serving<float>::Logits& logits) {
  const std::size_t classes = decoder.spec.vocabulary;
  std::vector<int> all = request.prompt;
  all.insert(all.end(), answer.begin(), answer.end() - 1);
  const std::vector<float> expected = without_cache(device, decoder, all);
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const auto row = expected.begin() + static_cast<std::ptrdiff_t>((request.prompt.size() - 1 + i) * classes);
    expect_close(logits[i], std::vector<float>(row, row + static_cast<std::ptrdiff_t>(classes)), 1e-5, "logits");
    EXPECT_EQ(static_cast<std::size_t>(answer[i]), largest(&*row, classes));
  }
}

class Values : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Values, ::testing::ValuesIn(kDistinctBlockThreads));

TEST_P(Values, AreThoseOfThePassWithoutACache) {
  for (const bool three_heads : {true, false}) {
    Decoder decoder(device, small_spec(three_heads));
    const std::vector<Request> requests = small_requests(5, decoder.spec.vocabulary);
    Server server(decoder, requests, {.block_tokens = 3, .most_rows = 7});
    server.serving.run();
    for (std::size_t r = 0; r < requests.size(); ++r)
      expect_logits_without_cache(device, decoder, requests[r], server.serving.answers()[r], server.logits[r]);
  }
}

// More positions than the attention kernel takes at a time, heads that are read in packs, and more than kLogitRows
// answers in a step.
TEST_P(Values, OfLongRequestsAndManyAtATime) {
  nn::TransformerSpec spec = small_spec(false);
  spec.width = 64, spec.positions = 160, spec.vocabulary = 67;
  Decoder decoder(device, spec);
  std::vector<Request> requests(kLogitRows + 3);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    requests[r].prompt.assign(r == 1 ? 150 : 3 + r % 3, static_cast<int>(5 + r));
    requests[r].answer = r == 1 ? 8 : 4;
  }
  Server server(decoder, requests, {.block_tokens = 16, .most_rows = 64}, 160);
  server.serving.run();
  for (const std::size_t r : {std::size_t(0), std::size_t(1), requests.size() - 1})
    expect_logits_without_cache(device, decoder, requests[r], server.serving.answers()[r], server.logits[r]);
}

TEST(ProcessorLayers, GiveTheSameTokens) {
  Device device;
  for (const bool three_heads : {true, false}) {
    Decoder decoder(device, small_spec(three_heads));
    const std::vector<Request> requests = small_requests(6, decoder.spec.vocabulary);
    Server all_on_device(decoder, requests, {.block_tokens = 5});
    all_on_device.serving.run();
    for (const std::size_t on_processor : {1, 2}) {
      const std::size_t before = device.ledger.live_bytes();
      device.ledger.reset_peak();
      {
        const PlacedWeights<float> placed(device.context, decoder.spec, on_processor,
                                          [&](Context& context, std::size_t i, float* to, std::size_t n) {
                                            CUDA_CHECK(cudaMemcpyAsync(to, decoder.values[i].data(), n * sizeof(float),
                                                                       cudaMemcpyHostToDevice, context.stream()));
                                          });
        const auto bytes = weight_bytes(DType::fp32, decoder.spec, on_processor);
        EXPECT_EQ(device.ledger.live_bytes() - before, bytes.device);
        EXPECT_EQ(device.ledger.peak_bytes() - before, std::max(bytes.device, bytes.in_transit));
        for (std::size_t l = 0; l < decoder.spec.layers; ++l)
          EXPECT_EQ(device.ledger.live_blocks().contains(placed.weights().layers[l].down.weights.data),
                    l + on_processor < decoder.spec.layers);
        const CacheShape shape =
            cache_shape(DType::fp32, decoder.spec, {.block_tokens = 5, .cpu_layers = on_processor});
        CudaResource resource;
        Ledger ledger;
        Context context(resource, ledger, kGranule);
        KvCache cache(context, shape, /*careful=*/true);
        Generation<float> generation(context, decoder.spec, placed.weights(), shape, 8, kLongestHere);
        std::vector<Serving<float>::Logits> logits;
        Serving<float> serving(context, generation, cache, requests, 8, &logits);
        serving.run();
        EXPECT_EQ(serving.answers(), all_on_device.serving.answers());
        for (std::size_t r = 0; r < requests.size(); ++r)
          for (std::size_t i = 0; i < logits[r].size(); ++i)
            expect_close(logits[r][i], all_on_device.logits[r][i], 1e-5, "logits");
        ByCategory expected = server_bytes(DType::fp32, decoder.spec, shape, 8, kLongestHere,
                                           simulate_serving(lengths_of(requests), 5, kUnlimited, 8).max_blocks);
        EXPECT_EQ(ledger.peak_bytes() + bytes.device, expected.total() + kGranule);
      }
      EXPECT_EQ(device.ledger.live_bytes(), before);
    }
  }
}

// Keys and values of one layer, written and read back.
TEST_P(Values, InEightBitsAreWithinHalfAStep) {
  const std::size_t rows = 7, heads = 4, kv_heads = 2, depth = 24, width = (heads + 2 * kv_heads) * depth;
  const CacheShape shape{.layers = 2, .kv_heads = kv_heads, .depth = depth, .block_tokens = 4, .dtype = DType::int8};
  EXPECT_EQ(shape.block_bytes(), 2 * 2 * kv_heads * 4 * (depth + 4));
  KvCache cache(device.context, shape);
  const KvCache::Id id = cache.open();
  cache.reserve(id, rows);
  std::vector<float> qkv = random_floats(rows * width, 3, 5.0f);
  std::fill_n(qkv.begin() + static_cast<std::ptrdiff_t>(heads * depth), depth, 0.0f);  // a key of zeros
  std::vector<int> first(rows, 0), position(rows);
  std::iota(position.begin(), position.end(), 0);
  const auto table = device.upload(std::vector<std::byte*>{cache.block(id, 0), cache.block(id, 1)});
  const auto on_device = device.upload(qkv);
  const auto firsts = device.upload(first), positions = device.upload(position);
  auto attended = device.upload(std::vector<float>(rows * heads * depth));
  attend_cached(device.context, on_device.data(), attended.data(),
                {table.data(), firsts.data(), positions.data(), 1, kv_heads, depth, 4, shape.scales_at()}, true, rows,
                heads, 0);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t head = 0; head < 2 * kv_heads; ++head) {
      const std::byte* const block = cache.block(id, row / 4);
      const std::size_t at = (1 * 2 * kv_heads + head) * 4 + row % 4;  // of layer 1
      const auto stored = device.download(reinterpret_cast<const std::int8_t*>(block) + at * depth, depth);
      const float scale = device.download(reinterpret_cast<const float*>(block + shape.scales_at()) + at, 1)[0];
      const float* const given = qkv.data() + row * width + (heads + head) * depth;
      float most = 0.0f;
      for (std::size_t c = 0; c < depth; ++c) most = std::max(most, std::fabs(given[c]));
      ASSERT_EQ(scale, most / 127.0f);
      for (std::size_t c = 0; c < depth; ++c)
        ASSERT_LE(std::fabs(float(stored[c]) * scale - given[c]), scale * 0.50001f) << row << ", " << head << ", " << c;
    }
}

// On the same tokens: how often the largest logit is where it was in FP32.
TEST(EightBits, MostlyGiveTheSameTokens) {
  Device device;
  std::size_t same = 0, all = 0;
  for (const bool three_heads : {true, false}) {
    const Decoder decoder(device, small_spec(three_heads));
    std::vector<std::vector<int>> tops[2];
    for (unsigned seed = 0; seed < 5; ++seed)
      for (const DType dtype : {DType::fp32, DType::int8}) {
        Server server(decoder, {}, {.block_tokens = 4, .most_rows = kLongestHere, .cache_dtype = dtype});
        const KvCache::Id id = server.cache.open();
        server.cache.reserve(id, kLongestHere);
        std::vector<Row> rows;
        for (const int token : random_labels(kLongestHere, decoder.spec.vocabulary, seed))
          rows.push_back({token, id, rows.size(), true});
        tops[dtype == DType::int8].push_back(server.generation.step(server.context, server.cache, rows));
      }
    for (std::size_t s = 0; s < tops[0].size(); ++s)
      for (std::size_t i = 0; i < tops[0][s].size(); ++i) same += tops[0][s][i] == tops[1][s][i], ++all;
  }
  RecordProperty("same", static_cast<int>(same));
  RecordProperty("all", static_cast<int>(all));
  std::cout << "8 bits: " << same << " of " << all << " tokens are those of FP32\n";
  EXPECT_GE(same * 100, all * 95);
  EXPECT_LT(same, all + 1);
}

TEST_P(Values, OfARowDoNotDependOnTheOthers) {
  const auto check = [&]<class T, class Out>(T, Out) {
    for (const auto& [in, out] :
         {std::pair<std::size_t, std::size_t>{1, 1}, {5, 3}, {16, 4}, {36, 21}, {64, 67}, {200, 6}}) {
      const std::size_t rows = 9, stride = in + (in % 3 == 0 ? 4 : 0);
      std::vector<T> x, weight, bias;
      for (const float v : random_floats(rows * stride, 1)) x.push_back(static_cast<T>(v));
      for (const float v : random_floats(out * in, 2)) weight.push_back(static_cast<T>(v));
      for (const float v : random_floats(out, 3)) bias.push_back(static_cast<T>(v));
      std::vector<Out> before;
      for (const float v : random_floats(rows * out, 4)) before.push_back(static_cast<Out>(v));
      const auto on_device = device.upload(x);
      const auto weights = device.upload(weight), biases = device.upload(bias);
      std::vector<double> expected;
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < out; ++o) {
          double sum = double(float(before[r * out + o])) + double(float(bias[o]));
          for (std::size_t i = 0; i < in; ++i)
            sum += double(float(x[r * stride + i])) * double(float(weight[o * in + i]));
          expected.push_back(sum);
        }
      const auto product = [&](std::size_t first, std::size_t count) {
        auto y = device.upload(std::vector<Out>(before.begin() + static_cast<std::ptrdiff_t>(first * out),
                                                before.begin() + static_cast<std::ptrdiff_t>((first + count) * out)));
        row_products<T>(device.context, {on_device.data() + first * stride, stride}, weights.data(), biases.data(),
                        y.data(), count, in, out, /*add=*/true);
        std::vector<float> all;
        for (const Out v : device.download(y)) all.push_back(static_cast<float>(v));
        return all;
      };
      const std::vector<float> whole = product(0, rows);
      expect_close(whole, expected, sizeof(Out) == 4 ? 1e-6 : 1e-2, "products");
      for (std::size_t first = 0; first < rows; ++first)
        for (std::size_t count = 1; first + count <= rows; ++count) {
          const auto from = whole.begin() + static_cast<std::ptrdiff_t>(first * out);
          ASSERT_TRUE(same_bits(product(first, count), {from, from + static_cast<std::ptrdiff_t>(count * out)}))
              << in << " -> " << out << ", rows " << first << " + " << count;
        }
    }
  };
  check(float{}, float{});
  check(__nv_bfloat16{}, __nv_bfloat16{});
  check(__half{}, float{});
}

TEST_P(Values, TheFirstOfEqualLogitsWins) {
  const std::size_t classes = 37;
  std::vector<float> logits(3 * classes, -1.0f);
  logits[5] = logits[20] = logits[36] = 2.0f;
  logits[classes + 36] = 0.0f;
  std::fill_n(logits.begin() + 2 * classes, classes, NAN);
  const auto on_device = device.upload(logits);
  auto tokens = device.upload(std::vector<int>(3, -1));
  launch(largest_logit_kernel, shape_for_rows(3), device.context.stream(), on_device.data(), tokens.data(),
         std::size_t(3), classes, false);
  EXPECT_EQ(device.download(tokens), (std::vector<int>{5, 36, 0}));
}

}  // namespace
