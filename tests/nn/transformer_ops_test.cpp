// The transformer's operators against double precision and its central differences, in every storage type and for all
// the block sizes.

#include "nn/ops/activation.h"
#include "nn/ops/column_sum.h"
#include "nn/ops/embedding.h"
#include "nn/ops/loss.h"
#include "nn/ops/matmul.h"
#include "nn/ops/norms.h"
#include "nn/ops/residual.h"
#include "nn/ops/softmax.h"

#include <climits>

#include "transformer_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

struct RowsShape {
  std::size_t rows, width;
};
// Rows and columns that no pack and no group of lanes divides, too.
const RowsShape kRowsShapes[] = {{1, 1}, {2, 7}, {3, 8}, {6, 33}, {12, 64}, {5, 257}};

class TransformerOps : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, TransformerOps, ::testing::ValuesIn(kDistinctBlockThreads));

TEST_P(TransformerOps, GemmStrided) {
  for_each_type([&]<class T>(T) {
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        // Two matrices side by side in wider rows: what the heads of a fused QKV are.
        const std::size_t m = 5, n = 3, k = 4, count = 2, a_width = ta ? m : k, b_width = tb ? k : n,
                          a_rows = ta ? k : m, b_rows = tb ? n : k;
        const auto a = random<T>(a_rows * a_width * count, 1), b = random<T>(b_rows * b_width * count, 2),
                   c = random<T>(m * n * count, 3);
        const auto ad = wide(a), bd = wide(b), cd = wide(c);
        Vector expected(c.size());
        for (std::size_t z = 0; z < count; ++z)
          for (std::size_t i = 0; i < m; ++i)
            for (std::size_t j = 0; j < n; ++j) {
              double sum = 0;
              for (std::size_t p = 0; p < k; ++p)
                sum += ad[(ta ? p : i) * a_width * count + z * a_width + (ta ? i : p)] *
                       bd[(tb ? j : p) * b_width * count + z * b_width + (tb ? p : j)];
              expected[z * m * n + i * n + j] = 0.5 * sum + 2 * cd[z * m * n + i * n + j];
            }
        const auto a_ = device.upload(a), b_ = device.upload(b);
        auto c_ = device.upload(c);
        nn::gemm_strided<T>(device.context, ta, tb, m, n, k, 0.5f, {a_.data(), a_width * count, a_width},
                            {b_.data(), b_width * count, b_width}, 2.0f, {c_.data(), n, m * n}, count);
        expect(c_, expected, "product");
      }
  });
  EXPECT_THROW(nn::gemm_strided<float>(device.context, false, false, 1, 1, std::size_t(INT_MAX) + 1, 1, {nullptr, 1, 0},
                                       {nullptr, 1, 0}, 0, {nullptr, 1, 0}, 1),
               std::length_error);
}

// More rows than an owner lists at a time, tokens that many rows share, and some that none has. A token's rows are
// added in FP32 and rounded once: in 16 bits, one after the other, 2,000 ones would stop at 256 (BF16) or 2,048 (FP16).
TEST_P(TransformerOps, TokenGradientsOfManyRows) {
  constexpr std::size_t rows = 5000, width = 9, vocabulary = 600;
  for_each_type([&]<class T>(T) {
    std::vector<int> tokens(rows);
    for (std::size_t r = 0; r < rows; ++r) tokens[r] = r % 2 ? 300 : static_cast<int>(r * 7 % (vocabulary - 1));
    const auto tokens_ = device.upload(tokens);
    const auto dx = device.upload(stored<T>(std::vector<float>(rows * width, 1.0f)));
    auto dtoken = device.upload(stored<T>(std::vector<float>(vocabulary * width, 1.0f)));
    auto dposition = device.upload(stored<T>(std::vector<float>(width)));
    Vector expected(vocabulary * width, 1.0);
    for (const int token : tokens)
      for (std::size_t c = 0; c < width; ++c) expected[static_cast<std::size_t>(token) * width + c] += 1;
    nn::embedding_backward(device.context, tokens_.data(), dx.data(), dtoken.data(), dposition.data(), rows, {}, width);
    expect(dtoken, expected, "token gradients of many rows");
  });
}

TEST_P(TransformerOps, Embedding) {
  for_each_type([&]<class T>(T) {
    for (const auto [seq, width] : kRowsShapes) {
      const std::size_t vocabulary = 300, rows = 3 * seq;
      auto tokens = random_labels(rows, vocabulary, 5);
      tokens.back() = tokens.front();  // at least one token more than once
      tokens[rows / 2] = (tokens.front() + 256) % int(vocabulary);
      const auto token = random<T>(vocabulary * width, 1), position = random<T>(seq * width, 2),
                 dx = random<T>(rows * width, 3), before = random<T>(vocabulary * width, 4);
      const auto tokens_ = device.upload(tokens);
      const auto token_ = device.upload(token), position_ = device.upload(position), dx_ = device.upload(dx);
      auto x_ = garbage<T>(rows * width), dtoken_ = device.upload(before), dposition_ = garbage<T>(seq * width);
      Vector x = embedding(tokens, wide(token), wide(position), seq, width);
      nn::embedding_forward(device.context, tokens_.data(), token_.data(), position_.data(), nullptr, x_.data(), rows,
                            {.seq = seq}, width);
      expect(x_, x, "x");
      nn::embedding_forward(device.context, tokens_.data(), token_.data(), position_.data(), dx_.data(), x_.data(),
                            rows, {.seq = seq}, width);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += double(static_cast<float>(dx[i % width]));
      expect(x_, x, "x with a type");

      nn::embedding_backward(device.context, tokens_.data(), dx_.data(), dtoken_.data(), dposition_.data(), rows,
                             {.seq = seq}, width);
      Vector dtoken = wide(before), dposition(seq * width);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < width; ++c) {
          const double d = static_cast<float>(dx[r * width + c]);
          dtoken[std::size_t(tokens[r]) * width + c] += d;
          dposition[r % seq * width + c] += d;
        }
      expect(dtoken_, dtoken, "dtoken");
      expect(dposition_, dposition, "dposition");
      nn::embedding_backward(device.context, tokens_.data(), dx_.data(), dtoken_.data(), dposition_.data(), rows,
                             {.seq = seq}, width, true);
      for (double& d : dposition) d *= 2;
      expect(dposition_, dposition, "dposition, accumulated");
    }
  });
}

// Sequences side by side: positions begin again with each, and a position's gradient is that of the sequences that have
// it. Rows of a part of the batch have the positions that they have in all of it.
TEST_P(TransformerOps, EmbeddingOfPackedSequences) {
  const std::vector<std::uint64_t> lengths{3, 1, 7, 2};
  constexpr std::size_t rows = 13, longest = 7, width = 9, vocabulary = 20, part = 4;
  const std::vector<int> positions{0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 0, 1};
  for_each_type([&]<class T>(T) {
    nn::SequenceOffsets packed = nn::offsets_of(lengths);
    const auto offsets_ = device.upload(std::vector<int>(packed.first.begin(), packed.first.end()));
    const auto positions_ = device.upload(positions);
    packed.on_device = offsets_.data();
    const auto tokens = random_labels(rows, vocabulary, 5);
    const auto token = random<T>(vocabulary * width, 1), position = random<T>(longest * width, 2),
               dx = random<T>(rows * width, 3);
    const auto tokens_ = device.upload(tokens);
    const auto token_ = device.upload(token), position_ = device.upload(position), dx_ = device.upload(dx);
    Vector x, dposition(longest * width);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < width; ++c) {
        const std::size_t place = std::size_t(positions[r]) * width + c;
        x.push_back(wide(token)[std::size_t(tokens[r]) * width + c] + wide(position)[place]);
        dposition[place] += wide(dx)[r * width + c];
      }
    auto x_ = garbage<T>(rows * width);
    nn::embedding_forward(device.context, tokens_.data(), token_.data(), position_.data(), nullptr, x_.data(), rows,
                          {.seq = longest}, width, 0, positions_.data());
    expect(x_, x, "x");
    auto part_ = garbage<T>((rows - part) * width);
    nn::embedding_forward(device.context, tokens_.data() + part, token_.data(), position_.data(), nullptr, part_.data(),
                          rows - part, {.seq = longest}, width, part, positions_.data());
    expect(part_, Vector(x.begin() + part * width, x.end()), "x of a part");
    auto dtoken_ = device.upload(stored<T>(std::vector<float>(vocabulary * width)));
    auto dposition_ = garbage<T>(longest * width);
    for (const bool accumulate : {false, true}) {
      nn::embedding_backward(device.context, tokens_.data(), dx_.data(), dtoken_.data(), dposition_.data(), rows,
                             {.seq = longest}, width, accumulate, &packed);
      expect(dposition_, dposition, accumulate ? "dposition, accumulated" : "dposition");
      for (double& d : dposition) d *= 2;
    }
  });
}

TEST_P(TransformerOps, LayerNorm) {
  for_each_type([&]<class T>(T) {
    for (const auto [rows, width] : kRowsShapes) {
      const auto x = random<T>(rows * width, 1, 3), gamma = random<T>(width, 2), beta = random<T>(width, 3),
                 dy = random<T>(rows * width, 4), residual = random<T>(rows * width, 5);
      const Vector xd = wide(x), gd = wide(gamma), bd = wide(beta), dyd = wide(dy);
      const LayerNorm norm = layer_norm(xd, gd, bd, rows);

      const auto x_ = device.upload(x), gamma_ = device.upload(gamma), beta_ = device.upload(beta);
      auto y_ = garbage<T>(x.size()), again_ = garbage<T>(x.size());
      auto mean_ = garbage<float>(rows), rstd_ = garbage<float>(rows);
      nn::layer_norm_forward(device.context, x_.data(), gamma_.data(), beta_.data(), y_.data(), mean_.data(),
                             rstd_.data(), rows, width);
      expect(y_, norm.y, "y");
      expect(mean_, norm.mean, "mean");
      expect(rstd_, norm.rstd, "rstd");
      nn::layer_norm_recompute(device.context, x_.data(), mean_.data(), rstd_.data(), gamma_.data(), beta_.data(),
                               again_.data(), rows, width);
      EXPECT_EQ(wide(device.download(again_)), wide(device.download(y_)));

      const Vector dx =
          central_differences(xd, [&](const Vector& v) { return dot(layer_norm(v, gd, bd, rows).y, dyd); });
      const Vector dgamma =
          central_differences(gd, [&](const Vector& v) { return dot(layer_norm(xd, v, bd, rows).y, dyd); });
      const Vector dbeta =
          central_differences(bd, [&](const Vector& v) { return dot(layer_norm(xd, gd, v, rows).y, dyd); });
      auto in_place_ = device.upload(dy), added_ = device.upload(residual);
      auto dgamma_ = garbage<T>(width), dbeta_ = garbage<T>(width);
      const auto dy_ = device.upload(dy);
      nn::layer_norm_backward_input(device.context, in_place_.data(), x_.data(), mean_.data(), rstd_.data(),
                                    gamma_.data(), in_place_.data(), rows, width, false);
      nn::layer_norm_backward_input(device.context, dy_.data(), x_.data(), mean_.data(), rstd_.data(), gamma_.data(),
                                    added_.data(), rows, width, true);
      nn::layer_norm_backward_weight(device.context, dy_.data(), x_.data(), mean_.data(), rstd_.data(), dgamma_.data(),
                                     dbeta_.data(), rows, width);
      Vector added = dx;
      for (std::size_t i = 0; i < added.size(); ++i) added[i] += double(static_cast<float>(residual[i]));
      if (width > 1) {  // of one value, the mean is the value: no gradient, only rounding
        expect(in_place_, dx, "dx");
        expect(dgamma_, dgamma, "dgamma");
      }
      expect(added_, added, "dx, added");
      expect(dbeta_, dbeta, "dbeta");
      nn::layer_norm_backward_weight(device.context, dy_.data(), x_.data(), mean_.data(), rstd_.data(), dgamma_.data(),
                                     dbeta_.data(), rows, width, true);
      Vector twice = dbeta;
      for (double& d : twice) d *= 2;
      expect(dbeta_, twice, "dbeta, accumulated");
    }
  });
}

// A row as long as a block of 1,024 threads needs to have work for each of them (a launch takes no more threads than a
// row has packs), in packs and one by one. Differences would take minutes here: the gradient is the formula of the
// operator's source.
TEST_P(TransformerOps, RowsForTheLargestBlock) {
  for_each_type([&]<class T>(T) {
    for (const std::size_t width : {kMostBlockThreads * 16 / sizeof(T) + 8, kMostBlockThreads * 16 / sizeof(T) + 5}) {
      const auto x = random<T>(width, 1, 3), gamma = random<T>(width, 2), beta = random<T>(width, 3),
                 dy = random<T>(width, 4);
      const Vector xd = wide(x), gd = wide(gamma), dyd = wide(dy);
      const LayerNorm norm = layer_norm(xd, gd, wide(beta), 1);
      const auto x_ = device.upload(x), gamma_ = device.upload(gamma), beta_ = device.upload(beta);
      auto y_ = garbage<T>(width), dx_ = device.upload(dy);
      auto mean_ = garbage<float>(1), rstd_ = garbage<float>(1);
      nn::layer_norm_forward(device.context, x_.data(), gamma_.data(), beta_.data(), y_.data(), mean_.data(),
                             rstd_.data(), 1, width);
      expect(y_, norm.y, "y");
      nn::layer_norm_backward_input(device.context, dx_.data(), x_.data(), mean_.data(), rstd_.data(), gamma_.data(),
                                    dx_.data(), 1, width, false);
      Vector hat(width), g(width), dx(width);
      for (std::size_t i = 0; i < width; ++i) {
        hat[i] = (xd[i] - norm.mean[0]) * norm.rstd[0];
        g[i] = dyd[i] * gd[i];
      }
      const double g_mean = dot(g, Vector(width, 1.0 / double(width))), gh_mean = dot(g, hat) / double(width);
      for (std::size_t i = 0; i < width; ++i) dx[i] = norm.rstd[0] * (g[i] - g_mean - hat[i] * gh_mean);
      expect(dx_, dx, "dx");

      const auto label = random_labels(1, width, 2);
      const Loss loss = cross_entropy(xd, label, width);
      const auto label_ = device.upload(label);
      auto logits_ = device.upload(x);
      nn::cross_entropy_with_gradient(device.context, logits_.data(), label_.data(), mean_.data(), 1, width, 1.0f);
      expect(logits_, loss.gradients, "gradient of the loss");
      expect(mean_, loss.rows, "loss");
    }
  });
}

TEST_P(TransformerOps, AddResidual) {
  for_each_type([&]<class T>(T) {
    for (const auto [rows, width] : kRowsShapes)
      for (const bool with_bias : {false, true}) {
        const auto x = random<T>(rows * width, 1), y = random<T>(rows * width, 2), bias = random<T>(width, 3);
        Vector out(x.size());
        for (std::size_t i = 0; i < out.size(); ++i)
          out[i] = double(static_cast<float>(x[i])) + double(static_cast<float>(y[i])) +
                   (with_bias ? double(static_cast<float>(bias[i % width])) : 0);
        const auto x_ = device.upload(x), bias_ = device.upload(bias);
        auto y_ = device.upload(y);
        nn::add_residual(device.context, x_.data(), y_.data(), with_bias ? bias_.data() : nullptr, y_.data(), rows,
                         width);
        expect(y_, out, "in place");
      }
  });
}

TEST_P(TransformerOps, Softmax) {
  for_each_type([&]<class T>(T) {
    for (const auto [matrices, seq] :
         {RowsShape{1, 1}, RowsShape{3, 7}, RowsShape{2, 8}, RowsShape{2, 19}, RowsShape{1, 33}})
      for (const bool causal : {false, true}) {
        if (OOMLAB_ROUNDS < 10 && seq > 19) continue;
        const float scale = 0.3f;
        const auto x = random<T>(matrices * seq * seq, 1, 8), dp = random<T>(x.size(), 2);
        auto p_ = device.upload(x), d_ = device.upload(dp);
        nn::softmax_forward(device.context, p_.data(), {matrices, seq, seq, 0, causal}, scale);
        expect(p_, softmax(wide(x), matrices, seq, scale, causal), "p");
        const auto p = wide(device.download(p_));
        for (std::size_t i = 0; i < p.size(); ++i)
          if (causal && i % seq > i / seq % seq) {
            ASSERT_EQ(p[i], 0.0f) << "the future";
          }

        nn::softmax_backward(device.context, p_.data(), d_.data(), {matrices, seq, seq, 0, causal}, scale);
        const Vector gradient = wide(dp);
        const Vector dx = central_differences(
            wide(x), [&](const Vector& v) { return dot(softmax(v, matrices, seq, double(scale), causal), gradient); });
        if (seq > 1) expect(d_, dx, "dx");
      }
  });
}

TEST_P(TransformerOps, MaskedValuesMayBeAnything) {
  const std::size_t seq = 6;
  std::vector<float> x = random_floats(seq * seq, 1), wild = x, dp = random_floats(seq * seq, 2), wild_dp = dp;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i % seq > i / seq) wild[i] = i % 2 ? NAN : INFINITY, wild_dp[i] = NAN;
  auto a = device.upload(x), b = device.upload(wild), da = device.upload(dp), db = device.upload(wild_dp);
  for (auto* p : {&a, &b}) nn::softmax_forward(device.context, p->data(), {1, seq, seq, 0, true}, 1);
  nn::softmax_backward(device.context, a.data(), da.data(), {1, seq, seq, 0, true}, 1);
  nn::softmax_backward(device.context, b.data(), db.data(), {1, seq, seq, 0, true}, 1);
  EXPECT_EQ(device.download(a), device.download(b));
  EXPECT_EQ(device.download(da), device.download(db));
}

TEST_P(TransformerOps, CrossEntropyWithGradient) {
  for_each_type([&]<class T>(T) {
    for (const auto [rows, classes] : {RowsShape{1, 2}, RowsShape{6, 10}, RowsShape{4, 24}, RowsShape{3, 257}}) {
      const auto logits = random<T>(rows * classes, 1, 6);
      auto labels = random_labels(rows, classes, 2);
      const Loss loss = cross_entropy(wide(logits), labels, classes);
      Vector gradients = loss.gradients, row_losses = loss.rows;
      if (rows > 2) {
        labels[1] = -1;
        row_losses[1] = 0;
        for (std::size_t i = 0; i < classes; ++i) gradients[classes + i] = 0;
      }
      const auto labels_ = device.upload(labels);
      auto logits_ = device.upload(logits);
      auto row_loss_ = garbage<float>(rows);
      nn::cross_entropy(device.context, logits_.data(), labels_.data(), row_loss_.data(), rows, classes);
      expect(row_loss_, row_losses, "loss alone");
      EXPECT_EQ(wide(device.download(logits_)), wide(logits)) << "logits are not changed";
      row_loss_ = garbage<float>(rows);
      nn::cross_entropy_with_gradient(device.context, logits_.data(), labels_.data(), row_loss_.data(), rows, classes,
                                      1.0f / float(rows));
      expect(logits_, gradients, "gradient");
      expect(row_loss_, row_losses, "loss");

      // a scale that only the device knows
      auto scaled_ = device.upload(logits);
      const auto scale_ = device.upload(std::vector<float>{8});
      nn::cross_entropy_with_gradient(device.context, scaled_.data(), labels_.data(), row_loss_.data(), rows, classes,
                                      1.0f / float(rows), scale_.data());
      for (double& g : gradients) g *= 8;
      expect(scaled_, gradients, "scaled gradient");

      // a micro-batch without a target: it adds nothing
      const auto none_ = device.upload(std::vector<int>(rows, -1));
      auto untouched_ = device.upload(logits);
      nn::cross_entropy_with_gradient(device.context, untouched_.data(), none_.data(), row_loss_.data(), rows, classes,
                                      1.0f / float(rows));
      expect(untouched_, Vector(rows * classes), "gradient without targets");
      expect(row_loss_, Vector(rows), "loss without targets");
    }
  });
}

// bias_activation() and bias_activation_keep() are the same arithmetic, so that an activation computed again has the
// same bits.
TEST_P(TransformerOps, BiasActivation) {
  for_each_type([&]<class T>(T) {
    for (const nn::Activation a : {nn::Activation::none, nn::Activation::relu, nn::Activation::gelu})
      for (const auto [rows, width] : kRowsShapes) {
        const auto x = random<T>(rows * width, 1, 4), bias = random<T>(width, 2), dy = random<T>(rows * width, 3);
        const auto bias_ = device.upload(bias);
        auto in_place_ = device.upload(x), kept_ = device.upload(x), y_ = garbage<T>(x.size());
        nn::bias_activation(device.context, in_place_.data(), bias_.data(), rows, width, a);
        if (a == nn::Activation::none) {  // nothing is kept
          Vector sums = wide(x);
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += wide(bias)[i % width];
          expect(in_place_, sums, "bias");
          continue;
        }
        nn::bias_activation_keep(device.context, kept_.data(), bias_.data(), y_.data(), rows, width, a);
        EXPECT_EQ(wide(device.download(in_place_)), wide(device.download(y_)));
        auto again_ = garbage<T>(x.size());
        nn::bias_activation_keep(device.context, kept_.data(), nullptr, again_.data(), rows, width, a);
        EXPECT_EQ(wide(device.download(again_)), wide(device.download(y_)));

        const Vector z = wide(device.download(kept_));
        Vector added, activated, dz;
        for (std::size_t i = 0; i < x.size(); ++i) {
          added.push_back(double(static_cast<float>(x[i])) + double(static_cast<float>(bias[i % width])));
          activated.push_back(activate(z[i], a));
          dz.push_back(activate_derivative(z[i], a) * double(static_cast<float>(dy[i])));
        }
        expect(kept_, added, "z");
        expect(y_, activated, "y");
        auto dz_ = device.upload(dy);
        nn::activation_backward(device.context, dz_.data(), kept_.data(), dz_.size(), a);
        expect(dz_, dz, "dz");
      }
  });
}

TEST_P(TransformerOps, ColumnSum) {
  for_each_type([&]<class T>(T) {
    for (const auto [rows, width] : kRowsShapes) {
      const auto dy = random<T>(rows * width, 3);
      Vector sums(width);
      for (std::size_t i = 0; i < dy.size(); ++i) sums[i % width] += double(static_cast<float>(dy[i]));
      const auto dy_ = device.upload(dy);
      auto sums_ = garbage<T>(width);
      nn::column_sum(device.context, dy_.data(), sums_.data(), rows, width);
      expect(sums_, sums, "column sums");
    }
  });
}

}  // namespace
}  // namespace oomlab::test
