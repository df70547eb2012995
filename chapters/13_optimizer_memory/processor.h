#pragma once
// The mitigation: the optimizer's state lies in host memory, and the processor updates it (Ren et al., "ZeRO-Offload",
// 2021). The device has weights, and gradients of two layers. While the backward pass goes on, three things happen
// beside it: gradients of the layer after it come down on one stream, the processor updates those of the layer after
// that, and weights of the one before go up on another stream.
//
//   host, pinned, per parameter   FP32 master weight 4 + two moments 8, twice: the state of the last step stays as it
//                                 is until the whole step is done. And two slots for gradients and weights of a unit.
//   over the bus, per step        E bytes per parameter down and E up
//
// A step that fails anywhere, in a copy or for lack of memory, leaves weights and moments of the last step.

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "in_backward.h"
#include "memory/resource.h"
#include "nn/ops/values.h"
#include "nn/optimizer/processor_adamw.h"

namespace oomlab::optimizer_memory {

/// T is float or __nv_bfloat16, what the device has.
template <class T>
class ProcessorAdamW {
 public:
  /// The state of a model whose tensors are at `values`, not owned. Throws OutOfMemory when host memory cannot be
  /// pinned. `threads` of the processor; 0: as many as it has.
  ProcessorAdamW(Context& context, const nn::TransformerSpec& spec, std::vector<T*> values,
                 nn::AdamWSettings settings = {}, unsigned threads = 0)
      : context_(context),
        values_(std::move(values)),
        settings_(settings),
        threads_(threads ? threads : std::max(1u, std::thread::hardware_concurrency())),
        pinned_(pinned_resource_, ledger_),
        shapes_(nn::tensors_of(spec)),
        units_(nn::units_of(spec)),
        changed_(units_.size(), false) {
    std::size_t largest = 0;
    for (const nn::UnitShape& unit : units_) largest = std::max(largest, unit.count);
    for (Slot& slot : slots_) slot.gradients = pin<T>(largest), slot.weights = pin<T>(largest);
    for (const nn::UnitShape& unit : units_) {
      Versions& state = states_.emplace_back();
      for (State& version : state.of)
        for (auto* numbers : {&version.weight, &version.first, &version.second}) *numbers = pin<float>(unit.count);
      if (planning()) continue;
      for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
        T* const from = slots_[0].weights.data() + unit.offsets[t];
        copy(values_[unit.tensors[t]], from, count(unit, t), cudaMemcpyDeviceToHost, context.stream());
      }
      context.synchronize();
      State& start = state.of[0];
      for (std::size_t t = 0; t < unit.tensors.size(); ++t)
        for (std::size_t i = unit.offsets[t]; i < unit.offsets[t] + count(unit, t); ++i) {
          start.weight.data()[i] = static_cast<float>(slots_[0].weights.data()[i]);
          start.first.data()[i] = start.second.data()[i] = 0.0f;
        }
    }
    moved_ = 0;
  }
  ~ProcessorAdamW() {
    join();
    for (const Stream* stream : {&down_, &up_})
      report_if_failed(cudaStreamSynchronize(*stream), "cudaStreamSynchronize");
  }
  ProcessorAdamW(const ProcessorAdamW&) = delete;
  ProcessorAdamW& operator=(const ProcessorAdamW&) = delete;

  /// Before a step: weights are those of the last step. They are not where a step has failed, and then copying them up
  /// again did, too.
  void begin() {
    moved_ = 0;
    restore();
  }
  /// A unit's gradients, as soon as they are queued on the context's stream.
  void take(std::size_t unit, DeviceBuffer<T> gradients) {
    send_weights();  // of the unit before last; from now on its slot is free
    const std::size_t slot = taken_++ % 2;
    computed_.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(down_, computed_));
    copy(gradients.data(), slots_[slot].gradients.data(), units_[unit].count, cudaMemcpyDeviceToHost, down_);
    slots_[slot].arrived.record(down_);
    update_arrived();  // the unit before: its gradients came down while this one's backward pass was queued
    coming_.emplace(Coming{unit, slot, std::move(gradients)});
  }
  /// The rest of the step. From its end on, weights and moments are the next step's.
  void end() {
    send_weights();
    update_arrived();
    send_weights();
    up_.synchronize();
    last_ = 1 - last_;
    changed_.assign(units_.size(), false);
    ++steps_;
  }
  /// After a failure in between.
  void roll_back() noexcept {
    join();
    // Nothing may still copy what is freed or copied again now. A stream that cannot even be waited for copies nothing
    // more, and what restore() cannot do now is done when the next step begins.
    const auto attempt = [](auto what) {
      try {
        what();
      } catch (const std::exception&) {  // the error that led here is the one to report
      }
    };
    attempt([&] { down_.synchronize(); });
    attempt([&] { up_.synchronize(); });
    coming_.reset();
    attempt([&] { restore(); });
  }

  std::uint64_t steps() const noexcept { return steps_; }
  /// Bytes over the bus in the last step, both ways.
  std::size_t moved_bytes() const noexcept { return moved_; }
  std::size_t pinned_bytes() const noexcept { return ledger_.live_bytes(); }
  /// A hash of weights and moments of the last step, in host memory; 0 in plan mode.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = nn::kFingerprintStart;
    if (planning()) return 0;
    for (std::size_t u = 0; u < units_.size(); ++u)
      for (std::size_t t = 0; t < units_[u].tensors.size(); ++t)
        for (const DeviceBuffer<float>* numbers :
             {&states_[u].of[last_].weight, &states_[u].of[last_].first, &states_[u].of[last_].second}) {
          const auto* bytes = reinterpret_cast<const unsigned char*>(numbers->data() + units_[u].offsets[t]);
          for (std::size_t i = 0; i < count(units_[u], t) * sizeof(float); ++i)
            hash = (hash ^ bytes[i]) * 0x100000001b3ull;
        }
    return hash;
  }

  /// Pinned host memory and bytes over the bus in a step, in closed form.
  struct Bytes {
    std::size_t pinned, moved;
  };
  static Bytes predicted(const nn::TransformerSpec& spec) {
    Bytes bytes{};
    std::size_t largest = 0;
    for (const nn::UnitShape& unit : nn::units_of(spec)) {
      bytes.pinned += 6 * round_to_granule(checked_product(unit.count, sizeof(float)));
      bytes.moved += unit.count * sizeof(T);  // gradients, padding and all
      largest = std::max(largest, unit.count);
    }
    bytes.moved += spec.parameters() * sizeof(T);
    bytes.pinned += 4 * round_to_granule(checked_product(largest, sizeof(T)));
    return bytes;
  }

 private:
  struct State {
    DeviceBuffer<float> weight, first, second;  // pinned
    nn::ProcessorState at(std::size_t i) { return {weight.data() + i, first.data() + i, second.data() + i}; }
  };
  struct Versions {
    State of[2];  // of the last step, and of the one that is being made
  };
  struct Slot {
    DeviceBuffer<T> gradients, weights;  // pinned
    Event arrived, sent;
    bool sending = false;
  };
  struct Coming {
    std::size_t unit, slot;
    DeviceBuffer<T> gradients;
  };
  struct Job {
    std::size_t unit, slot;
    std::int64_t begin_us = 0, end_us = 0;
    std::vector<std::thread> threads;
  };

  template <class V>
  DeviceBuffer<V> pin(std::size_t count) {
    return DeviceBuffer<V>(pinned_, context_.stream(), count, Category::optimizer, "pinned");
  }
  std::size_t count(const nn::UnitShape& unit, std::size_t t) const { return shapes_[unit.tensors[t]].count(); }
  void copy(const T* from, T* to, std::size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream));
    moved_ += count * sizeof(T);
  }

  // The unit whose gradients are on their way has them now, or soon: its update begins, beside the backward pass.
  void update_arrived() {
    if (!coming_) return;
    Slot& slot = slots_[coming_->slot];
    slot.arrived.synchronize();
    if (slot.sending) slot.sent.synchronize();  // what its weights were two units ago
    slot.sending = false;
    job_.emplace(Job{.unit = coming_->unit, .slot = coming_->slot, .threads = {}});
    coming_.reset();  // the gradients on the device
    if (!planning()) start(*job_);
  }
  void start(Job& job) {
    const nn::AdamWFactors factors = nn::adamw_factors(settings_, steps_ + 1);
    const std::size_t all = units_[job.unit].count, least = 1 << 14;  // fewer numbers are not worth a thread
    const std::size_t pieces = std::clamp<std::size_t>(all / least, 1, threads_);
    job.threads.reserve(pieces);
    job.begin_us = context_.ledger().now_us();
    for (std::size_t p = 0; p < pieces; ++p)
      job.threads.emplace_back([this, &job, factors, begin = all * p / pieces, end = all * (p + 1) / pieces, p] {
        update(job.unit, job.slot, factors, begin, end);
        if (p == 0) job.end_us = context_.ledger().now_us();
      });
  }
  // Numbers begin … end of a unit, of each tensor its own: there is nothing between them.
  void update(std::size_t u, std::size_t slot, const nn::AdamWFactors& factors, std::size_t begin, std::size_t end) {
    const nn::UnitShape& unit = units_[u];
    for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
      const std::size_t first = std::max(begin, unit.offsets[t]),
                        last = std::min(end, unit.offsets[t] + count(unit, t));
      if (first >= last) continue;
      nn::processor_adamw(factors, slots_[slot].gradients.data() + first, states_[u].of[last_].at(first),
                          states_[u].of[1 - last_].at(first), slots_[slot].weights.data() + first, last - first);
    }
  }
  void join() noexcept {
    if (!job_) return;
    for (std::thread& thread : job_->threads) thread.join();
    job_->threads.clear();
  }
  // The update that runs is over, and the unit's new weights go up.
  void send_weights() {
    if (!job_) return;
    join();
    const nn::UnitShape& unit = units_[job_->unit];
    if (!planning()) context_.ledger().note_processor_work("update of " + unit.name, job_->begin_us, job_->end_us);
    changed_[job_->unit] = true;
    upload(job_->unit, job_->slot, up_);
    job_.reset();
  }
  void upload(std::size_t u, std::size_t slot, cudaStream_t stream) {
    const nn::UnitShape& unit = units_[u];
    slots_[slot].sending = true;
    for (std::size_t t = 0; t < unit.tensors.size(); ++t)
      copy(slots_[slot].weights.data() + unit.offsets[t], values_[unit.tensors[t]], count(unit, t),
           cudaMemcpyHostToDevice, stream);
    slots_[slot].sent.record(stream);
  }
  // Weights that are not the last step's are made so.
  void restore() {
    job_.reset();
    coming_.reset();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!changed_[u]) continue;
      up_.synchronize();  // the slot is free
      const float* const weight = states_[u].of[last_].weight.data();
      for (std::size_t t = 0; t < units_[u].tensors.size() && !planning(); ++t)
        for (std::size_t i = units_[u].offsets[t]; i < units_[u].offsets[t] + count(units_[u], t); ++i)
          slots_[0].weights.data()[i] = static_cast<T>(weight[i]);
      upload(u, 0, up_);
      up_.synchronize();
      changed_[u] = false;
    }
    for (Slot& slot : slots_) slot.sending = false;
  }

  Context& context_;
  std::vector<T*> values_;
  nn::AdamWSettings settings_;
  unsigned threads_;
  Ledger ledger_;
  PinnedResource pinned_resource_;
  TrackingResource pinned_;
  std::vector<nn::TensorShape> shapes_;
  std::vector<nn::UnitShape> units_;
  std::vector<bool> changed_;  // units whose weights on the device may not be the last step's
  std::vector<Versions> states_;
  Slot slots_[2];
  Stream down_, up_;
  Event computed_;
  std::optional<Coming> coming_;
  std::optional<Job> job_;
  std::size_t last_ = 0, taken_ = 0, moved_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace oomlab::optimizer_memory
