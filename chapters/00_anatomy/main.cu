// Chapter 00, anatomy of an OOM: where do the bytes go?
//
// The problem   "CUDA out of memory. Tried to allocate 128.00 MiB" names the allocation that failed, which is hardly
//               ever the one that is to blame.
// The idea      Charge every byte to one of six categories, predict each of them before the run, and compare three
//               figures at every phase of a step: allocated (what tensors asked for), reserved (what the allocator
//               holds), device used (what the driver, and nvidia-smi, show).
// The bytes     parameters 4P + gradients 4P + optimizer 8P (AdamW) or 0 (SGD)
//               + activations, linear in the batch + workspace 8 MiB + data, one byte a pixel.
// Run it        build/host/bin/00_anatomy            build/host/bin/00_anatomy --trace t.json --snapshot s.pickle

#include <fmt/format.h>

#include "cuda/backend.h"
#include "train/image_training.h"

namespace {

using namespace oomlab;
using namespace oomlab::train;

/// Inference keeps no gradients, no optimizer state, and frees each activation as soon as the next one is there.
class Inference final : public Workload {
 public:
  Inference(Context& context, const data::Dataset& dataset, const nn::MlpSpec& spec, std::size_t batch)
      : context_(context),
        images_(context, dataset),
        model_(context, spec, kImageSeed, /*with_gradients=*/false),
        batch_(batch) {}

  void step() override {
    const std::size_t width = model_.spec().inputs();
    auto input = context_.buffer<float>(batch_ * width, Category::activations, "input");
    images_.batch(context_, first_, batch_, width, input.data(), nullptr);
    logits_.reset();
    logits_ = model_.forward(context_, std::move(input), batch_);
    logits_.reset();
    first_ += batch_;
  }
  std::size_t samples_per_step() const override { return batch_; }
  double figure() override { return 0; }  // there is no loss: nothing is learned
  std::uint64_t fingerprint() override { return model_.fingerprint(context_); }

  static ByCategory predicted(const data::Dataset& dataset, const nn::MlpSpec& spec, std::size_t batch) {
    ByCategory bytes = nn::predict_inference(spec, batch).at_peak;
    bytes[Category::data] += data::device_bytes(dataset);
    return bytes;
  }

 private:
  Context& context_;
  data::DeviceDataset images_;
  nn::Mlp model_;
  DeviceBuffer<float> logits_;
  std::size_t batch_, first_ = 0;
};

// Bytes a parameter of one category at the peak of the training run with AdamW.
std::optional<double> bytes_a_parameter(const std::vector<VariantResult>& results, Category category,
                                        std::size_t parameters) {
  for (const VariantResult& r : results)
    if (r.name == "adamw" && r.measured) return double(r.at_peak[category]) / double(parameters);
  return std::nullopt;
}

const VariantResult* find(const std::vector<VariantResult>& results, const std::string& name) {
  for (const VariantResult& r : results)
    if (r.name == name && r.measured) return &r;
  return nullptr;
}

Chapter anatomy(const Config& config) {
  const nn::MlpSpec spec = nn::parse_model(config.model);
  const auto dataset = std::make_shared<data::Dataset>(load_images(config, spec));
  const std::size_t parameters = spec.parameters();

  Chapter chapter;
  chapter.title = "where the bytes go";
  for (const auto kind : {nn::OptimizerKind::adamw, nn::OptimizerKind::sgd}) {
    chapter.variants.push_back({
        .name = nn::name_of(kind),
        .batch = config.batch,
        .predicted = [=](std::size_t batch) { return ImageTraining::predicted(*dataset, spec, kind, batch); },
        .agreement = differs_by_design("another optimizer takes other steps"),
        .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          return std::make_unique<ImageTraining>(context, *dataset, spec, kind, batch);
        },
    });
  }
  chapter.variants.push_back({
      .name = "inference",
      .batch = config.batch,
      .predicted = [=](std::size_t batch) { return Inference::predicted(*dataset, spec, batch); },
      .agreement = differs_by_design("nothing is learned"),
      .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
        return std::make_unique<Inference>(context, *dataset, spec, batch);
      },
  });

  chapter.claims.push_back({"Adam costs 8 to 12 bytes a parameter", "optimizer state, bytes a parameter", 8, 12,
                            [=](const auto& r) { return bytes_a_parameter(r, Category::optimizer, parameters); }});
  chapter.claims.push_back({"a model needs 4 bytes a parameter to train in FP32", "peak bytes a parameter", 4, 4.5,
                            [=](const auto& results) -> std::optional<double> {
                              const VariantResult* adamw = find(results, "adamw");
                              if (!adamw) return std::nullopt;
                              return double(adamw->peak_allocated) / double(parameters);
                            }});
  chapter.claims.push_back({"no_grad saves the activations", "share of the activation bytes saved at the peak", 0.9, 1,
                            [](const auto& results) -> std::optional<double> {
                              const VariantResult *sgd = find(results, "sgd"), *inference = find(results, "inference");
                              if (!sgd || !inference) return std::nullopt;
                              return 1 - double(inference->at_peak[Category::activations]) /
                                             double(sgd->at_peak[Category::activations]);
                            }});
  chapter.claims.push_back({"nvidia-smi shows what the tensors need", "device used / allocated, at their peaks", 1,
                            1.01, [](const auto& results) -> std::optional<double> {
                              const VariantResult* sgd = find(results, "sgd");
                              // The host runtime has no driver, contexts or neighbours: nothing there can tell.
                              if (!sgd || std::string(backend_name()) == "host") return std::nullopt;
                              return double(sgd->peak_device_used) / double(sgd->peak_allocated);
                            }});

  chapter.after = [](const std::vector<VariantResult>& results, Report& report) {
    for (const VariantResult& result : results) {
      if (result.oom)
        report.line(fmt::format("{} {}:\n{}", result.name, result.oom->by_limit ? "under the budget" : "on this device",
                                explain(*result.oom)));
      if (!result.measured) continue;
      report.line(fmt::format("{}, the largest figures of each phase{}:", result.name,
                              result.oom ? " (without the budget)" : ""));
      report.phases(result);
      report.line("");
    }
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{.model = "mlp", .batch = 32, .steps = 10, .budget = std::size_t(512) << 20};
  const Defaults quick{.model = "mlp:64-512-256-10", .batch = 32, .steps = 5, .budget = std::size_t(10) << 20};
  return run_chapter(argc, argv, full, quick, anatomy);
}
