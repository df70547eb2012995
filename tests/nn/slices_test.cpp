// A model in slices is the model: stages give the same bits, parts the same numbers but for the order of sums.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "cuda/nccl.h"
#include "device.h"
#include "nn/models/transformer.h"
#include "nn/ops/values.h"

namespace oomlab::test {
namespace {

using namespace nn;

constexpr std::uint64_t kSeed = 11;
constexpr std::size_t kSequences = 3, kSeq = 8;  // shares of rows that end in the middle of a sequence, and that do not

struct Outcome {
  float loss = 0;
  std::vector<TensorShape> shapes;
  std::vector<std::vector<float>> values, gradients;
  std::size_t peak = 0;  // of a step, above what was there before
};

std::vector<float> read(Context& context, const float* data, std::size_t count) {
  std::vector<float> v(count);
  CUDA_CHECK(cudaMemcpyAsync(v.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost, context.stream()));
  context.synchronize();
  return v;
}

TokenBatch batch_of(Context& context, const TransformerSpec& spec) {
  const std::vector<int> tokens = random_labels(kSequences * kSeq, spec.vocabulary, 3);
  std::vector<int> labels = random_labels(kSequences * kSeq, spec.vocabulary, 4);
  for (std::size_t i = 4; i < labels.size(); i += 5) labels[i] = -1;
  return make_token_batch(context, tokens, labels, kSequences, kSeq);
}

// All ranks of a grid of stages and parts, one thread and one device each; outcome [stage][part].
std::vector<std::vector<Outcome>> run(const TransformerSpec& spec, const std::vector<std::size_t>& layers_of_stage,
                                      std::size_t parts, const StepForm& form = {}, bool share_rows = false) {
  const std::size_t stages = layers_of_stage.size();
  std::vector<std::vector<Outcome>> all(stages, std::vector<Outcome>(parts));
  std::vector<ncclUniqueId> part_ids(stages), stage_ids(parts);
  for (ncclUniqueId& id : part_ids) NCCL_CHECK(ncclGetUniqueId(&id));
  for (ncclUniqueId& id : stage_ids) NCCL_CHECK(ncclGetUniqueId(&id));
  std::atomic<bool> failed{false};
  std::vector<int> devices(stages * parts);
  std::iota(devices.begin(), devices.end(), 0);
  const auto rank = [&](std::size_t stage, std::size_t part) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(stage * parts + part)));
    Ledger ledger;
    AsyncResource memory;
    memory.open_to_peers(devices);
    Context context(memory, ledger);
    Communicator among_parts(part_ids[stage], int(parts), int(part), failed);
    Communicator among_stages(stage_ids[part], int(stages), int(stage), failed);
    Slice slice{.layers = layers_of_stage[stage], .part = part, .parts = parts};
    for (std::size_t s = 0; s < stage; ++s) slice.first_layer += layers_of_stage[s];
    Outcome& outcome = all[stage][part];
    outcome.shapes = tensors_of(spec, slice);
    Transformer<float> model(context, spec, slice, [&](Context& c, float* data, std::size_t count) {
      among_parts.all_reduce(data, count, c.stream());
    });
    model.set_form(form);
    if (share_rows)
      model.share_rows({.gather = [&](Context& c, const float* own, float* rows,
                                      std::size_t count) { among_parts.all_gather(own, rows, count, c.stream()); },
                        .sum = [&](Context& c, const float* rows, float* own,
                                   std::size_t count) { among_parts.reduce_scatter(rows, own, count, c.stream()); }});
    std::vector<DeviceBuffer<float>> values, gradients;
    for (std::size_t i = 0; i < outcome.shapes.size(); ++i) {
      const std::size_t count = outcome.shapes[i].count();
      values.push_back(context.buffer<float>(count, Category::parameters, "value"));
      gradients.push_back(context.buffer<float>(count, Category::gradients, "gradient"));
      fill(context, gradients[i].data(), count, 0.0f);
      model.bind(i, values[i].data(), gradients[i].data());
      model.initialise(context, i, values[i].data(), kSeed);
    }

    const TokenBatch batch = batch_of(context, spec);
    context.synchronize();
    const std::size_t before = ledger.live_bytes();
    ledger.reset_peak();
    const std::size_t stream = batch.rows() / model.row_shares() * spec.width;
    Transformer<float>::EmbeddingActivations embedding;
    DeviceBuffer<float> out;
    if (slice.embeds()) {
      out = model.embed(context, batch, embedding);
    } else {
      out = context.buffer<float>(stream, Category::activations, "received");
      among_stages.receive(out.data(), stream, int(stage) - 1, context.stream());
    }
    std::vector<DeviceBuffer<float>> x(slice.layers);
    std::vector<LayerActivations<float>> kept(slice.layers);
    for (std::size_t l = 0; l < slice.layers; ++l) {
      x[l] = std::move(out);
      out = model.forward_layer(context, slice.first_layer + l, batch, x[l].data(), form.keep, kept[l]);
    }
    DeviceBuffer<float> d;
    if (slice.has_head(spec)) {
      d = model.head(context, batch, model.all_rows(context, std::move(out), "head input of all rows"), {}, nullptr);
      d = model.own_rows(context, std::move(d));
    } else {
      among_stages.send(out.data(), stream, int(stage) + 1, context.stream());
      out.reset();
      d = context.buffer<float>(stream, Category::activations, "received gradient");
      among_stages.receive(d.data(), stream, int(stage) + 1, context.stream());
    }
    for (std::size_t l = slice.layers; l-- > 0; x[l].reset())
      model.backward_layer(context, slice.first_layer + l, batch, x[l].data(), std::move(kept[l]), d, false);
    if (slice.embeds())
      model.embed_backward(context, batch, std::move(embedding), std::move(d), slice.has_head(spec) ? false : true);
    else
      among_stages.send(d.data(), stream, int(stage) - 1, context.stream());
    for (std::size_t i = 0; share_rows && i < gradients.size(); ++i) {  // each part has those of its rows
      const TensorShape& shape = outcome.shapes[i];
      const bool norm = shape.name.ends_with(" gamma") || shape.name.ends_with(" beta");
      if (norm && shape.unit != "head")
        among_parts.all_reduce(gradients[i].data(), gradients[i].size(), context.stream());
    }
    context.synchronize();
    outcome.peak = ledger.peak_bytes() - before;
    if (slice.has_head(spec)) outcome.loss = model.loss(context);
    for (std::size_t i = 0; i < values.size(); ++i) {
      outcome.values.push_back(read(context, values[i].data(), values[i].size()));
      outcome.gradients.push_back(read(context, gradients[i].data(), gradients[i].size()));
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t stage = 0; stage < stages; ++stage)
    for (std::size_t part = 0; part < parts; ++part)
      threads.emplace_back([&, stage, part] {
        try {
          rank(stage, part);
        } catch (const std::exception& error) {
          failed = true;  // or the others wait for this one
          ADD_FAILURE() << error.what();
        }
      });
  for (std::thread& thread : threads) thread.join();
  return all;
}

// What one part has of a tensor of the whole model.
std::vector<float> share(const TransformerSpec& spec, const std::vector<float>& whole, const TensorShape& full,
                         const TensorShape& mine, std::size_t part, std::size_t parts) {
  if (full.count() == mine.count()) return whole;
  std::size_t rows = full.rows, columns = full.columns;
  if (full.rows == 1) std::swap(rows, columns);
  const std::size_t keys = spec.keys() * spec.depth();
  std::vector<std::size_t> groups{rows};
  if (full.name.find("qkv") != std::string::npos) groups = {spec.width, keys, keys};
  if (full.name.find("gate and up") != std::string::npos) groups = {spec.mlp, spec.mlp};
  const bool by_columns = full.rows > 1 && mine.columns < full.columns;
  std::vector<float> v;
  std::size_t first = 0;
  for (const std::size_t of_group : groups) {
    for (std::size_t r = 0; r < of_group; ++r)
      for (std::size_t c = 0; c < columns; ++c)
        if ((by_columns ? c / (columns / parts) : r / (of_group / parts)) == part)
          v.push_back(whole[(first + r) * columns + c]);
    first += of_group;
  }
  return v;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    norm += double(b[i]) * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

class Slices : public testing::TestWithParam<std::tuple<const char*, std::vector<std::size_t>, std::size_t>> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) (void)cudaGetLastError();
    const auto& [name, stages, parts] = GetParam();
    if (std::size_t(devices) < stages.size() * parts) GTEST_SKIP() << "only " << devices << " devices";
  }
};

void expect_the_model(const TransformerSpec& spec, const Outcome& whole, const std::vector<std::size_t>& stages,
                      std::size_t parts, const std::vector<std::vector<Outcome>>& sliced) {
  EXPECT_NEAR(whole.loss, sliced.back()[0].loss, parts == 1 ? 0 : 1e-6 * whole.loss);
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < stages.size(); first += stages[stage++])
    for (std::size_t part = 0; part < parts; ++part) {
      const Outcome& mine = sliced[stage][part];
      std::vector<float> all_mine, all_expected;
      for (std::size_t i = 0; i < mine.shapes.size(); ++i) {
        std::size_t j = 0;
        while (whole.shapes[j].name != mine.shapes[i].name) ++j;
        SCOPED_TRACE(mine.shapes[i].name + ", stage " + std::to_string(stage) + ", part " + std::to_string(part));
        ASSERT_EQ(share(spec, whole.values[j], whole.shapes[j], mine.shapes[i], part, parts), mine.values[i]);
        // A tied token table is on the first and on the last stage; its gradient is the sum of both.
        if (spec.tied && mine.shapes[i].unit == "token" && stages.size() > 1) continue;
        const std::vector<float> expected =
            share(spec, whole.gradients[j], whole.shapes[j], mine.shapes[i], part, parts);
        if (parts == 1) {
          EXPECT_EQ(expected, mine.gradients[i]);
        } else {  // a dozen numbers that nearly cancel out have fewer good digits than the gradient as a whole
          EXPECT_LE(relative_difference(mine.gradients[i], expected), 5e-6);
        }
        all_mine.insert(all_mine.end(), mine.gradients[i].begin(), mine.gradients[i].end());
        all_expected.insert(all_expected.end(), expected.begin(), expected.end());
      }
      EXPECT_LE(relative_difference(all_mine, all_expected), 1e-6);
    }
}

TEST_P(Slices, AreTheModel) {
  const auto& [name, stages, parts] = GetParam();
  TransformerSpec spec = parse_transformer(name);
  if (spec.llama()) spec.tied = spec.layers % 2 != 0, spec.qkv_bias = !spec.tied;
  const Outcome whole = run(spec, {spec.layers}, 1)[0][0];
  const auto sliced = run(spec, stages, parts);
  expect_the_model(spec, whole, stages, parts, sliced);
  if (parts == 1) return;
  const StepForm forms[] = {{}, {.keep = Keep::selective_recompute(), .by_rows = true}, {.mlp_tiles = 4}};
  for (const StepForm& form : forms) {
    SCOPED_TRACE("rows shared out, " + std::to_string(form.mlp_tiles) + " tiles");
    const auto shared = run(spec, stages, parts, form, true);
    expect_the_model(spec, whole, stages, parts, shared);
    if (form == StepForm{}) {
      EXPECT_LT(shared[0][0].peak, sliced[0][0].peak);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Grid, Slices,
    testing::Values(std::tuple{"gpt:3-6-24", std::vector<std::size_t>{3}, std::size_t(2)},
                    std::tuple{"gpt:3-6-24", std::vector<std::size_t>{3}, std::size_t(3)},
                    std::tuple{"bert:3-6-24", std::vector<std::size_t>{3}, std::size_t(2)},
                    std::tuple{"bert:2-6-24", std::vector<std::size_t>{2}, std::size_t(3)},
                    std::tuple{"gpt:3-6-24", std::vector<std::size_t>{1, 2}, std::size_t(1)},
                    std::tuple{"bert:4-2-24", std::vector<std::size_t>{1, 1, 2}, std::size_t(1)},
                    std::tuple{"gpt:4-2-24", std::vector<std::size_t>{2, 2}, std::size_t(2)},
                    std::tuple{"llama:3-6-3-24-18", std::vector<std::size_t>{3}, std::size_t(3)},
                    std::tuple{"llama:3-6-2-24-18", std::vector<std::size_t>{1, 2}, std::size_t(1)},
                    std::tuple{"llama:4-4-2-24-18", std::vector<std::size_t>{2, 2}, std::size_t(2)}));

TEST(SliceShapes, WhatCannotBeIsRefused) {
  const TransformerSpec spec = parse_transformer("gpt:4-8-64");
  EXPECT_THROW(tensors_of(spec, {.parts = 3}), std::invalid_argument);
  EXPECT_THROW(tensors_of(spec, {.part = 2, .parts = 2}), std::invalid_argument);
  EXPECT_THROW(tensors_of(spec, {.first_layer = 4}), std::invalid_argument);
  EXPECT_THROW(tensors_of(spec, {.first_layer = 3, .layers = 2}), std::invalid_argument);
  EXPECT_THROW(tensors_of(parse_transformer("llama:4-8-2-64-128"), {.parts = 4}), std::invalid_argument);
  EXPECT_THROW(tensors_of(parse_transformer("llama:4-8-4-64-126"), {.parts = 4}), std::invalid_argument);
  std::size_t parameters = 0;
  for (const TensorShape& t : tensors_of(spec)) parameters += t.count();
  EXPECT_EQ(spec.parameters(), parameters);
  // Megatron's count: of a layer's 12 C² + 13 C, all but the norms' 4 C and two biases of C are shared out.
  const std::size_t c = 64;
  parameters = 0;
  for (const TensorShape& t : tensors_of(spec, {.first_layer = 1, .layers = 1, .part = 1, .parts = 4}))
    parameters += t.count();
  EXPECT_EQ((12 * c * c + 7 * c) / 4 + 6 * c, parameters);
}

}  // namespace
}  // namespace oomlab::test
