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

enum class Loading { pageable, pinned, pinned_ahead };

/// A data loader: the host makes a batch (pixels as floats, cut or repeated to the model's width) in staging memory,
/// and copies it. Pinned memory makes the copy asynchronous. `pinned_ahead` has the next batch copied, on a second
/// stream and into a second device buffer, while this one computes.
class HostSource final : public BatchSource {
 public:
  HostSource(Context& context, const data::Dataset& dataset, std::size_t batch, std::size_t width, Loading loading)
      : context_(context), dataset_(dataset), width_(width), loading_(loading), pinned_memory_(pinned_, ledger_) {
    for (std::size_t i = 0; i < slots(loading); ++i) {
      slots_[i].batch = nn::make_batch(context, batch, width);
      if (loading == Loading::pageable) {
        slots_[i].pageable.resize(planning() ? 0 : checked_product(batch, width + 1));
      } else {
        const cudaStream_t copies = loading == Loading::pinned ? context.stream() : cudaStream_t(stream_);
        slots_[i].pinned =
            DeviceBuffer<float>(pinned_memory_, copies, checked_product(batch, width + 1), Category::data, "staging");
      }
    }
  }
  ~HostSource() override { report_if_failed(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  Views next() override {
    Slot& slot = slots_[turn_];
    if (loading_ != Loading::pinned_ahead) {
      load(slot, context_.stream());
    } else {
      if (first_ == 0) load(slot, stream_);
      Slot& following = slots_[turn_ = 1 - turn_];
      CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), slot.loaded));
      // Work of the step before this one, the last that used the other slot, is all that is queued by now.
      used_.record(context_.stream());
      CUDA_CHECK(cudaStreamWaitEvent(stream_, used_));
      load(following, stream_);
    }
    return {slot.batch.input.data(), slot.batch.labels.data()};
  }
  std::size_t outside_bytes() const override { return ledger_.live_bytes(); }

  static ByCategory predicted(std::size_t batch, std::size_t width, Loading loading) {
    ByCategory bytes;
    bytes[Category::activations] = checked_product(
        round_to_granule(checked_product(checked_product(batch, width), sizeof(float))), slots(loading));
    bytes[Category::data] = checked_product(round_to_granule(checked_product(batch, sizeof(int))), slots(loading));
    return bytes;
  }

 private:
  struct Slot {
    nn::Batch batch;
    std::vector<float> pageable;
    DeviceBuffer<float> pinned;
    Event loaded;
  };
  static std::size_t slots(Loading loading) { return loading == Loading::pinned_ahead ? 2 : 1; }

  void load(Slot& slot, cudaStream_t stream) {
    const std::size_t rows = slot.batch.size;
    float* const staging = slot.pinned ? slot.pinned.data() : slot.pageable.data();
    if (planning()) return;
    slot.loaded.synchronize();  // the copy before this one has read the staging memory
    int* const labels = reinterpret_cast<int*>(staging + rows * width_);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t image = (first_ + row) % dataset_.count;
      const std::uint8_t* const pixels = dataset_.images.data() + image * dataset_.pixels();
      for (std::size_t i = 0; i < width_; ++i)
        staging[row * width_ + i] = float(pixels[i % dataset_.pixels()]) / float(dataset_.white);
      labels[row] = dataset_.labels[image];
    }
    first_ += rows;
    CUDA_CHECK(cudaMemcpyAsync(slot.batch.input.data(), staging, rows * width_ * sizeof(float), cudaMemcpyHostToDevice,
                               stream));
    CUDA_CHECK(cudaMemcpyAsync(slot.batch.labels.data(), staging + rows * width_, rows * sizeof(int),
                               cudaMemcpyHostToDevice, stream));
    slot.loaded.record(stream);
  }

  Context& context_;
  const data::Dataset& dataset_;
  std::size_t width_;
  Loading loading_;
  Ledger ledger_;
  PinnedResource pinned_;
  TrackingResource pinned_memory_;
  Stream stream_;
  Slot slots_[2];
  Event used_;
  std::size_t turn_ = 0, first_ = 0;
};

}  // namespace oomlab::unified_memory
