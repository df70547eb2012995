// Our operators of image generation against PyTorch's, diffusers' and transformers', in FP32: diffusion.json, made by
// generate_diffusion.py.

#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "device.h"
#include "nn/ops/activation.h"
#include "nn/ops/cross_attention.h"
#include "nn/ops/geglu.h"
#include "nn/ops/group_norm.h"
#include "nn/ops/nearest.h"
#include "nn/ops/time_embedding.h"
#include "nn/ops/transposed.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

const nlohmann::json& diffusion() {
  static const nlohmann::json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/diffusion.json");
    return read_json(file);
  }();
  return all;
}

struct Diffusion : ::testing::Test {
  Device device;
  Context& context = device.context;

  DeviceBuffer<float> upload(const nlohmann::json& values) { return device.upload(values.get<std::vector<float>>()); }
  DeviceBuffer<float> garbage(std::size_t count) { return device.upload(std::vector<float>(count, NAN)); }
  DeviceBuffer<float> garbage(const nlohmann::json& as) { return garbage(as.size()); }
  void expect(const DeviceBuffer<float>& found, const nlohmann::json& expected, const std::string& what) {
    expect_close(device.download(found), expected.get<std::vector<float>>(), 1e-4, what);
  }
};

TEST_F(Diffusion, GroupNorms) {
  for (const auto& c : diffusion()["norms"]) {
    const auto [batch, pixels, channels, groups] = c["shape"].get<std::array<std::size_t, 4>>();
    const nn::GroupNormShape s{batch,  pixels,   channels,
                               groups, c["eps"], c["silu"] ? nn::Activation::silu : nn::Activation::none};
    const auto x = upload(c["x"]), dy = upload(c["dy"]), gamma = upload(c["gamma"]), beta = upload(c["beta"]);
    auto y = garbage(c["y"]), dx = garbage(c["x"]), dgamma = garbage(c["gamma"]), dbeta = garbage(c["beta"]);
    auto mean = garbage(batch * groups), rstd = garbage(batch * groups);
    nn::group_norm_forward(context, s, x.data(), gamma.data(), beta.data(), y.data(), mean.data(), rstd.data());
    nn::group_norm_backward_input(context, s, dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), beta.data(),
                                  dx.data(), false);
    nn::group_norm_backward_weight(context, s, dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), beta.data(),
                                   dgamma.data(), dbeta.data());
    expect(y, c["y"], "y of " + c["shape"].dump());
    expect(dx, c["dx"], "dx of " + c["shape"].dump());
    expect(dgamma, c["dgamma"], "dgamma of " + c["shape"].dump());
    expect(dbeta, c["dbeta"], "dbeta of " + c["shape"].dump());
  }
}

TEST_F(Diffusion, NearestSamplings) {
  for (const auto& c : diffusion()["nearest"]) {
    const auto s = c["shape"].get<std::array<std::size_t, 5>>();
    const auto x = upload(c["x"]), dy = upload(c["dy"]);
    auto y = garbage(c["y"]), dx = garbage(c["x"]);
    nn::nearest_forward(context, x.data(), y.data(), s[0], s[1], s[2], s[3], s[4]);
    nn::nearest_backward(context, dy.data(), dx.data(), s[0], s[1], s[2], s[3], s[4]);
    expect(y, c["y"], "y of " + c["shape"].dump());
    expect(dx, c["dx"], "dx of " + c["shape"].dump());
  }
}

TEST_F(Diffusion, TransposedConvolutions) {
  for (const auto& c : diffusion()["transposed"]) {
    const auto s = c["shape"].get<std::array<std::size_t, 6>>();
    const nn::ConvolutionShape shape = nn::transposed_shape(s[0], s[1], s[2], s[3], s[4], s[5]);
    const auto x = upload(c["x"]), w = upload(c["w"]), dy = upload(c["dy"]);
    for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::tiled, nn::ConvolutionWay::direct}) {
      auto y = garbage(c["y"]), dx = garbage(c["x"]), dw = garbage(c["w"]);
      nn::transposed_forward(context, shape, way, x.data(), w.data(), y.data());
      nn::transposed_backward_input(context, shape, way, dy.data(), w.data(), dx.data());
      nn::transposed_backward_weight(context, shape, way, dy.data(), x.data(), dw.data());
      expect(y, c["y"], "y of " + c["shape"].dump());
      expect(dx, c["dx"], "dx of " + c["shape"].dump());
      expect(dw, c["dw"], "dw of " + c["shape"].dump());
    }
  }
}

TEST_F(Diffusion, EmbeddingsOfTimesteps) {
  for (const auto& c : diffusion()["embeddings"]) {
    const auto steps = upload(c["steps"]);
    auto y = garbage(c["y"]);
    nn::time_embedding(context, steps.data(), y.data(), steps.size(), c["width"]);
    expect(y, c["y"], "width " + c["width"].dump());
  }
}

TEST_F(Diffusion, GatesOfGeglu) {
  for (const auto& c : diffusion()["geglu"]) {
    const auto [rows, width] = c["shape"].get<std::array<std::size_t, 2>>();
    auto x = upload(c["x"]), y = garbage(c["y"]);
    const auto dy = upload(c["dy"]);
    nn::geglu_forward(context, x.data(), y.data(), rows, width);
    nn::geglu_backward(context, dy.data(), x.data(), rows, width);
    expect(y, c["y"], "y of " + c["shape"].dump());
    expect(x, c["dx"], "dx of " + c["shape"].dump());
  }
}

// Nothing trains through them by themselves: a SiLU's gradient is that of the group norm before it.
TEST_F(Diffusion, Activations) {
  for (const auto& c : diffusion()["activations"]) {
    const nn::Activation activation = c["name"] == "silu" ? nn::Activation::silu : nn::Activation::quick_gelu;
    auto y = upload(c["x"]);
    nn::bias_activation(context, y.data(), nullptr, 1, y.size(), activation);
    expect(y, c["y"], c["name"]);
  }
}

TEST_F(Diffusion, PixelsAttendToTokens) {
  for (const auto& c : diffusion()["attention"]) {
    const auto [batch, rows, tokens, heads, depth] = c["shape"].get<std::array<std::size_t, 5>>();
    const nn::AttentionShape s{batch, rows, heads, heads * depth, false, 0, nullptr, tokens};
    const auto q = upload(c["q"]), k = upload(c["k"]), v = upload(c["v"]), dy = upload(c["dy"]);
    const nn::SeparateQkv<const float> in{q.data(), k.data(), v.data()};
    for (const auto form : {nn::AttentionForm::textbook, nn::AttentionForm::tiled, nn::AttentionForm::fused}) {
      auto y = garbage(c["y"]), dq = garbage(c["q"]), dk = garbage(c["k"]), dv = garbage(c["v"]);
      auto lse = garbage(s.matrices() * s.seq), dots = garbage(s.matrices() * s.seq);
      const nn::SeparateQkv<float> gradients{dq.data(), dk.data(), dv.data()};
      switch (form) {
        case nn::AttentionForm::textbook: {
          const auto p = nn::cross_attention_probabilities(context, s, q.data(), k.data());
          nn::cross_attention_forward(context, s, p.data(), v.data(), y.data());
          nn::cross_attention_backward(context, s, in, p.data(), dy.data(), gradients);
          break;
        }
        case nn::AttentionForm::tiled:
          nn::cross_attention_forward_tiled(context, s, in, y.data());
          nn::cross_attention_backward_tiled(context, s, in, dy.data(), gradients);
          break;
        case nn::AttentionForm::fused:
          nn::cross_attention_forward_fused(context, s, in, y.data(), lse.data());
          nn::attention_row_dots(context, s, y.data(), dy.data(), dots.data());
          nn::cross_attention_backward_fused(context, s, in, lse.data(), dots.data(), dy.data(), gradients);
          break;
      }
      const std::string what = std::string(name_of(form)) + ", " + c["shape"].dump();
      expect(y, c["y"], what);
      expect(dq, c["dq"], "gradient of Q, " + what);
      expect(dk, c["dk"], "gradient of K, " + what);
      expect(dv, c["dv"], "gradient of V, " + what);
    }
  }
}

}  // namespace
}  // namespace oomlab::test
