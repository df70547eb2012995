// Makes the decoder that ships with the course, common/data/bytes-llama/: trains it on the course's text, on this
// machine, and writes model.safetensors (in BF16) and config.json as Hugging Face's transformers have them.
//
//   build/host/bin/make_checkpoint common/data/bytes-llama
//
// Sums of products depend on the processor in their last bits, so another machine makes another model, just as good.

#include <cuda_bf16.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "data/text.h"
#include "nn/checkpoint.h"
#include "nn/model_config.h"
#include "nn/optimizer.h"

namespace oomlab {
namespace {

using namespace nn;

constexpr std::size_t kSteps = 4000, kSequences = 16, kSeq = 128;

void train(Context& context, Transformer<float>& model) {
  const data::TextSampler text(data::course_text(), {.seq = kSeq});
  AdamW optimizer(context, model.parameters(), {.lr = 2e-3f});
  double mean = 0;
  for (std::size_t step = 1; step <= kSteps; ++step) {
    const data::TokenSamples samples = text.samples(step * kSequences, kSequences);
    model.forward_backward(context, make_token_batch(context, samples.tokens, samples.labels, kSequences, kSeq));
    optimizer.step(context);
    mean += model.loss(context) / 100;
    if (step % 100) continue;
    std::printf("step %zu: loss %.3f, the mean of 100\n", step, mean);
    mean = 0;
  }
}

void make(const std::filesystem::path& folder) {
  const TransformerSpec spec = parse_transformer("bytes-llama");
  CudaResource memory;
  Ledger ledger;
  Context context(memory, ledger);
  Transformer<float> model(context, spec, 1);
  model.set_form(StepForm::lean());
  train(context, model);
  std::filesystem::create_directories(folder);
  const std::filesystem::path weights = folder / "model.safetensors";
  save_weights(context, model, weights);  // FP32, for a moment
  Transformer<__nv_bfloat16> rounded(context, spec, 1, /*with_gradients=*/false);
  load_weights(context, rounded, weights);
  save_weights(context, rounded, weights);
  std::ofstream config(folder / "config.json");
  config << model_config_of(spec) << std::flush;
  if (!config) throw std::runtime_error("'" + (folder / "config.json").string() + "' cannot be written");
}

}  // namespace
}  // namespace oomlab

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("make_checkpoint FOLDER\n", stderr);
    return 64;
  }
  try {
    oomlab::make(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
