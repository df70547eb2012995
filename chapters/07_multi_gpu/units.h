#pragma once
// A rank's parameters, gradients and optimizer state, in flat pieces that can be shared out: ZeRO.
//
// A unit is what is used together: the token table, the other embeddings, each layer, the head. Its tensors lie one
// behind the other (each on a multiple of 8 elements, so that every kernel may load 16 bytes), and the whole is padded
// to a multiple of 8·N, so that N ranks have equal shards. Per parameter, with E bytes per element and K bytes of
// optimizer state (FP32: 4 and 8; 16 bits: 2 and 12), a rank of N has
//
//   ZeRO-0 (plain data parallel)   E + E + K
//   ZeRO-1 shards the optimizer    E + E + K/N           sums its shard of the gradients, gathers the parameters
//   ZeRO-2 also the gradients      E + E/N + K/N         and one unit's whole gradients while they come into being
//   ZeRO-3 also the parameters     E/N + E/N + K/N       and the units at work

#include <optional>
#include <string>
#include <vector>

#include "cuda/dtype_of.h"
#include "cuda/nccl.h"
#include "nn/models/transformer.h"
#include "nn/models/units.h"
#include "nn/ops/residual.h"
#include "nn/ops/values.h"
#include "nn/optimizer/mixed_precision.h"
#include "plan/step.h"

namespace oomlab::multi_gpu {

using nn::UnitShape, nn::units_of;

/// The units of one rank, bound to its model.
template <class T>
class Units {
 public:
  /// Allocates and initialises. Throws OutOfMemory: nothing stays allocated.
  Units(Context& context, nn::Transformer<T>& model, Communicator& replicas, int zero, std::uint64_t seed)
      : context_(context), model_(model), replicas_(replicas), zero_(replicas.ranks() > 1 ? zero : 0) {
    const auto n = static_cast<std::size_t>(replicas.ranks());
    for (const UnitShape& shape : units_of(model.spec(), model.slice(), n)) {
      Unit unit{shape, shape.count / n, {}, {}, {}, {}};
      unit.values = context.buffer<T>(zero_ >= 3 ? unit.shard : shape.count, Category::parameters, shape.name);
      unit.gradients =
          context.buffer<T>(zero_ >= 2 ? unit.shard : shape.count, Category::gradients, shape.name + " gradient");
      DeviceBuffer<T> whole;
      if (zero_ >= 3) whole = context.buffer<T>(shape.count, Category::parameters, shape.name + " gathered");
      T* const values = zero_ >= 3 ? whole.data() : unit.values.data();
      clear(values, shape.count);
      for (std::size_t t = 0; t < shape.tensors.size(); ++t)
        model.initialise(context, shape.tensors[t], values + shape.offsets[t], seed);
      if (zero_ >= 3) copy(values + offset(unit), unit.values.data(), unit.shard);
      clear(unit.gradients.data(), unit.gradients.size());
      units_.push_back(std::move(unit));
      bind(units_.back());
    }
    std::vector<nn::ParameterOf<T>> mine;
    for (Unit& unit : units_)
      mine.push_back({unit.shape.name, unit.values.data() + (zero_ == 1 || zero_ == 2 ? offset(unit) : 0),
                      unit.gradients.data() + (zero_ == 1 ? offset(unit) : 0),
                      zero_ >= 1 ? unit.shard : unit.shape.count});
    optimizer_.emplace(context, mine, nn::LossScaling::none());
  }

  /// Makes a unit's parameters whole (ZeRO-3), and room for its whole gradients (ZeRO-2 and 3).
  void gather(std::string_view name) {
    Unit* unit = find(name);
    if (!unit || zero_ < 3) return;
    unit->whole = context_.buffer<T>(unit->shape.count, Category::parameters, unit->shape.name + " gathered");
    replicas_.all_gather(unit->values.data(), unit->whole.data(), unit->shard, context_.stream());
    bind(*unit);
  }
  void make_gradients(std::string_view name) {
    Unit* unit = find(name);
    if (!unit || zero_ < 2) return;
    unit->whole_gradients =
        context_.buffer<T>(unit->shape.count, Category::gradients, unit->shape.name + " gradient, whole");
    clear(unit->whole_gradients.data(), unit->shape.count);
    bind(*unit);
  }
  /// Gives that back; the gradients' sum over the replicas is kept, a shard of it (ZeRO-2 and 3).
  void release(std::string_view name) {
    if (Unit* unit = find(name)) unit->whole.reset();
  }
  void reduce_gradients(std::string_view name, bool accumulate) {
    Unit* unit = find(name);
    if (!unit || zero_ < 2) return;
    DeviceBuffer<T> more;
    if (accumulate)
      more = context_.buffer<T>(unit->shard, Category::gradients, unit->shape.name + " gradient, to be added");
    T* const shard = unit->gradients.data();
    replicas_.reduce_scatter(unit->whole_gradients.data(), accumulate ? more.data() : shard, unit->shard,
                             context_.stream());
    if (accumulate) nn::add_residual(context_, shard, more.data(), nullptr, shard, 1, unit->shard);
    unit->whole_gradients.reset();
  }
  /// Sums a unit's complete gradients over the replicas on `stream`: all of them (ZeRO-0), or of this rank's shard
  /// only (ZeRO-1), in place.
  void sum_gradients(std::string_view name, cudaStream_t stream) {
    Unit* unit = find(name);
    if (!unit || zero_ >= 2) return;
    T* const g = unit->gradients.data();
    if (zero_ == 0) replicas_.all_reduce(g, unit->shape.count, stream);
    if (zero_ == 1) replicas_.reduce_scatter(g, g + offset(*unit), unit->shard, stream);
  }

  /// One update, and what the replicas need of each other's (phase "optimizer").
  void step() {
    optimizer_->step(context_);
    if (zero_ != 1 && zero_ != 2) return;
    for (Unit& unit : units_)
      replicas_.all_gather(unit.values.data() + offset(unit), unit.values.data(), unit.shard, context_.stream());
  }

  /// A hash of this rank's parameters.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    for (const Unit& unit : units_)
      hash = nn::fingerprint(context_, unit.values.data(), unit.values.size() * sizeof(T), hash);
    return hash;
  }

  /// What this rank has of the gradient of tensor `i`, which has `count` elements, after a step; for tests.
  struct Piece {
    std::size_t first, count;  ///< elements of the tensor
    const T* data;
  };
  Piece gradient(std::size_t i, std::size_t count) const {
    for (const Unit& unit : units_)
      for (std::size_t t = 0; t < unit.shape.tensors.size(); ++t) {
        if (unit.shape.tensors[t] != i) continue;
        const std::size_t at = unit.shape.offsets[t];
        const std::size_t mine = zero_ ? offset(unit) : 0, end = mine + (zero_ ? unit.shard : unit.shape.count);
        const std::size_t first = std::max(at, mine), last = std::max(first, std::min(at + count, end));
        return {first - at, last - first, unit.gradients.data() + first - (zero_ >= 2 ? mine : 0)};
      }
    return {};
  }

 private:
  struct Unit {
    UnitShape shape;
    std::size_t shard;  // elements
    DeviceBuffer<T> values, gradients, whole, whole_gradients;
  };
  Unit* find(std::string_view name) {
    for (Unit& unit : units_)
      if (unit.shape.name == name) return &unit;
    return nullptr;
  }
  std::size_t offset(const Unit& unit) const { return std::size_t(replicas_.rank()) * unit.shard; }
  void clear(T* data, std::size_t count) { CUDA_CHECK(cudaMemsetAsync(data, 0, count * sizeof(T), context_.stream())); }
  void copy(const T* from, T* to, std::size_t count) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToDevice, context_.stream()));
  }
  void bind(Unit& unit) {
    T* const values = zero_ >= 3 ? unit.whole.data() : unit.values.data();
    T* const gradients = zero_ >= 2 ? unit.whole_gradients.data() : unit.gradients.data();
    for (std::size_t t = 0; t < unit.shape.tensors.size(); ++t)
      model_.bind(unit.shape.tensors[t], values ? values + unit.shape.offsets[t] : nullptr,
                  gradients ? gradients + unit.shape.offsets[t] : nullptr);
  }

  Context& context_;
  nn::Transformer<T>& model_;
  Communicator& replicas_;
  int zero_;
  std::vector<Unit> units_;
  std::optional<nn::ScaledOptimizer<T>> optimizer_;
};

}  // namespace oomlab::multi_gpu
