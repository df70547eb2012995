#pragma once
// Three places for a model's state: device memory, managed memory, and pinned host memory with explicit copies.

#include <array>

#include "layers.h"

namespace oomlab::unified_memory {

inline constexpr Option<bool> kOversubscribe{
    "oversubscribe", "Let managed memory exceed what the budget leaves on a GPU that others use, too"};

/// Of a layer's tensors.
inline constexpr Category kCategories[4] = {Category::parameters, Category::gradients, Category::optimizer,
                                            Category::optimizer};

// -------------------------------------------------------------------------------------------------------------- device

/// Everything in device memory, all the time: 16 bytes per parameter.
class OnDevice final : public Place {
 public:
  OnDevice(Context& context, const nn::MlpSpec& spec) {
    for (std::size_t l = 1; l <= spec.layers(); ++l) {
      const std::size_t count = layer_count(spec, l);
      layers_.push_back({context.buffer<float>(count, Category::parameters, "values"),
                         context.buffer<float>(count, Category::gradients, "gradients"),
                         context.buffer<float>(count, Category::optimizer, "first moments"),
                         context.buffer<float>(count, Category::optimizer, "second moments")});
      initialise(context, spec, l, tensors(l));
    }
  }
  LayerTensors arrive(std::size_t visit) override {
    return tensors(visit < layers_.size() ? visit + 1 : 2 * layers_.size() - visit);
  }
  const float* value(std::size_t l) override { return layers_[l - 1][0].data(); }

  static ByCategory predicted(const nn::MlpSpec& spec) {
    ByCategory bytes;
    bytes[Category::parameters] = bytes[Category::gradients] = state_bytes(spec);
    bytes[Category::optimizer] = checked_product(state_bytes(spec), 2);
    return bytes;
  }

 private:
  LayerTensors tensors(std::size_t l) {
    auto& b = layers_[l - 1];
    return {b[0].data(), b[1].data(), b[2].data(), b[3].data()};
  }
  std::vector<std::array<DeviceBuffer<float>, 4>> layers_;
};

// ------------------------------------------------------------------------------------------------------------- managed

/// Takes device memory until at most `leave` bytes are free, so that managed pages meet a small device on a large one.
/// It is made by the virtual memory calls because those commit memory without an address, and nobody touches it. In
/// pieces, because a device may not have so much in one.
class Ballast {
 public:
  explicit Ballast(std::size_t leave) {
    try {
      fill(leave);
    } catch (...) {
      release();
      throw;
    }
  }
  ~Ballast() { release(); }
  Ballast(const Ballast&) = delete;
  Ballast& operator=(const Ballast&) = delete;

 private:
  void fill(std::size_t leave) {
    CU_CHECK(cuInit(0));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUDA_CHECK(cudaGetDevice(&properties.location.id));
    std::size_t granule = 0, free = 0, total = 0;
    CU_CHECK(cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    if (free <= leave) return;
    std::size_t rest = std::min((free - leave + granule - 1) / granule, free / granule), piece = rest;  // granules
    while (rest) {
      CUmemGenericAllocationHandle handle{};
      handles_.reserve(handles_.size() + 1);  // what was made must find its place
      piece = std::min({piece, rest, std::max<std::size_t>(1, kLargestPiece / granule)});
      const CUresult made = cuMemCreate(&handle, piece * granule, &properties, 0);
      if (made == CUDA_ERROR_OUT_OF_MEMORY && piece > 1) {
        piece /= 2;
        continue;
      }
      if (made == CUDA_ERROR_OUT_OF_MEMORY) return;  // somebody has taken the rest meanwhile
      CU_CHECK(made);
      rest -= piece;
      handles_.push_back(handle);
    }
  }
  void release() noexcept {
    for (const auto handle : handles_) report_if_failed(static_cast<cudaError_t>(cuMemRelease(handle)), "cuMemRelease");
  }

  static constexpr std::size_t kLargestPiece = std::size_t(1) << 30;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

enum class Paging {
  on_demand,       ///< pages come when they are touched
  prefetch,        ///< the next visit's tensors are asked for while this one computes
  advice,          ///< what fits prefers the device; the rest prefers the host, and the device reads it from there
  read_mostly,     ///< values are copied to the device, not moved: a page that was only read leaves for free
  host_preferred,  ///< all of it prefers the host: nothing ever migrates
};

/// Everything in managed memory. Nothing of it is charged to the budget: the pages that are on the device are what
/// `room` bytes allow (kUnlimited: whatever the device has).
class Managed final : public Place {
 public:
  Managed(Context& context, const nn::MlpSpec& spec, Paging paging, std::size_t room)
      : context_(context), paging_(paging) {
    CUDA_CHECK(cudaGetDevice(&device_));
    refuse_what_cannot_be(spec, room);
    std::size_t left = room;
    for (std::size_t tensor = 0; tensor < 4; ++tensor)  // values first: they are needed twice a step
      for (std::size_t l = 1; l <= spec.layers(); ++l) {
        layers_.resize(spec.layers());
        auto& buffer = layers_[l - 1][tensor];
        buffer = DeviceBuffer<float>(context.host_memory().managed(), context.stream(), layer_count(spec, l),
                                     kCategories[tensor], "managed");
        const std::size_t piece = managed_piece();
        const bool fits = paging == Paging::advice && buffer.bytes() + piece <= left;
        if (fits && left != kUnlimited) left -= (buffer.bytes() + piece - 1) / piece * piece;
        advise(buffer, tensor, fits);
      }
    if (room != kUnlimited && !planning()) ballast_.emplace(room);
    for (std::size_t l = 1; l <= spec.layers(); ++l) initialise(context, spec, l, tensors(l));
  }
  ~Managed() override { report_if_failed(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  LayerTensors arrive(std::size_t visit) override {
    if (paging_ == Paging::prefetch) {
      if (visit == 0) prefetch(0);
      CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), fetched_));
      if (visit + 1 < 2 * layers_.size()) prefetch(visit + 1);
    }
    return tensors(layer(visit));
  }
  const float* value(std::size_t l) override { return layers_[l - 1][0].data(); }
  std::size_t bytes_in_place() const override { return bytes_in_place_; }

  static HostBytes predicted_on_host(const nn::MlpSpec& spec) {
    HostBytes bytes;
    for (const Category category : kCategories)
      bytes.managed[category] = checked_sum(bytes.managed[category], state_bytes(spec));
    return bytes;
  }

  /// Whether device memory may be taken away until only `capacity` is left: nobody else needs it, or the user says so.
  static bool may_oversubscribe(const Config& config, std::size_t capacity) {
    return config.options[kOversubscribe] || may_fill_device(config.device, capacity);
  }
  /// Bytes of managed memory that may be on the device: what `capacity` has left, or, where others may need the device,
  /// all that there is. Throws VariantSkipped where nothing would be left.
  static std::size_t room(const Config& config, Context& context, std::size_t capacity) {
    if (capacity == kUnlimited || !may_oversubscribe(config, capacity)) return kUnlimited;
    const std::size_t live = context.ledger().live_bytes();
    if (capacity < live + (std::size_t(1) << 20))
      throw VariantSkipped(fmt::format("{} leave no room for managed pages", format_bytes(capacity)));
    return capacity - live;
  }

 private:
  std::size_t layer(std::size_t visit) const { return visit < layers_.size() ? visit + 1 : 2 * layers_.size() - visit; }
  LayerTensors tensors(std::size_t l) {
    auto& b = layers_[l - 1];
    return {b[0].data(), b[1].data(), b[2].data(), b[3].data()};
  }
  cudaMemLocation here() const { return {cudaMemLocationTypeDevice, device_}; }

  void refuse_what_cannot_be(const nn::MlpSpec& spec, std::size_t room) const {
    if (planning()) return;
    int concurrent = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device_));
    if (!concurrent && room != kUnlimited)
      throw VariantSkipped("this device cannot hold less than all of its managed memory (Windows and WSL2 cannot)");
    if (!concurrent && paging_ != Paging::on_demand)
      throw VariantSkipped("this device takes no prefetch and no advice for managed memory (Windows and WSL2 do not)");
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const std::size_t needed = checked_product(state_bytes(spec), 4);
    if (room == kUnlimited && needed > free / 10 * 9)
      throw VariantSkipped(fmt::format("{} managed, {} free on the device; --oversubscribe allows more",
                                       format_bytes(needed), format_bytes(free)));
  }

  void advise(DeviceBuffer<float>& buffer, std::size_t tensor, bool fits) {
    const cudaMemLocation host{cudaMemLocationTypeHost, 0};
    const auto say = [&](cudaMemoryAdvise advice, cudaMemLocation where) {
      CUDA_CHECK(cudaMemAdvise(buffer.data(), buffer.bytes(), advice, where));
    };
    if (fits) {
      say(cudaMemAdviseSetPreferredLocation, here());
    } else if (paging_ == Paging::advice || paging_ == Paging::host_preferred) {
      say(cudaMemAdviseSetPreferredLocation, host);
      say(cudaMemAdviseSetAccessedBy, here());
      bytes_in_place_ += buffer.bytes() * (tensor == 0 ? 2 : 1);  // values are used twice a step
    } else if (paging_ == Paging::read_mostly && tensor == 0) {
      say(cudaMemAdviseSetReadMostly, here());
    }
  }

  // Ahead by one visit, and no more: what comes too early pushes out what is still needed. So it begins when the
  // kernels that are queued by now, those of the visits before, are done.
  void prefetch(std::size_t visit) {
    computed_.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(stream_, computed_));
    const bool forward = visit < layers_.size();
    auto& buffers = layers_[layer(visit) - 1];
    for (std::size_t tensor = 0; tensor < (forward ? 1 : 4); ++tensor)
      CUDA_CHECK(cudaMemPrefetchAsync(buffers[tensor].data(), buffers[tensor].bytes(), here(), 0, stream_));
    fetched_.record(stream_);
  }

  Context& context_;
  Paging paging_;
  int device_ = 0;
  std::size_t bytes_in_place_ = 0;
  std::vector<std::array<DeviceBuffer<float>, 4>> layers_;
  std::optional<Ballast> ballast_;
  Stream stream_;
  Event fetched_, computed_;
};

// ----------------------------------------------------------------------------------------------------- explicit copies

/// State in pinned host memory, and two slots on the device: while one layer computes in one slot, the next layer's
/// tensors arrive in the other, and the previous layer's go back, on a second stream.
class Streamed final : public Place {
 public:
  /// `weights_stay`: values and gradients stay on the device, only the optimizer's moments travel.
  Streamed(Context& context, const nn::MlpSpec& spec, bool weights_stay)
      : context_(context), spec_(spec), weights_stay_(weights_stay) {
    const std::size_t largest = largest_count(spec);
    for (Slot& slot : slots_)
      for (std::size_t tensor = first_in_slot(); tensor < 4; ++tensor)
        slot.tensors[tensor] = context.buffer<float>(largest, kCategories[tensor], "slot");
    home_.resize(spec.layers());
    for (std::size_t l = 1; l <= spec.layers(); ++l)
      for (std::size_t tensor = 0; tensor < 4; ++tensor) {
        const std::size_t count = layer_count(spec, l);
        if (weights_stay && tensor <= 1)
          home_[l - 1][tensor] = context.buffer<float>(count, kCategories[tensor], tensor ? "gradients" : "values");
        else if (tensor != 1)  // a gradient is used up where it was made
          home_[l - 1][tensor] = context.pinned<float>(count, kCategories[tensor], "pinned");
      }
    for (std::size_t l = 1; l <= spec.layers(); ++l) {
      initialise(context, spec, l, tensors(0, l));
      for (std::size_t tensor = 0; tensor < 4; ++tensor) copy(0, l, tensor, /*home=*/true, context.stream());
      context.synchronize();
    }
  }
  ~Streamed() override { report_if_failed(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  LayerTensors arrive(std::size_t visit) override {
    if (visit == 0) load(0);
    Slot& slot = slots_[visit % 2];
    CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), slot.loaded));
    if (visit + 1 < 2 * spec_.layers()) load(visit + 1);  // after the previous visit's copies back, on the same stream
    return tensors(visit % 2, layer(visit));
  }
  void leave(std::size_t visit) override {
    Slot& slot = slots_[visit % 2];
    slot.computed.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(stream_, slot.computed));
    if (visit < spec_.layers()) return;  // forward changes nothing
    for (std::size_t tensor = 0; tensor < 4; ++tensor) copy(visit % 2, layer(visit), tensor, /*home=*/true, stream_);
  }
  const float* value(std::size_t l) override { return home_[l - 1][0].data(); }

  static ByCategory predicted(const nn::MlpSpec& spec, bool weights_stay) {
    const std::size_t slot = round_to_granule(checked_product(largest_count(spec), sizeof(float)));
    ByCategory bytes;
    bytes[Category::parameters] = bytes[Category::gradients] = weights_stay ? state_bytes(spec) : 2 * slot;
    bytes[Category::optimizer] = 4 * slot;
    return bytes;
  }
  static HostBytes predicted_on_host(const nn::MlpSpec& spec, bool weights_stay) {
    HostBytes bytes;
    bytes.pinned[Category::parameters] = weights_stay ? 0 : state_bytes(spec);
    bytes.pinned[Category::optimizer] = checked_product(2, state_bytes(spec));
    return bytes;
  }

 private:
  struct Slot {
    std::array<DeviceBuffer<float>, 4> tensors;
    Event loaded, computed;
  };
  static std::size_t largest_count(const nn::MlpSpec& spec) {
    std::size_t largest = 0;
    for (std::size_t l = 1; l <= spec.layers(); ++l) largest = std::max(largest, layer_count(spec, l));
    return largest;
  }
  std::size_t layer(std::size_t visit) const { return visit < spec_.layers() ? visit + 1 : 2 * spec_.layers() - visit; }
  std::size_t first_in_slot() const { return weights_stay_ ? 2 : 0; }
  LayerTensors tensors(std::size_t slot, std::size_t l) {
    const auto at = [&](std::size_t tensor) {
      return tensor < first_in_slot() ? home_[l - 1][tensor].data() : slots_[slot].tensors[tensor].data();
    };
    return {at(0), at(1), at(2), at(3)};
  }
  void copy(std::size_t slot, std::size_t l, std::size_t tensor, bool home, cudaStream_t stream) {
    if (tensor < first_in_slot() || tensor == 1) return;
    float *const there = home_[l - 1][tensor].data(), *const here = slots_[slot].tensors[tensor].data();
    CUDA_CHECK(cudaMemcpyAsync(home ? there : here, home ? here : there, layer_count(spec_, l) * sizeof(float),
                               home ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
  }
  void load(std::size_t visit) {
    const bool forward = visit < spec_.layers();
    for (std::size_t tensor = 0; tensor < (forward ? 1 : 4); ++tensor)
      copy(visit % 2, layer(visit), tensor, /*home=*/false, stream_);
    slots_[visit % 2].loaded.record(stream_);
  }

  Context& context_;
  nn::MlpSpec spec_;
  bool weights_stay_;
  std::vector<std::array<DeviceBuffer<float>, 4>> home_;  // pinned, or on the device where the weights stay
  Slot slots_[2];
  Stream stream_;
};

}  // namespace oomlab::unified_memory
