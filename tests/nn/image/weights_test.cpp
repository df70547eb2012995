// Weights from a file: their layout, their types, and what is refused.

#include <cstring>

#include "image_runs.h"

namespace oomlab::test {
namespace {

// A file of these tensors, all of them stored as T.
template <class T>
std::vector<std::byte> file_of(const std::vector<std::pair<TensorOf, std::vector<float>>>& tensors) {
  std::string header = "{";
  std::size_t at = 0;
  for (const auto& [tensor, values] : tensors) {
    header +=
        (at ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + row_of(kDTypeOf<T>).safetensors + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) header += (i ? "," : "") + std::to_string(tensor.shape[i]);
    const std::size_t end = at + values.size() * sizeof(T);
    header += "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(end) + "]}";
    at = end;
  }
  header += "}";
  std::vector<std::byte> bytes(8 + header.size() + at);
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  std::byte* to = bytes.data() + 8 + header.size();
  for (const auto& [tensor, values] : tensors)
    for (const float value : values) {
      const T stored = static_cast<T>(value);
      std::memcpy(to, &stored, sizeof stored);
      to += sizeof stored;
    }
  return bytes;
}

const TensorOf kConvolution{"c.weight", {2, 3, 2, 2}};  // [out, in, height, width]
const TensorOf kMatrix{"m.weight", {2, 5}};
const TensorOf kBias{"m.bias", {2}};

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 3;
  return values;
}

struct ImageWeights : ::testing::Test {
  CudaResource resource;
  Ledger ledger;
  Context context{resource, ledger};

  std::vector<float> on_device(const float* address, std::size_t count) {
    std::vector<float> values(count);
    CUDA_CHECK(cudaMemcpyAsync(values.data(), address, count * 4, cudaMemcpyDeviceToHost, context.stream()));
    context.synchronize();
    return values;
  }
};

TEST_F(ImageWeights, AreReadFromEveryTypeAndConvolutionsTurnChannelsLast) {
  for (const Residency residency : kResidencies) {
    const auto check = [&](const std::vector<std::byte>& bytes) {
      const nn::SafetensorsFile file(bytes, "weights");
      WeightStore<float> store(context, {kConvolution, kMatrix, kBias}, residency, tensors_from(file));
      const auto turn = store.stage();
      const auto block = store.block({"c", "m.weight", "m.bias"});
      EXPECT_EQ(on_device(store["m.weight"], 10), counted(10));
      std::vector<float> expected(24);
      for (std::size_t o = 0; o < 2; ++o)
        for (std::size_t i = 0; i < 3; ++i)
          for (std::size_t k = 0; k < 4; ++k) expected[(o * 4 + k) * 3 + i] = counted(24)[(o * 3 + i) * 4 + k];
      EXPECT_EQ(on_device(store["c.weight"], 24), expected);
      const auto layer = store.linear("m");
      EXPECT_EQ(layer.in(), 5u);
      EXPECT_EQ(layer.out(), 2u);
      EXPECT_EQ(layer.bias, store["m.bias"]);
      EXPECT_EQ(store.linear("c").bias, nullptr);
    };
    const std::vector<std::pair<TensorOf, std::vector<float>>> all = {
        {kConvolution, counted(24)}, {kMatrix, counted(10)}, {kBias, counted(2)}, {{"other", {1}}, {7}}};
    check(file_of<float>(all));
    check(file_of<__half>(all));
    check(file_of<__nv_bfloat16>(all));
  }
  EXPECT_EQ(context.host_memory().live_bytes(), 0u);
}

TEST_F(ImageWeights, RefuseAFileOfSomethingElse) {
  const auto refused = [&](const std::vector<std::byte>& bytes, const std::string& words) {
    const nn::SafetensorsFile file(bytes, "weights");
    const std::size_t before = ledger.live_bytes();
    try {
      const WeightStore<float> store(context, {kMatrix, kBias}, Residency::all, tensors_from(file));
      ADD_FAILURE() << words;
    } catch (const nn::StateFileError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
    EXPECT_EQ(ledger.live_bytes(), before);
  };
  refused(file_of<float>({{kMatrix, counted(10)}}), "no tensor 'm.bias'");
  refused(file_of<float>({{{"m.weight", {5, 2}}, counted(10)}, {kBias, counted(2)}}), "another shape of the tensor");
  refused(file_of<std::int8_t>({{kMatrix, counted(10)}, {kBias, counted(2)}}), "no F32, F16 or BF16");
}

TEST_F(ImageWeights, BlocksComeAndGo) {
  const auto bytes = file_of<float>({{kConvolution, counted(24)}, {kMatrix, counted(10)}, {kBias, counted(2)}});
  const nn::SafetensorsFile file(bytes, "weights");
  WeightStore<float> store(context, {kConvolution, kMatrix, kBias}, Residency::layer, tensors_from(file));
  const std::size_t before = ledger.live_bytes();
  EXPECT_THROW((void)store["m.bias"], std::logic_error);
  {
    const auto block = store.block({"m"});
    EXPECT_EQ(ledger.live_bytes(), before + 2 * 512);
    EXPECT_THROW((void)store["c.weight"], std::logic_error);
    EXPECT_THROW((void)store.block({"c", "m"}), std::logic_error);  // there already: and c goes again
    EXPECT_EQ(ledger.live_bytes(), before + 2 * 512);
  }
  EXPECT_EQ(ledger.live_bytes(), before);
  EXPECT_THROW((void)store.block({"x"}), std::logic_error);
  EXPECT_THROW((void)store["x"], std::logic_error);
  EXPECT_TRUE(store.shape("x").empty());
}

}  // namespace
}  // namespace oomlab::test
