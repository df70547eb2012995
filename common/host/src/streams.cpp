// Streams and events.
//
// Eager: work is done when it is submitted, so everything below is bookkeeping. Deferred: work waits in its stream's
// queue with the tickets it depends on, and runs only inside calls where CUDA guarantees completion, streams taking
// turns at random (seeded). A program that forgets to wait reads old data there, every time.
// Rendezvous (eager streams only): a send is not over until it is received, nor is what comes after it in its stream,
// or in a stream that waits for its event.

#include <algorithm>
#include <chrono>

#include "runtime.h"

namespace oomlab::host {
namespace {

// One drain at a time; recursive because work may end in a call that drains (a host function that frees, say).
std::recursive_mutex drain_mutex;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint64_t random_number() {  // xorshift64*
  std::uint64_t& x = runtime().random;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  return x * 0x2545f4914f6cdd1du;
}

bool can_run(const CUstream_st& stream) {
  return !stream.queue.empty() && std::all_of(stream.queue.front().after.begin(), stream.queue.front().after.end(),
                                              [](const Ticket& t) { return is_done(t); });
}

bool all_over(const UnfinishedWork& work) {
  return std::ranges::all_of(work, [](const auto& w) { return w->over(); });
}

void wait_for_all(Lock& lock, const UnfinishedWork& work) {
  lock.unlock();
  for (const auto& w : work) w->wait();
  lock.lock();
}

// The default stream waits for all blocking streams of its device, and they for it.
bool ordered(const CUstream_st& a, const CUstream_st& b) {
  const CUstream_st* const null_stream = runtime().devices[std::size_t(a.device)].null_stream;
  return &a != &b && a.device == b.device && a.blocking && b.blocking && (&a == null_stream || &b == null_stream);
}

void forget_if_over(CUstream_st& stream) {
  Runtime& r = runtime();
  const bool alive = r.live_streams.contains(&stream) || r.devices[std::size_t(stream.device)].null_stream == &stream;
  if (!alive && stream.queue.empty()) r.streams.erase(stream.id);
}

// Runs one operation of a random stream that has one ready. False: none is.
bool step(Lock& lock) {
  std::vector<CUstream_st*> ready;
  for (auto& [id, stream] : runtime().streams)
    if (can_run(*stream)) ready.push_back(stream.get());
  if (ready.empty()) return false;
  CUstream_st& stream = *ready[random_number() % ready.size()];
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  lock.unlock();
  cudaError_t error = cudaSuccess;
  try {
    if (operation.work) operation.work();
  } catch (...) {
    error = error_of_current_exception();
  }
  lock.lock();
  if (error) runtime().deferred_error = error;
  ++stream.done;
  forget_if_over(stream);
  return true;
}

template <class Finished>
cudaError_t drain_until(Lock& lock, Finished finished) {
  if (!finished()) {
    lock.unlock();  // the order is: drain_mutex, then the mutex
    const std::lock_guard turn(drain_mutex);
    lock.lock();
    while (!finished() && step(lock)) {
    }
  }
  managed_host_view();
  return std::exchange(runtime().deferred_error, cudaSuccess);
}

CUstream_st* new_stream(Runtime& r, int device, bool blocking) {
  auto stream = std::make_unique<CUstream_st>();
  stream->id = r.next_stream++;
  stream->device = device;
  stream->blocking = blocking;
  CUstream_st* result = stream.get();
  r.streams.emplace(result->id, std::move(stream));
  return result;
}

CUevent_st* find_event(cudaEvent_t event) { return runtime().live_events.contains(event) ? event : nullptr; }

}  // namespace

void make_null_streams(Runtime& r) {
  for (std::size_t d = 0; d < r.devices.size(); ++d)
    r.devices[d].null_stream = new_stream(r, static_cast<int>(d), true);
}

CUstream_st* find_stream(cudaStream_t handle) {
  Runtime& r = runtime();
  if (!handle || handle == cudaStreamLegacy) return r.devices[std::size_t(current_device())].null_stream;
  return r.live_streams.contains(handle) ? handle : nullptr;
}

bool is_done(const Ticket& ticket) {
  const auto found = runtime().streams.find(ticket.stream);
  return found == runtime().streams.end() || found->second->done >= ticket.sequence;
}

Ticket submit(CUstream_st& stream, std::function<void()> work, Tickets after) {
  for (auto& [id, other] : runtime().streams)
    if (ordered(stream, *other) && other->done < other->submitted) after.push_back({id, other->submitted});
  stream.queue.push_back({std::move(work), std::move(after)});
  return {stream.id, ++stream.submitted};
}

void wait_for_unfinished(Lock& lock, CUstream_st& stream) {
  if (!runtime().machine.rendezvous) return;
  UnfinishedWork before = stream.unfinished;
  for (auto& [id, other] : runtime().streams)
    if (ordered(stream, *other)) before.insert(before.end(), other->unfinished.begin(), other->unfinished.end());
  wait_for_all(lock, before);
  std::erase_if(stream.unfinished, [](const auto& w) { return w->over(); });
}

cudaError_t drain(Lock& lock, const Ticket& ticket) {
  return drain_until(lock, [&] { return is_done(ticket); });
}

cudaError_t drain_device(Lock& lock, int device) {
  Tickets last;  // work submitted by other threads from now on is not waited for
  UnfinishedWork unfinished;
  for (auto& [id, stream] : runtime().streams)
    if (device < 0 || stream->device == device) {
      last.push_back({id, stream->submitted});
      unfinished.insert(unfinished.end(), stream->unfinished.begin(), stream->unfinished.end());
    }
  wait_for_all(lock, unfinished);
  return drain_until(lock,
                     [&] { return std::all_of(last.begin(), last.end(), [](const Ticket& t) { return is_done(t); }); });
}

cudaError_t enqueue(cudaStream_t handle, std::function<void()> work) noexcept {
  const RuntimeScope scope;
  try {
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return set_last_error(cudaErrorInvalidResourceHandle);
    if (!runtime().planning) execute(lock, *stream, std::move(work));
    return cudaSuccess;
  } catch (...) {
    return set_last_error(error_of_current_exception());
  }
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* result, unsigned int flags) {
  return entry("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, [&] {
    if (!result || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    const Lock lock = lock_runtime();
    Runtime& r = runtime();
    CUstream_st* const stream = new_stream(r, current_device(), flags != cudaStreamNonBlocking);
    r.live_streams.insert(stream);
    ++r.live.streams;
    *result = stream;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* result) { return cudaStreamCreateWithFlags(result, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return release_entry("cudaStreamDestroy", [&] {
    const Lock lock = lock_runtime();
    Runtime& r = runtime();
    if (!r.live_streams.erase(handle)) return cudaErrorInvalidResourceHandle;
    --r.live.streams;
    forget_if_over(*handle);  // with work left it goes on, nameless, until that is done
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return entry("cudaStreamSynchronize", cudaErrorUnknown, [&] {
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const int device = stream->device;
    const bool is_null = stream == runtime().devices[std::size_t(device)].null_stream;
    if (is_null && deferred()) submit(*stream, {});  // so that it waits for the blocking streams too
    wait_for_unfinished(lock, *stream);
    const cudaError_t error = drain(lock, {stream->id, stream->submitted});
    trim_pools(device, false);
    return error;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return entry("cudaStreamQuery", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    return stream->done < stream->submitted || !all_over(stream->unfinished) ? cudaErrorNotReady : cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  return entry("cudaStreamWaitEvent", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    const CUevent_st* const event = find_event(event_handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    if (flags) return cudaErrorInvalidValue;
    if (deferred() && event->recorded && !is_done(event->ticket)) submit(*stream, {}, {event->ticket});
    stream->unfinished.insert(stream->unfinished.end(), event->unfinished.begin(), event->unfinished.end());
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* result, unsigned int flags) {
  return entry("cudaEventCreateWithFlags", cudaErrorMemoryAllocation, [&] {
    if (!result || flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) return cudaErrorInvalidValue;
    auto event = std::make_unique<CUevent_st>();
    event->device = current_device();
    event->timing = !(flags & cudaEventDisableTiming);
    event->milliseconds = std::make_shared<double>(0);
    const Lock lock = lock_runtime();
    runtime().live_events.insert(event.get());
    ++runtime().live.events;
    *result = event.release();
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* result) { return cudaEventCreateWithFlags(result, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return release_entry("cudaEventDestroy", [&] {
    const Lock lock = lock_runtime();
    if (!runtime().live_events.erase(handle)) return cudaErrorInvalidResourceHandle;
    --runtime().live.events;
    delete handle;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return entry("cudaEventRecord", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(stream_handle);
    CUevent_st* const event = find_event(handle);
    if (!stream || !event || stream->device != event->device) return cudaErrorInvalidResourceHandle;
    if (deferred()) {
      event->milliseconds = std::make_shared<double>(0);
      event->ticket = submit(*stream, [time = event->milliseconds] { *time = now_ms(); });
    } else {
      *event->milliseconds = now_ms();
    }
    event->unfinished = stream->unfinished;
    event->recorded = true;
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return entry("cudaEventSynchronize", cudaErrorUnknown, [&] {
    Lock lock = lock_runtime();
    const CUevent_st* const event = find_event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    const int device = event->device;
    wait_for_all(lock, UnfinishedWork(event->unfinished));
    const cudaError_t error = drain(lock, Ticket(event->ticket));
    trim_pools(device, false);
    return error;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return entry("cudaEventQuery", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    const CUevent_st* const event = find_event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    const bool done = is_done(event->ticket) && all_over(event->unfinished);
    return event->recorded && !done ? cudaErrorNotReady : cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return entry("cudaEventElapsedTime", cudaErrorUnknown, [&] {
    if (!ms) return cudaErrorInvalidValue;
    const Lock lock = lock_runtime();
    const CUevent_st *const start = find_event(start_handle), *const end = find_event(end_handle);
    if (!start || !end || !start->timing || !end->timing || !start->recorded || !end->recorded ||
        start->device != end->device)
      return cudaErrorInvalidResourceHandle;
    if (!is_done(start->ticket) || !is_done(end->ticket)) return cudaErrorNotReady;
    *ms = static_cast<float>(*end->milliseconds - *start->milliseconds);
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return entry("cudaLaunchHostFunc", cudaErrorUnknown, [&] {
    if (!function) return cudaErrorInvalidValue;
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (deferred()) {
      submit(*stream, [=] { function(data); });
    } else {
      lock.unlock();
      function(data);
    }
    return cudaSuccess;
  });
}
