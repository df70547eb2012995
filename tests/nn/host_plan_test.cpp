// Plan mode counts what a run counts, at any size, without computing anything. (How long plans take: tests/run bench.)

#include <gtest/gtest.h>

#include <filesystem>

#include "../planning.h"
#include "data/device_dataset.h"
#include "folder.h"
#include "nn/files/checkpoint.h"
#include "runs.h"

namespace oomlab::test {
namespace {

using namespace nn;

TEST(Plan, CountsWhatARunCounts) {
  for (const char* model : {"mlp-small", "mlp:64-300-7", "mlp:10-20-30-40-5"})
    for (const auto activation : {Activation::relu, Activation::gelu})
      for (const auto kind : {UpdateRule::sgd, UpdateRule::momentum, UpdateRule::adamw}) {
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

// Nor launches, nor products.
TEST(Plan, AThousandTimesLargerTakesNoMoreCalls) {
  const MlpSpec small = parse_model("mlp");
  MlpSpec large = small;
  for (std::size_t& w : large.widths) w *= 1000;
  const Planning planning;
  Ledger first, plan;
  const auto asked_for = [](Ledger& ledger, const MlpSpec& spec, std::size_t batch) {
    const host::Work before = host::work();
    host::arm_fault(UINT64_MAX, false);
    train(ledger, spec, batch, UpdateRule::adamw, 1);
    host::disarm_fault();
    const host::Work after = host::work();
    return std::vector{host::fault_calls(), after.launches - before.launches, after.gemms - before.gemms};
  };
  const auto calls = asked_for(first, small, 128);
  EXPECT_GT(calls[0], 50u);
  EXPECT_GT(calls[1], 10u);
  EXPECT_GT(calls[2], 10u);
  EXPECT_EQ(asked_for(plan, large, 128'000), calls);
  EXPECT_EQ(without_workspace(plan.peak_by_category()), predict_training(large, 128'000, UpdateRule::adamw).at_peak);
  EXPECT_GT(plan.peak_bytes(), std::size_t(16) * 43'000'000 * 1'000'000);
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
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, bytes.size());  // whoever reads weights now finds none
  const auto load = [&](std::size_t vocabulary) {
    const std::vector<TensorShape> shapes = {{"token embedding", "", vocabulary, columns}};
    auto value = context.buffer<float>(vocabulary * columns, Category::parameters, "token embedding");
    const std::vector<Parameter> to = {{"token embedding", value.data(), nullptr, value.size()}};
    load_tensors<float>(context, checkpoint_tensors({}, shapes), to, file);
  };
  EXPECT_NO_THROW(load(rows));
  EXPECT_THROW(load(rows + 1), StateFileError);
}

}  // namespace
}  // namespace oomlab::test
