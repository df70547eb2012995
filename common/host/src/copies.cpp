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
  void* to;
  const void* from;
  std::size_t bytes;
  void operator()() const { std::memmove(to, from, bytes); }
};

// Where each end must be for a kind; pinned and managed memory belong to both worlds.
bool kind_fits(cudaMemcpyKind kind, Side to, Side from) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return kind == cudaMemcpyDefault ||
         (to != (to_device ? Side::pageable : Side::device) && from != (from_device ? Side::pageable : Side::device));
}

// `wait`: the forms without Async.
cudaError_t copy(Lock& lock, Copy work, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
  CUstream_st& stream = find_stream(handle);
  require(kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
  if (work.bytes == 0) return cudaSuccess;
  require(work.to && work.from && in_bounds(work.to, work.bytes) && in_bounds(work.from, work.bytes));
  const Side to = side_of(work.to), from = side_of(work.from);
  require(kind_fits(kind, to, from));
  count_work(stream.device, &Work::copied_bytes, work.bytes);
  if (runtime().planning) return cudaSuccess;
  if (!deferred()) {
    execute(lock, stream, work);
    if (wait) managed_host_view();
    return cudaSuccess;
  }
  // CUDA stages pageable sources before it returns, and finishes copies to pageable memory; so do the forms without
  // Async, except from device to device.
  const bool finish = to == Side::pageable || (wait && !(to == Side::device && from == Side::device));
  if (from == Side::pageable && !finish) {
    auto staged = std::make_shared<std::vector<char>>(work.bytes);
    Copy{staged->data(), work.from, work.bytes}();
    execute(lock, stream, [=] { Copy{work.to, staged->data(), work.bytes}(); });
  } else {
    execute(lock, stream, work);
  }
  return finish ? drain(lock, {{stream.id, stream.submitted}}) : cudaSuccess;
}

void fill(Lock& lock, void* address, int value, std::size_t bytes, cudaStream_t handle) {
  CUstream_st& stream = find_stream(handle);
  if (bytes == 0) return;
  require(address && find_block(address) && in_bounds(address, bytes));
  count_work(stream.device, &Work::filled_bytes, bytes);
  if (!runtime().planning) execute(lock, stream, [=] { std::memset(address, value, bytes); });
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return entry("cudaMemcpy", cudaErrorUnknown, [&](Lock& lock) {
    return copy(lock, {to, from, bytes}, kind, nullptr, true);
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return entry("cudaMemcpyAsync", cudaErrorUnknown, [&](Lock& lock) {
    return copy(lock, {to, from, bytes}, kind, stream, false);
  });
}
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  return entry("cudaMemset", cudaErrorUnknown, [&](Lock& lock) { fill(lock, address, value, bytes, nullptr); });
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  return entry("cudaMemsetAsync", cudaErrorUnknown, [&](Lock& lock) { fill(lock, address, value, bytes, stream); });
}
