#pragma once
// The base: a model's weights that no step changes. The matrices of the layers may be stored in fewer bits (Dettmers et
// al., "QLoRA", 2023; formats: chapter 12). A product then decodes an eighth of a matrix at a time, multiplies with it
// through cuBLAS, and forgets it: forward some rows of W, which give some columns of y; backward some columns of W,
// which give some columns of dx. So no product adds up what was rounded in between.

#include <algorithm>
#include <list>
#include <vector>

#include "../12_quantisation/matrix.h"
#include "../12_quantisation/source.h"
#include "nn/layers/linear.h"
#include "nn/models/transformer.h"
#include "plan/adapter_state.h"
#include "plan/quantised/decoder.h"

namespace oomlab::adapters {

using quantisation::Source;

/// to[rows, columns] = that part of a matrix whose rows have `width` weights.
template <class View, class T>
__global__ void decode_part_kernel(View view, std::size_t width, std::size_t first_row, std::size_t first_column, T* to,
                                   std::size_t rows, std::size_t columns) {
  const auto table = View::table();
  for (std::size_t row : row_range(rows)) {
    const std::size_t from = (first_row + row) * width + first_column;
    for (std::size_t column : block_range(columns))
      to[row * columns + column] = static_cast<T>(view.value(from + column, table));
  }
}

/// A matrix in fewer bits, as the weights of a layer. Nothing is owned. `part` has room for an eighth of it.
template <class T>
class EncodedMatrix final : public nn::FrozenMatrix<T> {
 public:
  EncodedMatrix(const quantisation::Matrix<T>& matrix, T* part) : matrix_(matrix), part_(part) {}

  void multiply(Context& context, nn::RowsOf<T> x, const T* bias, T* y, std::size_t rows, bool add) const override {
    const std::size_t in = matrix_.width();
    const std::size_t out = matrix_.rows();
    if (bias && add) nn::bias_activation(context, y, bias, rows, out, nn::Activation::none);
    if (bias && !add) nn::repeat_row(context, bias, y, rows, out);
    const float beta = bias || add ? 1.0f : 0.0f;
    each_part(out, [&](std::size_t first, std::size_t count) {
      decode(context, first, 0, count, in);
      nn::gemm_strided<T>(context, false, true, rows, count, in, 1.0f, {x.data, x.stride, 0}, {part_, in, 0}, beta,
                          {y + first, out, 0}, 1);
    });
  }
  void multiply_back(Context& context, const T* dy, T* dx, std::size_t rows, bool add) const override {
    const std::size_t in = matrix_.width();
    const std::size_t out = matrix_.rows();
    each_part(in, [&](std::size_t first, std::size_t count) {
      decode(context, 0, first, out, count);
      nn::gemm_strided<T>(context, false, false, rows, count, out, 1.0f, {dy, out, 0}, {part_, count, 0},
                          add ? 1.0f : 0.0f, {dx + first, in, 0}, 1);
    });
  }
  std::size_t stored_bytes() const override { return matrix_.stored_bytes(); }

 private:
  // body(first, count) for eighths of `all`.
  template <class Body>
  static void each_part(std::size_t all, Body body) {
    const std::size_t count = (all + nn::kDecodedParts - 1) / nn::kDecodedParts;
    for (std::size_t first = 0; first < all; first += count) body(first, std::min(count, all - first));
  }
  void decode(Context& context, std::size_t row, std::size_t column, std::size_t rows, std::size_t columns) const {
    matrix_.visit([&](auto view) {
      using View = decltype(view);
      if constexpr (!std::is_pointer_v<View>) {
        LaunchShape shape = nn::shape_for_short_rows(rows, columns);
        shape.shared_bytes = View::shared_bytes;
        launch(decode_part_kernel<View, T>, shape, context.stream(), view, matrix_.width(), row, column, part_, rows,
               columns);
      }
    });
  }

  const quantisation::Matrix<T>& matrix_;
  T* part_;
};

/// Weights of the part of a matrix that a product decodes: an eighth of its rows, or of its columns.
template <class T>
std::size_t eighth_of(const quantisation::Matrix<T>& matrix) {
  const std::size_t parts = nn::kDecodedParts;
  const std::size_t rows = (matrix.rows() + parts - 1) / parts * matrix.width();
  const std::size_t columns = matrix.rows() * ((matrix.width() + parts - 1) / parts);
  return std::max(rows, columns);
}

/// All tensors of a model on the device.
template <class T>
class FrozenBase {
 public:
  /// From a source, whose model may be tied where `spec` is not: then the head begins as the token embedding. `format`:
  /// of the layers' matrices. Category parameters; pieces on their way, and afterwards the buffer for a decoded part, in
  /// category workspace. Throws OutOfMemory, and as quantisation::Source and quantised::parts_of().
  FrozenBase(Context& context, const Source& source, const nn::TransformerSpec& spec, const quantised::Format& format) {
    const std::vector<nn::TensorShape> shapes = nn::tensors_of(spec);
    tensors_.reserve(shapes.size());
    {
      quantisation::Loading loading(context, quantised::model_bytes(spec, format, kDTypeOf<T>).loading);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const nn::TensorShape& shape = shapes[i];
        const std::size_t from = i < source.shapes().size() ? i : nn::kToken;
        tensors_.emplace_back(context, quantised::format_of(shape, format), shape.name, shape.rows, shape.columns);
        tensors_[i].encode(context, loading, [&](Context& c, std::size_t first, std::size_t count, float* to) {
          source.piece(c, from, first, count, to);
        });
      }
    }
    std::size_t part = 0;
    for (const auto& matrix : tensors_)
      if (encoded(matrix)) part = std::max(part, eighth_of(matrix));
    if (part != 0) part_ = context.buffer<T>(part, Category::workspace, "decoded part of a matrix");
    for (const auto& matrix : tensors_)
      if (encoded(matrix)) matrices_.emplace_back(matrix, part_.data());
  }

  /// The model works on these weights. They must outlive it.
  void bind(nn::Transformer<T>& model) {
    auto next = matrices_.begin();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      model.bind(i, dense(i), nullptr);
      if (encoded(tensors_[i])) model.bind_frozen(i, &*next++);
    }
  }
  /// Tensor i, or null where it is stored in fewer bits.
  T* dense(std::size_t i) { return encoded(tensors_[i]) ? nullptr : tensors_[i].plain(); }
  std::size_t size() const { return tensors_.size(); }
  /// A hash of everything that is stored (waits for the stream).
  std::uint64_t fingerprint(Context& context) {
    std::uint64_t hash = nn::kFingerprintStart;
    for (auto& matrix : tensors_) {
      if (!encoded(matrix)) hash = nn::fingerprint(context, matrix.plain(), matrix.count() * sizeof(T), hash);
      for (std::size_t p = 0; p < matrix.layout().size(); ++p)
        if (matrix.layout()[p].count)
          hash = nn::fingerprint(context, matrix.part_data(p), matrix.layout()[p].bytes(), hash);
    }
    return hash;
  }

 private:
  static bool encoded(const quantisation::Matrix<T>& matrix) {
    return matrix.format().scheme != quantised::Scheme::as_is;
  }

  std::vector<quantisation::Matrix<T>> tensors_;
  DeviceBuffer<T> part_;
  std::list<EncodedMatrix<T>> matrices_;
};

}  // namespace oomlab::adapters
