#pragma once
// What this course's own pipeline makes, the ten digits by name: its weights, who reads the digits again, and a file with the
// images.

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/digit_images.h"
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

/// Weights of a model that nobody trained: a hash of the seed and the tensor's name, so large that values neither grow nor
/// shrink from layer to layer.
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

/// A pipeline with few layers, but every kind of them, and weights that nobody trained: for tests that run it thousands of
/// times. Its images show nothing.
inline const PipelineSpec& tiny_pipeline() {
  static const PipelineSpec spec{
      .name = "tiny",
      .title = "tiny, of random weights",
      .text =
          {{.name = "text_encoder", .vocabulary = 27, .positions = 5, .width = 8, .layers = 1, .heads = 2, .mlp = 8}},
      .denoiser = UNetSpec{.channels = {8, 8},
                           .transformers = {1, 0},
                           .heads = {2, 2},
                           .layers_per_block = 1,
                           .context = 8,
                           .groups = 2},
      .autoencoder = {.image_channels = 1, .channels = {8, 8}, .layers_per_block = 1, .groups = 2, .scaling = 0.5},
      .size = 4,
      .steps = 1,
      .guidance = 3};
  return spec;
}
/// Of --model. Throws as pipeline_named().
inline const PipelineSpec& pipeline_of(const std::string& model) {
  return model == tiny_pipeline().name ? tiny_pipeline() : pipeline_named(model);
}

/// One of the files that ship with the course.
inline const nn::SafetensorsFile& shipped(const std::string& name) {
  static std::map<std::string, nn::SafetensorsFile> files;
  const auto found = files.find(name);
  if (found != files.end()) return found->second;
  return files.try_emplace(name, data::digit_image_weights(name), "the course's " + name).first->second;
}

/// Trained ones of the pipeline that ships with the course, random ones of others.
inline Weights weights_of(const PipelineSpec& spec) {
  if (spec.name == "digits")
    return {{tensors_from(shipped("text_encoder"))},
            tensors_from(shipped("denoiser")),
            tensors_from(shipped("autoencoder"))};
  Weights weights{.text = {}, .denoiser = random_tensors(1), .decoder = random_tensors(2)};
  for (std::size_t i = 0; i < spec.text.size(); ++i) weights.text.push_back(random_tensors(3 + i));
  return weights;
}

/// Reads digits: five times a 3 x 3 convolution, ReLU and the maximum of 2 x 2 pixels, and then a linear layer. Trained on the
/// course's own digits (common/data/digit_images), and never on a generated one.
class Classifier {
 public:
  static constexpr std::size_t kSide = 32;
  /// Throws OutOfMemory.
  explicit Classifier(Context& context)
      : context_(context), weights_(context, tensors(), Residency::all, tensors_from(shipped("classifier"))) {}

  /// Which digit each image [side, side] shows. Throws OutOfMemory.
  std::vector<std::size_t> read(const std::vector<float>& images) {
    const std::size_t count = images.size() / (kSide * kSide);
    std::vector<float> pixels(images.size());
    std::ranges::transform(images, pixels.begin(), [](float p) { return std::clamp(p, -1.0f, 1.0f); });
    DeviceBuffer<float> x = buffer(images.size());
    CUDA_CHECK(cudaMemcpyAsync(x.data(), pixels.data(), x.bytes(), cudaMemcpyHostToDevice, context_.stream()));
    for (std::size_t i = 0; i < kLevels; ++i) {
      const std::size_t side = kSide >> i, in = kWidths[i], out = kWidths[i + 1];
      const nn::ConvolutionShape convolution = nn::convolution_shape(count, side, side, in, out, 3, 1, 1);
      const nn::ConvolutionShape pool = nn::convolution_shape(count, side, side, out, out, 2, 2, 0);
      DeviceBuffer<float> y = buffer(convolution.output_elements());
      nn::convolution_forward<float>(context_, convolution, nn::ConvolutionWay::tiled, x.data(),
                                     weights_[name_of(i) + ".weight"], y.data());
      nn::bias_activation<float>(context_, y.data(), weights_[name_of(i) + ".bias"], convolution.out_pixels(), out,
                                 nn::Activation::relu);
      x = buffer(pool.output_elements());
      nn::max_pool_forward<float>(context_, pool, y.data(), x.data(), nullptr);
    }
    const auto linear = weights_.linear("linear");
    DeviceBuffer<float> y = buffer(count * kDigits.size());
    linear.forward(context_, {x.data(), linear.in()}, y.data(), count);
    std::vector<float> logits(y.size());
    copy(context_, y.data(), logits.data(), logits.size());
    context_.synchronize();
    std::vector<std::size_t> digits;
    for (auto row = logits.begin(); row != logits.end(); row += kDigits.size())
      digits.push_back(std::size_t(std::max_element(row, row + kDigits.size()) - row));
    return digits;
  }

 private:
  static constexpr std::array<std::size_t, 6> kWidths{1, 8, 16, 32, 64, 64};
  static constexpr std::size_t kLevels = kWidths.size() - 1;
  static std::string name_of(std::size_t i) { return "convolutions." + std::to_string(i); }
  static std::vector<TensorOf> tensors() {
    std::vector<TensorOf> all;
    for (std::size_t i = 0; i < kLevels; ++i) {
      all.push_back({name_of(i) + ".weight", {kWidths[i + 1], kWidths[i], 3, 3}});
      all.push_back({name_of(i) + ".bias", {kWidths[i + 1]}});
    }
    all.push_back({"linear.weight", {kDigits.size(), kWidths.back()}});
    all.push_back({"linear.bias", {kDigits.size()}});
    return all;
  }
  DeviceBuffer<float> buffer(std::size_t count) {
    return context_.buffer<float>(count, Category::activations, "classifier");
  }

  Context& context_;
  WeightStore<float> weights_;
};
/// How many of these images are read as what wishes_of() named them.
inline std::size_t read_as_named(Context& context, const std::vector<float>& images) {
  const std::vector<std::size_t> digits = Classifier(context).read(images);
  std::size_t right = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) right += digits[i] == i % kDigits.size();
  return right;
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
        for (std::size_t i = 0; i < line; ++i) file += static_cast<char>(byte_of(row[column * image + y * line + i]));
  return file;
}

}  // namespace oomlab::image_generation
