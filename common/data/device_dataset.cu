#include "data/device_dataset.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/pack.h"

namespace oomlab::data {

ImageShape shape_for_width(std::size_t width) {
  std::size_t height = 1;
  for (std::size_t h = 1; h <= width / h; ++h)
    if (width % h == 0) height = h;
  return {height, width ? width / height : 0};
}

std::size_t device_bytes(const Dataset& dataset) {
  return round_to_granule(checked_product(dataset.count, dataset.pixels())) + round_to_granule(dataset.count);
}

DeviceDataset::DeviceDataset(Context& context, const Dataset& dataset)
    : count_(dataset.count),
      height_(dataset.height),
      width_(dataset.width),
      classes_(dataset.classes),
      scale_(dataset.white ? 1.0f / dataset.white : 1.0f) {
  if (dataset.images.size() != checked_product(dataset.count, dataset.pixels()) ||
      dataset.labels.size() != dataset.count || (dataset.count != 0 && dataset.pixels() == 0))
    throw DataError("dataset '" + dataset.name + "' does not hold as many pixels and labels as it says");
  for (const std::uint8_t label : dataset.labels)
    if (label >= dataset.classes)
      throw DataError("dataset '" + dataset.name + "' has label " + std::to_string(label) + " but only " +
                      std::to_string(dataset.classes) + " classes");
  const auto upload = [&](const std::vector<std::uint8_t>& bytes, const char* tag) {
    auto buffer = context.buffer<unsigned char>(bytes.size(), Category::data, tag);
    CUDA_CHECK(cudaMemcpyAsync(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, context.stream()));
    return buffer;
  };
  images_ = upload(dataset.images, "images");
  labels_ = upload(dataset.labels, "labels");
  CUDA_CHECK(cudaStreamSynchronize(context.stream()));  // the caller may now let go of the dataset
}

namespace {

// As many pixels as a Pack<float> has values.
struct alignas(Pack<float>::size) PackedPixels {
  unsigned char value[Pack<float>::size];
};

// The images have the wanted shape already: a row is an image. Only `out` is __restrict__: knowing that labels stay
// apart too, the compiler for the host would copy them in a loop of its own and divide twice a row.
__global__ void gather_kernel(const unsigned char* images, const unsigned char* labels, float* __restrict__ out,
                              int* labels_out, std::size_t first, std::size_t count, std::size_t batch,
                              std::size_t pixels, float scale, bool packs) {
  for (std::size_t row : row_range(batch)) {
    const std::size_t image = (first + row) % count;
    const unsigned char* from = images + image * pixels;
    float* to = out + row * pixels;
    const std::size_t done = packs ? pixels : 0;
    for (std::size_t i : block_range(done / Pack<float>::size)) {
      const PackedPixels p = reinterpret_cast<const PackedPixels*>(from)[i];
      Pack<float> v;
      for (std::size_t k = 0; k < Pack<float>::size; ++k) v[k] = static_cast<float>(p.value[k]) * scale;
      as_packs(to)[i] = v;
    }
    for (std::size_t i : block_range(pixels - done)) to[done + i] = static_cast<float>(from[done + i]) * scale;
    if (labels_out)
      for ([[maybe_unused]] std::size_t once : block_range(1)) labels_out[row] = labels[image];
  }
}

// Where output pixel i of `to` reads in `from` pixels: the centres of both grids span the same picture.
struct Between {
  int low, high;
  float weight;  // of high
};
__device__ inline Between between(int i, float ratio, int from) {
  float at = (static_cast<float>(i) + 0.5f) * ratio - 0.5f;
  at = at < 0.0f ? 0.0f : at;
  int low = static_cast<int>(at);
  low = low < from - 1 ? low : from - 1;
  const int high = low + 1 < from ? low + 1 : low;
  return {low, high, at - static_cast<float>(low)};
}

// Where the window of a sample begins, from 0 to `room`. An image that comes again is another sample.
__device__ inline int offset_of(std::uint64_t seed, std::uint64_t sample, std::uint64_t room) {
  if (room == 0) return 0;
  std::uint64_t x = (seed + sample) * 0x9e3779b97f4a7c15ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  return static_cast<int>(x % (room + 1));
}

struct Sizes {
  int from_height, from_width, height, width, window_height, window_width, channels;
};

// A row is one line of one output image. kGrey: one channel.
template <bool kGrey>
__global__ void resize_kernel(const unsigned char* __restrict__ images, const unsigned char* __restrict__ labels,
                              float* __restrict__ out, int* __restrict__ labels_out, std::size_t first,
                              std::size_t count, std::size_t batch, Sizes s, std::uint64_t seed, float scale) {
  const float ratio_y = static_cast<float>(s.from_height) / static_cast<float>(s.height);
  const float ratio_x = static_cast<float>(s.from_width) / static_cast<float>(s.width);
  const auto lines = static_cast<std::size_t>(s.window_height), pixels = static_cast<std::size_t>(s.window_width);
  const int channels = kGrey ? 1 : s.channels;
  for (std::size_t row : row_range(batch * lines)) {
    const std::size_t sample = row / lines, image = (first + sample) % count;
    const int line = static_cast<int>(row % lines);
    const int above = offset_of(seed, 2 * (first + sample), static_cast<std::uint64_t>(s.height - s.window_height));
    const int before = offset_of(seed, 2 * (first + sample) + 1, static_cast<std::uint64_t>(s.width - s.window_width));
    const Between y = between(above + line, ratio_y, s.from_height);
    const unsigned char* top = images + (image * static_cast<std::size_t>(s.from_height) + y.low) * s.from_width;
    const unsigned char* bottom = images + (image * static_cast<std::size_t>(s.from_height) + y.high) * s.from_width;
    float* to = out + row * pixels * channels;
    for (std::size_t i : block_range(pixels)) {
      const Between x = between(before + static_cast<int>(i), ratio_x, s.from_width);
      const float left =
          static_cast<float>(top[x.low]) * (1.0f - y.weight) + static_cast<float>(bottom[x.low]) * y.weight;
      const float right =
          static_cast<float>(top[x.high]) * (1.0f - y.weight) + static_cast<float>(bottom[x.high]) * y.weight;
      const float value = (left + (right - left) * x.weight) * scale;
      for (int c = 0; c < channels; ++c) to[i * channels + c] = value;
    }
    if (labels_out && line == 0)
      for ([[maybe_unused]] std::size_t once : block_range(1)) labels_out[sample] = labels[image];
  }
}

// No idle warps where a row is short.
LaunchShape shape_for(std::size_t rows, std::size_t width) {
  LaunchShape shape = shape_for_rows(rows);
  shape.block.x =
      static_cast<unsigned>(std::min<std::size_t>(shape.block.x, std::max<std::size_t>(1, (width + 31) / 32) * 32));
  return shape;
}

}  // namespace

void DeviceDataset::batch(Context& context, std::size_t first, std::size_t batch, std::size_t width, float* out,
                          int* labels_out) const {
  if (count_ == 0) throw DataError("the dataset is empty");
  const ImageShape to = shape_for_width(width);
  if (to.height == height_ && to.width == width_)
    launch(gather_kernel, shape_for(batch, width / Pack<float>::size), context.stream(), images_.data(), labels_.data(),
           out, labels_out, first % count_, count_, batch, width, scale_,
           width % Pack<float>::size == 0 && reinterpret_cast<std::uintptr_t>(out) % sizeof(Pack<float>) == 0);
  else
    this->batch(context, first, batch, {to.height, to.width, to.height, to.width}, 1, out, labels_out);
}

void DeviceDataset::batch(Context& context, std::size_t first, std::size_t batch, const View& view,
                          std::size_t channels, float* out, int* labels_out) const {
  if (count_ == 0) throw DataError("the dataset is empty");
  if (view.window_height > view.height || view.window_width > view.width)
    throw std::invalid_argument("a window is larger than the picture");
  const auto number = [](std::size_t n) { return static_cast<int>(n); };
  const Sizes sizes{
      number(height_),           number(width_),  number(view.height), number(view.width), number(view.window_height),
      number(view.window_width), number(channels)};
  launch(channels == 1 ? resize_kernel<true> : resize_kernel<false>,
         shape_for(checked_product(batch, view.window_height), view.window_width), context.stream(), images_.data(),
         labels_.data(), out, labels_out, first, count_, batch, sizes, view.seed, scale_);
}

}  // namespace oomlab::data
