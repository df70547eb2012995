#pragma once
// A decoder whose linear layers are stored in a format of plan/quantised/format.h. The norms, the token embedding and
// the head stay as they are: a norm is small, an embedding is looked up, not multiplied, and the head decides between
// tokens.

#include <string>
#include <vector>

#include "../11_inference/decoder.h"
#include "matrix.h"
#include "nn/layers/decoder_layer.h"
#include "nn/models/transformer.h"
#include "plan/quantised/decoder.h"
#include "products.h"
#include "quantised_file.h"
#include "source.h"

namespace oomlab::quantisation {

/// The tensors on the device. T: float or __nv_bfloat16, of those that are not quantised.
template <class T>
class Model {
 public:
  /// From a source; with a file, from that instead (quantised_file.h). Category parameters; while it is made, pieces in
  /// category workspace. Throws OutOfMemory, and nn::StateFileError for weights that are not finite.
  Model(Context& context, const Source& source, const Format& format, const QuantisedFile* file = nullptr)
      : spec_(source.spec()), format_(format) {
    Loading loading(context, model_bytes(spec_, format, kDTypeOf<T>).loading);
    for (std::size_t i = 0; i < source.shapes().size(); ++i) {
      const nn::TensorShape& shape = source.shapes()[i];
      Matrix<T>& matrix =
          tensors_.emplace_back(context, format_of(shape, format), shape.name, shape.rows, shape.columns);
      if (file)
        file->load(context, shape.name, matrix, loading);
      else
        matrix.encode(context, loading, [&](Context& c, std::size_t first, std::size_t count, float* to) {
          source.piece(c, i, first, count, to);
        });
    }
  }

  const nn::TransformerSpec& spec() const noexcept { return spec_; }
  const Format& format() const noexcept { return format_; }
  /// In the order of nn::tensors_of().
  std::vector<Matrix<T>>& tensors() noexcept { return tensors_; }

  /// Layer l, from 0, whose dynamic products use `scratch`.
  nn::DecoderLayer<QuantisedWeights<T>> layer(std::size_t l, DynamicScratch& scratch) const {
    const Matrix<T>* const of_layer = &tensors_[inference::first_of_layer(spec_, l)];
    return nn::make_decoder_layer<QuantisedWeights<T>>(
        spec_, 1,
        [&](int i, std::size_t in, std::size_t out) {
          return QuantisedWeights<T>{&of_layer[i], &scratch, in, out};
        },
        [&](int i) { return i < 0 ? nullptr : of_layer[i].plain(); });
  }
  const T* embedding() const { return tensors_.front().plain(); }
  const T* final_norm() const { return tensors_[inference::first_of_layer(spec_, spec_.layers)].plain(); }
  const T* head() const { return spec_.tied ? embedding() : tensors_.back().plain(); }

 private:
  nn::TransformerSpec spec_;
  Format format_;
  std::vector<Matrix<T>> tensors_;
};

/// Writes a model, as nn::save_state() does. Throws OutOfMemory (for the few bytes of the text) and std::system_error.
template <class T>
void save_quantised(Context& context, Model<T>& model, const std::string& path) {
  const std::vector<nn::TensorShape> shapes = nn::tensors_of(model.spec());
  const std::string text = about(model.spec(), model.format());
  auto on_device = context.buffer<char>(text.size(), Category::data, kAbout);
  CUDA_CHECK(cudaMemcpyAsync(on_device.data(), text.data(), text.size(), cudaMemcpyHostToDevice, context.stream()));
  context.synchronize();
  std::vector<nn::StateTensor> all{{kAbout, DType::uint8, on_device.data(), text.size(), {text.size()}}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Matrix<T>& matrix = model.tensors()[i];
    if (matrix.format().scheme == Scheme::as_is)
      all.push_back(
          {shapes[i].name, kDTypeOf<T>, matrix.plain(), matrix.count() * sizeof(T), {matrix.rows(), matrix.width()}});
    for (std::size_t p = 0; p < matrix.layout().size(); ++p)
      if (const Part& part = matrix.layout()[p]; part.count)
        all.push_back({shapes[i].name + "." + part.name, part.type, matrix.part_data(p), part.bytes(), {part.count}});
  }
  nn::save_state(context, path, all);
}

}  // namespace oomlab::quantisation
