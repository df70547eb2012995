// The kernels that take long to compile, once: for the programs that have a base in fewer bits, and their tests.

#include "frozen_store.h"

#include <deque>
#include <optional>

#include "frozen_base.h"

namespace oomlab::adapters {

namespace {

template <class T>
class Store final : public nn::FrozenStore<T> {
 public:
  Store(const std::vector<nn::TensorShape>& shapes, const quantised::Format& format) {
    for (const nn::TensorShape& shape : shapes) {
      Entry& entry = entries_.emplace_back();
      if (!quantised::is_quantised(shape)) continue;
      loading_bytes_.at_least(quantised::loading_bytes(format, shape.rows, shape.columns));
      entry.matrix.emplace(format, shape.rows, shape.columns);
      part_elements_ = std::max(part_elements_, eighth_of(*entry.matrix));
    }
  }
  const nn::FrozenMatrix<T>* matrix(std::size_t i) const override {
    return entries_[i].encoded ? &*entries_[i].encoded : nullptr;
  }
  std::size_t bytes(std::size_t i) const override { return entries_[i].matrix ? entries_[i].matrix->bound_bytes() : 0; }
  void bind(std::size_t i, std::byte* at) override {
    if (entries_[i].matrix) entries_[i].matrix->bind(at);
  }
  void begin_encoding(Context& context) override { loading_.emplace(context, loading_bytes_); }
  void encode(Context& context, std::size_t i, const typename nn::FrozenStore<T>::Fill& fill) override {
    entries_[i].matrix->encode(context, *loading_, fill);
  }
  void end_encoding(Context& context) override {
    loading_.reset();
    part_ = context.buffer<T>(part_elements_, Category::workspace, "decoded part of a matrix");
    for (Entry& entry : entries_)
      if (entry.matrix) entry.encoded.emplace(*entry.matrix, part_.data());
  }

 private:
  struct Entry {
    std::optional<quantisation::Matrix<T>> matrix;
    std::optional<EncodedMatrix<T>> encoded;  // which refers to it
  };
  std::deque<Entry> entries_;
  quantised::LoadingBytes loading_bytes_;
  std::size_t part_elements_ = 0;
  std::optional<quantisation::Loading> loading_;
  DeviceBuffer<T> part_;
};

}  // namespace

template <class T>
std::unique_ptr<nn::FrozenStore<T>> make_frozen_store(const std::vector<nn::TensorShape>& shapes,
                                                         const quantised::Format& format) {
  return std::make_unique<Store<T>>(shapes, format);
}
template std::unique_ptr<nn::FrozenStore<float>> make_frozen_store(const std::vector<nn::TensorShape>&,
                                                                      const quantised::Format&);
template std::unique_ptr<nn::FrozenStore<__half>> make_frozen_store(const std::vector<nn::TensorShape>&,
                                                                       const quantised::Format&);
template std::unique_ptr<nn::FrozenStore<__nv_bfloat16>> make_frozen_store(const std::vector<nn::TensorShape>&,
                                                                              const quantised::Format&);

}  // namespace oomlab::adapters
