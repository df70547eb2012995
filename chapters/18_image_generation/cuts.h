#pragma once
// A decoder piece by piece: at full resolution it is the stage with the largest maps.
//
//   images    one image after the other
//   halo      an image in strips of rows that see all that they depend on (strips.h): the numbers of the whole image
//   blended   an image in tiles, each decoded as if it were an image, and blended where they overlap, as diffusers'
//             enable_vae_tiling() has it: group norms and attention see a tile, so the numbers are others

#include <cstddef>
#include <utility>

#include "nn/ops/kernel.h"
#include "strips.h"

namespace oomlab::image_generation {

/// A rectangle of an image.
struct Tile {
  std::size_t top, left, height, width;
};

namespace detail {

template <class T>
__global__ void take_tile_kernel(const T* __restrict__ image, std::size_t width, std::size_t channels, Tile tile,
                                 T* __restrict__ to) {
  for (std::size_t row : row_range(tile.height)) {
    const T* const from = image + ((tile.top + row) * width + tile.left) * channels;
    for (std::size_t i : block_range(tile.width * channels)) to[row * tile.width * channels + i] = from[i];
  }
}

// How much of a pixel is the tile's: it grows from 0 over the first `ramp` pixels, as in diffusers.
__device__ inline float share_of(std::size_t at, std::size_t ramp) {
  return at < ramp ? static_cast<float>(at) / static_cast<float>(ramp) : 1.0f;
}
template <class T>
__global__ void blend_tile_kernel(const T* __restrict__ from, Tile tile, std::size_t ramp, T* __restrict__ image,
                                  std::size_t width, std::size_t channels) {
  for (std::size_t row : row_range(tile.height)) {
    T* const to = image + ((tile.top + row) * width + tile.left) * channels;
    const float of_row = share_of(row, tile.top ? ramp : 0);
    for (std::size_t i : block_range(tile.width * channels)) {
      const float share = of_row * share_of(i / channels, tile.left ? ramp : 0);
      const float value = static_cast<float>(from[row * tile.width * channels + i]);
      // Memory that no tile has written yet may hold a NaN: where the share is 1 it is not read.
      const float before = share < 1.0f ? static_cast<float>(to[i]) : value;
      to[i] = static_cast<T>(fmaf(share, value - before, before));
    }
  }
}

}  // namespace detail

/// to [tile.height, tile.width, channels] = a part of image [.., width, channels].
template <class T>
void take_tile(Context& context, const T* image, std::size_t width, std::size_t channels, const Tile& tile, T* to) {
  launch(detail::take_tile_kernel<T>, nn::shape_for_short_rows(tile.height, tile.width * channels), context.stream(),
         image, width, channels, tile, to);
}
/// Puts `from` [tile.height, tile.width, channels] into image [.., width, channels]. Over the first `ramp` rows and columns,
/// where a tile stood before it, it is blended with what is there: its share grows from 0 to 1, in corners as the product
/// of both.
template <class T>
void blend_tile(Context& context, const T* from, const Tile& tile, std::size_t ramp, T* image, std::size_t width,
                std::size_t channels) {
  launch(detail::blend_tile_kernel<T>, nn::shape_for_short_rows(tile.height, tile.width * channels), context.stream(),
         from, tile, ramp, image, width, channels);
}

/// Images [batch, factor · height, factor · width, image_channels], a new buffer of activations, from latents [batch,
/// height, width, latent_channels], which are freed; the decoder is cut as `run` says. With Residency::model its turn must
/// have begun. Throws OutOfMemory: then nothing is left of it.
template <class T>
DeviceBuffer<T> decode(Context& context, Decoder<T>& decoder, const Run& run, DeviceBuffer<T> latents,
                       nn::InputSize size) {
  const AutoencoderSpec& spec = decoder.spec();
  const Form form = form_of(run);
  if (run.decoder == DecoderCut::whole) return decoder.forward(context, std::move(latents), run.batch, size, form);
  const std::size_t factor = spec.factor(), width = factor * size.width;
  const std::size_t latent = size.height * size.width * spec.latent_channels;
  const std::size_t image = factor * size.height * width * spec.image_channels;
  DeviceBuffer<T> images = context.buffer<T>(checked_product(run.batch, image), Category::activations, "images");
  for (std::size_t i = 0; i < run.batch; ++i) {
    const T* const from = latents.data() + i * latent;
    T* const to = images.data() + i * image;
    if (run.decoder == DecoderCut::blended) {
      const std::size_t side = tile_of(run, size.height), ramp = factor * (side / 4);
      for (const Span& row : blended_tiles_of(size.height, side))
        for (const Span& column : blended_tiles_of(size.width, side)) {
          const Tile tile{row.first, column.first, row.count, column.count};
          const Tile made{factor * tile.top, factor * tile.left, factor * tile.height, factor * tile.width};
          DeviceBuffer<T> z = context.buffer<T>(tile.height * tile.width * spec.latent_channels, Category::activations,
                                                "latents of a tile");
          take_tile(context, from, size.width, spec.latent_channels, tile, z.data());
          const DeviceBuffer<T> y = decoder.forward(context, std::move(z), 1, {tile.height, tile.width}, form);
          blend_tile(context, y.data(), made, ramp, to, width, spec.image_channels);
        }
      continue;
    }
    DeviceBuffer<T> z = context.buffer<T>(latent, Category::activations, "latents of an image");
    copy(context, from, z.data(), latent);
    if (run.decoder == DecoderCut::halo) {
      StripDecoder<T>(context, decoder, run, size).decode(std::move(z), to);
      continue;
    }
    const DeviceBuffer<T> y = decoder.forward(context, std::move(z), 1, size, form);
    copy(context, y.data(), to, image);
  }
  return images;
}

}  // namespace oomlab::image_generation
