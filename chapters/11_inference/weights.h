#pragma once
// Which decoder is asked for, and where its weights come from: a safetensors file, the small decoder that ships with
// the course, or random numbers.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/checkpoint.h"
#include "harness/chapter.h"
#include "nn/files/checkpoint.h"
#include "nn/models/transformer.h"
#include "train/text_training.h"

namespace oomlab::inference {

inline constexpr std::uint64_t kWeightSeed = 1;
inline constexpr Option<std::string> kWeights{"weights", "A .safetensors file with the weights"};

/// The decoder of --model or --config. Throws UsageError, or std::invalid_argument, for a model that is none, or cannot
/// read the course's text.
inline nn::TransformerSpec decoder_of_text(const Config& config) {
  const nn::TransformerSpec spec = train::transformer_of(config);
  if (!spec.llama())
    throw UsageError(
        fmt::format("model '{}' is not a decoder of this chapter; take a llama, for example bytes-llama", spec.name));
  if (spec.vocabulary < 256)
    throw UsageError(
        fmt::format("model '{}' has a vocabulary of {}; text here is bytes, 256 of them", spec.name, spec.vocabulary));
  return spec;
}

/// `file`: of --weights; without one "bytes-llama" has the weights that ship with the course, every other model none.
/// Throws BadFile for a file that cannot be read, or has not what the model needs.
inline std::shared_ptr<const nn::SafetensorsFile> weights_file(const nn::TransformerSpec& spec,
                                                               const std::optional<std::string>& file) {
  std::shared_ptr<const nn::SafetensorsFile> found;
  if (file)
    found = std::make_shared<const nn::SafetensorsFile>(*file);
  else if (spec.name == "bytes-llama")
    found = std::make_shared<const nn::SafetensorsFile>(data::shipped_checkpoint(), "the course's bytes-llama");
  if (found) nn::require_tensors(*found, nn::checkpoint_tensors(spec, nn::tensors_of(spec)));
  return found;
}

/// Gives a model's tensors their values, all at once or one by one.
class Weights {
 public:
  /// Those of weights_file(), or random ones. Throws as that does.
  Weights(nn::TransformerSpec spec, const std::optional<std::string>& file)
      : spec_(std::move(spec)), shapes_(nn::tensors_of(spec_)), file_(weights_file(spec_, file)) {}
  const nn::TransformerSpec& spec() const noexcept { return spec_; }
  const std::vector<nn::TensorShape>& shapes() const noexcept { return shapes_; }
  /// Whether somebody trained them.
  bool trained() const noexcept { return file_ != nullptr; }

  /// Tensor i of nn::tensors_of(), to `to` on the device. Throws BadFile when the file has changed meanwhile.
  template <class T>
  void fill(Context& context, std::size_t i, T* to) const {
    if (!file_) return model<T>(context).initialise(context, i, to, kWeightSeed);
    const std::array<nn::ParameterOf<T>, 1> parameter{{{shapes_[i].name, to, nullptr, shapes_[i].count()}}};
    nn::load_tensors<T>(context, nn::checkpoint_tensors(spec_, {&shapes_[i], 1}), parameter, *file_);
  }
  /// A whole model on the device, without gradients. Throws OutOfMemory.
  template <class T>
  std::unique_ptr<nn::Transformer<T>> make_model(Context& context) const {
    auto model = std::make_unique<nn::Transformer<T>>(context, spec_, kWeightSeed, /*with_gradients=*/false);
    if (file_) nn::load_tensors<T>(context, nn::checkpoint_tensors(spec_, shapes_), model->parameters(), *file_);
    return model;
  }

 private:
  // Tensors that are nowhere: it knows how they begin.
  template <class T>
  nn::Transformer<T> model(Context& context) const {
    return {context, spec_, nn::Slice{.layers = spec_.layers}, nullptr};
  }

 protected:
  nn::TransformerSpec spec_;
  std::vector<nn::TensorShape> shapes_;
  std::shared_ptr<const nn::SafetensorsFile> file_;
};

}  // namespace oomlab::inference
