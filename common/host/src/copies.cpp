// Copies and fills. Plan mode checks the arguments and touches nothing.

#include <cstring>

#include "runtime.h"

namespace oomlab::host {
namespace {

enum class Side { pageable, pinned, managed, device };
Side side_of(const void* address) {
  const Block* block = find_block(address);
  if (!block) return Side::pageable;
  return block->kind == Kind::pinned ? Side::pinned : block->kind == Kind::managed ? Side::managed : Side::device;
}

struct Copy {
  char* to;
  const char* from;
  std::size_t to_pitch, from_pitch, width, height;
  std::size_t span(std::size_t pitch) const { return (height - 1) * pitch + width; }
  void operator()() const {
    if (height == 1 || (to_pitch == width && from_pitch == width)) {
      std::memmove(to, from, width * height);
    } else {
      for (std::size_t row = 0; row < height; ++row) std::memcpy(to + row * to_pitch, from + row * from_pitch, width);
    }
  }
};

// Where each end must be for a kind; pinned and managed memory belong to both worlds.
bool kind_fits(cudaMemcpyKind kind, Side to, Side from) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return kind == cudaMemcpyDefault ||
         (to != (to_device ? Side::pageable : Side::device) && from != (from_device ? Side::pageable : Side::device));
}

// `wait`: the forms without Async.
cudaError_t copy(Copy work, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
  Lock lock = lock_runtime();
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (work.width == 0 || work.height == 0) return cudaSuccess;
  if (!work.to || !work.from) return cudaErrorInvalidValue;
  if (work.height > 1 && (work.to_pitch < work.width || work.from_pitch < work.width))
    return cudaErrorInvalidPitchValue;
  if (!in_bounds(work.to, work.span(work.to_pitch)) || !in_bounds(work.from, work.span(work.from_pitch)))
    return cudaErrorInvalidValue;
  const Side to = side_of(work.to), from = side_of(work.from);
  if (!kind_fits(kind, to, from)) return cudaErrorInvalidValue;
  if (runtime().planning) return cudaSuccess;
  if (!deferred()) {
    execute(lock, *stream, work);
    if (wait) managed_host_view();
    return cudaSuccess;
  }
  // CUDA stages pageable sources before it returns, and finishes copies to pageable memory; so do the forms without
  // Async, except from device to device.
  const bool finish = to == Side::pageable || (wait && !(to == Side::device && from == Side::device));
  if (from == Side::pageable && !finish) {
    auto staged = std::make_shared<std::vector<char>>(work.width * work.height);
    Copy{staged->data(), work.from, work.width, work.from_pitch, work.width, work.height}();
    execute(lock, *stream,
            [=] { Copy{work.to, staged->data(), work.to_pitch, work.width, work.width, work.height}(); });
  } else {
    execute(lock, *stream, work);
  }
  return finish ? drain(lock, {stream->id, stream->submitted}) : cudaSuccess;
}

Copy flat(void* to, const void* from, std::size_t bytes) {
  return {static_cast<char*>(to), static_cast<const char*>(from), bytes, bytes, bytes, 1};
}

cudaError_t fill(void* address, int value, std::size_t bytes, cudaStream_t handle) {
  Lock lock = lock_runtime();
  CUstream_st* const stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (!address || !find_block(address) || !in_bounds(address, bytes)) return cudaErrorInvalidValue;
  if (!runtime().planning) execute(lock, *stream, [=] { std::memset(address, value, bytes); });
  return cudaSuccess;
}

cudaError_t copy_peer(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                      cudaStream_t handle, bool wait) {
  if (!valid_device(to_device) || !valid_device(from_device)) return cudaErrorInvalidDevice;
  return copy(flat(to, from, bytes), cudaMemcpyDefault, handle, wait);
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return entry("cudaMemcpy", cudaErrorUnknown, [&] { return copy(flat(to, from, bytes), kind, nullptr, true); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return entry("cudaMemcpyAsync", cudaErrorUnknown, [&] { return copy(flat(to, from, bytes), kind, stream, false); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return entry("cudaMemcpy2DAsync", cudaErrorUnknown, [&] {
    return copy({static_cast<char*>(to), static_cast<const char*>(from), to_pitch, from_pitch, width, height}, kind,
                stream, false);
  });
}
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  return entry("cudaMemcpyPeer", cudaErrorUnknown,
               [&] { return copy_peer(to, to_device, from, from_device, bytes, nullptr, true); });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return entry("cudaMemcpyPeerAsync", cudaErrorUnknown,
               [&] { return copy_peer(to, to_device, from, from_device, bytes, stream, false); });
}
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  return entry("cudaMemset", cudaErrorUnknown, [&] { return fill(address, value, bytes, nullptr); });
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  return entry("cudaMemsetAsync", cudaErrorUnknown, [&] { return fill(address, value, bytes, stream); });
}
