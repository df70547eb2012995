// Batch norm, ReLU, residuals and pooling against double precision, in every storage type and for all the block sizes.
// The references' gradients are held against central differences first.

#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/pooling.h"
#include "nn/ops/residual.h"

#include "image_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

using nn::Activation;
using nn::BatchNormState;
using nn::convolution_shape;

class ImageOps : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, ImageOps, ::testing::ValuesIn(kDistinctBlockThreads));

// ---------------------------------------------------------------------------------------------------------- batch norm

struct NormShape {
  std::size_t rows, channels;
};
// Rows and channels that no pack and no tile divides, too; one channel; as few rows as there can be.
const NormShape kNormShapes[] = {{2, 1},  {2, 9},   {3, 5},    {7, 8},     {33, 17},
                                 {63, 6}, {257, 3}, {1001, 1}, {130, 264}, {3000, 24}};

std::string text(const NormShape& s) {
  return std::to_string(s.rows) + " rows, " + std::to_string(s.channels) + " channels";
}

TEST(ImageReference, ItsGradientsAreThoseOfCentralDifferences) {
  for (const auto [rows, channels] : {NormShape{3, 2}, NormShape{9, 5}}) {
    const Vector x = doubles(random_floats(rows * channels, 1)), gamma = doubles(random_floats(channels, 2)),
                 beta = doubles(random_floats(channels, 3)), dy = doubles(random_floats(x.size(), 4));
    const auto objective = [&](const Vector& x, const Vector& gamma, const Vector& beta) {
      return dot(batch_norm(x, gamma, beta, {}).y, dy);
    };
    const BatchNormGradients g = batch_norm_backward(dy, x, gamma);
    expect_close(g.dx, central_differences(x, [&](const Vector& v) { return objective(v, gamma, beta); }), 1e-6, "dx");
    expect_close(g.dgamma, central_differences(gamma, [&](const Vector& v) { return objective(x, v, beta); }), 1e-6,
                 "dgamma");
    expect_close(g.dbeta, central_differences(beta, [&](const Vector& v) { return objective(x, gamma, v); }), 1e-6,
                 "dbeta");
  }
  for (const ConvolutionShape& s :
       {convolution_shape(2, 5, 4, 3, 3, 3, 2, 1), convolution_shape(1, 4, 6, 2, 2, 2, 1, 0)}) {
    const Vector x = doubles(random_floats(s.input_elements(), 1)), dy = doubles(random_floats(s.output_elements(), 2));
    expect_close(max_pool_backward(max_pool(s, x), dy, x.size()),
                 central_differences(x, [&](const Vector& v) { return dot(max_pool(s, v).y, dy); }), 1e-6, "maximum");
    expect_close(average_pool(s, dy, true),
                 central_differences(x, [&](const Vector& v) { return dot(average_pool(s, v, false), dy); }), 1e-6,
                 "average");
  }
}

TEST_P(ImageOps, BatchNormForward) {
  for_each_type([&]<class T>(T) {
    for (const NormShape& shape : kNormShapes)
      for (const bool with_residual : {false, true})
        for (const Activation activation : {Activation::none, Activation::relu, Activation::hard_swish}) {
          const auto [rows, channels] = shape;
          const bool relu = activation == Activation::relu;
          if (OOMLAB_ROUNDS < 10 && (rows > 300 || with_residual != relu)) continue;
          const std::size_t count = rows * channels;
          const auto x = random<T>(count, 1, 3), residual = random<T>(count, 2);
          const auto gamma = random_floats(channels, 3), beta = random_floats(channels, 4),
                     old_mean = random_floats(channels, 5), old_variance = random_floats(channels, 6);
          const nn::BatchNormSettings settings = relu ? nn::BatchNormSettings{} : nn::BatchNormSettings{1e-3f, 0.25f};
          const BatchNorm norm =
              batch_norm(wide(x), doubles(gamma), doubles(beta), with_residual ? wide(residual) : Vector{}, activation,
                         double(settings.eps));
          const std::string what = text(shape) + (with_residual ? ", residual" : "") + ", " + name_of(activation);

          const auto x_ = device.upload(x), residual_ = device.upload(residual);
          const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta);
          auto y_ = garbage<T>(count), in_place_ = device.upload(x);
          auto mean_ = garbage<float>(channels), inv_std_ = garbage<float>(channels);
          auto running_mean_ = device.upload(old_mean), running_variance_ = device.upload(old_variance);
          const auto forward = [&](const T* from, T* to, BatchNormState running) {
            nn::batch_norm_forward(device.context, from, gamma_.data(), beta_.data(),
                                   with_residual ? residual_.data() : nullptr, to, mean_.data(), inv_std_.data(),
                                   running, rows, channels, activation, settings);
          };
          forward(x_.data(), y_.data(), {running_mean_.data(), running_variance_.data()});
          expect(y_, norm.y, "y of " + what);
          expect(mean_, norm.mean, "mean of " + what, kStatistics);
          expect(inv_std_, norm.inv_std, "1/sigma of " + what, kStatistics);
          const double momentum = double(settings.momentum), unbiased = double(rows) / double(rows - 1);
          Vector running_mean = doubles(old_mean), running_variance = doubles(old_variance);
          for (std::size_t c = 0; c < channels; ++c) {
            running_mean[c] += momentum * (norm.mean[c] - running_mean[c]);
            running_variance[c] += momentum * (norm.variance[c] * unbiased - running_variance[c]);
          }
          expect(running_mean_, running_mean, "running mean of " + what, kStatistics);
          expect(running_variance_, running_variance, "running variance of " + what, kStatistics);

          forward(in_place_.data(), in_place_.data(), {});  // no running statistics: none move
          EXPECT_EQ(wide(device.download(in_place_)), wide(device.download(y_))) << what;
          expect(running_mean_, running_mean, "running mean of " + what, kStatistics);
        }
  });
}

TEST_P(ImageOps, BatchNormInference) {
  for_each_type([&]<class T>(T) {
    for (const auto [rows, channels] : {NormShape{1, 1}, NormShape{1, 7}, NormShape{33, 17}, NormShape{70, 64}})
      for (const bool with_residual : {false, true})
        for (const Activation activation : {Activation::none, Activation::relu, Activation::hard_swish}) {
          const std::size_t count = rows * channels;
          const auto x = random<T>(count, 1, 3), residual = random<T>(count, 2);
          const auto gamma = random_floats(channels, 3), beta = random_floats(channels, 4),
                     mean = random_floats(channels, 5);
          auto variance = random_floats(channels, 6);
          for (float& v : variance) v = std::fabs(v);
          const BatchNorm statistics{{}, doubles(mean), doubles(variance), {}};
          const Vector y = batch_norm(wide(x), doubles(gamma), doubles(beta), with_residual ? wide(residual) : Vector{},
                                      activation, 1e-5, &statistics)
                               .y;
          const auto residual_ = device.upload(residual);
          const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta);
          auto mean_ = device.upload(mean), variance_ = device.upload(variance);
          auto x_ = device.upload(x), y_ = garbage<T>(count);
          for (T* const to : {y_.data(), x_.data()})
            nn::batch_norm_inference(device.context, x_.data(), gamma_.data(), beta_.data(),
                                     with_residual ? residual_.data() : nullptr, to, {mean_.data(), variance_.data()},
                                     rows, channels, activation);
          expect(y_, y, "y");
          EXPECT_EQ(wide(device.download(x_)), wide(device.download(y_))) << "in place";
          EXPECT_EQ(device.download(mean_), mean) << "inference moves no statistics";
          EXPECT_EQ(device.download(variance_), variance);
        }
  });
}

TEST_P(ImageOps, BatchNormBackward) {
  for_each_type([&]<class T>(T) {
    for (const NormShape& shape : kNormShapes) {
      const auto [rows, channels] = shape;
      if (OOMLAB_ROUNDS < 10 && rows > 300) continue;
      const std::size_t count = rows * channels;
      const auto x = random<T>(count, 1, 3), dy = random<T>(count, 2);
      const auto gamma = random_floats(channels, 3), beta = random_floats(channels, 4);
      const BatchNormGradients g = batch_norm_backward(wide(dy), wide(x), doubles(gamma));

      auto x_ = device.upload(x), y_ = garbage<T>(count);
      const auto dy_ = device.upload(dy);
      const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta);
      auto mean_ = garbage<float>(channels), inv_std_ = garbage<float>(channels);
      auto dgamma_ = garbage<float>(channels), dbeta_ = garbage<float>(channels);
      nn::batch_norm_forward<T>(device.context, x_.data(), gamma_.data(), beta_.data(), nullptr, y_.data(),
                                mean_.data(), inv_std_.data(), {}, rows, channels, Activation::none);
      nn::batch_norm_backward(device.context, x_.data(), dy_.data(), gamma_.data(), mean_.data(), inv_std_.data(),
                              dgamma_.data(), dbeta_.data(), rows, channels);
      if (rows > 2) expect(x_, g.dx, "dx of " + text(shape));  // of two values, both become 1 and -1: no gradient
      expect(dgamma_, g.dgamma, "dgamma of " + text(shape), kStatistics);
      expect(dbeta_, g.dbeta, "dbeta of " + text(shape), kStatistics);
      EXPECT_EQ(wide(device.download(dy_)), wide(dy)) << "dy is the residual's gradient, too";
    }
  });
}

// The whole end of a block: y = ReLU(norm(x) + residual), and every gradient of it.
TEST_P(ImageOps, BatchNormBehindAReluWithAResidual) {
  const std::size_t rows = 21, channels = 5, count = rows * channels;
  const auto x = random_floats(count, 1, 3), residual = random_floats(count, 2), gamma = random_floats(channels, 3),
             beta = random_floats(channels, 4), dy = random_floats(count, 5);
  const auto objective = [&](const Vector& x, const Vector& residual, const Vector& gamma, const Vector& beta) {
    return dot(batch_norm(x, gamma, beta, residual, Activation::relu).y, doubles(dy));
  };
  const Vector xd = doubles(x), rd = doubles(residual), gd = doubles(gamma), bd = doubles(beta);
  auto x_ = device.upload(x), y_ = garbage<float>(count), dy_ = device.upload(dy);
  const auto residual_ = device.upload(residual), gamma_ = device.upload(gamma), beta_ = device.upload(beta);
  auto mean_ = garbage<float>(channels), inv_std_ = garbage<float>(channels);
  auto dgamma_ = garbage<float>(channels), dbeta_ = garbage<float>(channels);
  nn::batch_norm_forward(device.context, x_.data(), gamma_.data(), beta_.data(), residual_.data(), y_.data(),
                         mean_.data(), inv_std_.data(), {}, rows, channels, Activation::relu);
  nn::activation_backward(device.context, dy_.data(), y_.data(), count, Activation::relu);
  nn::batch_norm_backward(device.context, x_.data(), dy_.data(), gamma_.data(), mean_.data(), inv_std_.data(),
                          dgamma_.data(), dbeta_.data(), rows, channels);
  expect(x_, central_differences(xd, [&](const Vector& v) { return objective(v, rd, gd, bd); }), "dx");
  expect(dy_, central_differences(rd, [&](const Vector& v) { return objective(xd, v, gd, bd); }),
         "residual's gradient");
  expect(dgamma_, central_differences(gd, [&](const Vector& v) { return objective(xd, rd, v, bd); }), "dgamma");
  expect(dbeta_, central_differences(bd, [&](const Vector& v) { return objective(xd, rd, gd, v); }), "dbeta");
}

// The mean of squares minus the square of the mean would have no digit left: a million, to seven digits.
TEST_P(ImageOps, ASmallVarianceBesideALargeMean) {
  const std::size_t rows = 1000, channels = 5, count = rows * channels;
  auto x = random_floats(count, 1, 1);
  for (std::size_t i = 0; i < count; ++i) x[i] += i % channels == 1 ? -1000.0f : 1000.0f;
  const auto gamma = random_floats(channels, 2, 2, 0.5f), beta = random_floats(channels, 3),
             dy = random_floats(count, 4);
  const BatchNorm norm = batch_norm(doubles(x), doubles(gamma), doubles(beta), {});
  const BatchNormGradients g = batch_norm_backward(doubles(dy), doubles(x), doubles(gamma));
  auto x_ = device.upload(x), y_ = garbage<float>(count), mean_ = garbage<float>(channels),
       inv_std_ = garbage<float>(channels), dgamma_ = garbage<float>(channels), dbeta_ = garbage<float>(channels);
  const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta), dy_ = device.upload(dy);
  nn::batch_norm_forward<float>(device.context, x_.data(), gamma_.data(), beta_.data(), nullptr, y_.data(),
                                mean_.data(), inv_std_.data(), {}, rows, channels, Activation::none);
  expect(mean_, norm.mean, "mean", 1e-6);
  expect(inv_std_, norm.inv_std, "1/sigma", 1e-5);
  expect(y_, norm.y, "y", 1e-3);  // the mean itself has but 24 bits
  nn::batch_norm_backward(device.context, x_.data(), dy_.data(), gamma_.data(), mean_.data(), inv_std_.data(),
                          dgamma_.data(), dbeta_.data(), rows, channels);
  expect(x_, g.dx, "dx", 1e-3);
  expect(dgamma_, g.dgamma, "dgamma", 1e-3);
}

TEST_P(ImageOps, BatchNormOfOneRowIsRefused) {
  auto x = device.upload(random_floats(4, 1)), mean = device.upload(std::vector<float>(4)),
       inv_std = device.upload(std::vector<float>(4));
  for (const std::size_t rows : {0, 1}) {
    try {
      nn::batch_norm_forward<float>(device.context, x.data(), x.data(), x.data(), nullptr, x.data(), mean.data(),
                                    inv_std.data(), {}, rows, 4, Activation::relu);
      FAIL();
    } catch (const std::invalid_argument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("batch norm"), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
  nn::batch_norm_inference<float>(device.context, x.data(), x.data(), x.data(), nullptr, x.data(),
                                  {mean.data(), inv_std.data()}, 1, 4, Activation::relu);  // has no need of more
}

TEST_P(ImageOps, PoolsThatMixChannelsAreRefused) {
  const nn::ConvolutionShape shape = nn::convolution_shape(1, 4, 4, 8, 4, 2, 2, 0);
  auto x = device.upload(random_floats(shape.input_elements(), 1)), y = device.upload(std::vector<float>(64));
  EXPECT_THROW(nn::max_pool_forward<float>(device.context, shape, x.data(), y.data(), nullptr), std::invalid_argument);
  EXPECT_THROW(nn::average_pool_backward<float>(device.context, shape, y.data(), x.data()), std::invalid_argument);
}

// ------------------------------------------------------------------------------------------------------ one by one

TEST_P(ImageOps, ReluAndAddition) {
  for_each_type([&]<class T>(T) {
    for (const std::size_t count : {1, 3, 8, 63, 64, 5001}) {
      const auto x = random<T>(count, 1), dy = random<T>(count, 2);
      const Vector xd = wide(x), dyd = wide(dy);
      Vector d, sum;
      for (std::size_t i = 0; i < count; ++i) {
        d.push_back(xd[i] > 0 ? dyd[i] : 0);
        sum.push_back(xd[i] + dyd[i]);
      }
      const auto x_ = device.upload(x), dy_ = device.upload(dy);
      auto d_ = device.upload(dy), sum_ = device.upload(x);
      nn::activation_backward(device.context, d_.data(), x_.data(), count, Activation::relu);
      nn::add_to(device.context, sum_.data(), dy_.data(), count);
      EXPECT_EQ(wide(device.download(d_)), d);
      expect(sum_, sum, "sum");
    }
  });
}

// ------------------------------------------------------------------------------------------------------------- pooling

// Windows side by side, overlapping, with gaps between them; padding on all sides or on some; the largest window.
const ConvolutionShape kPools[] = {
    convolution_shape(2, 6, 8, 3, 3, 2, 2, 0),    convolution_shape(3, 9, 7, 5, 5, 3, 2, 1),
    convolution_shape(1, 5, 12, 8, 8, 3, 1, 1),   convolution_shape(2, 11, 6, 17, 17, 5, 3, 2),
    convolution_shape(2, 7, 8, 16, 16, 2, 3, 0),  convolution_shape(1, 1, 1, 4, 4, 1, 1, 0),
    convolution_shape(1, 16, 15, 2, 2, 15, 1, 7), {2, 6, 9, 3, 3, 3, 2, 1, 0, 1, 3, 5},
    {1, 8, 5, 9, 9, 3, 1, 0, 1, 1, 7, 4},
};

TEST_P(ImageOps, MaxPool) {
  for_each_type([&]<class T>(T) {
    for (const ConvolutionShape& s : kPools)
      for (const bool ties : {false, true}) {
        // With ties, whole numbers from -3 to -1: a padding of zeros would always win.
        auto values = random_floats(s.input_elements(), 1);
        if (ties)
          for (float& v : values) v = std::floor((v - 2.0f) * 0.75f);
        const auto x = stored<T>(values), dy = random<T>(s.output_elements(), 2);
        const MaxPool pool = max_pool(s, wide(x));
        const auto x_ = device.upload(x), dy_ = device.upload(dy);
        auto y_ = garbage<T>(dy.size()), again_ = garbage<T>(dy.size()), dx_ = garbage<T>(x.size());
        auto which_ = device.upload(std::vector<unsigned char>(dy.size(), 255));
        nn::max_pool_forward(device.context, s, x_.data(), y_.data(), which_.data());
        nn::max_pool_forward(device.context, s, x_.data(), again_.data(), nullptr);
        nn::max_pool_backward(device.context, s, dy_.data(), which_.data(), dx_.data());
        EXPECT_EQ(wide(device.download(y_)), pool.y);
        EXPECT_EQ(wide(device.download(again_)), pool.y) << "inference";
        expect(dx_, max_pool_backward(pool, wide(dy), x.size()), "dx");
      }
  });
}

// Nothing is larger than nothing: of a window of minus infinities, the first that exists has the gradient.
TEST_P(ImageOps, MaxPoolOfMinusInfinity) {
  const ConvolutionShape s = convolution_shape(1, 3, 4, 2, 2, 3, 2, 1);
  const std::vector<float> x(s.input_elements(), -INFINITY), dy = random_floats(s.output_elements(), 1);
  const auto x_ = device.upload(x), dy_ = device.upload(dy);
  auto y_ = garbage<float>(dy.size()), dx_ = garbage<float>(x.size());
  auto which_ = device.upload(std::vector<unsigned char>(dy.size(), 255));
  nn::max_pool_forward(device.context, s, x_.data(), y_.data(), which_.data());
  nn::max_pool_backward(device.context, s, dy_.data(), which_.data(), dx_.data());
  EXPECT_EQ(device.download(y_), std::vector<float>(dy.size(), -INFINITY));
  expect(dx_, max_pool_backward(max_pool(s, doubles(x)), doubles(dy), x.size()), "dx");
}

TEST_P(ImageOps, AveragePool) {
  for_each_type([&]<class T>(T) {
    for (const ConvolutionShape& s : kPools) {
      const auto x = random<T>(s.input_elements(), 1), dy = random<T>(s.output_elements(), 2);
      const auto x_ = device.upload(x), dy_ = device.upload(dy);
      auto y_ = garbage<T>(dy.size()), dx_ = garbage<T>(x.size());
      nn::average_pool_forward(device.context, s, x_.data(), y_.data());
      nn::average_pool_backward(device.context, s, dy_.data(), dx_.data());
      expect(y_, average_pool(s, wide(x), false), "y");
      expect(dx_, average_pool(s, wide(dy), true), "dx");
    }
  });
}

TEST_P(ImageOps, GlobalPool) {
  for_each_type([&]<class T>(T) {
    for (const auto [batch, pixels, channels] :
         {std::array<std::size_t, 3>{1, 1, 1}, {2, 49, 8}, {5, 12, 17}, {3, 700, 6}, {1, 6, 300}}) {
      const auto x = random<T>(batch * pixels * channels, 1), dy = random<T>(batch * channels, 2);
      const float scale = 1.0f / static_cast<float>(pixels);
      const Vector xd = wide(x), dyd = wide(dy);
      Vector mean(dy.size()), dx(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t to = i / (pixels * channels) * channels + i % channels;
        mean[to] += xd[i] / double(pixels);
        dx[i] = dyd[to] / double(pixels);
      }
      const auto x_ = device.upload(x), dy_ = device.upload(dy);
      auto y_ = garbage<T>(dy.size()), dx_ = garbage<T>(x.size());
      nn::global_pool_forward(device.context, x_.data(), y_.data(), batch, pixels, channels, scale);
      expect(y_, mean, "mean");
      nn::global_pool_backward(device.context, dy_.data(), dx_.data(), batch, pixels, channels, scale);
      expect(dx_, dx, "dx");

      // the same mean from two pieces of every image
      if (pixels == 1) continue;
      auto pieces_ = garbage<T>(dy.size());
      const std::size_t cut = pixels / 3;
      for (const auto& [first, end] : {std::pair{std::size_t(0), cut}, std::pair{cut, pixels}}) {
        std::vector<T> piece;
        for (std::size_t i = 0; i < x.size(); ++i)
          if (const std::size_t pixel = i / channels % pixels; pixel >= first && pixel < end) piece.push_back(x[i]);
        const auto piece_ = device.upload(piece);
        nn::global_pool_forward(device.context, piece_.data(), pieces_.data(), batch, end - first, channels, scale,
                                first > 0);
      }
      expect(pieces_, mean, "mean of two pieces");
    }
  });
}

// Operands one element behind an aligned address, with channels that packs divide: the same results.
TEST_P(ImageOps, AddressesThatAreNotAligned) {
  const ConvolutionShape s = convolution_shape(2, 5, 6, 16, 16, 3, 1, 1);
  const std::size_t count = s.input_elements(), rows = s.in_pixels(), channels = 16;
  for_each_type([&]<class T>(T) {
    std::vector<Vector> aligned;
    for (const std::size_t shift : {0, 1}) {
      const auto upload = [&](unsigned seed) { return device.upload_shifted(random<T>(count, seed), shift); };
      auto x = upload(1), y = upload(2), z = upload(3);
      const auto gamma = device.upload(random_floats(channels, 4)), beta = device.upload(random_floats(channels, 5));
      auto mean = garbage<float>(channels), inv_std = garbage<float>(channels), dgamma = garbage<float>(channels),
           dbeta = garbage<float>(channels);
      auto which = device.upload(std::vector<unsigned char>(count + shift, 255));
      std::vector<Vector> found;
      const auto note = [&](const DeviceBuffer<T>& buffer) {
        found.push_back(wide(device.download(buffer.data() + shift, count)));
      };
      Context& context = device.context;
      T *const a = x.data() + shift, *const b = y.data() + shift, *const c = z.data() + shift;
      nn::batch_norm_forward<T>(context, a, gamma.data(), beta.data(), c, b, mean.data(), inv_std.data(), {}, rows,
                                channels, Activation::relu);
      note(y);
      nn::activation_backward(context, c, b, count, Activation::relu);
      note(z);
      nn::batch_norm_backward(context, a, c, gamma.data(), mean.data(), inv_std.data(), dgamma.data(), dbeta.data(),
                              rows, channels);
      note(x);
      nn::add_to(context, a, c, count);
      nn::max_pool_forward(context, s, a, b, which.data() + shift);
      note(y);
      nn::max_pool_backward(context, s, c, which.data() + shift, b);
      note(y);
      nn::average_pool_forward(context, s, a, b);
      nn::average_pool_backward(context, s, b, c);
      note(z);
      nn::global_pool_forward(context, a, b, s.batch, rows / s.batch, channels, 0.5f);
      nn::global_pool_backward(context, b, c, s.batch, rows / s.batch, channels, 0.5f);
      note(z);
      if (shift == 0) aligned = found;
      for (std::size_t i = 0; i < found.size(); ++i)
        expect_close(found[i], aligned[i], kTolerance<T>, "result " + std::to_string(i));
    }
  });
}

}  // namespace
}  // namespace oomlab::test
