#pragma once
// An optimizer in the host's memory: the state lies there, pinned, and the CPU updates it (Ren et al., "ZeRO-Offload",
// 2021). The device has weights, and gradients of two units. While the backward pass goes on, three things happen
// beside it: gradients of the unit after it come down on one stream, the CPU updates those of the unit after that, and
// weights of the one before go up on another stream.
//
//   host, pinned   the state, and weights or two pieces of them (plan/host_state.h)
//   over the bus   per parameter that this rank updates E bytes down in each micro-batch, E up in each step
//
// Where no update may begin before all gradients are there (several micro-batches, a loss scale), they are added up in
// host memory.
//
// A step that fails before its first update can be tried again. One that fails later has updated some units and not
// others: there is nothing to go back to, since a second copy of the state would double the host's memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "memory/resource.h"
#include "nn/optimizer/cpu_update.h"
#include "nn/optimizer/optimizer.h"
#include "train/units.h"

namespace oomlab::train {

/// T is float, __half or __nv_bfloat16, what the device has.
template <class T>
class HostOptimizer {
 public:
  /// The state of what this rank updates of `units`, which must outlive it. `collects`: gradients are added up before
  /// they are used. Throws OutOfMemory when there is not enough host memory, and nothing stays allocated.
  HostOptimizer(Context& context, Units<T>& units, nn::OptimizerForm form, nn::OptimizerSettings settings,
                bool collects, unsigned threads)
      : context_(context), units_(units), form_(form), settings_(settings), threads_(threads) {
    std::size_t largest = 0;
    for (std::size_t u = 0; u < units.size(); ++u) largest = std::max(largest, units.count(u));
    for (Slot& slot : slots_) {
      slot.gradients = context.pinned<T>(largest, Category::gradients, "gradients on their way down");
      if (has_master() && !units.streamed())
        slot.weights = context.pinned<T>(largest, Category::parameters, "weights on their way up");
    }
    for (const auto& piece : units.pieces()) states_.push_back(state_of(piece.shape));
    for (std::size_t u = 0; u < units.size(); ++u) {
      const bool has_weights = !has_master() && !units.streamed();
      weights_.push_back(has_weights ? context.pinned<T>(units.count(u), Category::parameters, units.name(u))
                                     : DeviceBuffer<T>());
      sums_.push_back(collects ? context.pinned<T>(units.count(u), Category::gradients, units.name(u) + " sums")
                               : DeviceBuffer<T>());
    }
    for (std::size_t u = 0; u < units.size() && !planning(); ++u) take_weights_of_device(u);
  }
  ~HostOptimizer() {
    join();
    for (const Stream* stream : {&down_, &up_})
      report_if_failed(cudaStreamSynchronize(*stream), "cudaStreamSynchronize");
  }
  HostOptimizer(const HostOptimizer&) = delete;
  HostOptimizer& operator=(const HostOptimizer&) = delete;

  /// How many threads each of so many ranks on this machine updates with.
  static unsigned threads_of(std::size_t ranks) {
    const std::size_t all = std::max(1u, std::thread::hardware_concurrency());
    return unsigned(std::max<std::size_t>(1, all / ranks));
  }

  /// Before a step. Throws std::runtime_error when one has failed half-way.
  void begin() const {
    if (updated_)
      throw std::runtime_error(
          "a step with its optimizer in host memory failed half-way: some layers are updated and others are not; load "
          "a "
          "saved state");
  }
  /// A unit's gradients, as soon as they are queued on the context's stream; `mine` is this rank's part of them.
  /// `accumulate`: added to what earlier micro-batches left. `last`: and used.
  void take(std::size_t unit, DeviceBuffer<T> gradients, const T* mine, bool accumulate, bool last) {
    send_weights();  // of the unit before last; from now on its slot is free
    Slot& slot = slots_[taken_ % 2];
    computed_.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(down_, computed_));
    copy(mine, slot.gradients.data(), units_.count(unit), cudaMemcpyDeviceToHost, down_);
    slot.arrived.record(down_);
    use_arrived();  // of the unit before: they came down while this one's backward pass was queued
    coming_.emplace(Coming{unit, taken_++ % 2, std::move(gradients), accumulate, last});
  }
  /// After the last unit of a micro-batch: nothing of it is on the device any more.
  void flush() {
    send_weights();
    use_arrived();
  }
  /// The rest of the step. Gradients are multiplied by `factor`; where it is 0 the step is left out.
  void end(float factor) {
    flush();
    send_weights();
    if (waiting_ && factor != 0.0f) update_all(factor);
    up_.synchronize();
    waiting_ = false;
    updated_ = false;
    if (factor != 0.0f) ++steps_;
  }
  /// After a failure in between.
  void roll_back() noexcept {
    join();
    job_.reset();
    // Nothing may still copy what is freed now. A stream that cannot even be waited for copies nothing more.
    for (const Stream* stream : {&down_, &up_})
      report_if_failed(cudaStreamSynchronize(*stream), "cudaStreamSynchronize");
    coming_.reset();
    waiting_ = false;
    for (Slot& slot : slots_) slot.sending = false;
  }

  std::uint64_t steps() const noexcept { return steps_; }
  /// Bytes over the bus in all steps, both ways.
  std::size_t moved_bytes() const noexcept { return moved_; }

 private:
  struct State {
    DeviceBuffer<float> master, first, second;  // pinned, all of them
    DeviceBuffer<std::uint8_t> codes[2];
    DeviceBuffer<float> absmax[2];
  };
  struct Slot {
    DeviceBuffer<T> gradients, weights;  // pinned
    Event arrived, sent;
    bool sending = false;
  };
  struct Coming {
    std::size_t unit, slot;
    DeviceBuffer<T> gradients;
    bool accumulate, last;
  };
  struct Job {
    std::size_t unit, slot;
    std::int64_t begin_us = 0, end_us = 0;
    std::vector<std::thread> threads = {};
  };

  bool has_master() const { return form_.weights == nn::WeightForm::master; }

  template <class V>
  DeviceBuffer<V> zeros(std::size_t count) {
    DeviceBuffer<V> buffer = context_.pinned<V>(count, Category::optimizer, "moments");
    if (!planning()) std::fill_n(buffer.data(), count, V{});
    return buffer;
  }
  State state_of(const nn::TensorShape& shape) {
    State state;
    const std::size_t n = shape.count();
    if (has_master()) state.master = context_.pinned<float>(n, Category::optimizer, "master copy");
    if (nn::has_8_bit_moments(shape, form_)) {
      for (int moment = 0; moment < 2; ++moment) {
        state.codes[moment] = zeros<std::uint8_t>(n);
        state.absmax[moment] = zeros<float>((n + nn::kCodeBlock - 1) / nn::kCodeBlock);
      }
    } else if (form_.rule != nn::UpdateRule::sgd) {
      state.first = zeros<float>(n);
      state.second = zeros<float>(n);
    }
    return state;
  }
  void copy(const T* from, T* to, std::size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream));
    moved_ += count * sizeof(T);
  }
  // Where the CPU writes a unit's new weights, from where they go up.
  T* weights_of(std::size_t unit, std::size_t slot) {
    if (units_.streamed()) return units_.mine(unit);
    return has_master() ? slots_[slot].weights.data() : weights_[unit].data();
  }

  // The first weights are the device's.
  void take_weights_of_device(std::size_t u) {
    T* const weights = weights_of(u, 0);
    if (!units_.streamed()) copy(units_.mine(u), weights, units_.count(u), cudaMemcpyDeviceToHost, context_.stream());
    context_.synchronize();
    moved_ = 0;
    if (!has_master()) return;
    const auto [first, last] = units_.pieces_of(u);
    for (std::size_t p = first; p < last; ++p) {
      const std::size_t at = units_.pieces()[p].offset - units_.begin(u);
      for (std::size_t i = 0; i < states_[p].master.size(); ++i)
        states_[p].master.data()[i] = static_cast<float>(weights[at + i]);
    }
  }

  // The gradients that are on their way are here now, or soon; the device has no need of them any more.
  void use_arrived() {
    if (!coming_) return;
    Slot& slot = slots_[coming_->slot];
    slot.arrived.synchronize();
    const Coming came = std::move(*coming_);
    coming_.reset();
    const bool collects = bool(sums_[came.unit]);
    if (collects) add_up(came);
    waiting_ = !came.last;
    if (waiting_) return;
    wait_for_slot(came.slot);
    start_update(came.unit, came.slot, collects ? sums_[came.unit].data() : slot.gradients.data(), 1.0f);
  }
  void add_up(const Coming& came) {
    if (planning()) return;
    const T* const more = slots_[came.slot].gradients.data();
    T* const sums = sums_[came.unit].data();
    for (std::size_t i = 0; i < units_.count(came.unit); ++i)
      sums[i] = came.accumulate ? static_cast<T>(static_cast<float>(sums[i]) + static_cast<float>(more[i])) : more[i];
  }
  // The weights of two units ago have gone up.
  void wait_for_slot(std::size_t s) {
    if (slots_[s].sending) slots_[s].sent.synchronize();
    slots_[s].sending = false;
  }
  void update_all(float factor) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      send_weights();
      const std::size_t slot = taken_++ % 2;
      wait_for_slot(slot);
      start_update(u, slot, sums_[u].data(), factor);
    }
    send_weights();
  }

  void start_update(std::size_t unit, std::size_t slot, const T* gradients, float factor) {
    updated_ = true;
    job_.emplace(Job{.unit = unit, .slot = slot});
    if (planning()) return;
    const nn::CpuStep step{form_, nn::adamw_factors(settings_.adamw, steps_ + 1), settings_.sgd.lr, factor};
    const std::size_t least = 1 << 14;  // fewer numbers are not worth a thread
    const std::size_t shares = std::clamp<std::size_t>(units_.count(unit) / least, 1, threads_);
    Job& job = *job_;
    job.threads.reserve(shares);
    job.begin_us = context_.ledger().now_us();
    for (std::size_t share = 0; share < shares; ++share)
      job.threads.emplace_back([this, &job, step, gradients, share, shares] {
        update(job, step, gradients, share, shares);
        if (share == 0) job.end_us = context_.ledger().now_us();
      });
  }
  // A thread's share of each piece: whole blocks of codes.
  void update(const Job& job, const nn::CpuStep& step, const T* gradients, std::size_t share, std::size_t shares) {
    const auto [first, last] = units_.pieces_of(job.unit);
    for (std::size_t p = first; p < last; ++p) {
      const std::size_t count = units_.pieces()[p].shape.count();
      const auto border = [&](std::size_t s) {
        return s == shares ? count : count * s / shares / nn::kCodeBlock * nn::kCodeBlock;
      };
      const std::size_t at = units_.pieces()[p].offset - units_.begin(job.unit);
      State& state = states_[p];
      const nn::TensorOnHost<T> tensor{.gradient = gradients + at,
                                       .weights = weights_of(job.unit, job.slot) + at,
                                       .master = state.master.data(),
                                       .first = state.first.data(),
                                       .second = state.second.data(),
                                       .codes = {state.codes[0].data(), state.codes[1].data()},
                                       .absmax = {state.absmax[0].data(), state.absmax[1].data()},
                                       .rounding_key = nn::rounding_key(settings_.seed, steps_ + 1, p)};
      nn::cpu_update(step, tensor, border(share), border(share + 1));
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
    const std::size_t unit = job_->unit;
    if (!planning())
      context_.ledger().note_processor_work("update of " + units_.name(unit), job_->begin_us, job_->end_us);
    if (!units_.streamed()) {
      if (has_master() && !planning()) clear_padding(unit, weights_of(unit, job_->slot));
      Slot& slot = slots_[job_->slot];
      slot.sending = true;
      copy(weights_of(unit, job_->slot), units_.mine(unit), units_.count(unit), cudaMemcpyHostToDevice, up_);
      slot.sent.record(up_);
    }
    job_.reset();
  }

  // A slot has had another unit's weights, where this one has nothing between its tensors.
  void clear_padding(std::size_t unit, T* weights) const {
    const auto [first, last] = units_.pieces_of(unit);
    for (std::size_t p = first; p < last; ++p) {
      const std::size_t end = units_.pieces()[p].offset + units_.pieces()[p].shape.count();
      const std::size_t next = p + 1 < last ? units_.pieces()[p + 1].offset : units_.begin(unit) + units_.count(unit);
      std::fill(weights + (end - units_.begin(unit)), weights + (next - units_.begin(unit)), T(0.0f));
    }
  }

  Context& context_;
  Units<T>& units_;
  nn::OptimizerForm form_;
  nn::OptimizerSettings settings_;
  unsigned threads_;
  std::vector<State> states_;             // of pieces
  std::vector<DeviceBuffer<T>> weights_;  // of units, where there is no master copy
  std::vector<DeviceBuffer<T>> sums_;     // of units, where gradients are added up
  Slot slots_[2];
  Stream down_, up_;
  Event computed_;
  std::optional<Coming> coming_;
  std::optional<Job> job_;
  std::size_t taken_ = 0, moved_ = 0;
  std::uint64_t steps_ = 0;
  bool waiting_ = false;  // gradients are here that are not used yet
  bool updated_ = false;  // an update of this step has begun
};

}  // namespace oomlab::train
