#pragma once
// A matrix of weights on the device in one of the forms of formats.h, made from FP32 a piece at a time.

#include <array>
#include <bit>
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

  Int8View int8() const {
    return {part<std::int8_t>(kCodes), part<float>(kScales), width_, format_.scheme == Scheme::int8_row};
  }
  Int4View int4() const {
    return {part<std::uint8_t>(kCodes), part<std::uint16_t>(kScales), part<std::uint8_t>(kSmall), format_.group,
            std::has_single_bit(format_.group) ? std::countr_zero(format_.group) : -1};
  }
  Nf4View nf4() const {
    return {part<std::uint8_t>(kCodes), part<std::int8_t>(kSmall), part<float>(kScales), part<float>(kMean)};
  }
  /// f(the view of this form; or the address of what is stored as it is).
  template <class F>
  void visit(F f) const {
    switch (format_.scheme) {
      case Scheme::as_is: return f(plain());
      case Scheme::int8_tensor:
      case Scheme::int8_row: return f(int8());
      case Scheme::int4: return f(int4());
      case Scheme::nf4: return f(nf4());
    }
  }

 private:
  template <class P>
  P* part(std::size_t p) const noexcept {
    return reinterpret_cast<P*>(at_[p]);
  }
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
  const std::size_t piece = piece_of(format_, count(), width_), blocks = (count() + kBlock - 1) / kBlock;
  const auto each = [&](auto use) {
    for (std::size_t first = 0; first < count(); first += piece) {
      const std::size_t here = std::min(piece, count() - first);
      fill(context, first, here, loading.piece.data());
      use(first, here);
    }
  };
  const float* const from = loading.piece.data();
  float* const largest = loading.largest.data();
  const auto run = [&](auto kernel, const LaunchShape& shape, auto... arguments) {
    launch(kernel, shape, context.stream(), arguments...);
  };
  const auto of_blocks = [&](std::size_t first, std::size_t here) {
    run(largest_of_blocks_kernel, shape_for_items((here + kBlock - 1) / kBlock), from, largest + first / kBlock, here);
  };
  switch (format_.scheme) {
    case Scheme::as_is:
      return each([&](std::size_t first, std::size_t here) {
        run(cast_kernel<float, T>, shape_for_items(here), from, plain_.data() + first, here);
      });
    case Scheme::int8_tensor:
      each(of_blocks);
      run(int8_scale_kernel, shape_for_rows(1), largest, blocks, part<float>(kScales));
      return each([&](std::size_t first, std::size_t here) {
        run(encode_int8_kernel, shape_for_items(here), from, part<float>(kScales), part<std::int8_t>(kCodes) + first,
            here);
      });
    case Scheme::int8_row:
      return each([&](std::size_t first, std::size_t here) {
        run(encode_int8_rows_kernel<float>, shape_for_rows(here / width_), RowsOf<float>{from, width_},
            part<std::int8_t>(kCodes) + first, part<float>(kScales) + first / width_, here / width_, width_);
      });
    case Scheme::int4:
      return each([&](std::size_t first, std::size_t here) {
        const std::size_t group = format_.group, groups = here / group;
        run(int4_groups_kernel, nn::shape_for_short_rows((groups + 1) / 2, group), from, here, group,
            part<std::uint16_t>(kScales) + first / group, part<std::uint8_t>(kSmall) + first / group / 2);
        run(encode_nibbles_kernel<Int4View>, shape_for_items(here), from, int4(), part<std::uint8_t>(kCodes), first,
            here);
      });
    case Scheme::nf4:
      each(of_blocks);
      run(absmax_mean_kernel, shape_for_rows(1), largest, blocks, part<float>(kMean));
      run(encode_absmax_kernel, shape_for_rows((blocks + kBlocks - 1) / kBlocks), largest, blocks, part<float>(kMean),
          part<float>(kScales), part<std::int8_t>(kSmall));
      return each([&](std::size_t first, std::size_t here) {
        run(encode_nibbles_kernel<Nf4View>, shape_for_items(here), from, nf4(), part<std::uint8_t>(kCodes), first,
            here);
      });
  }
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
