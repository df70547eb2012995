#pragma once
// Where the weights of this chapter's models come from: a safetensors file, the small decoder that ships with the
// course, or random numbers.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/checkpoint.h"
#include "harness/chapter.h"
#include "nn/checkpoint.h"
#include "nn/transformer.h"

namespace oomlab::inference {

inline constexpr std::uint64_t kWeightSeed = 1;

/// Gives a model's tensors their values, all at once or one by one.
class Weights {
 public:
  /// `file`: a .safetensors file; without one "bytes-llama" has the weights that ship with the course, every other
  /// model random ones. Throws nn::StateFileError for a file that has not what the model needs.
  Weights(nn::TransformerSpec spec, const std::optional<std::string>& file)
      : spec_(std::move(spec)), shapes_(nn::tensors_of(spec_)) {
    if (file)
      file_ = std::make_shared<const nn::SafetensorsFile>(*file);
    else if (spec_.name == "bytes-llama")
      file_ = std::make_shared<const nn::SafetensorsFile>(data::shipped_checkpoint(), "the course's bytes-llama");
    if (file_) nn::require_tensors(*file_, nn::checkpoint_tensors(spec_, shapes_));
  }
  const nn::TransformerSpec& spec() const noexcept { return spec_; }
  /// Whether somebody trained them.
  bool trained() const noexcept { return file_ != nullptr; }

  /// Tensor i of nn::tensors_of(), to `to` on the device. Throws nn::StateFileError when the file has changed
  /// meanwhile.
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

  nn::TransformerSpec spec_;
  std::vector<nn::TensorShape> shapes_;
  std::shared_ptr<const nn::SafetensorsFile> file_;
};

}  // namespace oomlab::inference
