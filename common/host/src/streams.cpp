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

std::mutex drain_mutex;  // one drain at a time

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void append(UnfinishedWork& all, const UnfinishedWork& more) { all.insert(all.end(), more.begin(), more.end()); }

void wait_for_all(const UnfinishedWork& work) {
  const Unlocked open;
  for (const auto& w : work) w->wait();
}

// The default stream waits for all blocking streams of its device, and they for it.
bool ordered(const CUstream_st& a, const CUstream_st& b) {
  const CUstream_st* const null_stream = device_of(a.device).null_stream;
  return &a != &b && a.device == b.device && a.blocking && b.blocking && (&a == null_stream || &b == null_stream);
}

void forget_if_over(const CUstream_st& stream) {
  if (!stream.alive && stream.done == stream.submitted) runtime().streams.erase(stream.id);
}

// Runs one operation of a random stream that has one ready. False: none is.
bool step() {
  std::vector<CUstream_st*> ready;
  for (auto& [id, stream] : runtime().streams)
    if (!stream->queue.empty() && all_done(stream->queue.front().after)) ready.push_back(stream.get());
  if (ready.empty()) return false;
  CUstream_st& stream = *ready[runtime().random() % ready.size()];
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (operation.work) {
    const Unlocked open;
    operation.work();
  }
  ++stream.done;
  forget_if_over(stream);
  return true;
}

CUevent_st& find_event(cudaEvent_t event) {
  require(runtime().events.contains(event), cudaErrorInvalidResourceHandle);
  return *event;
}

}  // namespace

CUstream_st* new_stream(Runtime& r, int device, bool blocking) {
  const std::uint64_t id = r.next_stream++;
  auto stream = std::make_unique<CUstream_st>(CUstream_st{.id = id, .device = device, .blocking = blocking});
  return r.streams.emplace(id, std::move(stream)).first->second.get();
}

CUstream_st* stream_or_null(cudaStream_t handle, int device) {
  if (!handle) return device_of(device).null_stream;
  for (const auto& [id, stream] : runtime().streams)
    if (stream.get() == handle && stream->alive) return handle;
  return nullptr;
}

CUstream_st& find_stream(cudaStream_t handle) {
  CUstream_st* const stream = stream_or_null(handle, current_device());
  require(stream, cudaErrorInvalidResourceHandle);
  return *stream;
}

bool all_done(const Tickets& tickets) {
  return std::ranges::all_of(tickets, [](const Ticket& ticket) {
    const auto found = runtime().streams.find(ticket.stream);
    return found == runtime().streams.end() || found->second->done >= ticket.sequence;
  });
}

Ticket submit(CUstream_st& stream, std::function<void()> work, Tickets after) {
  for (auto& [id, other] : runtime().streams)
    if (ordered(stream, *other) && other->done < other->submitted) after.push_back({id, other->submitted});
  stream.queue.push_back({std::move(work), std::move(after)});
  return {stream.id, ++stream.submitted};
}

void wait_for_unfinished(CUstream_st& stream) {
  if (!runtime().machine.rendezvous) return;
  UnfinishedWork before = stream.unfinished;
  for (auto& [id, other] : runtime().streams)
    if (ordered(stream, *other)) append(before, other->unfinished);
  wait_for_all(before);
  std::erase_if(stream.unfinished, [](const auto& w) { return w->over.load(); });
}

void drain(const Tickets& until) {
  if (!all_done(until)) {
    runtime().mutex.unlock();  // the order is: drain_mutex, then the mutex
    const std::lock_guard turn(drain_mutex);
    runtime().mutex.lock();
    while (!all_done(until) && step()) continue;
  }
  managed_host_view();
}

void drain_device(int device) {
  Tickets last;  // work submitted by other threads from now on is not waited for
  UnfinishedWork unfinished;
  for (auto& [id, stream] : runtime().streams)
    if (device < 0 || stream->device == device) {
      last.push_back({id, stream->submitted});
      append(unfinished, stream->unfinished);
    }
  wait_for_all(unfinished);
  drain(last);
}

cudaError_t enqueue(cudaStream_t handle, std::function<void()> work) noexcept {
  return set_last_error(guarded([&] {
    CUstream_st& stream = find_stream(handle);
    if (!runtime().planning) execute(stream, std::move(work));
  }));
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* result, unsigned int flags) {
  return result_entry<cudaErrorMemoryAllocation>("cudaStreamCreateWithFlags", result, [&] {
    require(flags <= cudaStreamNonBlocking);
    return new_stream(runtime(), current_device(), flags != cudaStreamNonBlocking);
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* result) { return cudaStreamCreateWithFlags(result, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return entry<cudaErrorUnknown, gives_back>("cudaStreamDestroy", [&] {
    require(handle, cudaErrorInvalidResourceHandle);
    CUstream_st& stream = find_stream(handle);
    stream.alive = false;
    forget_if_over(stream);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return entry("cudaStreamSynchronize", [&] {
    CUstream_st& stream = find_stream(handle);
    const int device = stream.device;
    if (!handle && deferred()) submit(stream, {});  // so that it waits for the blocking streams too
    wait_for_unfinished(stream);
    drain({{stream.id, stream.submitted}});
    trim_pools(device, false);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return entry("cudaStreamQuery", [&] {
    const CUstream_st& stream = find_stream(handle);
    const bool over = std::ranges::all_of(stream.unfinished, [](const auto& w) { return w->over.load(); });
    require(over && stream.done == stream.submitted, cudaErrorNotReady);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  return entry("cudaStreamWaitEvent", [&] {
    CUstream_st& stream = find_stream(handle);
    const CUevent_st& event = find_event(event_handle);
    require(flags == 0);
    if (deferred() && !all_done({event.ticket})) submit(stream, {}, {event.ticket});
    append(stream.unfinished, event.unfinished);
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* result) {
  return result_entry<cudaErrorMemoryAllocation>("cudaEventCreate", result, [] {
    return *runtime().events.insert(new CUevent_st{.device = current_device()}).first;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return entry<cudaErrorUnknown, gives_back>("cudaEventDestroy", [&] {
    require(runtime().events.erase(handle), cudaErrorInvalidResourceHandle);
    delete handle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return entry("cudaEventRecord", [&] {
    CUstream_st& stream = find_stream(stream_handle);
    CUevent_st& event = find_event(handle);
    require(stream.device == event.device, cudaErrorInvalidResourceHandle);
    const auto time = std::make_shared<double>(now_ms());
    if (deferred()) event.ticket = submit(stream, [time] { *time = now_ms(); });
    event.milliseconds = time;
    event.unfinished = stream.unfinished;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return entry("cudaEventSynchronize", [&] {
    const CUevent_st event = find_event(handle);  // as it is now: it may be recorded again meanwhile
    wait_for_all(event.unfinished);
    drain({event.ticket});
    trim_pools(event.device, false);
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return result_entry("cudaEventElapsedTime", ms, [&] {
    const CUevent_st &start = find_event(start_handle), &end = find_event(end_handle);
    require(start.milliseconds && end.milliseconds && start.device == end.device, cudaErrorInvalidResourceHandle);
    require(all_done({start.ticket, end.ticket}), cudaErrorNotReady);
    return static_cast<float>(*end.milliseconds - *start.milliseconds);
  });
}
