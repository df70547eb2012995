#pragma once
// What a rank of several does around the modules' calls: DistributedDataParallel's buckets, FSDP2's gathered weights,
// DeepSpeed's partitions. Part of huggingface.h.
//
// A unit is what is gathered at once: 0 the model with what no layer has, from 1 a layer.

#include <memory>
#include <vector>

#include "plan/pytorch/huggingface.h"

namespace oomlab::fit {

class HfUnits {
 public:
  virtual ~HfUnits() = default;
  /// A parameter that has no storage yet; its type is the one that the modules compute with. `first`: its first
  /// dimension, which is what is divided. `stored`: in which type it is kept. False: it is whole on every rank, and its
  /// storage is the caller's.
  virtual bool adopt(Parameter& parameter, std::uint64_t unit, std::uint64_t first, DType stored) = 0;
  /// After the last adopt().
  virtual void begin() {}
  virtual void before_forward(std::uint64_t) {}
  virtual void after_forward(std::uint64_t) {}
  virtual void before_backward(std::uint64_t) {}
  virtual void after_backward(std::uint64_t) {}
  /// A leaf has its gradient.
  virtual void accumulated(Parameter&) {}
  /// The end of a backward pass.
  virtual void end_backward() {}
  /// What this rank's optimizer updates: values, and their type.
  struct Updated {
    std::uint64_t count;
    DType dtype;
  };
  virtual std::vector<Updated> updated() const = 0;
  /// Before the optimizer's step.
  virtual void begin_update() {}
  /// optimizer.zero_grad(set_to_none=True).
  virtual void zero_gradients() {}
  /// Bytes in the memory of the rank's host.
  virtual std::uint64_t host_bytes() const { return 0; }
};

/// Of `step.ranks`. `width`: the model's, by which Trainer sizes DeepSpeed's buckets.
std::unique_ptr<HfUnits> make_units(TorchMemory& memory, const HfStep& step, std::uint64_t width);
/// hf_zero.cpp: the same of HfParallel::zero1 to zero3.
std::unique_ptr<HfUnits> make_zero_units(TorchMemory& memory, const HfStep& step, std::uint64_t width);

}  // namespace oomlab::fit
