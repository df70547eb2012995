// Our adapters against peft's: peft.json and the folder peft-adapter beside this file, made by generate_peft.py.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../../chapters/14_adapters/frozen_base.h"
#include "device.h"
#include "folder.h"
#include "nn/files/adapter_file.h"
#include "nn/models/transformer.h"
#include "nn/optimizer/mixed_precision.h"
#include "read_json.h"

namespace oomlab::test {
namespace {

using namespace nn;
using nlohmann::json;

constexpr double kTolerance = 1e-4;

const json& cases() {
  static const json all = [] {
    std::ifstream file(std::string(OOMLAB_FIXTURES) + "/peft.json");
    return read_json(file);
  }();
  return all["cases"];
}

TransformerSpec spec_of(const json& c) {
  TransformerSpec spec{
      c["style"],    c["style"] == "llama" ? TransformerSpec::Style::llama : TransformerSpec::Style::gpt,
      c["layers"],   c["heads"],
      c["width"],    c["vocabulary"],
      c["positions"]};
  if (!spec.llama()) return spec;
  spec.kv_heads = c["kv_heads"];
  spec.mlp = c["mlp"];
  spec.qkv_bias = false;
  spec.epsilon = c["epsilon"];
  spec.rotary.theta = c["theta"];
  return spec;
}

// A model of the fixture with its adapters; matrices that the fixture has in NF4 stay in it.
struct Adapted {
  Device& device;
  const json& all;
  TransformerSpec spec;
  Transformer<float> model;
  std::vector<DeviceBuffer<float>> values;
  std::vector<quantisation::Matrix<float>> matrices;
  std::vector<std::unique_ptr<adapters::EncodedMatrix<float>>> encoded;
  DeviceBuffer<float> part;
  AdapterSet<float> set;

  Adapted(Device& on, const char* name)
      : device(on),
        all(cases()[name]),
        spec(spec_of(all)),
        model(on.context, spec, Slice{}, nullptr),
        set(on.context, spec, {.rank = all["rank"], .alpha = all["alpha"], .targets = all["targets"]}, 1) {
    Context& context = device.context;
    const auto shapes = tensors_of(spec);
    const FineTuning tuning{.trained = Trained::adapters, .base = {.scheme = quantised::Scheme::nf4}};
    part = context.buffer<float>(decoded_part_bytes(spec, tuning) / sizeof(float), Category::workspace, "part");
    values.resize(shapes.size());
    matrices.reserve(shapes.size());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (const auto parts = all["nf4"].find(shapes[i].name); parts != all["nf4"].end()) {
        bind_encoded(i, shapes[i], *parts);
        continue;
      }
      const auto base = all["parameters"][shapes[i].name].get<std::vector<float>>();
      values[i] = device.upload(base);
      EXPECT_EQ(base.size(), shapes[i].count()) << shapes[i].name;
      model.bind(i, values[i].data(), nullptr);
    }
    const auto tensors = adapter_file_tensors(spec, set.form());
    const auto parameters = set.parameters();
    EXPECT_EQ(tensors.size(), all["adapters"].size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      device.put(parameters[i].value, all["adapters"][tensors[i].name].get<std::vector<float>>());
    context.synchronize();
    model.train_only(Trained::adapters);
    model.set_adapters(&set);
  }
  void bind_encoded(std::size_t i, const TensorShape& shape, const json& parts) {
    matrices.emplace_back(device.context, quantised::Format{.scheme = quantised::Scheme::nf4}, shape.name, shape.rows,
                          shape.columns);
    quantisation::Matrix<float>& matrix = matrices.back();
    const auto put = [&](std::size_t p, auto list) {
      using Value = typename decltype(list)::value_type;
      EXPECT_EQ(matrix.layout()[p].bytes(), list.size() * sizeof(Value)) << shape.name;
      device.put(reinterpret_cast<Value*>(matrix.part_data(p)), list);
      device.context.synchronize();
    };
    put(quantised::kCodes, parts["codes"].get<std::vector<std::uint8_t>>());
    put(quantised::kScales, parts["absmax_scale"].get<std::vector<float>>());
    put(quantised::kSmall, parts["absmax"].get<std::vector<std::int8_t>>());
    put(quantised::kMean, parts["absmax_mean"].get<std::vector<float>>());
    encoded.push_back(std::make_unique<adapters::EncodedMatrix<float>>(matrix, part.data()));
    model.bind(i, nullptr, nullptr);
    model.bind_frozen(i, encoded.back().get());
  }
  TokenBatch batch() {
    return make_token_batch(device.context, all["tokens"].get<std::vector<int>>(),
                            all["labels"].get<std::vector<int>>(), all["sequences"], all["seq"]);
  }
  std::uint64_t base() {
    std::uint64_t hash = kFingerprintStart;
    for (const auto& value : values) hash = fingerprint(device.context, value.data(), value.bytes(), hash);
    for (auto& matrix : matrices)
      for (std::size_t p = 0; p < matrix.layout().size(); ++p)
        hash = fingerprint(device.context, matrix.part_data(p), matrix.layout()[p].bytes(), hash);
    return hash;
  }
};

class Peft : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Peft,
                         ::testing::Values("llama, all", "llama, q and v", "gpt2, all", "gpt2, attention",
                                           "llama, all, nf4"),
                         [](const auto& i) {
                           std::string name = i.param;
                           std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
                           return name;
                         });

TEST_P(Peft, LogitsLossAndGradients) {
  Device device;
  Adapted adapted(device, GetParam());
  const json& expected = adapted.all;
  const auto logits = device.download(adapted.model.logits(device.context, adapted.batch()));
  expect_close(logits, expected["logits"].get<std::vector<double>>(), kTolerance, "logits");
  const auto tensors = adapter_file_tensors(adapted.spec, adapted.set.form());
  for (const AttentionForm attention : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    for (const bool lean : {false, true}) {
      StepForm form{.attention = attention};
      if (lean) form = {attention, LossForm::chunked, Keep::selective_recompute(), true};
      adapted.model.set_form(form);
      adapted.model.forward_backward(device.context, adapted.batch());
      EXPECT_NEAR(adapted.model.loss(device.context), expected["loss"].get<double>(), kTolerance);
      const auto parameters = adapted.set.parameters();
      for (std::size_t i = 0; i < tensors.size(); ++i)
        expect_close(device.download(parameters[i].gradient, parameters[i].count),
                     expected["gradients"][tensors[i].name].get<std::vector<double>>(), kTolerance, tensors[i].name);
    }
}

TEST_P(Peft, TenAdamWLossesOnABaseThatStays) {
  Device device;
  Adapted adapted(device, GetParam());
  const json& a = adapted.all["adamw"];
  const std::uint64_t before = adapted.base();
  Optimizer<float> optimizer(device.context, adapted.set.parameters(), {},
                             {.adamw = {a["lr"], a["betas"][0], a["betas"][1], a["eps"], a["weight_decay"]}});
  for (const double expected : adapted.all["losses"]) {
    adapted.model.forward_backward(device.context, adapted.batch());
    EXPECT_NEAR(adapted.model.loss(device.context), expected, kTolerance * expected);
    optimizer.step(device.context);
  }
  EXPECT_EQ(adapted.base(), before);
}

// ---- files

const std::string kTheirs = std::string(OOMLAB_FIXTURES) + "/peft-adapter";

TEST(PeftFiles, ReadsOneOfPefts) {
  Device device;
  Adapted adapted(device, "llama, all");
  const AdapterForm form = read_adapter_form(adapted.spec, kTheirs);
  EXPECT_EQ(form.rank, 4u);
  EXPECT_EQ(form.alpha, 8.0f);
  EXPECT_EQ(form.targets, "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj");
  AdapterSet<float> theirs(device.context, adapted.spec, form, 99);
  load_adapter(device.context, adapted.spec, theirs, kTheirs);
  adapted.model.set_adapters(&theirs);
  const auto logits = device.download(adapted.model.logits(device.context, adapted.batch()));
  expect_close(logits, adapted.all["logits"].get<std::vector<double>>(), 1e-5, "logits");
}

// With OOMLAB_KEEP_ADAPTER=FOLDER what is written stays there, with the logits, for generate_peft.py's check.
TEST(PeftFiles, ReadsBackWhatItWrites) {
  Device device;
  Adapted adapted(device, "llama, all");
  Folder folder;
  const char* const keep = std::getenv("OOMLAB_KEEP_ADAPTER");
  const std::string path = keep ? keep : folder.path();
  save_adapter(device.context, adapted.spec, adapted.set, path);
  const AdapterForm form = read_adapter_form(adapted.spec, path);
  AdapterSet<float> again(device.context, adapted.spec, form, 99);
  load_adapter(device.context, adapted.spec, again, path);
  const auto before = adapted.set.parameters(), after = again.parameters();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(device.download(after[i].value, after[i].count), device.download(before[i].value, before[i].count));
  if (!keep) return;
  const auto logits = device.download(adapted.model.logits(device.context, adapted.batch()));
  std::ofstream(path + "/logits.json") << json(logits).dump();
}

std::string config_with(const std::string& change) {
  return R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"])" + change + "}";
}

TEST(PeftFiles, RefuseWhatTheyDoNotKnowInOneLine) {
  const TransformerSpec llama = parse_transformer("bytes-llama"), gpt = parse_transformer("gpt:1-2-8");
  EXPECT_EQ(parse_adapter_config(config_with(""), "file", llama).targets, "q_proj");
  EXPECT_EQ(parse_adapter_config(R"({"peft_type": "LORA", "target_modules": ["c_proj"]})", "file", gpt).targets,
            "attn.c_proj,mlp.c_proj");
  EXPECT_EQ(parse_adapter_config(R"({"peft_type": "LORA", "target_modules": "all-linear"})", "file", llama).rank, 8u);
  for (const char* change :
       {R"(, "use_dora": true)", R"(, "use_rslora": true)", R"(, "rank_pattern": {"q_proj": 8})", R"(, "bias": "all")",
        R"(, "modules_to_save": ["lm_head"])", R"(, "layers_to_transform": [0])", R"(, "lora_dropout": 1)",
        R"(, "lora_dropout": "a lot")", R"(, "r": 4)", R"(, "trainable_token_indices": [1])", ","})
    expect_refused_in_one_line([&] { return parse_adapter_config(config_with(change), "file", llama); }, change);
  for (const char* text :
       {"", "[]", "{}", R"({"peft_type": "LORA"})", R"({"peft_type": "IA3", "target_modules": ["q_proj"]})",
        R"({"peft_type": "LORA", "target_modules": ["c_attn"]})", R"({"peft_type": "LORA", "target_modules": []})",
        R"({"peft_type": "LORA", "target_modules": [7]})", R"({"peft_type": "LORA", "target_modules": ".*_proj"})",
        R"({"peft_type": "LORA", "target_modules": ["q_proj"], "r": 0})",
        R"({"peft_type": "LORA", "target_modules": ["q_proj"], "r": 1e3})",
        R"({"peft_type": "LORA", "target_modules": ["q_proj", "lm_head"]})"})
    expect_refused_in_one_line([&] { return parse_adapter_config(text, "file", llama); }, text);
  expect_refused_in_one_line([&] { return adapter_config_of(gpt, {.targets = "qv"}); }, "q and v of a gpt");
}

TEST(PeftFiles, RefuseAdaptersOfAnotherModel) {
  Device device;
  TransformerSpec other = spec_of(cases()["llama, all"]);
  other.mlp = 20;
  const AdapterForm form = read_adapter_form(other, kTheirs);
  AdapterSet<float> set(device.context, other, form, 1);
  EXPECT_THROW(load_adapter(device.context, other, set, kTheirs), StateFileError);
  AdapterForm fewer = form;
  fewer.targets = "q_proj";
  const TransformerSpec spec = spec_of(cases()["llama, all"]);
  AdapterSet<float> one(device.context, spec, fewer, 1);
  EXPECT_THROW(load_adapter(device.context, spec, one, kTheirs), StateFileError);
  EXPECT_THROW(read_adapter_form(spec, "/nowhere"), BadFile);
}

// A config that is damaged anywhere is read or refused in one line, and nothing else.
TEST(PeftFiles, FuzzedConfigsAreReadOrRefused) {
  const TransformerSpec llama = spec_of(cases()["llama, all"]);
  const std::string good = read_file(kTheirs + kAdapterConfig, 1 << 20);
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (unsigned times = 1 + random() % 3; times > 0; --times) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = static_cast<char>(random() % 256); break;
        case 1: text.erase(at, 1 + random() % 20); break;
        case 2: text.insert(at, text.substr(random() % text.size(), random() % 20)); break;
      }
      if (text.empty()) break;
    }
    try {
      const AdapterForm form = parse_adapter_config(text, "file", llama);
      require_adapters(llama, form);
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace oomlab::test
