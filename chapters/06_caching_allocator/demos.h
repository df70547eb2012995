#pragma once
// What a table of training runs does not show: the requests of large models, and the small print of freeing. All but
// empty_cache_with_live_blocks() is over memory that is counted and does not exist, so a laptop can do it, in a moment.

#include <span>

#include "best_fit.h"
#include "caching_allocator.h"
#include "memory/device_buffer.h"
#include "nn/models/transformer.h"

namespace oomlab::caching_allocator {

/// A device of any size that hands out addresses, with no memory behind them, and counts what it is asked.
class CountedDevice final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t) override {
    ++allocations_;
    reserved_ += bytes;
    peak_ = std::max(peak_, reserved_);
    return reinterpret_cast<void*>(std::exchange(next_, next_ + round_to_granule(bytes) + kGranule));
  }
  void deallocate(void* address, std::size_t bytes, cudaStream_t) noexcept override {
    if (!address) return;
    ++frees_;
    reserved_ -= bytes;
  }
  std::size_t reserved_bytes() const override { return reserved_; }
  std::size_t reserved_peak() const { return peak_; }
  std::size_t driver_calls() const { return allocations_ + frees_; }  ///< cudaMalloc and cudaFree

 private:
  std::size_t next_ = kGranule, reserved_ = 0, peak_ = 0, allocations_ = 0, frees_ = 0;
};

/// Best fit over a counted device, and the tensors that come from it.
struct CountedBestFit {
  explicit CountedBestFit(std::size_t limit = kUnlimited) : memory(limit, &device), tracked(memory, ledger) {}
  DeviceBuffer<std::byte> tensor(std::size_t bytes, const char* tag = "tensor") {
    return DeviceBuffer<std::byte>(tracked, nullptr, bytes, Category::activations, tag);
  }
  CountedDevice device;
  BestFitAllocator memory;
  Ledger ledger;
  TrackingResource tracked;
};

// ------------------------------------------------------------------------------------------------- training, replayed

/// What training asks an allocator for, in the order of a transformer that keeps every activation: the state, then for
/// each step, of the given length, its layers forward and backward.
class TrainingRequests {
 public:
  TrainingRequests(CountedBestFit& from, const nn::TransformerSpec& spec, std::size_t batch)
      : from_(from), spec_(spec), batch_(batch) {
    for (int copy = 0; copy < 4; ++copy)  // values, gradients, two moments
      for (const nn::TensorShape& tensor : nn::tensors_of(spec))
        state_.push_back(from.tensor(tensor.count() * sizeof(float), "state"));
  }

  void step(std::size_t seq) {
    const std::size_t rows = batch_ * seq, stream = rows * spec_.width, scores = batch_ * spec_.heads * seq * seq;
    const auto tokens = floats(rows), labels = floats(rows);
    std::vector<Tensor> inputs;
    std::vector<std::vector<Tensor>> kept(spec_.layers);
    inputs.push_back(floats(stream));
    for (auto& layer : kept) {
      for (const std::size_t count : {stream, rows, rows, 3 * stream, scores, stream, stream, stream, rows, rows,
                                      4 * stream, 4 * stream})  // norm, Q K V, scores, attention, sum, norm, MLP
        layer.push_back(floats(count));
      inputs.push_back(floats(stream));
    }
    Tensor gradient;
    {
      const auto normed = floats(stream), logits = floats(rows * spec_.vocabulary), losses = floats(rows);
      gradient = floats(stream);
    }
    for (std::size_t l = spec_.layers; l-- > 0;) {
      inputs.pop_back();
      std::vector<Tensor>& layer = kept[l];
      const auto hidden = floats(4 * stream);
      layer.resize(10);  // the MLP's
      const auto below = floats(stream);
      const auto attention = floats(scores), qkv = floats(3 * stream);
      layer.clear();
    }
  }

 private:
  using Tensor = DeviceBuffer<std::byte>;
  Tensor floats(std::size_t count) { return from_.tensor(count * sizeof(float)); }
  CountedBestFit& from_;
  nn::TransformerSpec spec_;
  std::size_t batch_;
  std::vector<Tensor> state_;
};

/// Two rounds of steps, of these lengths, through best fit under a limit; empty_cache() after each `empty_every` steps
/// (0: never).
struct Replayed {
  bool survived = true;
  std::size_t live_peak = 0, reserved_peak = 0;  ///< bytes
  std::size_t driver_calls = 0;
};
inline Replayed replay(const nn::TransformerSpec& spec, std::size_t batch, std::span<const std::size_t> lengths,
                       std::size_t limit = kUnlimited, std::size_t empty_every = 0) {
  Replayed result;
  CountedBestFit from(limit);
  try {
    TrainingRequests training(from, spec, batch);
    for (std::size_t k = 0; k < 2 * lengths.size(); ++k) {
      training.step(lengths[k % lengths.size()]);
      if (empty_every && (k + 1) % empty_every == 0) from.memory.empty_cache();
    }
  } catch (const OutOfMemory&) {
    result.survived = false;
  }
  result.live_peak = from.ledger.peak_bytes();
  result.reserved_peak = from.device.reserved_peak();
  result.driver_calls = from.device.driver_calls();
  return result;
}

/// The smallest limit, in steps of 2 MiB, under which the same steps survive.
inline std::size_t smallest_limit(const nn::TransformerSpec& spec, std::size_t batch,
                                  std::span<const std::size_t> lengths) {
  constexpr std::size_t kStep = std::size_t(2) << 20;
  const Replayed unlimited = replay(spec, batch, lengths);
  std::size_t low = unlimited.live_peak / kStep - 1, high = unlimited.reserved_peak / kStep + 1;
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (replay(spec, batch, lengths, middle * kStep).survived ? high : low) = middle;
  }
  return high * kStep;
}

// --------------------------------------------------------------------------------------------------- del, gc.collect()

/// Peak of a chain of eight layers' outputs of 4 MiB, each needed only by the next one. In Python `x = layer(x)` keeps
/// the old x until the new one is there; one more name that still refers to the x before (`early` is false: it lacks
/// its `del`) keeps three alive.
inline std::size_t chain_peak(bool early) {
  constexpr std::size_t kTensor = std::size_t(4) << 20;
  CountedBestFit from;
  DeviceBuffer<std::byte> x = from.tensor(kTensor), before;
  for (int layer = 0; layer < 8; ++layer) {
    if (early) before.reset();  // what the last layer read is of no use any more
    auto y = from.tensor(kTensor);
    before = std::move(x);
    x = std::move(y);
  }
  return from.ledger.peak_bytes();
}

/// Two tensors of 4 MiB whose owners refer to each other, or not: bytes live once nobody refers to them any more
/// (`del`), and after the cycle is broken, which is what gc.collect() does.
struct Collected {
  std::size_t after_del = 0, after_collect = 0;
};
inline Collected two_tensors(bool in_a_cycle) {
  struct Owner {
    DeviceBuffer<std::byte> tensor;
    std::shared_ptr<Owner> other;
  };
  CountedBestFit from;
  auto a = std::make_shared<Owner>(Owner{from.tensor(std::size_t(4) << 20), {}});
  auto b = std::make_shared<Owner>(Owner{from.tensor(std::size_t(4) << 20), {}});
  if (in_a_cycle) a->other = b, b->other = a;
  const std::weak_ptr<Owner> seen = a;
  a.reset(), b.reset();
  Collected result;
  result.after_del = from.ledger.live_bytes();
  if (const auto owner = seen.lock()) owner->other.reset();
  result.after_collect = from.ledger.live_bytes();
  return result;
}

// -------------------------------------------------------------------------------------------------------- empty_cache

/// x of 512 x 4096 floats and its product with its own transpose, 512 x 512: what best fit has live and reserved, and
/// what it reserves after `del x` and empty_cache(), and after `del` of the product, too.
struct Printout {
  std::size_t x = 0, both = 0, reserved = 0, without_x = 0, without_both = 0;  ///< bytes
};
inline Printout printout() {
  CountedBestFit from;
  Printout result;
  auto x = from.tensor(512 * 4096 * sizeof(float));
  result.x = from.ledger.live_bytes();
  auto product = from.tensor(512 * 512 * sizeof(float));
  result.both = from.ledger.live_bytes();
  result.reserved = from.memory.reserved_bytes();
  x.reset();
  from.memory.empty_cache();
  result.without_x = from.memory.reserved_bytes();
  product.reset();
  from.memory.empty_cache();
  result.without_both = from.memory.reserved_bytes();
  return result;
}

/// What empty_cache() of the page allocator gives back while one small tensor in 8 MiB is live. Nothing where the
/// device does not have 40 MiB.
struct Emptied {
  std::size_t reserved = 0, live = 0, given = 0;  ///< bytes
};
inline std::optional<Emptied> empty_cache_with_live_blocks() {
  constexpr std::size_t kLarge = std::size_t(8) << 20, kCount = 4;
  try {
    const Stream stream;
    CachingAllocator memory;
    Ledger ledger;
    TrackingResource tracked(memory, ledger);
    DeviceBuffer<std::byte> large[kCount], small[kCount];
    for (std::size_t i = 0; i < kCount; ++i) {
      large[i] = DeviceBuffer<std::byte>(tracked, stream, kLarge, Category::workspace, "large");
      small[i] = DeviceBuffer<std::byte>(tracked, stream, kGranule, Category::workspace, "small");
    }
    for (auto& buffer : large) buffer.reset();
    Emptied result{memory.reserved_bytes(), memory.live_bytes(), 0};
    result.given = memory.empty_cache();
    return result;
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
}

}  // namespace oomlab::caching_allocator
