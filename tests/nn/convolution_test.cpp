// Convolutions in all three ways, and depthwise, against double precision, in every storage type and for all the block
// sizes. The reference's gradients are held against central differences first.

#include "nn/ops/convolution.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <optional>

#include "convolution_runs.h"
#include "cuda/block_threads.h"
#include "plan/model/resnet.h"

namespace oomlab::test {
namespace {

using nn::column_tile;
using nn::ColumnTile;

struct Results {
  Vector y, dx, dw, dw_added;
};

class Convolution : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }

  // A way's four results; what they overwrite was not a number before. Every operand lies `shift_` elements behind an
  // aligned address.
  template <class T, class Forward, class Input, class Weight>
  Results run(const Problem<T>& p, const std::vector<T>& weights, const std::vector<T>& dw_before, Forward forward,
              Input backward_input, Weight backward_weight) {
    const auto upload = [&](const std::vector<T>& values) { return device.upload_shifted(values, shift_); };
    const auto garbage = [&](std::size_t count) { return upload(std::vector<T>(count, static_cast<T>(NAN))); };
    const auto x = upload(p.x), w = upload(weights), dy = upload(p.dy);
    auto y = garbage(p.y.size()), dx = garbage(p.x.size()), dw = garbage(p.w.size()), added = upload(dw_before);
    const std::size_t at = shift_;
    forward(x.data() + at, w.data() + at, y.data() + at);
    backward_input(dy.data() + at, w.data() + at, dx.data() + at);
    backward_weight(dy.data() + at, x.data() + at, dw.data() + at, false);
    backward_weight(dy.data() + at, x.data() + at, added.data() + at, true);
    const auto read = [&](const DeviceBuffer<T>& buffer) {
      return Problem<T>::wide(device.download(buffer.data() + at, buffer.size() - at));
    };
    return {read(y), read(dx), read(dw), read(added)};
  }
  template <class T>
  Results run(const Problem<T>& p, ConvolutionWay way) {
    const ConvolutionShape& s = p.shape;
    return run<T>(
        p, p.w, p.dw_before,
        [&](const T* x, const T* w, T* y) { nn::convolution_forward(device.context, s, way, x, w, y); },
        [&](const T* dy, const T* w, T* dx) { nn::convolution_backward_input(device.context, s, way, dy, w, dx); },
        [&](const T* dy, const T* x, T* dw, bool accumulate) {
          nn::convolution_backward_weight(device.context, s, way, dy, x, dw, accumulate);
        });
  }
  template <class T>
  void expect(const Problem<T>& p, const Results& found, const std::string& what) {
    expect_close(found.y, p.y, kSumTolerance<T>, "y of " + what);
    expect_close(found.dx, p.gradients.dx, kSumTolerance<T>, "dx of " + what);
    expect_close(found.dw, p.gradients.dw, kSumTolerance<T>, "dw of " + what);
    expect_close(found.dw_added, p.dw_added(), kSumTolerance<T>, "accumulated dw of " + what);
    std::vector<bool> seen(p.x.size());
    for_each_product(p.shape, [&](std::size_t, std::size_t i, std::size_t) { seen[i] = true; });
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (!seen[i]) {
        ASSERT_EQ(found.dx[i], 0.0) << "no output sees this input: " << what << " at " << i;
      }
  }
  template <class T>
  void expect_all_ways(const ConvolutionShape& s) {
    const Problem<T> p(s);
    std::optional<Results> first;
    for (const ConvolutionWay way : kWays) {
      const Results found = run(p, way);
      expect(p, found, std::string(name_of(way)) + ": " + text(s));
      if (!first) first = found;
      expect_close(found.y, first->y, kSumTolerance<T>, "y, two ways of " + text(s));
      expect_close(found.dx, first->dx, kSumTolerance<T>, "dx, two ways of " + text(s));
      expect_close(found.dw, first->dw, kSumTolerance<T>, "dw, two ways of " + text(s));
    }
  }
  template <class T>
  void expect_depthwise(const ConvolutionShape& s) {
    Problem<T> p(s);
    const Results found = run<T>(
        p, depthwise_weights(s, p.w), depthwise_weights(s, p.dw_before),
        [&](const T* x, const T* w, T* y) { nn::depthwise_forward(device.context, s, x, w, y); },
        [&](const T* dy, const T* w, T* dx) { nn::depthwise_backward_input(device.context, s, dy, w, dx); },
        [&](const T* dy, const T* x, T* dw, bool accumulate) {
          nn::depthwise_backward_weight(device.context, s, dy, x, dw, accumulate);
        });
    p.gradients.dw = depthwise_weights(s, p.gradients.dw);
    p.dw_before = depthwise_weights(s, p.dw_before);
    expect(p, found, "depthwise: " + text(s));
  }
  Device device;
  std::size_t shift_ = 0;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Convolution, ::testing::ValuesIn(kDistinctBlockThreads));

TEST(ConvolutionReference, ItsGradientsAreThoseOfCentralDifferences) {
  for (const ConvolutionShape& s :
       {convolution_shape(2, 5, 4, 4, 6, 3, 2, 1, 2), convolution_shape(1, 4, 7, 3, 3, 2, 3, 0, 3),
        convolution_shape(2, 3, 3, 2, 3, 5, 1, 3), ConvolutionShape{1, 5, 6, 2, 3, 3, 2, 1, 0, 1, 3, 4}}) {
    const Vector x = doubles(random_floats(s.input_elements(), 1)), w = doubles(random_floats(s.weight_elements(), 2)),
                 dy = doubles(random_floats(s.output_elements(), 3));
    const ConvolutionGradients g = convolution_backward(s, dy, x, w);
    expect_close(g.dx, central_differences(x, [&](const Vector& v) { return dot(convolution(s, v, w), dy); }), 1e-8,
                 "dx of " + text(s));
    expect_close(g.dw, central_differences(w, [&](const Vector& v) { return dot(convolution(s, x, v), dy); }), 1e-8,
                 "dw of " + text(s));
  }
}

TEST_P(Convolution, EveryWayIsAsTheReferenceSays) {
  for (const ConvolutionShape& s : kConvolutions) {
    if (OOMLAB_ROUNDS < 10 && convolution_flops(s) > 2e5) continue;
    expect_all_ways<float>(s);
    expect_all_ways<__half>(s);
    expect_all_ways<__nv_bfloat16>(s);
  }
}

TEST_P(Convolution, EveryStridePaddingKernelAndGroup) {
  for (const std::size_t kernel : {1, 2, 3, 5})
    for (const std::size_t stride : {1, 2, 3})
      for (const std::size_t padding : {0, 1, 2, 3})
        for (const std::size_t groups : {1, 2, 4}) {
          if (OOMLAB_ROUNDS < 10 && (kernel + stride + padding + groups) % 4) continue;
          expect_all_ways<float>(convolution_shape(2, 5, 8, 4, 8, kernel, stride, padding, groups));
        }
}

// A tile of an image has padding only where the image ends: padding above or on the left alone, below or on the right
// alone (more output rows than the image has), rows that no output sees, and outputs that see nothing at all.
TEST_P(Convolution, PaddingThatDiffersBetweenTheSides) {
  const ConvolutionShape shapes[] = {
      {1, 6, 9, 3, 5, 3, 1, 1, 0, 1, 5, 8},   {2, 6, 9, 4, 6, 3, 1, 0, 1, 2, 6, 9},
      {1, 7, 5, 6, 6, 3, 2, 0, 0, 6, 4, 3},   {2, 7, 8, 4, 4, 3, 2, 1, 0, 1, 4, 3},
      {1, 4, 11, 3, 8, 5, 1, 2, 0, 1, 2, 11}, {1, 9, 4, 8, 3, 5, 3, 0, 2, 1, 2, 3},
      {2, 8, 6, 4, 4, 2, 1, 3, 2, 4, 12, 5},  {1, 5, 5, 3, 4, 1, 1, 1, 0, 1, 7, 6},
      {3, 4, 6, 2, 2, 3, 1, 0, 0, 1, 1, 2},   {1, 3, 4, 2, 3, 2, 2, 5, 0, 1, 9, 6},
      {2, 5, 5, 3, 4, 1, 1, 0, 0, 1, 4, 5},
  };
  for (const ConvolutionShape& s : shapes) {
    expect_all_ways<float>(s);
    expect_all_ways<__half>(s);
    expect_all_ways<__nv_bfloat16>(s);
  }
}

// Several tiles, the last one smaller, whose windows overlap across their borders.
TEST_P(Convolution, TilesOfWholeImagesAndOfRows) {
  const ConvolutionShape images = convolution_shape(25, 4, 3, 4, 6, 3, 1, 1, 2),
                         rows = convolution_shape(3, 20, 5, 4, 6, 5, 1, 2, 2),
                         one_row = convolution_shape(1, 9, 6, 3, 4, 3, 2, 1),
                         columns = convolution_shape(2, 5, 4, 12, 30, 3, 1, 1),
                         columns_one_by_one = convolution_shape(1, 5, 4, 7, 30, 3, 2, 1),
                         taps = convolution_shape(1, 6, 5, 4, 40, 5, 2, 2);
  for (const ConvolutionShape& s : {columns, columns_one_by_one, taps}) {
    EXPECT_LT(column_tile(s, 4).columns, s.patch());
    EXPECT_EQ(column_tile(s, 4).pixels(s), s.out_pixels());
    EXPECT_EQ(column_tile(s, 2).columns, s.patch()) << "sums of 16 bits would be rounded";
  }
  for (const std::size_t bytes : {2, 4}) {
    const ColumnTile of_images = column_tile(images, bytes), of_rows = column_tile(rows, bytes);
    EXPECT_GT(of_images.images, 1u);
    EXPECT_EQ(of_images.rows, images.out_height);
    EXPECT_NE(images.batch % of_images.images, 0u);
    EXPECT_EQ(of_rows.images, 1u);
    EXPECT_GT(of_rows.rows, 1u);
    EXPECT_NE(rows.out_height % of_rows.rows, 0u);
    EXPECT_EQ(column_tile(one_row, bytes).pixels(one_row), one_row.out_width);
  }
  for (const ConvolutionShape& s : {images, rows, one_row, columns, columns_one_by_one, taps}) {
    expect_all_ways<float>(s);
    expect_all_ways<__half>(s);
    expect_all_ways<__nv_bfloat16>(s);
  }
}

// Many tiles add to a weight's gradient in FP32: in 16 bits, the sum of ones would stop at 256 (BF16) or 2,048 (FP16).
TEST_P(Convolution, SumsOfManyTilesAreRoundedOnce) {
  const ConvolutionShape s = convolution_shape(10, 33, 10, 1, 2, 1, 1, 0),
                         cut = convolution_shape(10, 66, 10, 1, 2, 2, 2, 0);
  for (const ConvolutionShape& shape : {s, cut})
    for (const ConvolutionWay way : kWays) {
      const auto sums_of = [&]<class T>(T) {
        const auto ones = [&](std::size_t n) { return device.upload(std::vector<T>(n, static_cast<T>(1.0f))); };
        const auto x = ones(shape.input_elements()), dy = ones(shape.output_elements());
        auto dw = ones(shape.weight_elements());
        nn::convolution_backward_weight(device.context, shape, way, dy.data(), x.data(), dw.data(), true);
        const Vector expected(shape.weight_elements(), double(shape.out_pixels()) + 1);
        expect_close(Problem<T>::wide(device.download(dw)), expected, kSumTolerance<T> / 4,
                     std::string(name_of(way)) + ": " + text(shape));
      };
      sums_of(float{});
      sums_of(__half{});
      sums_of(__nv_bfloat16{});
    }
}

TEST_P(Convolution, Depthwise) {
  std::vector<ConvolutionShape> shapes;
  for (const std::size_t kernel : {1, 2, 3, 5})
    for (const std::size_t stride : {1, 2, 3})
      for (const std::size_t padding : {0, 1, 3})
        if (OOMLAB_ROUNDS >= 10 || kernel == stride || kernel == padding)
          shapes.push_back(convolution_shape(2, 5, 8, 3, 3, kernel, stride, padding, 3));
  for (const std::size_t channels : {1, 8, 33, 64})
    shapes.push_back(convolution_shape(2, 7, 6, channels, channels, 3, 1, 1, channels));
  shapes.push_back({2, 6, 9, 8, 8, 3, 1, 1, 0, 8, 5, 8});
  shapes.push_back({1, 7, 5, 6, 6, 3, 2, 0, 0, 6, 4, 3});
  for (const ConvolutionShape& s : shapes) {
    expect_depthwise<float>(s);
    expect_depthwise<__half>(s);
    expect_depthwise<__nv_bfloat16>(s);
  }
}

TEST(ConvolutionShapes, DepthwiseHasAsManyGroupsAsChannels) {
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const ConvolutionShape s = convolution_shape(1, 8, 8, 4, 8, 3, 1, 1, 4);
  auto buffer = context.buffer<float>(s.output_elements(), Category::activations, "any");
  EXPECT_THROW(nn::depthwise_forward<float>(context, s, buffer.data(), buffer.data(), buffer.data()),
               std::invalid_argument);
}

// A tile of an image, or a window into a larger buffer, begins anywhere.
TEST_P(Convolution, AddressesThatAreNotAligned) {
  shift_ = 1;
  for (const ConvolutionShape& s :
       {convolution_shape(2, 5, 6, 8, 16, 3, 1, 1), convolution_shape(1, 6, 4, 16, 8, 2, 2, 1, 2),
        convolution_shape(3, 2, 5, 8, 8, 1, 1, 0)}) {
    expect_all_ways<float>(s);
    expect_all_ways<__half>(s);
    expect_all_ways<__nv_bfloat16>(s);
  }
  const ConvolutionShape s = convolution_shape(2, 5, 6, 16, 16, 3, 1, 1, 16);
  expect_depthwise<float>(s);
  expect_depthwise<__half>(s);
  expect_depthwise<__nv_bfloat16>(s);
}

TEST_P(Convolution, OperationsAreCounted) {
  for (const ConvolutionShape& s :
       {convolution_shape(3, 9, 7, 6, 6, 3, 2, 1), convolution_shape(3, 9, 7, 6, 6, 3, 1, 1, 6),
        convolution_shape(3, 9, 7, 6, 6, 1, 1, 0, 2)}) {
    const Problem<float> p(s);
    std::uint64_t before = device.context.flops();
    for (const ConvolutionWay way : kWays) {
      (void)run(p, way);  // forward, the input's gradient, and the weight's, twice
      EXPECT_EQ(double(device.context.flops() - before), 4 * nn::convolution_flops(s)) << name_of(way);
      before = device.context.flops();
    }
    if (s.groups < s.in_channels) continue;
    expect_depthwise<float>(s);
    EXPECT_EQ(double(device.context.flops() - before), 4 * nn::convolution_flops(s)) << "depthwise";
  }
}

// -------------------------------------------------------------------------------------------------------------- names

TEST(ConvolutionShapes, WhatCannotBeIsRefused) {
  struct Case {
    std::size_t batch, height, width, in, out, kernel, stride, padding, groups;
  };
  const auto refused = [](const Case& c, const char* what) {
    expect_refused_in_one_line(
        [&] {
          return convolution_shape(c.batch, c.height, c.width, c.in, c.out, c.kernel, c.stride, c.padding, c.groups);
        },
        what);
  };
  refused({0, 5, 5, 4, 4, 3, 1, 1, 1}, "batch 0");
  refused({1, 0, 5, 4, 4, 3, 1, 1, 1}, "height 0");
  refused({1, 5, 0, 4, 4, 3, 1, 1, 1}, "width 0");
  refused({1, 0, 5, 4, 4, 3, 1, 3, 1}, "height 0, though the padding is as large as the kernel");
  refused({1, 5, 5, 0, 4, 3, 1, 1, 1}, "no input channels");
  refused({1, 5, 5, 4, 0, 3, 1, 1, 1}, "no output channels");
  refused({1, 5, 5, 4, 4, 0, 1, 1, 1}, "kernel 0");
  refused({1, 5, 5, 4, 4, 3, 0, 1, 1}, "stride 0");
  refused({1, 5, 5, 4, 4, 3, 1, 1, 0}, "no groups");
  refused({1, 2, 5, 4, 4, 3, 1, 0, 1}, "lower than the kernel");
  refused({1, 5, 2, 4, 4, 5, 1, 1, 1}, "narrower than the kernel, with its padding, too");
  refused({1, 5, 5, 4, 6, 3, 1, 1, 4}, "groups that divide the inputs alone");
  refused({1, 5, 5, 6, 4, 3, 1, 1, 4}, "groups that divide the outputs alone");
  refused({1, 5, 5, 4, 4, 3, 1, 1, 8}, "more groups than channels");
  const ConvolutionShape s = convolution_shape(2, 9, 7, 4, 6, 3, 2, 1, 2);
  EXPECT_EQ(s.out_height, 5u);
  EXPECT_EQ(s.out_width, 4u);
  EXPECT_EQ(s.weight_elements(), 6u * 9 * 2);
  EXPECT_EQ(convolution_shape(1, 1, 1, 1, 1, 3, 1, 1).out_pixels(), 1u);  // exactly the kernel
}

TEST(ConvolutionShapes, WaysHaveNames) { EXPECT_STREQ(name_of(ConvolutionWay::im2col), "im2col"); }

TEST(ResNetNames, BadNamesAreOneLine) {
  for (const char* name : {"",
                           "resnet",
                           "resnet:",
                           "resnet:2",
                           "resnet:2-",
                           "resnet:-6",
                           "resnet:0-6",
                           "resnet:2-0",
                           "resnet:2-6-1",
                           "resnet:2-x",
                           "resnet:2 -6",
                           "resnet:+2-6",
                           "resnet:2.5-6",
                           "resnet:99999999999999999999-6",
                           "resnet:2-99999999999999999999",
                           "resnet:2-9999999999999",
                           "resnet:100-6",
                           "resnet34x",
                           "resnet18 ",
                           "mlp",
                           "ResNet18x"})
    expect_refused_in_one_line([&] { return nn::parse_resnet(name); }, name);
}

}  // namespace
}  // namespace oomlab::test
