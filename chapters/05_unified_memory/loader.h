#pragma once
// Where the batches come from: a dataset on the device, or host memory, pageable or pinned, copied in time or ahead.

#include "layers.h"

namespace oomlab::unified_memory {

/// The whole dataset on the device, one byte a pixel: the batch is made there.
class DeviceSource final : public BatchSource {
 public:
  DeviceSource(Context& context, const data::Dataset& dataset, std::size_t batch, std::size_t width)
      : context_(context), images_(context, dataset), batch_(nn::make_batch(context, batch, width)) {}
  Views next() override {
    images_.batch(context_, first_, batch_.size, batch_.input.size() / batch_.size, batch_.input.data(),
                  batch_.labels.data());
    first_ += batch_.size;
    return {batch_.input.data(), batch_.labels.data()};
  }
  static ByCategory predicted(const data::Dataset& dataset, std::size_t batch, std::size_t width) {
    ByCategory bytes;
    bytes[Category::activations] = round_to_granule(checked_product(checked_product(batch, width), sizeof(float)));
    bytes[Category::data] =
        checked_sum(round_to_granule(checked_product(batch, sizeof(int))), data::device_bytes(dataset));
    return bytes;
  }

 private:
  Context& context_;
  data::DeviceDataset images_;
  nn::Batch batch_;
  std::size_t first_ = 0;
};

enum class Loading { pageable, pinned, pinned_ahead, queued };

/// A data loader: the host makes a batch (pixels as floats, cut or repeated to the model's width) in staging memory,
/// and copies it. Pinned memory makes the copy asynchronous. `pinned_ahead` has the next batch copied, on a second
/// stream and into a second device buffer, while this one computes. `queued` has more batches ready in pinned memory,
/// as many as kWorkers processes of PyTorch's loader with a prefetch_factor of kPrefetchFactor would have.
class HostSource final : public BatchSource {
 public:
  static constexpr std::size_t kWorkers = 4, kPrefetchFactor = 2;

  HostSource(Context& context, const data::Dataset& dataset, std::size_t batch, std::size_t width, Loading loading)
      : context_(context), dataset_(dataset), width_(width), loading_(loading) {
    for (std::size_t i = 0; i < device_batches(loading); ++i) slots_[i].batch = nn::make_batch(context, batch, width);
    if (device_batches(loading) > 1) {  // memory from one stream is the other's once it is there
      used_.record(context.stream());
      CUDA_CHECK(cudaStreamWaitEvent(stream_, used_));
    }
    staging_.resize(host_batches(loading));
    for (Staging& staging : staging_) {
      HostMemory& host = context.host_memory();
      staging.data = DeviceBuffer<float>(loading == Loading::pageable ? host.pageable() : host.pinned(), copies(),
                                         checked_product(batch, width + 1), Category::data, "staging");
    }
  }
  ~HostSource() override { report_if_failed(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  Views next() override {
    Slot& slot = slots_[turn_];
    if (device_batches(loading_) == 1) {
      load(slot);
    } else {
      if (copied_ == 0) load(slot);
      Slot& following = slots_[turn_ = 1 - turn_];
      CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), slot.loaded));
      // Work of the step before this one, the last that used the other slot, is all that is queued by now.
      used_.record(context_.stream());
      CUDA_CHECK(cudaStreamWaitEvent(stream_, used_));
      load(following);
    }
    return {slot.batch.input.data(), slot.batch.labels.data()};
  }

  static ByCategory predicted(std::size_t batch, std::size_t width, Loading loading) {
    ByCategory bytes;
    bytes[Category::activations] = checked_product(
        round_to_granule(checked_product(checked_product(batch, width), sizeof(float))), device_batches(loading));
    bytes[Category::data] =
        checked_product(round_to_granule(checked_product(batch, sizeof(int))), device_batches(loading));
    return bytes;
  }
  /// Host memory for staging, pinned or not: so many batches, each with its labels.
  static HostBytes predicted_on_host(std::size_t batch, std::size_t width, Loading loading) {
    HostBytes bytes;
    ByCategory& kind = loading == Loading::pageable ? bytes.pageable : bytes.pinned;
    kind[Category::data] = checked_product(
        round_to_granule(checked_product(checked_product(batch, width + 1), sizeof(float))), host_batches(loading));
    return bytes;
  }

 private:
  struct Slot {
    nn::Batch batch;
    Event loaded;
  };
  struct Staging {
    DeviceBuffer<float> data;
    Event copied;
  };
  static std::size_t device_batches(Loading loading) {
    return loading == Loading::pageable || loading == Loading::pinned ? 1 : 2;
  }
  static std::size_t host_batches(Loading loading) {
    return loading == Loading::queued ? kWorkers * kPrefetchFactor : device_batches(loading);
  }
  cudaStream_t copies() const { return device_batches(loading_) == 1 ? context_.stream() : cudaStream_t(stream_); }

  // The host makes the next batch in the next staging buffer, once the copy before has read that.
  void fill() {
    Staging& staging = staging_[filled_ % staging_.size()];
    staging.copied.synchronize();
    const std::size_t rows = slots_[0].batch.size;
    float* const pixels = staging.data.data();
    int* const labels = reinterpret_cast<int*>(pixels + rows * width_);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t image = (filled_ * rows + row) % dataset_.count;
      const std::uint8_t* const bytes = dataset_.images.data() + image * dataset_.pixels();
      for (std::size_t i = 0; i < width_; ++i)
        pixels[row * width_ + i] = float(bytes[i % dataset_.pixels()]) / float(dataset_.white);
      labels[row] = dataset_.labels[image];
    }
    ++filled_;
  }
  void load(Slot& slot) {
    if (planning()) return;
    if (filled_ == copied_) fill();
    Staging& staging = staging_[copied_++ % staging_.size()];
    const std::size_t pixels = slot.batch.size * width_;
    CUDA_CHECK(cudaMemcpyAsync(slot.batch.input.data(), staging.data.data(), pixels * sizeof(float),
                               cudaMemcpyHostToDevice, copies()));
    CUDA_CHECK(cudaMemcpyAsync(slot.batch.labels.data(), staging.data.data() + pixels, slot.batch.size * sizeof(int),
                               cudaMemcpyHostToDevice, copies()));
    slot.loaded.record(copies());
    staging.copied.record(copies());
    while (filled_ + 1 < copied_ + staging_.size()) fill();  // all but the one that is being copied
  }

  Context& context_;
  const data::Dataset& dataset_;
  std::size_t width_;
  Loading loading_;
  Stream stream_;
  Slot slots_[2];
  std::vector<Staging> staging_;
  Event used_;
  std::size_t turn_ = 0, filled_ = 0, copied_ = 0;  // filled_, copied_: batches so far
};

}  // namespace oomlab::unified_memory
