#pragma once
// What this course's own pipeline makes, the ten digits by name: its weights, who reads the digits again, and a file with the
// images.

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/files.h"
#include "nn/ops/pooling.h"
#include "pipeline.h"

namespace oomlab::image_generation {

inline constexpr std::array<const char*, 10> kDigits{"zero", "one", "two",   "three", "four",
                                                     "five", "six", "seven", "eight", "nine"};

/// Image n is named n mod 10.
inline Wishes wishes_of(std::size_t images, std::uint64_t seed) {
  Wishes wishes{.words = {}, .seed = seed};
  for (std::size_t i = 0; i < images; ++i) wishes.words.emplace_back(kDigits[i % kDigits.size()]);
  return wishes;
}

/// Weights of a model that nobody trained: a hash of the seed and the tensor's name, as large as keeps values of the size that
/// they have.
inline ReadTensor random_tensors(std::uint64_t seed) {
  return [seed](const TensorOf& tensor, std::span<float> values) {
    if (tensor.shape.size() == 1) {
      std::ranges::fill(values, tensor.name.ends_with("weight") ? 1.0f : 0.0f);
      return;
    }
    const double rows = double(tensor.shape.front());
    const auto bound = static_cast<float>(std::sqrt(3 * rows / double(tensor.elements())));
    const std::uint64_t key = nn::hash_key(seed, std::hash<std::string>()(tensor.name));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = bound * nn::uniform(key, i);
  };
}

inline Weights weights_of(const PipelineSpec& spec) {
  Weights weights{.text = {}, .denoiser = random_tensors(1), .decoder = random_tensors(2)};
  for (std::size_t i = 0; i < spec.text.size(); ++i) weights.text.push_back(random_tensors(3 + i));
  return weights;
}

/// A pixel as a file has it: -1 becomes 0, and 1 255. What lies beyond is cut.
inline std::uint8_t byte_of(float pixel) {
  return static_cast<std::uint8_t>(std::nearbyint(std::clamp((pixel + 1) * 127.5f, 0.0f, 255.0f)));
}

/// Rows of square images side by side.
struct Sheet {
  std::size_t side = 0, channels = 0;      ///< of an image
  std::vector<std::vector<float>> rows{};  ///< each of as many images, one after the other
};
/// As a file: PGM of one channel, PPM of three (netpbm.sourceforge.net). Throws std::invalid_argument for another number.
inline std::string netpbm_of(const Sheet& sheet) {
  if (sheet.channels != 1 && sheet.channels != 3) throw std::invalid_argument("images have one channel or three");
  const std::size_t image = sheet.side * sheet.side * sheet.channels;
  const std::size_t columns = sheet.rows.empty() ? 0 : sheet.rows.front().size() / image;
  std::string file = fmt::format("P{}\n{} {}\n255\n", sheet.channels == 1 ? 5 : 6, columns * sheet.side,
                                 sheet.rows.size() * sheet.side);
  const std::size_t line = sheet.side * sheet.channels;
  for (const std::vector<float>& row : sheet.rows)
    for (std::size_t y = 0; y < sheet.side; ++y)
      for (std::size_t column = 0; column < columns; ++column)
        for (std::size_t i = 0; i < line; ++i)
          file += static_cast<char>(byte_of(row[column * image + y * line + i]));
  return file;
}

}  // namespace oomlab::image_generation
