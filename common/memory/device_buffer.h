#pragma once
// A typed, tracked, move-only piece of device memory.

#include <cstddef>
#include <string_view>
#include <utility>

#include "memory/resource.h"

namespace oomlab {

/// `size()` elements of T on the device. Frees itself on its stream. T is never constructed: contents are undefined
/// until a kernel or a copy writes them.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws OutOfMemory (nothing changed), CudaError, or std::length_error when count × sizeof(T) overflows.
  DeviceBuffer(TrackingResource& memory, cudaStream_t stream, std::size_t count, Category category,
               std::string_view tag)
      : memory_(&memory),
        stream_(stream),
        count_(count),
        data_(static_cast<T*>(memory.allocate(checked_product(count, sizeof(T)), stream, category, tag))) {}
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : memory_(other.memory_),
        stream_(other.stream_),
        count_(std::exchange(other.count_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      memory_ = other.memory_;
      stream_ = other.stream_;
      count_ = std::exchange(other.count_, 0);
      data_ = std::exchange(other.data_, nullptr);
    }
    return *this;
  }

  /// Frees now; the buffer is empty afterwards.
  void reset() noexcept {
    if (data_) memory_->deallocate(data_, count_ * sizeof(T), stream_);
    data_ = nullptr;
    count_ = 0;
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return count_; }
  /// Bytes asked for; the ledger counts them rounded to the granule.
  std::size_t bytes() const noexcept { return count_ * sizeof(T); }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  TrackingResource* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::size_t count_ = 0;
  T* data_ = nullptr;
};

}  // namespace oomlab
