#pragma once
// What neighbour stages of a pipeline send each other, and when it is over.

#include <utility>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/nccl.h"
#include "memory/context.h"

namespace oomlab::train {

// A send may not end before its receive has begun (NCCL's contract), and two neighbours that each wait for the end of a
// send before they receive wait for ever. So what is sent stays, and nothing waits for it until this stage has begun to
// receive what it needs next.
template <class T>
class StageLinks {
 public:
  /// The context must outlive it.
  explicit StageLinks(Context& context) : context_(context) {}

  /// Sends what is there when the work that is queued now is done, on `stream`.
  void send(Communicator& neighbours, DeviceBuffer<T> what, int to, cudaStream_t stream) {
    join(context_.stream(), stream);
    neighbours.send(what.data(), what.size(), to, stream);
    sending_ = std::move(what);
    sending_on_ = stream;
  }
  /// Receives `count` elements (category activations), which what is queued from now on may read. Throws OutOfMemory.
  DeviceBuffer<T> receive(Communicator& neighbours, std::size_t count, int from, cudaStream_t stream, const char* tag) {
    auto what = context_.buffer<T>(count, Category::activations, tag);
    join(context_.stream(), stream);
    neighbours.receive(what.data(), what.size(), from, stream);
    settle();
    join(stream, context_.stream());
    return what;
  }
  /// The last send has ended before anything that is queued from now on.
  void settle() {
    if (sending_.data() == nullptr) return;
    join(sending_on_, context_.stream());
    sending_.reset();
  }
  /// Forgets what a step that failed was sending.
  void clear() noexcept { sending_.reset(); }
  /// What is queued on `second` from now on runs after all that is queued on `first`.
  void join(cudaStream_t first, cudaStream_t second) {
    event_.record(first);
    CUDA_CHECK(cudaStreamWaitEvent(second, event_));
  }

 private:
  Context& context_;
  Event event_;
  DeviceBuffer<T> sending_;
  cudaStream_t sending_on_ = nullptr;
};

}  // namespace oomlab::train
