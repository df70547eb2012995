#pragma once
// Checkpoints in host memory: the inputs of segments that are recomputed wait there for their backward pass (Rajbhandari
// et al., "ZeRO-Infinity", 2021). Each has a place of its own, pinned. Two streams copy beside the one that computes:
//
//   forward    an input goes down while its layer computes, and leaves the device behind it
//   backward   it comes up while the segment behind it, or the head, is at its backward pass

#include <cstddef>
#include <exception>
#include <optional>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "memory/context.h"
#include "plan/step_form.h"

namespace oomlab::nn {

template <class T>
class HostCheckpoints {
 public:
  /// Room for the inputs, of at most `elements` each, of so many micro-batches, which begin and end in the same order.
  /// Throws OutOfMemory when there is not enough host memory: nothing stays allocated.
  HostCheckpoints(Context& context, const Schedule& schedule, std::size_t in_flight, std::size_t elements)
      : context_(context), in_flight_(in_flight) {
    for (const Segment& segment : schedule) {
      place_of_.push_back(segment.recompute ? std::optional(inputs_) : std::nullopt);
      inputs_ += segment.recompute;
    }
    for (std::size_t i = 0; i < in_flight * inputs_; ++i)
      places_.push_back({context.pinned<T>(elements, Category::activations, "layer input")});
  }
  ~HostCheckpoints() { wait(); }
  HostCheckpoints(const HostCheckpoints&) = delete;
  HostCheckpoints& operator=(const HostCheckpoints&) = delete;

  /// Whether the input of a segment of the schedule, by its number, is one of them.
  bool has(std::size_t segment) const { return place_of_[segment].has_value(); }

  /// Begins to copy an input that is queued on the context's stream to its place.
  void send(std::size_t micro_batch, std::size_t segment, const DeviceBuffer<T>& input) {
    ready_.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(down_, ready_));
    Place& there = place(micro_batch, segment);
    there.elements = input.size();
    CUDA_CHECK(cudaMemcpyAsync(there.room.data(), input.data(), input.bytes(), cudaMemcpyDeviceToHost, down_));
    sent_.record(down_);
  }
  /// What is queued on the context's stream from now on may free the input that was sent last.
  void finish_send() { CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), sent_)); }

  /// Begins to bring an input back.
  DeviceBuffer<T> fetch(std::size_t micro_batch, std::size_t segment) {
    const Place& there = place(micro_batch, segment);
    auto input = context_.buffer<T>(there.elements, Category::activations, "layer input, back");
    ready_.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(up_, ready_));
    CUDA_CHECK(cudaMemcpyAsync(input.data(), there.room.data(), input.bytes(), cudaMemcpyHostToDevice, up_));
    fetched_.record(up_);
    return input;
  }
  /// What is queued on the context's stream from now on may read the input that was fetched last.
  void finish_fetch() { CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), fetched_)); }

  /// For the end of all copies.
  void wait() const noexcept {
    for (const Stream* stream : {&down_, &up_})
      report_if_failed(cudaStreamSynchronize(*stream), "cudaStreamSynchronize");
  }
  /// To be declared behind what is sent and fetched: where an exception frees that, nothing copies it any more.
  class Guard {
   public:
    explicit Guard(const HostCheckpoints* checkpoints) : checkpoints_(checkpoints) {}
    ~Guard() {
      if (checkpoints_ && std::uncaught_exceptions() > exceptions_) checkpoints_->wait();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    const HostCheckpoints* checkpoints_;
    int exceptions_ = std::uncaught_exceptions();
  };

 private:
  struct Place {
    DeviceBuffer<T> room;
    std::size_t elements = 0;  // of the input that was sent
  };
  Place& place(std::size_t micro_batch, std::size_t segment) {
    return places_[micro_batch % in_flight_ * inputs_ + place_of_[segment].value()];
  }
  Context& context_;
  std::size_t in_flight_, inputs_ = 0;
  std::vector<std::optional<std::size_t>> place_of_;  // of segments, among the inputs of a micro-batch
  std::vector<Place> places_;
  Stream down_, up_;
  Event ready_, sent_, fetched_;
};

}  // namespace oomlab::nn
