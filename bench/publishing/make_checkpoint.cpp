// Makes the decoder that ships with the course, common/data/bytes-llama/: trains it on the course's text, on this
// machine, and writes model.safetensors (in BF16) and config.json as Hugging Face's transformers have them.
//
//   build/host/bin/make_checkpoint common/data/bytes-llama
//
// Sums of products depend on the processor in their last bits, so another machine makes another model, just as good.

#include <cuda_bf16.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "data/text.h"
#include "harness/chapter.h"
#include "memory/files.h"
#include "memory/text.h"
#include "nn/files/checkpoint.h"
#include "nn/models/model_config.h"
#include "nn/optimizer/optimizer.h"

namespace oomlab {
namespace {

using namespace nn;

constexpr std::size_t kSteps = 4000, kSequences = 16, kSeq = 128;
constexpr const char *kWeights = "model.safetensors", *kConfig = "config.json";

// A file of its own in a folder, and gone at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& folder) : path_((folder / "trained.XXXXXX").string()) {
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor < 0) throw std::runtime_error("'" + path_ + "' cannot be made: " + std::strerror(errno));
    ::close(descriptor);
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void train(Context& context, Transformer<float>& model) {
  const data::TextSampler text(data::course_text(), {.seq = kSeq});
  Optimizer<float> optimizer(context, model.parameters(), {}, {.adamw = {.lr = 2e-3f}});
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

// Throws UsageError, before a minute's work, when one of them could not be written.
void check_outputs(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) throw UsageError("there is no folder '" + folder.string() + "'");
  for (const char* name : {kWeights, kConfig})
    if (const std::string why = why_not_writable(folder / name); !why.empty()) throw UsageError(why);
}

void make(const std::filesystem::path& folder) {
  check_outputs(folder);
  const TransformerSpec spec = parse_transformer("bytes-llama");
  CudaResource memory;
  Ledger ledger;
  Context context(memory, ledger);
  Transformer<float> model(context, spec, 1);
  model.set_form(StepForm::min_memory());
  train(context, model);
  Transformer<__nv_bfloat16> rounded(context, spec, 1, /*with_gradients=*/false);
  const TemporaryFile trained(folder);  // FP32, for a moment
  save_weights(context, model, trained.path());
  load_weights(context, rounded, trained.path());
  save_weights(context, rounded, folder / kWeights);
  write_file(folder / kConfig, model_config_of(spec));
}

}  // namespace
}  // namespace oomlab

int main(int argc, char** argv) {
  using namespace oomlab;
  open_standard_descriptors();
  constexpr const char* kProgram = "make_checkpoint";
  if (argc != 2) return complain(kProgram, "takes one word, the folder to write to", 64);
  try {
    make(argv[1]);
    flush_output();
    return 0;
  } catch (const UsageError& error) {
    return complain(kProgram, error.what(), 64);
  } catch (const std::exception& error) {
    return complain(kProgram, error.what(), 1);
  }
}
