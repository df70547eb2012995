#pragma once
// Chapter 00: what is said about where the bytes go, and what the run found.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "cuda/backend.h"
#include "plan/language.h"
#include "train/image_training.h"

namespace oomlab::anatomy {

inline constexpr double kGiB = double(std::size_t(1) << 30);

/// Peak bytes of a model's training with AdamW, and of its inference, without dataset and cuBLAS workspace.
inline ByCategory training(const nn::MlpSpec& spec, std::size_t batch) {
  return nn::predict_training(spec, batch, nn::UpdateRule::adamw).at_peak;
}
inline ByCategory inference(const nn::MlpSpec& spec, std::size_t batch) {
  return nn::predict_inference(spec, batch).at_peak;
}

/// The batch from which on `peak(batch)` bytes reach `bytes`.
inline std::function<std::optional<std::size_t>()> reaches(const std::function<ByCategory(std::size_t)>& peak,
                                                           double bytes) {
  return [=] { return holds_from([&](std::size_t b) { return double(peak(b).total()) >= bytes; }); };
}

inline std::vector<Claim> claims_of(const nn::MlpSpec& model) {
  const nn::MlpSpec mlp = nn::parse_model("mlp"), linear = nn::parse_model("mlp:8192-8192"),
                    hundred_million = nn::parse_model("mlp:10000-10000"), equal = nn::parse_model("mlp:1024x17"),
                    four_layers = nn::parse_model("mlp:512-1024-2048-4096-8192");
  const auto a_parameter = [model](std::optional<double> bytes) { return ratio(bytes, double(model.parameters())); };
  return {
      {.text = "AdamW keeps 8 to 12 bytes per parameter",  // article 7
       .what = "optimizer state, bytes per parameter",
       .range = between(8, 12),
       .size = "mlp, 44.7 million parameters in FP32",
       .at_size = [=] { return ratio(double(training(mlp, 1)[Category::optimizer]), double(mlp.parameters())); },
       .measure = [=](const Results& r) { return a_parameter(r.value("adamw", figures::bytes(Category::optimizer))); }},
      {.text = "100 million parameters take 400 MB, their gradients 400 MB, and AdamW 1.2 GB",  // article 7
       .what = "GB of the three together (2 is what is said)",
       .range = between(1.9, 2.1),
       .size = "100 million parameters in FP32",
       .at_size = [=] { return model_state(training(hundred_million, 1)) / 1e9; },
       .measure =
           [=](const Results& r) {
             const auto bytes = a_parameter(r.value("adamw", figures::model_state));
             return bytes ? std::optional(*bytes * 1e8 / 1e9) : std::nullopt;
           },
       .here = "rounding counts in a model this small"},
      {.text = "a model needs 4 bytes per parameter to train in FP32",
       .what = "peak bytes per parameter, with AdamW",
       .range = at_most(4.5),
       .size = "mlp, batch 32",
       .at_size = [=] { return double(training(mlp, 32).total()) / double(mlp.parameters()); },
       .measure = [=](const Results& r) { return a_parameter(r.value("adamw", figures::peak)); }},
      {.text = "one Linear(8192, 8192) takes several GB",  // article 6
       .what = "peak in GiB, trained with AdamW",
       .range = at_least(2),
       .size = "batch 64",
       .at_size = [=] { return double(training(linear, 64).total()) / kGiB; },
       .from_batch = reaches([=](std::size_t batch) { return training(linear, batch); }, 2 * kGiB)},
      {.text = "layers of 512-1024-2048-4096-8192 may run out of memory at batch 64",  // article 5
       .what = "peak in GiB, inference in FP32 (small cards have 4)",
       .range = at_least(4),
       .size = "batch 64",
       .at_size = [=] { return double(inference(four_layers, 64).total()) / kGiB; },
       .from_batch = reaches([=](std::size_t batch) { return inference(four_layers, batch); }, 4 * kGiB)},
      {.text = "no_grad saves the activations",
       .what = "share of the activations' bytes that inference does not need",
       .range = at_least(0.8),
       .size = "16 layers, all 1,024 wide",
       .at_size =
           [=] {
             return saved(double(inference(equal, 64)[Category::activations]),
                          double(training(equal, 64)[Category::activations]));
           },
       .measure = [](const Results& r) { return r.saved("inference", "adamw", figures::bytes(Category::activations)); },
       .here = "inference holds a layer's input and output, and here two neighbours are most of all activations"},
      {.text = "nvidia-smi shows what the tensors need",  // article 11
       .what = "device used / allocated, at their peaks (only a GPU's driver can tell)",
       .range = between(1, 1.01),
       .measure = [](const Results& r) -> std::optional<double> {
         const VariantResult* const sgd = r.find("sgd");
         // The host runtime has no driver, contexts or neighbours: nothing there can tell.
         if (!sgd || std::string(backend_name()) == "host") return std::nullopt;
         return double(sgd->peak_device_used) / double(sgd->peak_allocated);
       }},
  };
}

/// Below the table: the error of each variant that ran out of memory, and each variant's phases.
inline void tell(const Results& results, Report& report) {
  const Say say{report.config().chinese};
  for (const VariantResult& result : results) {
    if (result.oom) {
      const std::string where =
          result.oom->by_limit ? say("under the budget", "在预算之下") : say("on this device", "在这块设备上");
      report.line(say("{} {}:\n{}\n", "{} {}：\n{}\n", result.name, where, explain(*result.oom, say.chinese)));
    }
    if (!result.measured) continue;
    report.line(say("{}, the largest figures of each phase{}:", "{}，各阶段的最大值{}：", result.name,
                    result.oom ? say(" (without the budget)", "（不设预算）") : std::string()));
    report.phases(result);
    report.line("");
  }
}

}  // namespace oomlab::anatomy
