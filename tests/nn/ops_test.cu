// Every operator against the double-precision reference, and the reference against central differences;
// for all the block sizes, since a kernel must be right for any.

#include "nn/ops/activation.h"
#include "nn/ops/column_sum.h"
#include "nn/ops/loss.h"
#include "nn/ops/matmul.h"
#include "nn/ops/values.h"

#include <climits>

#include "cuda/backend.h"
#include "cuda/launch.h"
#include "device.h"
#include "nn/ops/column_sum_kernel.h"
#include "nn/ops/kernel.h"
#include "reference.h"

namespace oomlab::test {
namespace {

using nn::Activation;

constexpr double kReference = 1e-6, kDevice = 1e-4;

class Ops : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Ops, ::testing::ValuesIn(kDistinctBlockThreads));

struct Shape {
  std::size_t rows, width;
};
const Shape kShapes[] = {{1, 1}, {1, 7}, {2, 4}, {3, 10}, {5, 64}, {8, 8}, {9, 12}, {33, 257}, {70, 30}, {300, 1030}};

TEST_P(Ops, BiasAndActivation) {
  for (const auto [rows, width] : kShapes)
    for (const Activation a : {Activation::none, Activation::relu, Activation::gelu})
      for (const bool with_bias : {true, false}) {
        const auto x = random_floats(rows * width, 1, 6.0f), b = random_floats(width, 2);
        Vector before(x.size()), after(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          before[i] = double(x[i]) + (with_bias ? double(b[i % width]) : 0);
          after[i] = activate(before[i], a);
        }
        auto in_place = device.upload(x), z = device.upload(x);
        const auto bias = device.upload(b);
        auto y = device.context.buffer<float>(x.size(), Category::data, "y");
        const float* bias_or_null = with_bias ? bias.data() : nullptr;
        nn::bias_activation(device.context, in_place.data(), bias_or_null, rows, width, a);
        expect_close(device.download(in_place), after, kDevice, "in place");
        if (a == Activation::none) continue;
        nn::bias_activation_keep(device.context, z.data(), bias_or_null, y.data(), rows, width, a);
        expect_close(device.download(z), before, kDevice, "kept");
        EXPECT_EQ(device.download(y), device.download(in_place));
      }
}

TEST_P(Ops, AddressesThatAreNotAligned) {
  const std::size_t rows = 6, width = 8;
  const auto x = random_floats(rows * width + 1, 1), b = random_floats(width + 1, 2);
  auto moved = device.upload(x);
  const auto bias = device.upload(b);
  nn::bias_activation(device.context, moved.data() + 1, bias.data() + 1, rows, width, Activation::relu);
  auto expected = x;
  for (std::size_t i = 0; i < rows * width; ++i) expected[i + 1] = std::max(0.0f, x[i + 1] + b[i % width + 1]);
  EXPECT_EQ(device.download(moved), expected);

  auto sums = device.upload(std::vector<float>(width, 0));
  const auto source = device.upload(x);
  nn::column_sum(device.context, source.data() + 1, sums.data(), rows, width);
  Vector columns(width);
  for (std::size_t i = 0; i < rows * width; ++i) columns[i % width] += x[i + 1];
  expect_close(device.download(sums), columns, kDevice, "column sums");
}

TEST_P(Ops, ActivationBackward) {
  for (const Activation a : {Activation::none, Activation::relu, Activation::gelu})
    for (const std::size_t count : {1, 3, 4, 63, 64, 5000}) {
      const auto z = random_floats(count, 3, 5.0f, 1e-3f), dy = random_floats(count, 4);
      Vector dz(count);
      for (std::size_t i = 0; i < count; ++i) {
        const double h = 1e-5, slope = (activate(z[i] + h, a) - activate(z[i] - h, a)) / (2 * h);
        ASSERT_NEAR(activate_derivative(z[i], a), slope, kReference);
        dz[i] = dy[i] * activate_derivative(z[i], a);
      }
      auto gradient = device.upload(dy);
      const auto saved = device.upload(z);
      nn::activation_backward(device.context, gradient.data(), saved.data(), count, a);
      expect_close(device.download(gradient), dz, kDevice, nn::name_of(a));
      if (a != Activation::gelu) continue;
      const auto from = device.upload(dy);
      auto over = device.upload(z);
      nn::gelu_backward_over(device.context, from.data(), over.data(), count);
      EXPECT_EQ(device.download(over), device.download(gradient));
    }
}

TEST_P(Ops, GeluFarOut) {
  const std::vector<float> x{-1e30f, -1e10f, -100.0f, -10.0f, -0.0f, 0.0f, 10.0f, 100.0f, 1e10f, 1e30f};
  auto y = device.upload(x), d = device.upload(std::vector<float>(x.size(), 1.0f));
  const auto z = device.upload(x);
  nn::bias_activation(device.context, y.data(), nullptr, 1, x.size(), Activation::gelu);
  nn::activation_backward(device.context, d.data(), z.data(), x.size(), Activation::gelu);
  const auto values = device.download(y), slopes = device.download(d);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(values[i], x[i] > 0 ? x[i] : 0, 1e-6 * std::fabs(x[i]) + 1e-6) << x[i];
    EXPECT_NEAR(slopes[i], x[i] > 0 ? 1 : x[i] < 0 ? 0 : 0.5, 1e-6) << x[i];
  }
}

// More tiles of columns than a grid has blocks: a block takes one after the other, in the same shared memory.
TEST_P(Ops, ColumnSumOfManyTiles) {
  const std::size_t rows = 20, width = 256 * (blocks_for_rows(1'000'000) + 5) + 1;
  if (width > 100'000) GTEST_SKIP() << "a grid of this device has a block for every tile";
  std::vector<float> x(rows * width);
  Vector sums(width);
  for (std::size_t i = 0; i < x.size(); ++i) sums[i % width] += x[i] = float(i / 256 % 7);
  const auto input = device.upload(x);
  auto output = device.upload(std::vector<float>(width, NAN));
  nn::column_sum(device.context, input.data(), output.data(), rows, width);
  expect_close(device.download(output), sums, kDevice, "column sums");
}

// Tiles as narrow as on a GPU, where blocks count for more than cache lines: a cell of 8 columns each, or a few.
TEST(ColumnTiles, ThereAreEnoughToFillAGpu) {
  for (const std::size_t width : {1, 8, 127, 128, 512, 768, 1024, 3072, 50257}) {
    const nn::ColumnTiles tiles = nn::column_tiles(8192, width, 64);
    const std::size_t count = (width + tiles.columns - 1) / tiles.columns;
    EXPECT_GE(count, std::min<std::size_t>(64, (width + 7) / 8)) << "width " << width;
    EXPECT_EQ(tiles.columns, nn::kCell << tiles.cells_across_log2);
    EXPECT_LE(tiles.cells(), nn::kCellsOfBlock);
  }
  EXPECT_GE(768 / nn::column_tiles(8192, 768, 64).columns, 64u);
}

// What is summed, one value at a time: launch_column_sum() takes any term.
struct Values {
  const float* x;
  std::size_t width;
  __device__ float at(std::size_t row, std::size_t column) const { return x[row * width + column]; }
  __device__ void add_cell_row(float* sum, std::size_t row, std::size_t column) const {
    for (std::size_t k = 0; k < nn::kCell; ++k) sum[k] += at(row, column + k);
  }
};

TEST_P(Ops, ColumnSumOfNarrowTiles) {
  for (const auto [rows, width] : {std::array<std::size_t, 2>{1, 1}, {9, 8}, {300, 40}, {4101, 17}, {777, 129}})
    for (const std::size_t blocks : {2, 64}) {
      const auto x = random_floats(rows * width, 5), old = random_floats(width, 6);
      Vector sums = doubles(old);
      for (std::size_t i = 0; i < x.size(); ++i) sums[i % width] += x[i];
      const auto input = device.upload(x);
      auto output = device.upload(old);
      nn::launch_column_sum(device.context, Values{input.data(), width}, output.data(), rows, width, true, blocks);
      expect_close(device.download(output), sums, kDevice, "column sums of narrow tiles");
    }
}

TEST_P(Ops, ColumnSum) {
  for (const auto [rows, width] : kShapes) {
    const auto x = random_floats(rows * width, 5), old = random_floats(width, 6);
    Vector sums(width);
    for (std::size_t i = 0; i < x.size(); ++i) sums[i % width] += x[i];
    const auto input = device.upload(x);
    auto output = device.upload(std::vector<float>(width, NAN));
    nn::column_sum(device.context, input.data(), output.data(), rows, width);
    expect_close(device.download(output), sums, kDevice, "column sums");

    auto added = device.upload(old);
    nn::column_sum(device.context, input.data(), added.data(), rows, width, true);
    for (std::size_t c = 0; c < width; ++c) sums[c] += old[c];
    expect_close(device.download(added), sums, kDevice, "added column sums");

    set_block_threads(64);
    auto again = device.upload(std::vector<float>(width, NAN));
    nn::column_sum(device.context, input.data(), again.data(), rows, width);
    EXPECT_EQ(device.download(output), device.download(again)) << "the order of addition depends on the block size";
    set_block_threads(GetParam());
  }
}

TEST_P(Ops, NoProductIsQueuedOnceSomebodyWantsToEnd) {
  const auto a = device.upload(std::vector<float>(4, 1.0f));
  auto c = device.upload(std::vector<float>(4, 0.0f));
  const auto before = device_work();
  interrupt_wanted = true;
  EXPECT_THROW(nn::gemm(device.context, false, false, 2, 2, 2, 1.0f, a.data(), a.data(), 0.0f, c.data()), Interrupted);
  interrupt_wanted = false;
  EXPECT_EQ(device_work(), before);
}

TEST_P(Ops, Linear) {
  for (const auto [rows, in, out] : {std::array<std::size_t, 3>{1, 1, 1}, {4, 3, 5}, {7, 20, 10}, {32, 64, 33}}) {
    const auto x = random_floats(rows * in, 1), w = random_floats(out * in, 2), dy = random_floats(rows * out, 3);
    const Vector xd = doubles(x), wd = doubles(w), dyd = doubles(dy);
    const auto objective = [&](const Vector& x, const Vector& w) {
      const Vector y = linear(x, w, {}, rows, in, out);
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dyd[i];
      return sum;
    };
    const LinearGradients g = linear_backward(dyd, xd, wd, rows, in, out);
    if (rows * in * out < 2000) {  // the reference's own formulas; it computes the objective twice for each element
      expect_close(g.dx, central_differences(xd, [&](const Vector& v) { return objective(v, wd); }), kReference, "dx");
      expect_close(g.dw, central_differences(wd, [&](const Vector& v) { return objective(xd, v); }), kReference, "dw");
    }

    const auto x_ = device.upload(x), w_ = device.upload(w), dy_ = device.upload(dy);
    auto y = device.upload(std::vector<float>(rows * out, NAN)), dx = device.upload(std::vector<float>(rows * in, NAN));
    auto dw = device.upload(std::vector<float>(out * in, NAN)), db = device.upload(std::vector<float>(out, NAN));
    nn::linear_forward(device.context, x_.data(), w_.data(), y.data(), rows, in, out);
    nn::linear_backward_input(device.context, dy_.data(), w_.data(), dx.data(), rows, in, out);
    nn::linear_backward_weight(device.context, dy_.data(), x_.data(), dw.data(), db.data(), rows, in, out);
    expect_close(device.download(y), linear(xd, wd, {}, rows, in, out), kDevice, "y");
    const auto b = random_floats(out, 6);
    const auto b_ = device.upload(b);
    nn::linear_bias_forward(device.context, x_.data(), w_.data(), b_.data(), y.data(), rows, in, out);
    expect_close(device.download(y), linear(xd, wd, doubles(b), rows, in, out), kDevice, "y with bias");
    expect_close(device.download(dx), g.dx, kDevice, "dx");
    expect_close(device.download(dw), g.dw, kDevice, "dw");
    expect_close(device.download(db), g.db, kDevice, "db");

    nn::linear_backward_weight(device.context, dy_.data(), x_.data(), dw.data(), db.data(), rows, in, out, true);
    Vector twice_w = g.dw, twice_b = g.db;
    for (double& v : twice_w) v *= 2;
    for (double& v : twice_b) v *= 2;
    expect_close(device.download(dw), twice_w, kDevice, "accumulated dw");
    expect_close(device.download(db), twice_b, kDevice, "accumulated db");
  }
}

TEST_P(Ops, SoftmaxCrossEntropy) {
  for (const auto [rows, classes] : kShapes) {
    const auto x = random_floats(rows * classes, 7, 8.0f);
    const auto labels = random_labels(rows, classes, 8);
    const Loss loss = cross_entropy(doubles(x), labels, classes);
    if (rows * classes < 1000)
      expect_close(
          loss.gradients,
          central_differences(doubles(x), [&](const Vector& v) { return cross_entropy(v, labels, classes).mean; }),
          classes == 1 ? 1e30 : kReference * 10, "reference");

    const auto labels_ = device.upload(labels);
    auto logits = device.upload(x), row_loss = device.upload(std::vector<float>(rows, NAN));
    auto mean = device.upload(std::vector<float>{NAN});
    const float scale = 1.0f / static_cast<float>(rows);
    nn::softmax_cross_entropy(device.context, logits.data(), labels_.data(), row_loss.data(), rows, classes, scale);
    nn::scaled_sum(device.context, row_loss.data(), rows, scale, mean.data());
    const auto values = device.download(row_loss);
    for (std::size_t r = 0; r < rows; ++r) EXPECT_NEAR(values[r], loss.rows[r], kDevice * std::max(1.0, loss.rows[r]));
    expect_close(device.download(logits), loss.gradients, classes == 1 ? 1e30 : kDevice, "gradients");
    EXPECT_NEAR(device.download(mean)[0], loss.mean, kDevice * std::max(1.0, loss.mean));
    nn::scaled_sum(device.context, row_loss.data(), rows, scale, mean.data(), true);
    EXPECT_NEAR(device.download(mean)[0], 2 * loss.mean, 2 * kDevice * std::max(1.0, loss.mean));
  }
}

TEST_P(Ops, SoftmaxOfLargeLogitsIsFinite) {
  const std::vector<float> x{1000.0f, -1000.0f, 999.0f, 0.0f, -1e30f, 3.0f, 1.0f, 2.0f, 5.0f, 7.0f};
  auto logits = device.upload(x), row_loss = device.upload(std::vector<float>{NAN});
  const auto labels = device.upload(std::vector<int>{2});
  nn::softmax_cross_entropy(device.context, logits.data(), labels.data(), row_loss.data(), 1, x.size(), 1.0f);
  const auto gradient = device.download(logits);
  EXPECT_NEAR(gradient[0], 0.7310586, 1e-6);
  EXPECT_NEAR(gradient[2], 0.2689414 - 1, 1e-6);
  EXPECT_NEAR(gradient[4], 0, 1e-6);
  EXPECT_NEAR(device.download(row_loss)[0], 1.3132617, 1e-6);
}

TEST_P(Ops, CountCorrect) {
  for (const auto [rows, classes] : kShapes) {
    const auto x = random_floats(rows * classes, 9);
    const auto labels = random_labels(rows, classes, 10);
    unsigned long long expected = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      const auto row = x.begin() + static_cast<std::ptrdiff_t>(r * classes);
      expected += std::max_element(row, row + static_cast<std::ptrdiff_t>(classes)) - row == labels[r];
    }
    const auto logits = device.upload(x);
    const auto labels_ = device.upload(labels);
    auto count = device.upload(std::vector<unsigned long long>{77});
    nn::count_correct(device.context, logits.data(), labels_.data(), rows, classes, count.data());
    EXPECT_EQ(device.download(count)[0], expected);
    nn::count_correct(device.context, logits.data(), labels_.data(), rows, classes, count.data(), true);
    EXPECT_EQ(device.download(count)[0], 2 * expected);
  }
}

TEST_P(Ops, UniformIsTheSameEverywhere) {
  auto values = device.context.buffer<float>(10001, Category::data, "values");
  nn::fill_uniform(device.context, values.data(), values.size(), 0.5f, 42, 3);
  const auto found = device.download(values);
  // the first few, as numbers: they must not change with the backend
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  };
  const std::uint64_t key = mix(mix(42 + 0x9e3779b97f4a7c15ull) + 3);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double u = double(mix(key + i * 0x9e3779b97f4a7c15ull) >> 40) / (1 << 23) - 1;
    ASSERT_EQ(found[i], static_cast<float>(u) * 0.5f);
    sum += found[i];
    squares += double(found[i]) * found[i];
  }
  EXPECT_NEAR(sum / 10001, 0, 0.01);
  EXPECT_NEAR(squares / 10001, 0.25 / 3, 0.002);

  auto other = device.context.buffer<float>(16, Category::data, "values");
  nn::fill_uniform(device.context, other.data(), 16, 0.5f, 42, 4);
  EXPECT_NE(device.download(other)[0], found[0]);
  nn::fill(device.context, other.data(), 15, 2.5f);
  const auto filled = device.download(other);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(filled[i], 2.5f);
  EXPECT_NE(filled[15], 2.5f);
}

TEST_P(Ops, RepeatedRunsGiveTheSameBits) {
  const std::size_t rows = 300, classes = 1030;
  const auto labels = device.upload(random_labels(rows, classes, 1));
  std::vector<float> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    auto logits = device.upload(random_floats(rows * classes, 2)), sums = device.upload(std::vector<float>(classes));
    auto row_loss = device.upload(std::vector<float>(rows));
    nn::softmax_cross_entropy(device.context, logits.data(), labels.data(), row_loss.data(), rows, classes, 1.0f);
    nn::column_sum(device.context, logits.data(), sums.data(), rows, classes);
    auto all = device.download(logits);
    for (const auto& more : {device.download(row_loss), device.download(sums)})
      all.insert(all.end(), more.begin(), more.end());
    if (repeat == 0) first = all;
    ASSERT_EQ(all, first);
  }
}

TEST(Gemm, AllFourTranspositions) {
  Device device;
  const std::size_t m = 5, n = 7, k = 3;
  const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2), c = random_floats(m * n, 3);
  const auto a_ = device.upload(a), b_ = device.upload(b);
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      auto c_ = device.upload(c);
      nn::gemm(device.context, ta, tb, m, n, k, 0.5f, a_.data(), b_.data(), 2.0f, c_.data());
      Vector expected(m * n);
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::size_t p = 0; p < k; ++p)
            sum += double(ta ? a[p * m + i] : a[i * k + p]) * double(tb ? b[j * k + p] : b[p * n + j]);
          expected[i * n + j] = 0.5 * sum + 2.0 * c[i * n + j];
        }
      expect_close(device.download(c_), expected, 1e-5, "product");
    }
}

TEST(Gemm, OfATf32ContextRoundsItsOperands) {
  constexpr std::size_t m = 37, n = 29, k = 200;
  const auto a = random_floats(m * k, 1), b = random_floats(k * n, 2);
  const auto error_with = [&](bool tf32) {
    CudaResource resource;
    Ledger ledger;
    Context context(resource, ledger, kBlasWorkspaceBytes, tf32);
    Device device;
    const auto a_ = device.upload(a), b_ = device.upload(b);
    auto c = device.upload(std::vector<float>(m * n, NAN));
    nn::gemm(context, false, false, m, n, k, 1.0f, a_.data(), b_.data(), 0.0f, c.data());
    context.synchronize();
    const std::vector<float> found = device.download(c);
    double error = 0;  // relative to the sum of what is added up
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        for (std::size_t p = 0; p < k; ++p) {
          const double product = double(a[i * k + p]) * double(b[p * n + j]);
          sum += product, magnitude += std::fabs(product);
        }
        error = std::max(error, std::fabs(found[i * n + j] - sum) / magnitude);
      }
    return error;
  };
  EXPECT_LT(error_with(false), 1e-6);
  EXPECT_LT(error_with(true), 2.01 * 0x1p-10) << "two operands, 10 bits of mantissa each";
  cudaDeviceProp device{};
  CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  const bool rounds = device.major >= 8 || std::string(backend_name()) == "host";
  EXPECT_TRUE(!rounds || error_with(true) > 1e-5) << "plain FP32";
}

TEST(Gemm, SizesBeyond32BitsAreRefused) {
  Device device;
  try {
    nn::gemm<float>(device.context, false, false, 1, std::size_t(INT_MAX) + 1, 1, 1.0f, nullptr, nullptr, 0.0f,
                    nullptr);
    FAIL();
  } catch (const std::length_error& error) {
    EXPECT_STREQ(error.what(), "matrix product 1 x 2147483648 x 1 exceeds the 32-bit sizes of cuBLAS");
  }
}

__global__ void exp_kernel(const float* x, float* y, std::size_t n) {
  for (std::size_t i : grid_range(n)) y[i] = nn::exp_of(x[i]);
}

TEST(Elementary, ExponentialToTheLastPlace) {
  Device device;
  std::vector<float> x;
  for (int i = 0; i < 200000; ++i) x.push_back(-87.0f + 175.0f * static_cast<float>(i) / 200000.0f);
  const auto in = device.upload(x);
  auto out = device.context.buffer<float>(x.size(), Category::data, "y");
  launch(exp_kernel, shape_for_items(x.size()), device.context.stream(), in.data(), out.data(), x.size());
  const auto y = device.download(out);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i] / std::exp(double(x[i])), 1, 2e-7) << x[i];
}

}  // namespace
}  // namespace oomlab::test
