#pragma once
// A matrix of weights on the device in one of the forms of formats.h, made from FP32 a piece at a time.

#include <array>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "formats.h"
#include "memory/context.h"

namespace oomlab::quantisation {

/// The memory of loading_bytes() (category workspace).
struct Loading {
  DeviceBuffer<float> piece, largest;
  Loading(Context& context, const LoadingBytes& bytes)
      : piece(context.buffer<float>(bytes.piece / sizeof(float), Category::workspace, "weights on their way")),
        largest(context.buffer<float>(bytes.largest / sizeof(float), Category::workspace, "absmax of blocks")) {}
};

/// [rows, width], in a form; or as it is, in T: float or __nv_bfloat16.
template <class T>
class Matrix {
 public:
  Matrix() = default;
  /// Memory for it (category parameters, tagged with its name), contents undefined. Throws OutOfMemory, and as
  /// parts_of().
  Matrix(Context& context, const Format& format, const std::string& name, std::size_t rows, std::size_t width)
      : format_(format), rows_(rows), width_(width), layout_(parts_of(format, rows, checked_product(rows, width))) {
    if (format.scheme == Scheme::as_is) {
      plain_ = context.buffer<T>(rows * width, Category::parameters, name);
      return;
    }
    for (std::size_t p = 0; p < layout_.size(); ++p) {
      if (layout_[p].count == 0) continue;
      parts_[p] = context.buffer<std::byte>(layout_[p].bytes(), Category::parameters, name + " " + layout_[p].name);
      at_[p] = parts_[p].data();
    }
  }
  /// In fewer bits, in memory of somebody else's: see bind(). Throws as parts_of().
  Matrix(const Format& format, std::size_t rows, std::size_t width)
      : format_(format), rows_(rows), width_(width), layout_(parts_of(format, rows, checked_product(rows, width))) {}
  /// Bytes of that memory: the parts one behind the other, as kPartAlign says.
  std::size_t bound_bytes() const {
    std::size_t bytes = 0;
    for (const Part& part : layout_) bytes += aligned(part.bytes());
    return bytes;
  }
  /// Where it is from now on.
  void bind(std::byte* memory) noexcept {
    for (std::size_t p = 0; p < layout_.size(); ++p) {
      at_[p] = memory;
      memory += aligned(layout_[p].bytes());
    }
  }

  /// Writes count weights in FP32, from number `first` on, to `to` on the device, in stream order.
  using Fill = std::function<void(Context&, std::size_t first, std::size_t count, float* to)>;
  /// Makes it, from pieces. Those forms that have one scale for all see every piece twice.
  void encode(Context& context, Loading& loading, const Fill& fill);
  /// Weights first ... first + count - 1 in FP32: for checks. No product needs them.
  void decode(Context& context, std::size_t first, std::size_t count, float* to) const;

  const Format& format() const noexcept { return format_; }
  std::size_t rows() const noexcept { return rows_; }
  std::size_t width() const noexcept { return width_; }
  std::size_t count() const noexcept { return rows_ * width_; }
  const T* plain() const noexcept { return plain_.data(); }
  T* plain() noexcept { return plain_.data(); }
  /// What there is of it, and where. Empty for a matrix that is stored as it is.
  const Parts& layout() const noexcept { return layout_; }
  std::byte* part_data(std::size_t p) noexcept { return at_[p]; }
  /// Bytes that a product of it reads.
  std::size_t stored_bytes() const { return matrix_bytes(format_, rows_, width_, sizeof(T)).stored; }

  /// What is stored in fewer bits, for the views and kernels of formats.h.
  Stored stored() const noexcept { return {format_, width_, at_}; }
  /// f(the view of this form; or the address of what is stored as it is).
  template <class F>
  void visit(F f) const {
    if (format_.scheme == Scheme::as_is) return f(plain());
    with_view(stored(), f);
  }

 private:
  static std::size_t aligned(std::size_t bytes) { return (bytes + kPartAlign - 1) / kPartAlign * kPartAlign; }

  Format format_;
  std::size_t rows_ = 0, width_ = 0;
  Parts layout_{};
  DeviceBuffer<T> plain_;
  std::array<DeviceBuffer<std::byte>, 4> parts_;  // where it has memory of its own
  std::array<std::byte*, 4> at_{};
};

template <class T>
void Matrix<T>::encode(Context& context, Loading& loading, const Fill& fill) {
  if (planning()) return;
  const std::size_t piece = piece_of(format_, count(), width_);
  const auto each = [&](auto use) {
    for (std::size_t first = 0; first < count(); first += piece) {
      const std::size_t here = std::min(piece, count() - first);
      fill(context, first, here, loading.piece.data());
      use(first, here);
    }
  };
  const float* const from = loading.piece.data();
  if (format_.scheme != Scheme::as_is)
    return encode_weights(stored(), count(), from, loading.largest.data(), context.stream(), each);
  each([&](std::size_t first, std::size_t here) {
    launch(cast_kernel<float, T>, shape_for_items(here), context.stream(), from, plain_.data() + first, here);
  });
}

template <class T>
void Matrix<T>::decode(Context& context, std::size_t first, std::size_t count, float* to) const {
  visit([&](auto view) {
    using View = decltype(view);
    if constexpr (std::is_same_v<View, const T*>) {
      launch(cast_kernel<T, float>, shape_for_items(count), context.stream(), view + first, to, count);
    } else {
      LaunchShape shape = shape_for_items(count);
      shape.shared_bytes = View::shared_bytes;
      launch(dequantise_kernel<View>, shape, context.stream(), view, first, to, count);
    }
  });
}
// Compiled once, in kernels.cu.
extern template void Matrix<float>::encode(Context&, Loading&, const Fill&);
extern template void Matrix<float>::decode(Context&, std::size_t, std::size_t, float*) const;
extern template void Matrix<__nv_bfloat16>::encode(Context&, Loading&, const Fill&);
extern template void Matrix<__nv_bfloat16>::decode(Context&, std::size_t, std::size_t, float*) const;

}  // namespace oomlab::quantisation
