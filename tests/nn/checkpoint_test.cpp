// Weights under Hugging Face's names: which tensor is where, what is converted, and what is refused.

#include "nn/files/checkpoint.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "device.h"
#include "folder.h"
#include "nn/models/model_config.h"

namespace oomlab::test {
namespace {

using namespace nn;

// Four heads over two, width 8, ten hidden units, 6 tokens, one layer.
TransformerSpec tiny_llama(bool tied, bool qkv_bias) {
  TransformerSpec spec;
  spec.name = "tiny";
  spec.style = TransformerSpec::Style::llama;
  spec.layers = 1;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.width = 8;
  spec.mlp = 10;
  spec.vocabulary = 6;
  spec.positions = 16;
  spec.tied = tied;
  spec.qkv_bias = qkv_bias;
  return spec;
}

// A file's tensors, written as others write them.
struct Written {
  std::string dtype, shape, data;
};
std::string checkpoint_bytes(const std::map<std::string, Written>& tensors) {
  std::string json, data;
  for (const auto& [name, t] : tensors) {
    json += (json.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":")" + t.dtype + R"(","shape":)" + t.shape +
            R"(,"data_offsets":[)" + std::to_string(data.size()) + "," + std::to_string(data.size() + t.data.size()) +
            "]}";
    data += t.data;
  }
  json += "}";
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return bytes + json + data;
}

template <class T>
std::string bytes_as(const std::vector<float>& values) {
  std::string bytes;
  for (const float v : values) {
    const T stored = static_cast<T>(v);
    bytes.append(reinterpret_cast<const char*>(&stored), sizeof stored);
  }
  return bytes;
}

// Some tensors of a model on the device, as the tensors of a Transformer are, filled with −1.
template <class T>
struct Weights {
  Device device;
  std::vector<DeviceBuffer<T>> buffers;
  std::vector<ParameterOf<T>> parameters;
  explicit Weights(const std::vector<TensorShape>& shapes) {
    for (const TensorShape& s : shapes) {
      buffers.push_back(device.upload(std::vector<T>(s.count(), static_cast<T>(-1.0f))));
      parameters.push_back({s.name, buffers.back().data(), nullptr, s.count()});
    }
  }
  std::vector<float> values(std::size_t i) {
    std::vector<float> all;
    for (const T& v : device.download(buffers[i])) all.push_back(static_cast<float>(v));
    return all;
  }
};

// Names as transformers' LlamaForCausalLM and Qwen2ForCausalLM have them.
TEST(Checkpoint, WhereEveryTensorIs) {
  const TransformerSpec spec = tiny_llama(false, true);
  std::string all;
  for (const CheckpointTensor& t : checkpoint_tensors(spec, tensors_of(spec))) {
    all += std::to_string(t.tensor) + "+" + std::to_string(t.first) + " " + t.name + " [";
    for (const std::size_t extent : t.shape) all += std::to_string(extent) + ",";
    all += "] " + std::to_string(t.count()) + "\n";
  }
  EXPECT_EQ(all,
            "0+0 model.embed_tokens.weight [6,8,] 48\n"
            "1+0 model.layers.0.input_layernorm.weight [8,] 8\n"
            "2+0 model.layers.0.self_attn.q_proj.weight [8,8,] 64\n"
            "2+64 model.layers.0.self_attn.k_proj.weight [4,8,] 32\n"
            "2+96 model.layers.0.self_attn.v_proj.weight [4,8,] 32\n"
            "3+0 model.layers.0.self_attn.q_proj.bias [8,] 8\n"
            "3+8 model.layers.0.self_attn.k_proj.bias [4,] 4\n"
            "3+12 model.layers.0.self_attn.v_proj.bias [4,] 4\n"
            "4+0 model.layers.0.self_attn.o_proj.weight [8,8,] 64\n"
            "5+0 model.layers.0.post_attention_layernorm.weight [8,] 8\n"
            "6+0 model.layers.0.mlp.gate_proj.weight [10,8,] 80\n"
            "6+80 model.layers.0.mlp.up_proj.weight [10,8,] 80\n"
            "7+0 model.layers.0.mlp.down_proj.weight [8,10,] 80\n"
            "8+0 model.norm.weight [8,] 8\n"
            "9+0 lm_head.weight [6,8,] 48\n");
}

TEST(Checkpoint, TensorsWithoutAName) {
  const TransformerSpec spec = tiny_llama(true, false);
  const auto refusal = [&](const TensorShape& shape) -> std::string {
    try {
      (void)checkpoint_tensors(spec, std::vector<TensorShape>{shape});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({"layer 120 norm 1 gamma", "", 1, 8}), "accepted");
  for (const std::string name : {"position embedding", "norm 1 gamma", "layer 1 token embedding", "layer ", "layer 1",
                                 "layer 1 expand weight", "final norm beta"})
    EXPECT_EQ(refusal({name, "", 1, 8}), "tensor '" + name + "' of tiny has no name in a file");
  EXPECT_EQ(refusal({"layer 1 qkv weight", "", 8, 8}), "tensor 'layer 1 qkv weight' is cut: a file has whole layers");
  EXPECT_EQ(refusal({"layer 1 gate and up weight", "", 10, 8}),
            "tensor 'layer 1 gate and up weight' is cut: a file has whole layers");
  const TransformerSpec gpt = parse_transformer("gpt:1-1-4");
  EXPECT_THROW((void)checkpoint_tensors(gpt, tensors_of(gpt)), std::invalid_argument);
}

TEST(Checkpoint, LayersOfASlice) {
  TransformerSpec spec = tiny_llama(true, false);
  spec.layers = 3;
  std::string all;
  for (const CheckpointTensor& t : checkpoint_tensors(spec, tensors_of(spec, {.first_layer = 2})))
    if (t.shape.size() == 1 || t.name.find("layers") == std::string::npos) all += t.name + "\n";
  EXPECT_EQ(all,
            "model.embed_tokens.weight\nmodel.layers.2.input_layernorm.weight\n"
            "model.layers.2.post_attention_layernorm.weight\nmodel.norm.weight\n");
  EXPECT_THROW((void)checkpoint_tensors(spec, tensors_of(spec, {.part = 1, .parts = 2})), std::invalid_argument);
}

template <class T>
void loads_all_types(const std::string& path, const std::vector<std::string>& dtypes) {
  const std::vector<TensorShape> shapes = {{"layer 1 qkv weight", "", 16, 8}, {"final norm gamma", "", 1, 8}};
  Weights<T> weights(shapes);
  const auto tensors = checkpoint_tensors(tiny_llama(true, false), shapes);
  load_tensors<T>(weights.device.context, tensors, weights.parameters, SafetensorsFile(path));
  const std::vector<float> qkv = weights.values(0), gamma = weights.values(1);
  for (std::size_t i = 0; i < qkv.size(); ++i) ASSERT_EQ(qkv[i], static_cast<float>(i) / 4) << i << dtypes[0];
  for (std::size_t i = 0; i < gamma.size(); ++i) ASSERT_EQ(gamma[i], static_cast<float>(i) - 3) << i << dtypes[0];
}

TEST(Checkpoint, EveryTypeBecomesEveryType) {
  std::vector<float> qkv(128), gamma(8);
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(i) / 4;  // exact in eight bits
  for (std::size_t i = 0; i < gamma.size(); ++i) gamma[i] = static_cast<float>(i) - 3;
  const std::string before = "model.layers.0.self_attn.";
  const auto piece = [&](std::size_t first, std::size_t last) {
    return std::vector<float>(qkv.begin() + long(first), qkv.begin() + long(last));
  };
  // A byte first, so that nothing after it is aligned.
  const Folder folder;
  const std::string path = folder.write(
      "f", checkpoint_bytes({{"a", {"U8", "[1]", "!"}},
                             {before + "q_proj.weight", {"F32", "[8,8]", bytes_as<float>(piece(0, 64))}},
                             {before + "k_proj.weight", {"F16", "[4,8]", bytes_as<__half>(piece(64, 96))}},
                             {before + "v_proj.weight", {"BF16", "[4,8]", bytes_as<__nv_bfloat16>(piece(96, 128))}},
                             {"model.norm.weight", {"BF16", "[8]", bytes_as<__nv_bfloat16>(gamma)}}}));
  loads_all_types<float>(path, {"float"});
  loads_all_types<__half>(path, {"half"});
  loads_all_types<__nv_bfloat16>(path, {"bfloat16"});
}

TEST(Checkpoint, RoundsToTheNearest) {
  const std::vector<float> values = {1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, 0x1p-24f,         65520.0f,
                                     -65519.0f,       1.0f + 0x1p-8f,    1.0f + 0x1.8p-7f, 3.0e38f};
  const Folder folder;
  const std::string path =
      folder.write("f", checkpoint_bytes({{"model.norm.weight", {"F32", "[8]", bytes_as<float>(values)}}}));
  const std::vector<TensorShape> shapes = {{"final norm gamma", "", 1, 8}};
  const auto tensors = checkpoint_tensors(tiny_llama(true, false), shapes);
  Weights<__half> half(shapes);
  load_tensors<__half>(half.device.context, tensors, half.parameters, SafetensorsFile(path));
  EXPECT_EQ(half.values(0), (std::vector<float>{1, 1.0f + 0x1p-9f, 0x1p-24f, INFINITY, -65504, 1.0f + 0x1p-8f,
                                                1.0f + 0x1.8p-7f, INFINITY}));
  Weights<__nv_bfloat16> bfloat(shapes);
  load_tensors<__nv_bfloat16>(bfloat.device.context, tensors, bfloat.parameters, SafetensorsFile(path));
  EXPECT_EQ(bfloat.values(0)[5], 1.0f);
  EXPECT_EQ(bfloat.values(0)[6], 1.0f + 0x1p-6f);
}

// More than one piece of 1 MiB, the last one not full.
TEST(Checkpoint, LargeTensorsComeInPieces) {
  TransformerSpec spec = tiny_llama(true, false);
  spec.vocabulary = 300'001;
  spec.width = 4;
  const std::vector<TensorShape> shapes = {{"token embedding", "", spec.vocabulary, 4}};
  std::vector<float> values(spec.vocabulary * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251);
  const Folder folder;
  const std::string path = folder.write(
      "f", checkpoint_bytes({{"model.embed_tokens.weight", {"BF16", "[300001,4]", bytes_as<__nv_bfloat16>(values)}}}));
  const auto tensors = checkpoint_tensors(spec, shapes);
  Weights<float> wide(shapes);
  load_tensors<float>(wide.device.context, tensors, wide.parameters, SafetensorsFile(path));
  EXPECT_TRUE(wide.values(0) == values);
  Weights<__nv_bfloat16> same(shapes);
  load_tensors<__nv_bfloat16>(same.device.context, tensors, same.parameters, SafetensorsFile(path));
  EXPECT_TRUE(same.values(0) == values);
}

TEST(Checkpoint, RefusedBeforeTheFirstByte) {
  const std::vector<TensorShape> shapes = {{"token embedding", "", 2, 3}, {"final norm gamma", "", 1, 3}};
  const auto tensors = checkpoint_tensors(tiny_llama(true, false), shapes);
  const std::map<std::string, Written> good = {
      {"model.embed_tokens.weight", {"F32", "[2,3]", bytes_as<float>({1, 2, 3, 4, 5, 6})}},
      {"model.norm.weight", {"F32", "[3]", bytes_as<float>({7, 8, 9})}},
      {"lm_head.weight", {"I8", "[1]", "x"}},  // of no interest to a tied model, as the next one is to any
      {"model.layers.0.self_attn.rotary_emb.inv_freq", {"F32", "[0]", ""}}};
  const Folder folder;
  Weights<float> weights(shapes);
  const auto load = [&](const std::map<std::string, Written>& file) -> std::string {
    try {
      load_tensors<float>(weights.device.context, tensors, weights.parameters,
                          SafetensorsFile(folder.write("f", checkpoint_bytes(file))));
    } catch (const StateFileError& error) {
      EXPECT_EQ(weights.values(0), std::vector<float>(6, -1.0f));
      return error.what();
    }
    return "accepted";
  };
  const std::string file = "'" + folder.path() + "/f' has ", norm = "a tensor 'model.norm.weight' of ";
  auto without = good;
  without.erase("model.norm.weight");
  EXPECT_EQ(load(without), file + "no tensor 'model.norm.weight'");
  const auto changed = [&](const Written& w) {
    auto other = good;
    other["model.norm.weight"] = w;
    return load(other);
  };
  const std::string model = "; this model's is [3]";
  EXPECT_EQ(changed({"F32", "[4]", bytes_as<float>({7, 8, 9, 9})}), file + norm + "shape [4]" + model);
  EXPECT_EQ(changed({"F32", "[1,3]", bytes_as<float>({7, 8, 9})}), file + norm + "shape [1, 3]" + model);
  EXPECT_EQ(changed({"F32", "[]", bytes_as<float>({7})}), file + norm + "shape []" + model);
  EXPECT_EQ(changed({"U8", "[1,1,1,1,1,1,1,1,1,1]", "x"}), file + norm + "shape [1, 1, 1, 1, 1, 1, 1, 1, ...]" + model);
  const std::string known = "; weights are F32, F16 or BF16";
  EXPECT_EQ(changed({"F64", "[3]", std::string(24, '\0')}), file + norm + "type F64" + known);
  EXPECT_EQ(changed({"I32", "[3]", std::string(12, '\0')}), file + norm + "type I32" + known);
  EXPECT_EQ(changed({"F8_E4M3", "[3]", std::string(3, '\0')}), file + norm + "type F8_E4M3" + known);
  EXPECT_THROW(load_tensors<float>(weights.device.context, tensors, weights.parameters,
                                   SafetensorsFile(folder.path() + "/missing")),
               BadFile);
  EXPECT_EQ(load(good), "accepted");
  EXPECT_EQ(weights.values(0), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(weights.values(1), (std::vector<float>{7, 8, 9}));
}

template <class T>
void saved_and_loaded(bool tied, bool qkv_bias) {
  const TransformerSpec spec = tiny_llama(tied, qkv_bias);
  const std::vector<TensorShape> shapes = tensors_of(spec);
  const auto tensors = checkpoint_tensors(spec, shapes);
  Weights<T> from(shapes), to(shapes);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    std::vector<T> values;
    for (const float v : random_floats(shapes[i].count(), unsigned(i))) values.push_back(static_cast<T>(v));
    from.buffers[i] = from.device.upload(values);
    from.parameters[i].value = from.buffers[i].data();
  }
  const Folder folder;
  const std::string path = folder.path() + "/model.safetensors";
  save_tensors<T>(from.device.context, tensors, from.parameters, path);
  load_tensors<T>(to.device.context, tensors, to.parameters, SafetensorsFile(path));
  for (std::size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(from.values(i), to.values(i)) << shapes[i].name;
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(bytes.substr(8, 32), R"({"__metadata__":{"format":"pt"},)");
  EXPECT_EQ(SafetensorsFile(path).entries().size(), tensors.size());
}

TEST(Checkpoint, SavedAndLoaded) {
  saved_and_loaded<float>(false, true);
  saved_and_loaded<__half>(true, false);
  saved_and_loaded<__nv_bfloat16>(true, true);
}

// A whole model, by way of both of its files.
template <class T>
void a_model_saved_and_loaded(const TransformerSpec& spec) {
  Device device;
  Transformer<T> first(device.context, spec, 1, false);
  const Folder folder;
  save_weights(device.context, first, folder.path() + "/model.safetensors");
  const std::string config = folder.write("config.json", model_config_of(spec));
  Transformer<T> second(device.context, read_model_config(config), 2, false);
  EXPECT_NE(first.fingerprint(device.context), second.fingerprint(device.context));
  load_weights(device.context, second, folder.path() + "/model.safetensors");
  EXPECT_EQ(first.fingerprint(device.context), second.fingerprint(device.context));
  const std::vector<int> tokens = {1, 5, 0, 3, 3};
  const TokenBatch batch = make_token_batch(device.context, tokens, tokens, 1, tokens.size());
  const auto logits = [&](Transformer<T>& model) { return device.download(model.logits(device.context, batch)); };
  const std::vector<T> ours = logits(first), theirs = logits(second);
  ASSERT_EQ(ours.size(), theirs.size());
  EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(T)), 0);
}

TEST(Checkpoint, AModelSavedAndLoaded) {
  a_model_saved_and_loaded<float>(tiny_llama(false, true));
  a_model_saved_and_loaded<__half>(tiny_llama(true, false));
  a_model_saved_and_loaded<__nv_bfloat16>(tiny_llama(false, false));
}

}  // namespace
}  // namespace oomlab::test
