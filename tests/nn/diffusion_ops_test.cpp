// The operators of image generation against double precision, in every storage type and for all the block sizes: nearest and
// transposed sampling, the embedding of timesteps, GEGLU, SiLU and quick GELU, sums of two (group norm: group_norm_test.cpp).
// The references' gradients are held against central differences first.

#include "nn/ops/activation.h"
#include "nn/ops/channels.h"
#include "nn/ops/geglu.h"
#include "nn/ops/nearest.h"
#include "nn/ops/time_embedding.h"
#include "nn/ops/transposed.h"
#include "nn/ops/values.h"

#include "image_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

using nn::Activation;

class DiffusionOps : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, DiffusionOps, ::testing::ValuesIn(kDistinctBlockThreads));

// ---------------------------------------------------------------------------------------------------------- references

Vector geglu(const Vector& x, std::size_t rows, std::size_t width) {
  Vector y(rows * width);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double value = x[i / width * 2 * width + i % width], gate = x[i / width * 2 * width + width + i % width];
    y[i] = value * gate * 0.5 * (1 + std::erf(gate / std::sqrt(2.0)));
  }
  return y;
}
Vector geglu_backward(const Vector& dy, const Vector& x, std::size_t rows, std::size_t width) {
  Vector dx(x.size());
  for (std::size_t i = 0; i < rows * width; ++i) {
    const std::size_t at = i / width * 2 * width + i % width;
    const double value = x[at], gate = x[at + width];
    const double share = 0.5 * (1 + std::erf(gate / std::sqrt(2.0)));
    dx[at] = dy[i] * gate * share;
    dx[at + width] = dy[i] * value * (share + gate * std::exp(-gate * gate / 2) / std::sqrt(2 * M_PI));
  }
  return dx;
}

TEST(DiffusionReference, ItsGradientsAreThoseOfCentralDifferences) {
  const Vector x = doubles(random_floats(2 * 3 * 8, 1, 4)), dy = doubles(random_floats(3 * 8, 2));
  expect_close(geglu_backward(dy, x, 3, 8),
               central_differences(x, [&](const Vector& v) { return dot(geglu(v, 3, 8), dy); }), 1e-6, "GEGLU");
  for (const double v : {-9.0, -1.5, 0.0, 0.7, 8.0})
    EXPECT_NEAR(activate_derivative(v, Activation::silu),
                (activate(v + 1e-5, Activation::silu) - activate(v - 1e-5, Activation::silu)) / 2e-5, 1e-8)
        << v;
}

// ------------------------------------------------------------------------------------------------------------ sampling

TEST_P(DiffusionOps, NearestSampling) {
  for_each_type([&]<class T>(T) {
    for (const Enlargement& e : kEnlargements) {
      const auto x = random<T>(e.inputs(), 1), dy = random<T>(e.outputs(), 2);
      const Vector xd = wide(x), dyd = wide(dy);
      Vector y(e.outputs()), dx(e.inputs());
      for (std::size_t o = 0; o < y.size(); ++o) {
        y[o] = xd[e.input_of(o)];
        dx[e.input_of(o)] += dyd[o];
      }
      const auto x_ = device.upload(x), dy_ = device.upload(dy);
      auto y_ = garbage<T>(e.outputs()), dx_ = garbage<T>(e.inputs());
      nn::nearest_forward(device.context, x_.data(), y_.data(), e.batch, e.height, e.width, e.channels, e.factor);
      nn::nearest_backward(device.context, dy_.data(), dx_.data(), e.batch, e.height, e.width, e.channels, e.factor);
      EXPECT_EQ(wide(device.download(y_)), y) << e.height << " x " << e.width << " times " << e.factor;
      expect(dx_, dx, "dx");
    }
  });
  EXPECT_THROW(nn::nearest_forward<float>(device.context, nullptr, nullptr, 1, 1, 1, 1, 0), std::invalid_argument);
}

TEST_P(DiffusionOps, TransposedConvolution) {
  for_each_type([&]<class T>(T) {
    for (const auto& [e, out] : {std::pair(Enlargement{2, 3, 5, 3, 2}, std::size_t(4)),
                                 {{1, 2, 3, 8, 3}, 5},
                                 {{2, 4, 4, 16, 2}, 8},
                                 {{1, 3, 2, 2, 1}, 3}}) {
      const std::size_t in = e.channels, square = e.factor * e.factor;
      const nn::ConvolutionShape s = nn::transposed_shape(e.batch, e.height, e.width, in, out, e.factor);
      const std::size_t outputs = e.outputs() / in * out;
      const auto x = random<T>(e.inputs(), 1), w = random<T>(in * square * out, 2), dy = random<T>(outputs, 3);
      const Vector xd = wide(x), wd = wide(w), dyd = wide(dy);
      Vector y(outputs), dx(xd.size()), dw(wd.size());
      for (std::size_t o = 0; o < outputs; ++o) {
        const std::size_t pixel = o / out, column = pixel % (e.width * e.factor), line = pixel / (e.width * e.factor);
        const std::size_t from = (line / e.factor * e.width + column / e.factor) * in;
        for (std::size_t c = 0; c < in; ++c) {
          const std::size_t weight = ((c * e.factor + line % e.factor) * e.factor + column % e.factor) * out + o % out;
          y[o] += xd[from + c] * wd[weight];
          dx[from + c] += dyd[o] * wd[weight];
          dw[weight] += dyd[o] * xd[from + c];
        }
      }
      const auto x_ = device.upload(x), w_ = device.upload(w), dy_ = device.upload(dy);
      for (const auto way : {nn::ConvolutionWay::im2col, nn::ConvolutionWay::tiled, nn::ConvolutionWay::direct}) {
        auto y_ = garbage<T>(outputs), dx_ = garbage<T>(x.size()), dw_ = garbage<T>(w.size());
        nn::transposed_forward(device.context, s, way, x_.data(), w_.data(), y_.data());
        nn::transposed_backward_input(device.context, s, way, dy_.data(), w_.data(), dx_.data());
        nn::transposed_backward_weight(device.context, s, way, dy_.data(), x_.data(), dw_.data());
        expect(y_, y, std::string("y, ") + name_of(way));
        expect(dx_, dx, std::string("dx, ") + name_of(way));
        expect(dw_, dw, std::string("dw, ") + name_of(way));
      }
    }
  });
  EXPECT_THROW((void)nn::transposed_shape(1, 2, 2, 3, 3, 0), std::invalid_argument);
}

// --------------------------------------------------------------------------------------------- timesteps, gates, sums

TEST_P(DiffusionOps, TimeEmbedding) {
  const std::vector<float> steps{0, 1, 999, 500.5f, 123, 3};
  const auto steps_ = device.upload(steps);
  for_each_type([&]<class T>(T) {
    for (const std::size_t width : {1, 2, 7, 32, 320, 1280}) {
      const std::size_t half = width / 2;
      Vector y(steps.size() * width);
      for (std::size_t row = 0; row < steps.size(); ++row)
        for (std::size_t k = 0; k < half; ++k) {
          const double angle = double(steps[row]) * std::pow(10000.0, -double(k) / double(half));
          y[row * width + k] = std::cos(angle);
          y[row * width + half + k] = std::sin(angle);
        }
      auto y_ = garbage<T>(y.size());
      nn::time_embedding(device.context, steps_.data(), y_.data(), steps.size(), width);
      expect(y_, y, "width " + std::to_string(width));
    }
  });
}

TEST_P(DiffusionOps, Geglu) {
  for_each_type([&]<class T>(T) {
    for (const auto& [rows, width] : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 5}, {7, 8}, {5, 256}, {33, 12}}) {
      const auto x = random<T>(rows * 2 * width, 1, 6), dy = random<T>(rows * width, 2);
      auto x_ = device.upload(x), y_ = garbage<T>(rows * width);
      const auto dy_ = device.upload(dy);
      nn::geglu_forward(device.context, x_.data(), y_.data(), rows, width);
      nn::geglu_backward(device.context, dy_.data(), x_.data(), rows, width);
      const std::string what = std::to_string(rows) + " x " + std::to_string(width);
      expect(y_, geglu(wide(x), rows, width), "y of " + what);
      expect(x_, geglu_backward(wide(dy), wide(x), rows, width), "dx of " + what);
    }
  });
}

TEST_P(DiffusionOps, SmoothActivations) {
  for_each_type([&]<class T>(T) {
    for (const Activation a : {Activation::silu, Activation::quick_gelu, Activation::exact_gelu}) {
      std::vector<float> before{0, -1e4f, 1e4f, -87, 87, -1.2785f};
      for (const float v : random_floats(501, 1, 6)) before.push_back(v);
      const auto z = stored<T>(before), zero = stored<T>(std::vector<float>(z.size(), 0));
      const auto zero_ = device.upload(zero);
      auto y_ = device.upload(z), with_bias_ = device.upload(z);
      nn::bias_activation(device.context, y_.data(), nullptr, 1, z.size(), a);
      nn::bias_activation(device.context, with_bias_.data(), zero_.data(), 1, z.size(), a);
      const Vector found = wide(device.download(y_));
      for (std::size_t i = 0; i < z.size(); ++i) {
        const double y = activate(wide(z)[i], a);
        EXPECT_NEAR(found[i], y, kTolerance<T> * std::max(1.0, std::fabs(y))) << name_of(a) << wide(z)[i];
      }
      EXPECT_EQ(wide(device.download(with_bias_)), found);
    }
  });
  auto x = device.upload(std::vector<float>{1, NAN});
  nn::bias_activation(device.context, x.data(), nullptr, 1, 2, Activation::silu);
  EXPECT_TRUE(std::isnan(device.download(x)[1]));
}

TEST_P(DiffusionOps, ShiftedChannels) {
  for_each_type([&]<class T>(T) {
    for (const auto& [batch, pixels, channels] :
         {std::array<std::size_t, 3>{1, 1, 1}, {2, 49, 8}, {3, 7, 12}, {1, 300, 3}, {2, 65, 16}}) {
      const auto x = random<T>(batch * pixels * channels, 1), shifts = random<T>(batch * channels, 2);
      Vector y = wide(x);
      for (std::size_t i = 0; i < y.size(); ++i)
        y[i] += wide(shifts)[i / (pixels * channels) * channels + i % channels];
      const auto shifts_ = device.upload(shifts);
      auto x_ = device.upload(x), y_ = garbage<T>(x.size());
      nn::shift_channels(device.context, x_.data(), shifts_.data(), y_.data(), batch, pixels, channels);
      expect(y_, y, "y");
      nn::shift_channels<T>(device.context, x_.data(), shifts_.data(), x_.data(), batch, pixels, channels);
      EXPECT_EQ(wide(device.download(x_)), wide(device.download(y_)));
    }
  });
}

TEST_P(DiffusionOps, SumsOfTwo) {
  for_each_type([&]<class T>(T) {
    for (const std::size_t count : {1, 7, 8, 1001}) {
      const auto x = random<T>(count, 1), z = random<T>(count, 2);
      Vector y;
      for (std::size_t i = 0; i < count; ++i) y.push_back(-2.0 * wide(x)[i] + 3.0 * wide(z)[i]);
      auto x_ = device.upload(x), z_ = device.upload(z), y_ = garbage<T>(count);
      nn::combine<T>(device.context, -2.0f, x_.data(), 3.0f, z_.data(), y_.data(), count);
      expect(y_, y, "y");
      const Vector found = wide(device.download(y_));
      nn::combine<T>(device.context, 3.0f, z_.data(), -2.0f, x_.data(), z_.data(), count);
      expect(z_, found, "into the other");
      nn::combine<T>(device.context, 1.0f, x_.data(), 0.0f, y_.data(), x_.data(), count);
      EXPECT_EQ(wide(device.download(x_)), wide(x));
    }
  });
}

// Operands one element behind an aligned address, with channels that packs divide: the same results.
TEST_P(DiffusionOps, AddressesThatAreNotAligned) {
  const std::size_t rows = 30, channels = 16, count = rows * channels;
  for_each_type([&]<class T>(T) {
    std::vector<Vector> aligned;
    for (const std::size_t shift : {0, 1}) {
      const auto upload = [&](std::size_t values, unsigned seed) {
        return device.upload_shifted(random<T>(values, seed), shift);
      };
      const auto x_ = upload(count, 1), dy_ = upload(count, 2), shifts_ = upload(channels, 3);
      const T *const x = x_.data() + shift, *const dy = dy_.data() + shift, *const shifts = shifts_.data() + shift;
      std::vector<Vector> found;
      const auto result = [&](std::size_t values, auto&& run) {
        auto out_ = garbage<T>(values + shift);
        run(out_.data() + shift);
        found.push_back(wide(device.download(out_.data() + shift, values)));
      };
      Context& context = device.context;
      result(4 * count, [&](T* y) { nn::nearest_forward(context, x, y, 2, 3, 5, channels, 2); });
      result(6 * channels, [&](T* dx) { nn::nearest_backward(context, dy, dx, 1, 2, 3, channels, 2); });
      result(count / 2, [&](T* y) { nn::geglu_forward(context, x, y, rows, channels / 2); });
      result(count, [&](T* y) { nn::shift_channels(context, x, shifts, y, 1, rows, channels); });
      result(count, [&](T* y) { nn::combine(context, 2.0f, x, -1.0f, dy, y, count); });
      if (shift == 0) aligned = found;
      for (std::size_t i = 0; i < found.size(); ++i)
        expect_close(found[i], aligned[i], kTolerance<T>, "result " + std::to_string(i));
    }
  });
}

}  // namespace
}  // namespace oomlab::test
