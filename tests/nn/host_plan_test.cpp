// Plan mode counts what a run counts, at any size, without computing anything.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "../planning.h"
#include "data/device_dataset.h"
#include "folder.h"
#include "nn/checkpoint.h"
#include "runs.h"

namespace oomlab::test {
namespace {

using namespace nn;

TEST(Plan, CountsWhatARunCounts) {
  for (const char* model : {"mlp-small", "mlp:64-300-7", "mlp:10-20-30-40-5"})
    for (const auto activation : {Activation::relu, Activation::gelu})
      for (const auto kind : {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::adamw}) {
        MlpSpec spec = parse_model(model);
        spec.activation = activation;
        Ledger run, plan;
        train(run, spec, 33, kind, 2);
        const Planning planning;
        train(plan, spec, 33, kind, 2);
        EXPECT_EQ(run.peak_bytes(), plan.peak_bytes());
        EXPECT_EQ(run.peak_by_category(), plan.peak_by_category());
      }
}

TEST(Plan, AThousandTimesLargerInLessThanASecond) {
  MlpSpec spec = parse_model("mlp");
  for (std::size_t& w : spec.widths) w *= 1000;
  const std::size_t batch = 128'000;
  const auto start = std::chrono::steady_clock::now();
  const Planning planning;
  Ledger plan;
  train(plan, spec, batch, OptimizerKind::adamw, 1);
  EXPECT_EQ(without_workspace(plan.peak_by_category()), predict_training(spec, batch, OptimizerKind::adamw).at_peak);
  EXPECT_GT(plan.peak_bytes(), std::size_t(16) * 43'000'000 * 1'000'000);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
}

TEST(Plan, AnswersThatWouldNeedAComputationAreZero) {
  const Planning planning;
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const MlpSpec spec = parse_model("mlp-small");
  Mlp model(context, spec, 1, true);
  model.forward_backward(context, zero_batch(context, spec, 4));
  EXPECT_EQ(model.loss(context), 0.0f);
  EXPECT_EQ(model.fingerprint(context), 0u);
  EXPECT_EQ(model.count_correct(context, zero_batch(context, spec, 4)), 0u);
}

TEST(Plan, BatchesOfADataset) {
  const Planning planning;
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const data::Dataset digits = data::digits();
  const data::DeviceDataset dataset(context, digits);
  EXPECT_EQ(ledger.live_by_category()[Category::data], data::device_bytes(digits));
  Batch batch = make_batch(context, 128'000, 512'000);
  dataset.batch(context, 1'000'000, batch.size, 512'000, batch.input.data(), batch.labels.data());
  EXPECT_EQ(ledger.live_by_category()[Category::activations], std::size_t(4) * 128'000 * 512'000);
}

// A file of 64 GiB, of which the disk has nothing but the header.
TEST(Plan, WeightsAreCheckedAndNotRead) {
  const std::size_t rows = std::size_t(1) << 20, columns = std::size_t(1) << 14;
  std::string bytes =
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1048576,16384],"data_offsets":[0,68719476736]}})";
  bytes.insert(0, 8, '\0');
  bytes[0] = static_cast<char>(bytes.size() - 8);
  const Folder folder;
  const std::string path = folder.write("f", bytes);
  std::filesystem::resize_file(path, bytes.size() + rows * columns * sizeof(float));
  const Planning planning;
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const auto load = [&](std::size_t vocabulary) {
    const std::vector<TensorShape> shapes = {{"token embedding", "", vocabulary, columns}};
    auto value = context.buffer<float>(vocabulary * columns, Category::parameters, "token embedding");
    const std::vector<Parameter> to = {{"token embedding", value.data(), nullptr, value.size()}};
    load_tensors<float>(context, checkpoint_tensors({}, shapes), to, path);
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NO_THROW(load(rows));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
  EXPECT_THROW(load(rows + 1), StateFileError);
}

}  // namespace
}  // namespace oomlab::test
