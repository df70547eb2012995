#pragma once
// A dataset on the device, one byte a pixel, from which batches of any input width are made.

#include <cstddef>
#include <cstdint>

#include "data/dataset.h"
#include "memory/context.h"

namespace oomlab::data {

/// Height and width of the image that a model of `width` inputs sees: the most square factor pair, height ≤
/// width. 64 → 8×8, 512 → 16×32, 7 → 1×7.
struct ImageShape {
  std::size_t height, width;
};
/// Of `width` inputs, 1 or more.
ImageShape shape_for_width(std::size_t width);

/// What a model sees of an image: the picture resized to height × width, and of that a window, at a place that a hash
/// of `seed` and the sample's number chooses (a random crop), or all of it.
struct View {
  std::size_t height, width, window_height, window_width;
  std::uint64_t seed = 0;
};
/// All of a picture, resized to side × side.
inline View whole(std::size_t side) { return {side, side, side, side}; }

/// Bytes that a DeviceDataset of this dataset allocates (category data): granule(images) + granule(labels).
std::size_t device_bytes(const Dataset& dataset);

class DeviceDataset {
 public:
  /// Uploads (tags "images" and "labels"). Throws OutOfMemory, and DataError when sizes or labels are
  /// inconsistent.
  DeviceDataset(Context& context, const Dataset& dataset);

  std::size_t count() const noexcept { return count_; }
  std::size_t classes() const noexcept { return classes_; }

  /// out[batch, width]: images number first, first + 1, … (modulo count), resized bilinearly to
  /// shape_for_width(width) and scaled to 0…1; labels_out[batch], which may be null. Allocates nothing.
  /// Throws DataError when the dataset is empty.
  void batch(Context& context, std::size_t first, std::size_t batch, std::size_t width, float* out,
             int* labels_out) const;
  /// out[batch, window_height, window_width, channels], every channel the same grey: the same images seen as `view`
  /// says; the number of a sample is `first` plus its place in the batch, so an image that comes again is cropped
  /// elsewhere. Throws DataError when the dataset is empty, std::invalid_argument for a window larger than the picture.
  void batch(Context& context, std::size_t first, std::size_t batch, const View& view, std::size_t channels, float* out,
             int* labels_out) const;

 private:
  std::size_t count_, height_, width_, classes_;
  float scale_;
  DeviceBuffer<unsigned char> images_, labels_;
};

}  // namespace oomlab::data
