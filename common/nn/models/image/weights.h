#pragma once
// How a model's weights get to the device: they are there from the start; or all of them come when the model's turn
// comes, and go afterwards; or a block's come when it begins. What is not there waits in pinned host memory.
//
// Every tensor is a buffer of its own (category parameters, tagged with its name), on the device as on the host.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/context.h"
#include "nn/files/safetensors.h"
#include "nn/layers/frozen_store.h"
#include "nn/layers/linear.h"
#include "plan/image/run.h"
#include "plan/image/spec.h"

namespace oomlab::image {

/// Fills `values` with all of a tensor's elements, in the order that its shape says. Not called in plan mode.
using ReadTensor = std::function<void(const TensorOf& tensor, std::span<float> values)>;
/// From a file, which must outlive the function: tensors of the same names and shapes, in F32, F16 or BF16; others may
/// be there, too. The function throws nn::StateFileError, with one line, for a tensor that is not there or is another
/// one, and as SafetensorsFile::read().
ReadTensor tensors_from(const nn::SafetensorsFile& file);

/// The tensors of a model, stored as T (nn/ops/instances.h). Convolutions' become [out, height, width, in], as
/// nn/ops/convolution.h wants them. Matrices of linear layers (is_linear()) may be stored in fewer bits.
template <class T>
class WeightStore {
 public:
  /// Reads everything. `encode`, where it is not empty, makes a store for the matrices of linear layers, which are then
  /// in fewer bits; each is encoded on the device. The context must outlive the store. Throws OutOfMemory, of the
  /// device or of the host, and what `read` and `encode` throw: nothing stays allocated.
  WeightStore(Context& context, std::vector<TensorOf> tensors, Residency residency, const ReadTensor& read,
              const nn::MakeFrozenStore<T>& encode = {});
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  /// Tensors that are on the device as long as this lives.
  class Lease {
   public:
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&& other) = delete;
    ~Lease() {
      for (const std::size_t i : tensors_) store_->leave(i);
    }

   private:
    friend class WeightStore;
    explicit Lease(WeightStore& store) : store_(&store) {}
    WeightStore* store_;
    std::vector<std::size_t> tensors_;
  };
  /// The model's turn: with Residency::model all tensors come, in stream order, and stay until the lease ends. Throws
  /// OutOfMemory: then none is there.
  [[nodiscard]] Lease stage();
  /// A block begins: with Residency::layer the tensors of these names come, or of names that go on behind one of them
  /// with a dot. As stage(). A name that no tensor has: std::logic_error.
  [[nodiscard]] Lease block(const std::vector<std::string>& names);

  /// A tensor on the device. Throws std::logic_error where there is none of this name, or it is not there now, or it is
  /// in fewer bits.
  const T* operator[](std::string_view name) const;
  /// The linear layer (or 1 × 1 convolution) with "<name>.weight" and, where there is one, "<name>.bias". As above.
  nn::Linear<nn::BaseWeights<T>> linear(const std::string& name) const;
  /// The shape of a tensor, as tensors_of() has it; empty where there is none of this name.
  std::span<const std::uint64_t> shape(std::string_view name) const;
  Residency residency() const noexcept { return residency_; }

 private:
  struct Tensor {
    TensorOf of;
    std::size_t bytes = 0;
    std::size_t encoded = kPlain;  // its number in frozen_
    DeviceBuffer<std::byte> on_host, on_device;
  };
  static constexpr std::size_t kPlain = static_cast<std::size_t>(-1);
  void find_encoded(const nn::MakeFrozenStore<T>& encode);
  void load(Tensor& tensor, const ReadTensor& read);
  void encode(Tensor& tensor, const ReadTensor& read);
  void come(std::size_t i, Lease& lease);
  void leave(std::size_t i) noexcept;
  std::size_t find(std::string_view name) const;
  const Tensor& present(std::string_view name) const;

  Context& context_;
  Residency residency_;
  std::unique_ptr<nn::FrozenStore<T>> frozen_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> numbers_;  // by name
};

}  // namespace oomlab::image
