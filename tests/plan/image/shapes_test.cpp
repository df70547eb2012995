// Names and shapes of all tensors, against those that diffusers and transformers make (published_shapes.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "plan/image/spec.h"
#include "read_json.h"

namespace {

using namespace oomlab::image;

std::string line_of(const TensorOf& tensor) {
  std::string line = tensor.name + " [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) line += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  return line + "]\n";
}

// FNV-1a, 64 bits, in hexadecimal.
std::string hash_of(const std::string& text) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const unsigned char byte : text) value = (value ^ byte) * 0x100000001B3;
  std::string digits(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

void compare(const nlohmann::json& expected, std::vector<TensorOf> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::string lines;
  for (const TensorOf& tensor : tensors) lines += line_of(tensor);
  EXPECT_EQ(parameters(tensors), expected.at("parameters").get<std::uint64_t>());
  EXPECT_EQ(tensors.size(), expected.at("tensors").get<std::size_t>());
  EXPECT_EQ(hash_of(lines), expected.at("hash").get<std::string>());
}

TEST(PipelineShapes, AreThoseOfTheLibraries) {
  std::ifstream file(std::string(OOMLAB_SHAPES) + "/shapes.json");
  const nlohmann::json stored = oomlab::test::read_json(file).at("pipelines");
  ASSERT_EQ(stored.size(), kPipelines.size());
  for (const char* name : kPipelines) {
    const PipelineSpec& spec = pipeline_named(name);
    const nlohmann::json& expected = stored.at(name);
    EXPECT_EQ(expected.size(), spec.text.size() + 2) << name;
    for (const TextEncoderSpec& text : spec.text) {
      SCOPED_TRACE(std::string(name) + ", " + text.name);
      compare(expected.at(text.name), tensors_of(text));
    }
    SCOPED_TRACE(name);
    compare(expected.at("denoiser"), tensors_of(spec.denoiser));
    compare(expected.at("autoencoder"), tensors_of(spec.autoencoder, AutoencoderPart::both));
  }
}

}  // namespace
