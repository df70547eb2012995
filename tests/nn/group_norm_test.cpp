// Group norm against double precision, in every storage type and for all the block sizes. The reference's gradients are held
// against central differences first.

#include "nn/ops/group_norm.h"

#include "image_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

using nn::Activation;
using nn::GroupNormShape;

class GroupNorm : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, GroupNorm, ::testing::ValuesIn(kDistinctBlockThreads));

std::size_t count_of(const GroupNormShape& s) { return s.batch * s.pixels * s.channels; }
std::size_t group_of(const GroupNormShape& s, std::size_t i) {
  return i / (s.pixels * s.channels) * s.groups + i % s.channels / (s.channels / s.groups);
}
double values_of_group(const GroupNormShape& s) { return double(s.pixels * s.channels / s.groups); }

struct Normed {
  Vector y, before, normal, mean, rstd;  ///< before the activation; without gamma and beta
};
Normed group_norm(const GroupNormShape& s, const Vector& x, const Vector& gamma, const Vector& beta) {
  const std::size_t groups = s.batch * s.groups;
  Normed n{Vector(x.size()), Vector(x.size()), Vector(x.size()), Vector(groups), Vector(groups)};
  Vector variance(groups);
  for (std::size_t i = 0; i < x.size(); ++i) n.mean[group_of(s, i)] += x[i] / values_of_group(s);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double distance = x[i] - n.mean[group_of(s, i)];
    variance[group_of(s, i)] += distance * distance / values_of_group(s);
  }
  for (std::size_t g = 0; g < groups; ++g) n.rstd[g] = 1 / std::sqrt(variance[g] + double(s.eps));
  for (std::size_t i = 0; i < x.size(); ++i) {
    n.normal[i] = (x[i] - n.mean[group_of(s, i)]) * n.rstd[group_of(s, i)];
    n.before[i] = n.normal[i] * gamma[i % s.channels] + beta[i % s.channels];
    n.y[i] = activate(n.before[i], s.activation);
  }
  return n;
}
struct GroupNormGradients {
  Vector dx, dgamma, dbeta;
};
GroupNormGradients group_norm_backward(const GroupNormShape& s, const Vector& dy, const Vector& x, const Vector& gamma,
                                       const Vector& beta) {
  const Normed n = group_norm(s, x, gamma, beta);
  GroupNormGradients g{Vector(x.size()), Vector(s.channels), Vector(s.channels)};
  Vector of_normal(x.size()), mean(n.mean.size()), with_normal(n.mean.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double before = dy[i] * activate_derivative(n.before[i], s.activation);
    g.dgamma[i % s.channels] += before * n.normal[i];
    g.dbeta[i % s.channels] += before;
    of_normal[i] = before * gamma[i % s.channels];
    mean[group_of(s, i)] += of_normal[i] / values_of_group(s);
    with_normal[group_of(s, i)] += of_normal[i] * n.normal[i] / values_of_group(s);
  }
  for (std::size_t i = 0; i < x.size(); ++i)
    g.dx[i] =
        n.rstd[group_of(s, i)] * (of_normal[i] - mean[group_of(s, i)] - n.normal[i] * with_normal[group_of(s, i)]);
  return g;
}

TEST(GroupNormReference, ItsGradientsAreThoseOfCentralDifferences) {
  for (const GroupNormShape& s :
       {GroupNormShape{2, 3, 6, 3}, GroupNormShape{2, 4, 4, 1, 1e-2f, Activation::silu}, GroupNormShape{1, 5, 4, 4}}) {
    const Vector x = doubles(random_floats(count_of(s), 1)), gamma = doubles(random_floats(s.channels, 2)),
                 beta = doubles(random_floats(s.channels, 3)), dy = doubles(random_floats(x.size(), 4));
    const GroupNormGradients g = group_norm_backward(s, dy, x, gamma, beta);
    const auto objective = [&](const Vector& x, const Vector& gamma, const Vector& beta) {
      return dot(group_norm(s, x, gamma, beta).y, dy);
    };
    expect_close(g.dx, central_differences(x, [&](const Vector& v) { return objective(v, gamma, beta); }), 1e-6, "dx");
    expect_close(g.dgamma, central_differences(gamma, [&](const Vector& v) { return objective(x, v, beta); }), 1e-6,
                 "dgamma");
    expect_close(g.dbeta, central_differences(beta, [&](const Vector& v) { return objective(x, gamma, v); }), 1e-6,
                 "dbeta");
  }
}

// One value; groups of which several make a pack in 16 bits and in FP32; those that no pack divides; one group, and one a
// channel; fewer pixels than a cell has, and more than a block's cells have at a time; the widest group that there is.
const GroupNormShape kGroupNorms[] = {{1, 1, 1, 1},    {2, 5, 6, 3},     {1, 9, 16, 8},   {3, 64, 32, 8},
                                      {1, 130, 40, 4}, {2, 33, 20, 2},   {2, 7, 24, 8},   {1, 4097, 8, 2},
                                      {2, 3, 96, 1},   {1, 50, 640, 32}, {2, 70, 12, 12}, {1, 2, 4096, 1}};

std::string text(const GroupNormShape& s) {
  return std::to_string(s.batch) + " x " + std::to_string(s.pixels) + " pixels, " + std::to_string(s.channels) +
         " channels in " + std::to_string(s.groups) + " groups, " + name_of(s.activation);
}
template <class Body>
void for_each_norm(Body body) {
  for (GroupNormShape s : kGroupNorms)
    for (const Activation a : {Activation::none, Activation::silu}) {
      if (OOMLAB_ROUNDS < 10 && s.pixels > 200 && a == Activation::none) continue;
      s.activation = a;
      s.eps = a == Activation::none ? 1e-6f : 1e-5f;
      body(s);
    }
}

TEST_P(GroupNorm, Forward) {
  for_each_type([&]<class T>(T) {
    for_each_norm([&](const GroupNormShape& s) {
      const auto x = random<T>(count_of(s), 1, 3), gamma = random<T>(s.channels, 2), beta = random<T>(s.channels, 3);
      const Normed norm = group_norm(s, wide(x), wide(gamma), wide(beta));
      const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta);
      auto x_ = device.upload(x), y_ = garbage<T>(x.size()), other_ = garbage<T>(x.size());
      auto mean_ = garbage<float>(norm.mean.size()), rstd_ = garbage<float>(norm.mean.size());
      const auto forward = [&](T* y, float* mean, float* rstd) {
        nn::group_norm_forward(device.context, s, x_.data(), gamma_.data(), beta_.data(), y, mean, rstd);
      };
      forward(nullptr, mean_.data(), rstd_.data());
      expect(mean_, norm.mean, "mean of " + text(s), kStatistics);
      if (values_of_group(s) > 1) expect(rstd_, norm.rstd, "1/sigma of " + text(s), kStatistics);
      nn::group_norm_recompute(device.context, s, x_.data(), mean_.data(), rstd_.data(), gamma_.data(), beta_.data(),
                               y_.data());
      expect(y_, norm.y, "y of " + text(s));
      const Vector found = wide(device.download(y_));

      const std::vector<float> mean = device.download(mean_), rstd = device.download(rstd_);
      forward(other_.data(), mean_.data(), rstd_.data());
      EXPECT_EQ(wide(device.download(other_)), found) << "all at once: " << text(s);
      EXPECT_EQ(device.download(mean_), mean);
      EXPECT_EQ(device.download(rstd_), rstd);
      forward(x_.data(), nullptr, nullptr);
      EXPECT_EQ(wide(device.download(x_)), found) << "in place, nothing kept: " << text(s);
    });
  });
}

TEST_P(GroupNorm, Backward) {
  for_each_type([&]<class T>(T) {
    for_each_norm([&](const GroupNormShape& s) {
      const auto x = random<T>(count_of(s), 1, 3), dy = random<T>(x.size(), 4), old = random<T>(x.size(), 5);
      const auto gamma = random<T>(s.channels, 2), beta = random<T>(s.channels, 3);
      const GroupNormGradients g = group_norm_backward(s, wide(dy), wide(x), wide(gamma), wide(beta));
      const auto gamma_ = device.upload(gamma), beta_ = device.upload(beta), x_ = device.upload(x);
      auto dy_ = device.upload(dy), dx_ = device.upload(old);
      auto mean_ = garbage<float>(s.batch * s.groups), rstd_ = garbage<float>(s.batch * s.groups);
      auto dgamma_ = garbage<T>(s.channels), dbeta_ = garbage<T>(s.channels);
      nn::group_norm_forward<T>(device.context, s, x_.data(), gamma_.data(), beta_.data(), nullptr, mean_.data(),
                                rstd_.data());
      const auto weights = [&](bool accumulate) {
        nn::group_norm_backward_weight(device.context, s, dy_.data(), x_.data(), mean_.data(), rstd_.data(),
                                       gamma_.data(), beta_.data(), dgamma_.data(), dbeta_.data(), accumulate);
      };
      const auto input = [&](T* dx, bool add) {
        nn::group_norm_backward_input(device.context, s, dy_.data(), x_.data(), mean_.data(), rstd_.data(),
                                      gamma_.data(), beta_.data(), dx, add);
      };
      weights(false);
      if (values_of_group(s) > 1) expect(dgamma_, g.dgamma, "dgamma of " + text(s));
      expect(dbeta_, g.dbeta, "dbeta of " + text(s));
      weights(true);
      Vector twice = g.dbeta;
      for (double& v : twice) v *= 2;
      expect(dbeta_, twice, "dbeta, added to: " + text(s), 2 * kTolerance<T>);

      input(dx_.data(), true);
      Vector sum = wide(old);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += g.dx[i];
      if (values_of_group(s) > 2) expect(dx_, sum, "dx, added to: " + text(s));  // of two values, both become 1 and -1
      input(dx_.data(), false);
      const Vector found = wide(device.download(dx_));
      if (values_of_group(s) > 2) expect_close(found, g.dx, kTolerance<T>, "dx of " + text(s));
      input(dy_.data(), false);
      EXPECT_EQ(wide(device.download(dy_)), found) << "in place: " << text(s);
    });
  });
}

// The mean of squares minus the square of the mean would have no digit left.
TEST_P(GroupNorm, AGroupsSmallVarianceBesideALargeMean) {
  const GroupNormShape s{1, 500, 12, 3};
  auto x = random_floats(count_of(s), 1, 1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += group_of(s, i) == 1 ? -1000.0f : 1000.0f;
  const auto gamma = random_floats(12, 2), beta = random_floats(12, 3);
  const Normed norm = group_norm(s, doubles(x), doubles(gamma), doubles(beta));
  const auto x_ = device.upload(x), gamma_ = device.upload(gamma), beta_ = device.upload(beta);
  auto y_ = garbage<float>(x.size()), mean_ = garbage<float>(3), rstd_ = garbage<float>(3);
  nn::group_norm_forward(device.context, s, x_.data(), gamma_.data(), beta_.data(), y_.data(), mean_.data(),
                         rstd_.data());
  expect(mean_, norm.mean, "mean", 1e-6);
  expect(rstd_, norm.rstd, "1/sigma", 1e-4);
  expect(y_, norm.y, "y", 1e-3);  // the mean itself has but 24 bits
}

// With the statistics of the whole, the lines of a tile get the bits that they have in the whole image.
TEST_P(GroupNorm, ATileWithTheStatisticsOfTheWhole) {
  const GroupNormShape whole{1, 60, 16, 4, 1e-5f, Activation::silu};
  const std::size_t first = 21, pixels = 17;
  GroupNormShape tile = whole;
  tile.pixels = pixels;
  const auto x_ = device.upload(random_floats(count_of(whole), 1)), gamma_ = device.upload(random_floats(16, 2)),
             beta_ = device.upload(random_floats(16, 3));
  auto y_ = garbage<float>(count_of(whole)), tile_ = garbage<float>(count_of(tile));
  auto mean_ = garbage<float>(4), rstd_ = garbage<float>(4);
  nn::group_norm_forward(device.context, whole, x_.data(), gamma_.data(), beta_.data(), y_.data(), mean_.data(),
                         rstd_.data());
  nn::group_norm_recompute(device.context, tile, x_.data() + first * 16, mean_.data(), rstd_.data(), gamma_.data(),
                           beta_.data(), tile_.data());
  EXPECT_EQ(device.download(tile_), device.download(y_.data() + first * 16, pixels * 16));
}

TEST_P(GroupNorm, NaNStaysInItsGroup) {
  const GroupNormShape s{2, 10, 16, 4, 1e-5f, Activation::silu};
  auto x = random_floats(count_of(s), 1);
  const std::size_t at = 10 * 16 + 3 * 16 + 9;  // of the second image, the third group
  x[at] = NAN;
  const auto x_ = device.upload(x), ones_ = device.upload(std::vector<float>(16, 1));
  auto y_ = garbage<float>(x.size());
  nn::group_norm_forward(device.context, s, x_.data(), ones_.data(), ones_.data(), y_.data(), nullptr, nullptr);
  const auto y = device.download(y_);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), group_of(s, i) == group_of(s, at)) << i;
}

TEST(GroupNorms, AnyBlockSizeGivesTheSameBits) {
  Device device;
  const GroupNormShape s{2, 300, 40, 4, 1e-5f, Activation::silu};
  const auto x_ = device.upload(random_floats(count_of(s), 1)), dy_ = device.upload(random_floats(count_of(s), 2)),
             gamma_ = device.upload(random_floats(40, 3)), beta_ = device.upload(random_floats(40, 4));
  std::vector<std::vector<float>> first;
  for (const unsigned threads : kDistinctBlockThreads) {
    set_block_threads(threads);
    auto y_ = device.upload(std::vector<float>(count_of(s))), dx_ = device.upload(std::vector<float>(count_of(s)));
    auto mean_ = device.upload(std::vector<float>(8)), rstd_ = device.upload(std::vector<float>(8));
    nn::group_norm_forward(device.context, s, x_.data(), gamma_.data(), beta_.data(), y_.data(), mean_.data(),
                           rstd_.data());
    nn::group_norm_backward_input(device.context, s, dy_.data(), x_.data(), mean_.data(), rstd_.data(), gamma_.data(),
                                  beta_.data(), dx_.data(), false);
    const std::vector<std::vector<float>> found{device.download(mean_), device.download(rstd_), device.download(y_),
                                                device.download(dx_)};
    if (first.empty()) first = found;
    EXPECT_EQ(found, first) << threads << " threads";
  }
  set_block_threads(256);
}

TEST(GroupNorms, WhatItCannotDoIsRefusedInOneLine) {
  Device device;
  auto x_ = device.upload(std::vector<float>(4097));
  const auto forward = [&](const GroupNormShape& s) {
    return [&, s] {
      nn::group_norm_forward(device.context, s, x_.data(), x_.data(), x_.data(), x_.data(), nullptr, nullptr);
    };
  };
  expect_refused_in_one_line(forward({1, 1, 9, 2}), "9 channels in 2 groups");
  expect_refused_in_one_line(forward({1, 1, 9, 0}), "no groups");
  expect_refused_in_one_line(forward({1, 1, 4097, 1}), "a group of 4,097 channels");
  expect_refused_in_one_line(forward({1, 1, 8, 2, 1e-5f, Activation::relu}), "a ReLU behind it");
}

// Operands one element behind an aligned address, with channels that packs divide: the same results.
TEST_P(GroupNorm, AddressesThatAreNotAligned) {
  const GroupNormShape s{2, 15, 16, 4, 1e-5f, Activation::silu};
  const std::size_t channels = s.channels, count = count_of(s);
  for_each_type([&]<class T>(T) {
    std::vector<Vector> aligned;
    for (const std::size_t shift : {0, 1}) {
      const auto upload = [&](std::size_t values, unsigned seed) {
        return device.upload_shifted(random<T>(values, seed), shift);
      };
      const auto x_ = upload(count, 1), dy_ = upload(count, 2), gamma_ = upload(channels, 3),
                 beta_ = upload(channels, 4);
      const T *const x = x_.data() + shift, *const dy = dy_.data() + shift, *const gamma = gamma_.data() + shift,
                     *const beta = beta_.data() + shift;
      auto mean_ = garbage<float>(s.batch * s.groups), rstd_ = garbage<float>(s.batch * s.groups);
      std::vector<Vector> found;
      const auto result = [&](std::size_t values, auto&& run) {
        auto out_ = garbage<T>(values + shift);
        run(out_.data() + shift);
        found.push_back(wide(device.download(out_.data() + shift, values)));
      };
      Context& context = device.context;
      result(count, [&](T* y) { nn::group_norm_forward(context, s, x, gamma, beta, y, mean_.data(), rstd_.data()); });
      result(count, [&](T* y) { nn::group_norm_forward(context, s, x, gamma, beta, y, nullptr, nullptr); });
      result(count, [&](T* dx) {
        nn::group_norm_backward_input(context, s, dy, x, mean_.data(), rstd_.data(), gamma, beta, dx, false);
      });
      result(2 * channels, [&](T* d) {
        nn::group_norm_backward_weight(context, s, dy, x, mean_.data(), rstd_.data(), gamma, beta, d, d + channels);
      });
      if (shift == 0) aligned = found;
      for (std::size_t i = 0; i < found.size(); ++i)
        expect_close(found[i], aligned[i], kTolerance<T>, "result " + std::to_string(i));
    }
  });
}

}  // namespace
}  // namespace oomlab::test
