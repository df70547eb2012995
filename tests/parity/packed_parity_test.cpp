// Attention of packed sequences against PyTorch's scaled_dot_product_attention of each by itself: packed.json, made by
// generate.py.

#include <gtest/gtest.h>

#include <cuda_bf16.h>

#include <fstream>

#include "device.h"
#include "hash.h"
#include "nn/ops/attention.h"
#include "read_json.h"

namespace oomlab::test::packed {
namespace {

// uniform() of generate.py, of one stream around 0.
std::vector<float> uniform(std::uint64_t stream, std::size_t count, float bound) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    const float u = static_cast<float>(hash(1, stream, i)) * 0x1p-23f - 1.0f;
    values.push_back(static_cast<float>(static_cast<__nv_bfloat16>(u * bound)));
  }
  return values;
}

TEST(PackedParity, AttentionIsThatOfEachSequenceInEveryForm) {
  std::ifstream file(std::string(OOMLAB_FIXTURES) + "/packed.json");
  const nlohmann::json all = read_json(file);
  Device device;
  Context& context = device.context;
  for (const auto& c : all["attention"]) {
    const auto lengths = c["lengths"].get<std::vector<std::uint64_t>>();
    const std::uint64_t heads = c["heads"], kv_heads = c["kv_heads"], depth = c["depth"];
    nn::SequenceOffsets offsets = nn::offsets_of(lengths);
    const auto there = device.upload(std::vector<int>(offsets.first.begin(), offsets.first.end()));
    offsets.on_device = there.data();
    const nn::AttentionShape shape{
        lengths.size(), *std::ranges::max_element(lengths), heads, heads * depth, c["causal"], kv_heads, &offsets};
    const std::vector<float> qkv = uniform(0, shape.rows() * shape.qkv_width(), 2.0f);
    const std::vector<float> d = uniform(1, shape.rows() * shape.width, 1.0f);
    const auto expected = c["attended"].get<std::vector<float>>();
    const auto expected_gradient = c["d_qkv"].get<std::vector<float>>();
    for (const auto form : {nn::AttentionForm::textbook, nn::AttentionForm::tiled, nn::AttentionForm::fused}) {
      auto in = device.upload(qkv), d_out = device.upload(d), out = device.upload(std::vector<float>(d.size(), NAN));
      DeviceBuffer<float> d_in;
      if (form == nn::AttentionForm::textbook) {
        auto p = nn::attention_probabilities<float>(context, shape, in.data());
        nn::attention_forward<float>(context, shape, in.data(), p.data(), out.data());
        d_in = nn::attention_backward<float>(context, shape, in, p, std::move(d_out));
      } else if (form == nn::AttentionForm::tiled) {
        nn::attention_forward_tiled<float>(context, shape, in.data(), out.data());
        d_in = nn::attention_backward_tiled<float>(context, shape, in, std::move(d_out));
      } else {
        auto lse = device.upload(std::vector<float>(shape.rows() * heads)), dots = device.upload(device.download(lse));
        nn::attention_forward_fused<float>(context, shape, in.data(), out.data(), lse.data());
        nn::attention_row_dots<float>(context, shape, out.data(), d_out.data(), dots.data());
        d_in = nn::attention_backward_fused<float>(context, shape, in, lse, dots, std::move(d_out));
      }
      const std::string what = std::string(name_of(form)) + ", " + c["lengths"].dump();
      expect_close(device.download(out), expected, 1e-6, what + ", forward");
      expect_close(device.download(d_in), expected_gradient, 2e-6, what + ", backward");
    }
  }
}

}  // namespace
}  // namespace oomlab::test::packed
