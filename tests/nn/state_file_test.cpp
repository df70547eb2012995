// Saved, loaded, trained on: the same bits as without.

#include "nn/files/state_file.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "data/text.h"
#include "device.h"
#include "nn/models/transformer.h"
#include "nn/optimizer/mixed_precision.h"

namespace oomlab::test {
namespace {

using namespace nn;

class StateFile : public ::testing::Test {
 protected:
  StateFile() {
    std::string name = (std::filesystem::temp_directory_path() / "oomlab-state-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    folder = name;
  }
  ~StateFile() override { std::filesystem::remove_all(folder); }
  std::string path() const { return folder + "/state.safetensors"; }
  std::size_t files() const { return std::size_t(std::distance(std::filesystem::directory_iterator(folder), {})); }
  std::string folder;
};

template <class T>
struct Training {
  Device device;
  Transformer<T> model;
  ScaledOptimizer<T> optimizer;
  data::TextSampler text{data::course_text(), {.seq = 12}};
  explicit Training(std::uint64_t seed)
      : model(device.context, parse_transformer("gpt:2-2-12"), seed),
        optimizer(device.context, model.parameters(), LossScaling::dynamic_from(256, 3), {.adamw = {.lr = 1e-2f}}) {}
  float step(std::size_t number) {
    const data::TokenSamples s = text.samples(number * 2, 2);
    model.forward_backward(device.context, make_token_batch(device.context, s.tokens, s.labels, 2, 12), {},
                           optimizer.scale_on_device());
    optimizer.step(device.context);
    return model.loss(device.context);
  }
};

template <class T>
void ten_losses_after_loading(const std::string& path) {
  Training<T> first(1);
  for (std::size_t i = 0; i < 5; ++i) first.step(i);
  save_state(first.device.context, path, first.optimizer.state_tensors());
  Training<T> second(2);  // other weights, until they are loaded
  load_state(second.device.context, path, second.optimizer.state_tensors());
  for (std::size_t i = 5; i < 15; ++i) EXPECT_EQ(first.step(i), second.step(i)) << i;
  EXPECT_EQ(first.model.fingerprint(first.device.context), second.model.fingerprint(second.device.context));
}

TEST_F(StateFile, SavedAndLoadedTenLossesHaveTheSameBits) {
  ten_losses_after_loading<float>(path());
  ten_losses_after_loading<__half>(path());
  ten_losses_after_loading<__nv_bfloat16>(path());
  EXPECT_EQ(files(), 1u);
}

TEST_F(StateFile, IsAsSafetensorsHaveIt) {
  Device device;
  auto a = device.upload(std::vector<float>{1, 2}), b = device.upload(std::vector<float>{3});
  save_state(device.context, path(), {{"a", DType::fp32, a.data(), 8}, {"b", DType::fp32, b.data(), 4}});
  std::ifstream file(path(), std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(file), {});
  const std::string json =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  ASSERT_GE(all.size(), 8 + json.size() + 12);
  const std::size_t length = static_cast<unsigned char>(all[0]);
  EXPECT_EQ(length, (json.size() + 7) / 8 * 8);
  EXPECT_EQ(all.substr(8, json.size()), json);
  EXPECT_EQ(all.size(), 8 + length + 12);
  float values[3];
  std::memcpy(values, all.data() + 8 + length, 12);
  EXPECT_EQ(values[1], 2);
  EXPECT_EQ(values[2], 3);
}

TEST_F(StateFile, AnythingElseIsRefusedAndNothingIsLost) {
  Device device;
  auto a = device.upload(std::vector<float>{1, 2});
  const std::vector<StateTensor> tensors = {{"a", DType::fp32, a.data(), 8}};
  save_state(device.context, path(), tensors);
  const auto refused = [&](const std::vector<StateTensor>& other, const std::string& where) {
    try {
      load_state(device.context, where, other);
      ADD_FAILURE();
    } catch (const BadFile& error) {
      EXPECT_NE(std::string(error.what()).find("'" + where + "'"), std::string::npos) << error.what();
    }
    EXPECT_EQ(device.download(a), (std::vector<float>{1, 2}));
  };
  refused({{"b", DType::fp32, a.data(), 8}}, path());
  refused({{"a", DType::fp16, a.data(), 8}}, path());
  refused({{"a", DType::fp32, a.data(), 4}}, path());
  refused(tensors, path() + ".missing");
  refused(tensors, folder);
  const std::uintmax_t bytes = std::filesystem::file_size(path());
  for (const std::uintmax_t wrong : {bytes + 1, bytes - 1}) {
    std::filesystem::resize_file(path(), wrong);
    refused(tensors, path());
  }
  EXPECT_THROW(save_state(device.context, folder + "/missing/x", tensors), std::system_error);
  EXPECT_THROW(save_state(device.context, folder, tensors), std::system_error);
  EXPECT_EQ(files(), 1u);
}

TEST_F(StateFile, AFullDiskKeepsTheOldState) {
  Device device;
  auto a = device.upload(std::vector<float>{1, 2}), b = device.upload(std::vector<float>{3, 4});
  save_state(device.context, path(), {{"a", DType::fp32, a.data(), 8}});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{70, before.rlim_max};  // within the header
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_THROW(save_state(device.context, path(), {{"a", DType::fp32, b.data(), 8}}), std::system_error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  load_state(device.context, path(), {{"a", DType::fp32, b.data(), 8}});
  EXPECT_EQ(device.download(b), (std::vector<float>{1, 2}));
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace oomlab::test
