// Hard activations, channels joined and scaled, and upsampling against double precision, in every storage type and for
// all the block sizes. The references' gradients are held against central differences first.

#include "nn/ops/activation.h"
#include "nn/ops/batch_norm.h"
#include "nn/ops/channels.h"
#include "nn/ops/upsample.h"

#include "image_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

using nn::Activation;

class FeatureOps : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, FeatureOps, ::testing::ValuesIn(kDistinctBlockThreads));

constexpr Activation kHard[] = {Activation::hard_sigmoid, Activation::hard_swish};

// ---------------------------------------------------------------------------------------------------------- references

// f(output, input, weight) for the four neighbours of every output.
template <class F>
void for_each_neighbour(const Enlargement& e, F f) {
  const auto neighbours = [&](std::size_t i, std::size_t size) {
    const double place = std::max(0.0, (double(i) + 0.5) / double(e.factor) - 0.5), low = std::floor(place);
    return std::array{std::pair(std::size_t(low), 1 - (place - low)),
                      std::pair(std::min(std::size_t(low) + 1, size - 1), place - low)};
  };
  for (std::size_t o = 0; o < e.outputs(); ++o) {
    const std::size_t pixel = o / e.channels, line = pixel / (e.width * e.factor), image = line / (e.height * e.factor);
    for (const auto& [y, of_line] : neighbours(line % (e.height * e.factor), e.height))
      for (const auto& [x, of_column] : neighbours(pixel % (e.width * e.factor), e.width))
        f(o, ((image * e.height + y) * e.width + x) * e.channels + o % e.channels, of_line * of_column);
  }
}
Vector upsample(const Enlargement& e, const Vector& x) {
  Vector y(e.outputs());
  for_each_neighbour(e, [&](std::size_t o, std::size_t i, double weight) { y[o] += weight * x[i]; });
  return y;
}
Vector upsample_backward(const Enlargement& e, const Vector& dy) {
  Vector dx(e.inputs());
  for_each_neighbour(e, [&](std::size_t o, std::size_t i, double weight) { dx[i] += weight * dy[o]; });
  return dx;
}

struct Images {
  std::size_t batch, pixels, channels;
  std::size_t values() const { return batch * pixels * channels; }
  std::size_t factor_of(std::size_t i) const { return i / (pixels * channels) * channels + i % channels; }
};
const Images kImages[] = {{1, 1, 1}, {2, 49, 8}, {3, 7, 12}, {1, 300, 3}, {2, 65, 16}};

// The part of squeeze and excitation that is no linear layer: x scaled by channel means of its own, times `strength`.
Vector excite(const Images& s, const Vector& x, const Vector& strength) {
  Vector mean(strength.size()), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) mean[s.factor_of(i)] += x[i] / double(s.pixels);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * mean[s.factor_of(i)] * strength[s.factor_of(i)];
  return y;
}
struct Scaled {
  Vector y, dfactors, dx;
};
Scaled scale(const Images& s, const Vector& x, const Vector& factors, const Vector& dy, const Vector& dmean) {
  Scaled r{Vector(x.size()), Vector(factors.size()), Vector(x.size())};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t f = s.factor_of(i);
    r.y[i] = x[i] * factors[f];
    r.dfactors[f] += dy[i] * x[i];
    r.dx[i] = dy[i] * factors[f] + dmean[f] / double(s.pixels);
  }
  return r;
}

Vector activation_gradient(const Vector& dy, const Vector& before, Activation a) {
  Vector d(dy.size());
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = dy[i] * activate_derivative(before[i], a);
  return d;
}

TEST(FeatureReference, ItsGradientsAreThoseOfCentralDifferences) {
  for (const Activation a : kHard)
    for (const double z : {-4.0, -2.9, -1.5, -0.1, 0.0, 1.7, 2.9, 3.1, 50.0})
      EXPECT_NEAR(activate_derivative(z, a), (activate(z + 1e-5, a) - activate(z - 1e-5, a)) / 2e-5, 1e-6) << z;
  for (const Enlargement& e : kEnlargements) {
    const Vector x = doubles(random_floats(e.inputs(), 1)), dy = doubles(random_floats(e.outputs(), 2));
    if (e.inputs() > 100) continue;
    expect_close(upsample_backward(e, dy),
                 central_differences(x, [&](const Vector& v) { return dot(upsample(e, v), dy); }), 1e-6, "upsampling");
  }
  const Images s{2, 5, 3};
  const Vector x = doubles(random_floats(s.values(), 1)), dy = doubles(random_floats(s.values(), 2)),
               strength = doubles(random_floats(s.batch * s.channels, 3));
  Vector factors(strength.size()), none(strength.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    factors[s.factor_of(i)] += x[i] / double(s.pixels) * strength[s.factor_of(i)];
  Vector dmean = scale(s, x, factors, dy, none).dfactors;
  for (std::size_t f = 0; f < dmean.size(); ++f) dmean[f] *= strength[f];
  expect_close(scale(s, x, factors, dy, dmean).dx,
               central_differences(x, [&](const Vector& v) { return dot(excite(s, v, strength), dy); }), 1e-6,
               "scaling");

  const std::size_t rows = 9, channels = 3;
  const Vector z = doubles(random_floats(rows * channels, 4)), gamma = doubles(random_floats(channels, 5, 4)),
               beta = doubles(random_floats(channels, 6)), dv = doubles(random_floats(rows * channels, 7));
  for (const Activation a : kHard) {
    const auto objective = [&](const Vector& z, const Vector& gamma) {
      return dot(batch_norm(z, gamma, beta, {}, a).y, dv);
    };
    const BatchNormGradients g =
        batch_norm_backward(activation_gradient(dv, batch_norm(z, gamma, beta, {}).y, a), z, gamma);
    expect_close(g.dx, central_differences(z, [&](const Vector& v) { return objective(v, gamma); }), 1e-6, "dx");
    expect_close(g.dgamma, central_differences(gamma, [&](const Vector& v) { return objective(z, v); }), 1e-6,
                 "dgamma");
  }
}

// --------------------------------------------------------------------------------------------------------- activations

// Both sides of the kinks, and the kinks themselves, which belong to the flat and to the straight part.
TEST_P(FeatureOps, HardActivations) {
  for_each_type([&]<class T>(T) {
    for (const Activation a : kHard)
      for (const std::size_t extra : {0, 5, 500}) {
        std::vector<float> before{-3, 3, -2.984375f, 2.984375f, -3.015625f, 3.015625f, 0, -1.5f, 1e4f, -1e4f, 2};
        for (const float v : random_floats(extra, 1, 5)) before.push_back(v);
        const auto z = stored<T>(before), dy = random<T>(z.size(), 2);
        const std::size_t count = z.size();
        Vector y;
        for (const double v : wide(z)) y.push_back(activate(v, a));
        auto kept_ = device.upload(z), y_ = garbage<T>(count), in_place_ = device.upload(z), d_ = device.upload(dy);
        nn::bias_activation(device.context, in_place_.data(), nullptr, 1, count, a);
        const Vector found = wide(device.download(in_place_));
        for (std::size_t i = 0; i < count; ++i)
          EXPECT_NEAR(found[i], y[i], kTolerance<T> * std::max(1.0, std::fabs(y[i]))) << wide(z)[i];
        const bool keeps_input = a == Activation::hard_swish;
        if (keeps_input) {
          nn::bias_activation_keep(device.context, kept_.data(), nullptr, y_.data(), 1, count, a);
          EXPECT_EQ(wide(device.download(y_)), found);
        }
        nn::activation_backward(device.context, d_.data(), keeps_input ? kept_.data() : in_place_.data(), count, a);
        expect(d_, activation_gradient(wide(dy), wide(z), a), std::string("gradient of ") + name_of(a));
      }
  });
}

TEST_P(FeatureOps, NaNPassesThroughHardActivations) {
  for (const Activation a : kHard) {
    auto x = device.upload(std::vector<float>{1, NAN, 4, NAN, NAN});
    nn::bias_activation(device.context, x.data(), nullptr, 1, 5, a);
    const auto y = device.download(x);
    for (const std::size_t i : {1, 3, 4}) EXPECT_TRUE(std::isnan(y[i])) << name_of(a) << " at " << i;
  }
  const auto ones = device.upload(std::vector<float>(1, 1)), zeros = device.upload(std::vector<float>(1, 0));
  auto state = device.upload(std::vector<float>(1, 1));
  for (const Activation a : {Activation::relu, Activation::hard_swish}) {
    auto x = device.upload(std::vector<float>{NAN, 1});
    nn::batch_norm_again<float>(device.context, x.data(), ones.data(), zeros.data(), x.data(), zeros.data(),
                                state.data(), 2, 1, a);
    EXPECT_TRUE(std::isnan(device.download(x)[0])) << name_of(a);
  }
}

TEST(ActivationNames, OneForEach) {
  EXPECT_STREQ(nn::name_of(Activation::hard_sigmoid), "hard sigmoid");
  EXPECT_STREQ(nn::name_of(Activation::hard_swish), "hard swish");
  EXPECT_STREQ(nn::name_of(Activation::silu), "silu");
  EXPECT_STREQ(nn::name_of(Activation::quick_gelu), "quick gelu");
  EXPECT_STREQ(nn::name_of(Activation::exact_gelu), "exact gelu");
}

TEST_P(FeatureOps, ActivationBehindANorm) {
  for_each_type([&]<class T>(T) {
    for (const auto& [rows, channels] : {std::pair<std::size_t, std::size_t>{37, 1}, {9, 3}, {33, 8}, {21, 12}})
      for (const Activation a : {Activation::none, Activation::relu, Activation::hard_swish}) {
        const std::size_t count = rows * channels;
        const auto z = random<T>(count, 1, 3), dy = random<T>(count, 2);
        const auto gamma = random_floats(channels, 3, 4), beta = random_floats(channels, 4);
        const BatchNorm norm = batch_norm(wide(z), doubles(gamma), doubles(beta), {});
        const Vector dv = activation_gradient(wide(dy), norm.y, a);
        const std::string what = std::string(name_of(a)) + ", " + std::to_string(channels) + " channels";

        const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta);
        auto z_ = device.upload(z), d_ = device.upload(dy), y_ = garbage<T>(count), again_ = garbage<T>(count);
        auto mean_ = garbage<float>(channels), inv_std_ = garbage<float>(channels);
        auto dgamma_ = garbage<float>(channels), dbeta_ = garbage<float>(channels);
        nn::batch_norm_forward<T>(device.context, z_.data(), gamma_.data(), beta_.data(), nullptr, y_.data(),
                                  mean_.data(), inv_std_.data(), {}, rows, channels, a);
        nn::batch_norm_again(device.context, z_.data(), gamma_.data(), beta_.data(), again_.data(), mean_.data(),
                             inv_std_.data(), rows, channels, a);
        nn::norm_activation_backward(device.context, d_.data(), z_.data(), gamma_.data(), beta_.data(), mean_.data(),
                                     inv_std_.data(), rows, channels, a);
        expect(y_, batch_norm(wide(z), doubles(gamma), doubles(beta), {}, a).y, what);
        EXPECT_EQ(wide(device.download(again_)), wide(device.download(y_))) << what;
        expect(d_, dv, "gradient before " + what);
        const BatchNormGradients g = batch_norm_backward(wide(device.download(d_)), wide(z), doubles(gamma));
        nn::batch_norm_backward(device.context, z_.data(), d_.data(), gamma_.data(), mean_.data(), inv_std_.data(),
                                dgamma_.data(), dbeta_.data(), rows, channels);
        expect(z_, g.dx, "dx of " + what);
        expect(dgamma_, g.dgamma, "dgamma of " + what);
        expect(dbeta_, g.dbeta, "dbeta of " + what);
      }
  });
}

TEST(FeatureActivations, ThoseThatNoModelHasThereAreRefusedInOneLine) {
  Device device;
  auto x_ = device.upload(std::vector<float>(8, 1)), y_ = device.upload(std::vector<float>(8, 1));
  float *const x = x_.data(), *const y = y_.data();
  for (const Activation a : {Activation::gelu, Activation::hard_sigmoid, Activation::silu}) {
    const std::string what = std::string(name_of(a)) + " behind a batch norm";
    expect_refused_in_one_line(
        [&] { nn::batch_norm_forward<float>(device.context, x, y, y, nullptr, x, y, y, {}, 2, 4, a); }, what);
    expect_refused_in_one_line([&] { nn::batch_norm_again<float>(device.context, x, y, y, x, y, y, 2, 4, a); }, what);
    expect_refused_in_one_line(
        [&] {
          nn::batch_norm_inference<float>(device.context, x, y, y, nullptr, x, {y, y}, 2, 4, a);
        },
        what);
    expect_refused_in_one_line([&] { nn::norm_activation_backward(device.context, x, y, y, y, y, y, 2, 4, a); },
                               "the gradient of " + what);
  }
  for (const Activation a : {Activation::none, Activation::hard_sigmoid, Activation::silu})
    expect_refused_in_one_line([&] { nn::bias_activation_keep(device.context, x, nullptr, y, 2, 4, a); },
                               std::string("to keep what goes into ") + name_of(a));
  for (const Activation a : {Activation::silu, Activation::quick_gelu, Activation::exact_gelu})
    expect_refused_in_one_line([&] { nn::activation_backward(device.context, x, y, 8, a); },
                               std::string("the gradient of ") + name_of(a));
}

// ------------------------------------------------------------------------------------------------------------ channels

TEST_P(FeatureOps, ChannelsSideBySide) {
  for_each_type([&]<class T>(T) {
    for (const auto& [a_channels, b_channels] :
         {std::pair<std::size_t, std::size_t>{1, 3}, {8, 8}, {12, 1}, {3, 8}, {16, 8}, {8, 24}})
      for (const std::size_t rows : {1, 7, 45}) {
        const auto a = random<T>(rows * a_channels, 1), b = random<T>(rows * b_channels, 2);
        Vector both;
        for (std::size_t row = 0; row < rows; ++row) {
          for (std::size_t c = 0; c < a_channels; ++c) both.push_back(static_cast<float>(a[row * a_channels + c]));
          for (std::size_t c = 0; c < b_channels; ++c) both.push_back(static_cast<float>(b[row * b_channels + c]));
        }
        const auto a_ = device.upload(a), b_ = device.upload(b);
        auto y_ = garbage<T>(both.size()), da_ = garbage<T>(a.size()), db_ = garbage<T>(b.size());
        nn::concatenate_channels(device.context, a_.data(), b_.data(), y_.data(), rows, a_channels, b_channels);
        EXPECT_EQ(wide(device.download(y_)), both);
        nn::split_channels(device.context, y_.data(), da_.data(), db_.data(), rows, a_channels, b_channels);
        EXPECT_EQ(wide(device.download(da_)), wide(a));
        EXPECT_EQ(wide(device.download(db_)), wide(b));
      }
  });
}

TEST_P(FeatureOps, Upsampling) {
  for_each_type([&]<class T>(T) {
    for (const Enlargement& e : kEnlargements) {
      const auto x = random<T>(e.inputs(), 1), dy = random<T>(e.outputs(), 2);
      const auto x_ = device.upload(x), dy_ = device.upload(dy);
      auto y_ = garbage<T>(e.outputs()), dx_ = garbage<T>(e.inputs());
      nn::upsample_forward(device.context, x_.data(), y_.data(), e.batch, e.height, e.width, e.channels, e.factor);
      nn::upsample_backward(device.context, dy_.data(), dx_.data(), e.batch, e.height, e.width, e.channels, e.factor);
      const std::string what = std::to_string(e.height) + " x " + std::to_string(e.width) + " times " +
                               std::to_string(e.factor) + ", " + std::to_string(e.channels) + " channels";
      expect(y_, upsample(e, wide(x)), "y of " + what);
      expect(dx_, upsample_backward(e, wide(dy)), "dx of " + what);
      if (e.factor == 1) {
        EXPECT_EQ(wide(device.download(y_)), wide(x));
      }
    }
  });
}

TEST_P(FeatureOps, ScaledChannels) {
  for_each_type([&]<class T>(T) {
    for (const Images& s : kImages) {
      const std::size_t count = s.batch * s.channels;
      const auto x = random<T>(s.values(), 1), factors = random<T>(count, 2), dy = random<T>(s.values(), 3),
                 dmean = random<T>(count, 4, 50);
      const Scaled r = scale(s, wide(x), wide(factors), wide(dy), wide(dmean));
      const auto factors_ = device.upload(factors), dmean_ = device.upload(dmean), x_ = device.upload(x);
      auto y_ = garbage<T>(s.values()), in_place_ = device.upload(x), d_ = device.upload(dy),
           dfactors_ = garbage<T>(count);
      nn::scale_channels(device.context, x_.data(), factors_.data(), y_.data(), s.batch, s.pixels, s.channels);
      nn::scale_channels<T>(device.context, in_place_.data(), factors_.data(), in_place_.data(), s.batch, s.pixels,
                            s.channels);
      nn::scale_channels_backward_factors(device.context, d_.data(), x_.data(), dfactors_.data(), s.batch, s.pixels,
                                          s.channels);
      nn::scale_channels_backward_input(device.context, d_.data(), factors_.data(), dmean_.data(),
                                        1.0f / static_cast<float>(s.pixels), s.batch, s.pixels, s.channels);
      expect(y_, r.y, "y");
      EXPECT_EQ(wide(device.download(in_place_)), wide(device.download(y_)));
      expect(dfactors_, r.dfactors, "gradient of the factors");
      expect(d_, r.dx, "dx");
    }
  });
}

// One after the other, a million tenths add up to 100,958 in FP32.
TEST_P(FeatureOps, AFactorOfAMillionPixels) {
  const std::size_t pixels = 1'000'000;
  const auto tenths = device.upload(std::vector<float>(pixels, 0.1f)),
             ones = device.upload(std::vector<float>(pixels, 1));
  auto sum = garbage<float>(1);
  nn::scale_channels_backward_factors(device.context, tenths.data(), ones.data(), sum.data(), 1, pixels, 1);
  EXPECT_NEAR(device.download(sum)[0], 1e5, 100);
}

// Operands one element behind an aligned address, with channels that packs divide: the same results.
TEST_P(FeatureOps, AddressesThatAreNotAligned) {
  const std::size_t batch = 2, height = 3, width = 5, pixels = height * width, channels = 8, rows = batch * pixels;
  for_each_type([&]<class T>(T) {
    std::vector<Vector> aligned;
    for (const std::size_t shift : {0, 1}) {
      const auto upload = [&](std::size_t count, unsigned seed) {
        return device.upload_shifted(random<T>(count, seed), shift);
      };
      const std::size_t count = rows * channels;
      auto a = upload(count, 1), b = upload(count, 2), wide_ = upload(4 * count, 3),
           small = upload(batch * channels, 4);
      const auto gamma = device.upload(random_floats(channels, 5)), beta = device.upload(random_floats(channels, 6));
      std::vector<Vector> found;
      const auto note = [&](const DeviceBuffer<T>& buffer) {
        found.push_back(wide(device.download(buffer.data() + shift, buffer.size() - shift)));
      };
      Context& context = device.context;
      T *const x = a.data() + shift, *const y = b.data() + shift, *const w = wide_.data() + shift,
               *const f = small.data() + shift;
      nn::norm_activation_backward(context, x, y, gamma.data(), beta.data(), beta.data(), gamma.data(), rows, channels,
                                   Activation::hard_swish);
      note(a);
      nn::scale_channels_backward_input(context, y, f, f, 0.5f, batch, pixels, channels);
      note(b);
      nn::scale_channels_backward_factors(context, x, y, f, batch, pixels, channels);
      note(small);
      nn::scale_channels<T>(context, x, f, x, batch, pixels, channels);
      note(a);
      nn::upsample_forward(context, x, w, batch, height, width, channels, 2);
      note(wide_);
      nn::upsample_backward(context, w, y, batch, height, width, channels, 2);
      note(b);
      nn::concatenate_channels(context, y, x, w, rows, channels, channels);
      note(wide_);
      nn::split_channels(context, w, x, y, rows, channels, channels);
      note(a);
      note(b);
      if (shift == 0) aligned = found;
      for (std::size_t i = 0; i < found.size(); ++i)
        expect_close(found[i], aligned[i], kTolerance<T>, "result " + std::to_string(i));
    }
  });
}

TEST_P(FeatureOps, SizesThatCannotBeAreRefused) {
  auto x = device.upload(random_floats(4, 1));
  float* const p = x.data();
  constexpr std::size_t many = SIZE_MAX / 2;
  EXPECT_THROW(nn::upsample_forward(device.context, p, p, 1, 1, 1, 4, 0), std::invalid_argument);
  EXPECT_THROW(nn::upsample_backward(device.context, p, p, 1, 1, 1, 4, 0), std::invalid_argument);
  EXPECT_THROW(nn::upsample_forward(device.context, p, p, 1, many, 1, 1, 3), std::length_error);
  EXPECT_THROW(nn::scale_channels<float>(device.context, p, p, p, many, 3, 1), std::length_error);
  EXPECT_THROW(nn::concatenate_channels(device.context, p, p, p, 3, many, 1), std::length_error);
  EXPECT_THROW(nn::split_channels(device.context, p, p, p, 1, SIZE_MAX, 1), std::length_error);
}

}  // namespace
}  // namespace oomlab::test
