// What a convolution allocates, in all three ways: as much as its workspace says, and after it ran out of memory the same
// again.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <functional>
#include <vector>

#include "convolution_runs.h"

namespace oomlab::test {
namespace {

using nn::column_tile;
using nn::ColumnTile;

constexpr int kCalls = 3;
// One of the three calls: forward, the gradient of the input, that of the weight. Returns the result.
template <class T>
std::vector<T> call(
    Device& device, Context& context, const Problem<T>& p, ConvolutionWay way, int which,
    const std::function<void()>& before = [] {}) {
  const auto x = device.upload(p.x), w = device.upload(p.w), dy = device.upload(p.dy);
  auto out = device.upload(std::vector<T>(which == 0 ? p.dy.size() : which == 1 ? p.x.size() : p.w.size(), T{}));
  before();
  const auto run = [&] {
    if (which == 0) nn::convolution_forward(context, p.shape, way, x.data(), w.data(), out.data());
    if (which == 1) nn::convolution_backward_input(context, p.shape, way, dy.data(), w.data(), out.data());
    if (which == 2) nn::convolution_backward_weight(context, p.shape, way, dy.data(), x.data(), out.data());
  };
  try {
    run();
  } catch (const OutOfMemory&) {
    context.synchronize();
    EXPECT_EQ(Problem<T>::wide(device.download(out)), Vector(out.size())) << "something was queued";
    throw;
  }
  context.synchronize();
  return device.download(out);
}

std::vector<ConvolutionShape> memory_shapes() {
  std::vector<ConvolutionShape> shapes(std::begin(kConvolutions), std::end(kConvolutions));
  shapes.push_back(convolution_shape(25, 4, 3, 4, 6, 3, 1, 1, 2));
  shapes.push_back(convolution_shape(3, 20, 5, 4, 6, 5, 1, 2, 2));
  if (OOMLAB_ROUNDS < 10) std::erase_if(shapes, [](const auto& s) { return convolution_flops(s) > 2e5; });
  return shapes;
}

template <class T>
std::size_t workspace_of(const ConvolutionShape& s, ConvolutionWay way, int which) {
  const nn::ConvolutionWorkspace workspace = convolution_workspace(s, way, sizeof(T));
  return workspace.columns + (which == 2 ? workspace.sums : 0);
}

TEST(ConvolutionMemory, ThePeakOfACallIsItsWorkspace) {
  Device device;
  const auto check = [&]<class T>(T, const ConvolutionShape& s) {
    const Problem<T> p(s);
    for (const ConvolutionWay way : kWays)
      for (int which = 0; which < kCalls; ++which) {
        std::size_t live = 0;
        (void)call(device, device.context, p, way, which, [&] {
          device.ledger.reset_peak();
          live = device.ledger.live_bytes();
        });
        EXPECT_EQ(device.ledger.peak_bytes() - live, workspace_of<T>(s, way, which))
            << name_of(way) << ", call " << which << ": " << text(s);
      }
  };
  for (const ConvolutionShape& s : memory_shapes()) {
    check(float{}, s);
    check(__half{}, s);
    check(__nv_bfloat16{}, s);
  }
}

TEST(ConvolutionMemory, WorkspaceInWords) {
  // 3 x 9 x 7 outputs, each sees 3 x 3 x 3 inputs: a matrix of 189 rows and 27 columns; a tenth of it are two of its
  // 27 rows of pixels
  const ConvolutionShape s = convolution_shape(3, 9, 7, 3, 6, 3, 1, 1);
  EXPECT_EQ(convolution_workspace(s, ConvolutionWay::im2col, 4).columns, round_to_granule(189 * 27 * 4));
  EXPECT_EQ(convolution_workspace(s, ConvolutionWay::tiled, 4).columns, round_to_granule(2 * 7 * 27 * 4));
  EXPECT_EQ(convolution_workspace(s, ConvolutionWay::tiled, 2).columns, round_to_granule(2 * 7 * 27 * 2));
  EXPECT_EQ(convolution_workspace(s, ConvolutionWay::tiled, 2).sums, round_to_granule(6 * 27 * 4));
  for (const std::size_t bytes : {2, 4}) {
    EXPECT_EQ(convolution_workspace(s, ConvolutionWay::direct, bytes).columns, 0u);
    EXPECT_EQ(convolution_workspace(s, ConvolutionWay::direct, bytes).sums, 0u);
    EXPECT_EQ(convolution_workspace(s, ConvolutionWay::im2col, bytes).sums, 0u);
    for (const ConvolutionWay way : kWays)
      EXPECT_EQ(convolution_workspace(convolution_shape(3, 9, 7, 3, 6, 1, 1, 0), way, bytes).columns, 0u)
          << "the image is the column matrix";
  }
  EXPECT_EQ(convolution_workspace(s, ConvolutionWay::tiled, 4).sums, 0u);
  EXPECT_EQ(nn::convolution_flops(s), 2.0 * 189 * 27 * 6);
  EXPECT_EQ(nn::convolution_flops(convolution_shape(3, 9, 7, 4, 6, 3, 1, 1, 2)), 2.0 * 189 * 18 * 6);
}

TEST(ConvolutionMemory, ColumnsAreWorkspaceByName) {
  Device device;
  const Problem<float> p(convolution_shape(3, 9, 7, 3, 6, 3, 1, 1));
  for (int which = 0; which < kCalls; ++which) {
    (void)call(device, device.context, p, ConvolutionWay::im2col, which, [&] { device.ledger.record_timeline(true); });
    std::size_t found = 0;
    for (const TimelineEvent& event : device.ledger.timeline())
      if (event.kind == TimelineEvent::Kind::alloc && event.label == "columns") {
        EXPECT_EQ(event.category, Category::workspace);
        EXPECT_EQ(event.bytes, convolution_workspace(p.shape, ConvolutionWay::im2col, sizeof(float)).columns);
        ++found;
      }
    EXPECT_EQ(found, 1u) << "call " << which;
    device.ledger.record_timeline(false);
  }
}

// The budget is exactly what the call needs, and something else has a granule of it, once.
TEST(ConvolutionMemory, ARetryAfterOutOfMemoryHasTheSameBits) {
  Device device;
  const auto check = [&]<class T>(T, const ConvolutionShape& s) {
    const Problem<T> p(s);
    for (const ConvolutionWay way : kWays)
      for (int which = 0; which < kCalls; ++which) {
        const std::size_t needed = workspace_of<T>(s, way, which);
        CudaResource resource;
        LimitingResource limited(resource, kBlasWorkspaceBytes + needed);
        Ledger ledger;
        Context context(limited, ledger);
        const std::vector<T> undisturbed = call(device, device.context, p, way, which);
        if (needed > 0) {
          const auto other = context.buffer<std::byte>(1, Category::data, "other");
          EXPECT_THROW((void)call(device, context, p, way, which), OutOfMemory) << name_of(way);
        }
        EXPECT_EQ(ledger.live_bytes(), kBlasWorkspaceBytes);
        EXPECT_EQ(Problem<T>::wide(call(device, context, p, way, which)), Problem<T>::wide(undisturbed))
            << name_of(way) << ", call " << which << ": " << text(s);
      }
  };
  for (const ConvolutionShape& s :
       {convolution_shape(3, 9, 7, 3, 6, 3, 1, 1), convolution_shape(5, 3, 4, 17, 9, 1, 1, 0),
        convolution_shape(25, 4, 3, 4, 6, 3, 2, 1, 2)}) {
    check(float{}, s);
    check(__half{}, s);
    check(__nv_bfloat16{}, s);
  }
}

TEST(ConvolutionMemory, TilesAreSmallButAtLeastARow) {
  std::vector<ConvolutionShape> shapes = memory_shapes();
  for (const std::size_t batch : {1, 9, 10, 11, 64, 1024}) {
    shapes.push_back(convolution_shape(batch, 224, 224, 3, 64, 7, 2, 3));
    shapes.push_back(convolution_shape(batch, 56, 56, 64, 64, 3, 1, 1));
    shapes.push_back(convolution_shape(batch, 7, 7, 512, 512, 3, 1, 1));
    shapes.push_back(convolution_shape(batch, 14, 14, 1024, 512, 1, 2, 0));
    shapes.push_back(convolution_shape(batch, 1, 4096, 2048, 8, 3, 1, 1));  // a row alone is too much
  }
  for (const ConvolutionShape& s : shapes)
    for (const std::size_t bytes : {2, 4}) {
      const ColumnTile tile = column_tile(s, bytes);
      const auto bytes_of = [&](const ColumnTile& t) { return t.elements(s) * bytes; };
      const std::size_t most = std::min(s.out_pixels() * s.patch() * bytes / 10, nn::kColumnTileBytes);
      ASSERT_GE(tile.images, 1u) << text(s);
      ASSERT_LE(tile.images, s.batch) << text(s);
      ASSERT_GE(tile.rows, 1u) << text(s);
      ASSERT_LE(tile.rows, s.out_height) << text(s);
      if (tile.images > 1) {
        EXPECT_EQ(tile.rows, s.out_height) << text(s);
      }
      if (tile.images > 1 || tile.rows > 1 || tile.columns < s.patch()) {
        EXPECT_LE(bytes_of(tile), most) << text(s);
      }
      if (tile.columns < s.patch()) {
        EXPECT_EQ(tile.images * tile.rows, s.batch * s.out_height) << text(s);
        EXPECT_LE(tile.columns, s.in_channels) << text(s);
        EXPECT_TRUE(tile.columns + 4 > s.in_channels || bytes_of({tile.images, tile.rows, tile.columns + 4}) > most)
            << text(s);
        continue;
      }
      // and no smaller than it must be: another image, or another row, would be too much
      const ColumnTile larger = tile.rows < s.out_height ? ColumnTile{1, tile.rows + 1, s.patch()}
                                                         : ColumnTile{tile.images + 1, s.out_height, s.patch()};
      if (larger.images <= s.batch) {
        EXPECT_GT(bytes_of(larger), most) << text(s);
      }
    }
}

}  // namespace
}  // namespace oomlab::test
