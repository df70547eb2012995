#pragma once
// A rank's parameters and gradients, in flat pieces that can be shared out (ZeRO) and given back.
//
// A unit is what is used together: the token table, the other embeddings, each layer, the head. Its tensors lie one
// behind the other (each on a multiple of 8 elements, so that every kernel may load 16 bytes), and the whole is padded
// to a multiple of 8·N, so that N ranks have equal shards. Per parameter, with E bytes per element and K bytes of
// optimizer state, a rank of N has
//
//   ZeRO-0 (plain data parallel)   E + E + K
//   ZeRO-1 shards the optimizer    E + E + K/N           sums its shard of the gradients, gathers the parameters
//   ZeRO-2 also the gradients      E + E/N + K/N         and one unit's whole gradients while they come into being
//   ZeRO-3 also the parameters     E/N + E/N + K/N       and the units at work
//
// Gradients that are used as soon as they are there (GradientLife) are a unit's alone, in all of these. Weights that are
// streamed lie in pinned host memory, this rank's share of them; a unit at work has its own on the device, and the next
// one's come beside it, on a stream of their own.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/nccl.h"
#include "nn/models/transformer.h"
#include "nn/models/units.h"
#include "nn/ops/residual.h"
#include "nn/ops/values.h"
#include "plan/step.h"

namespace oomlab::train {

/// Tensors of a rank, which lie in units, and who uses them.
template <class T>
struct UnitTensors {
  std::vector<nn::TensorShape> shapes;
  std::vector<nn::UnitShape> units;
  /// Where tensor i is from now on, and its gradient; null: not now.
  std::function<void(std::size_t i, T* value, T* gradient)> bind;
  /// Writes what tensor i is at first.
  std::function<void(Context&, std::size_t i, T* value)> initialise;
};
/// All tensors of a model's slice. Where its parts share out rows, those of norms come first in their units, but for the
/// head's, which has all rows. The model must outlive what is returned.
template <class T>
UnitTensors<T> tensors_of_model(nn::Transformer<T>& model, std::size_t shards, std::uint64_t seed) {
  const std::vector<nn::TensorShape> shapes = nn::tensors_of(model.spec(), model.slice());
  const auto is_norm = [&](std::size_t i) {
    const bool norm = shapes[i].name.ends_with(" gamma") || shapes[i].name.ends_with(" beta");
    return model.row_shares() > 1 && norm && shapes[i].unit != "head";
  };
  return {.shapes = shapes,
          .units = nn::units_of(
              shapes, shards, [&](std::size_t i) { return shapes[i].count(); }, is_norm),
          .bind = [&model](std::size_t i, T* value, T* gradient) { model.bind(i, value, gradient); },
          .initialise = [&model, seed](Context& context, std::size_t i,
                                       T* value) { model.initialise(context, i, value, seed); }};
}

/// The units of one rank, bound to its model.
template <class T>
class Units {
 public:
  /// What an optimizer updates: a tensor, or this rank's shard of a unit as one vector.
  struct Piece {
    nn::TensorShape shape;
    std::size_t unit;    ///< its number
    std::size_t offset;  ///< of its first element, in the unit
  };

  /// Allocates and initialises; `streamed`: the weights in host memory. Without `trained` there are no gradients, and
  /// nothing to update. Throws OutOfMemory: nothing stays allocated.
  Units(Context& context, UnitTensors<T> tensors, Communicator& replicas, int zero, nn::GradientLife gradients,
        bool streamed = false, bool trained = true)
      : context_(context),
        tensors_(std::move(tensors)),
        replicas_(replicas),
        zero_(replicas.ranks() > 1 ? zero : 0),
        gradients_(gradients),
        streamed_(streamed),
        trained_(trained) {
    const auto n = static_cast<std::size_t>(replicas.ranks());
    for (const nn::UnitShape& shape : tensors_.units) {
      Unit unit{shape, shape.count / n, {}, {}, {}, {}, {}, {}};
      const std::size_t own = zero_ >= 3 ? unit.shard : shape.count;
      unit.values = streamed ? context.pinned<T>(own, Category::parameters, shape.name)
                             : context.buffer<T>(own, Category::parameters, shape.name);
      if (keeps_gradients())
        unit.gradients =
            context.buffer<T>(zero_ >= 2 ? unit.shard : shape.count, Category::gradients, shape.name + " gradient");
      DeviceBuffer<T> whole;
      if (comes_and_goes()) whole = context.buffer<T>(shape.count, Category::parameters, shape.name + " gathered");
      T* const values = comes_and_goes() ? whole.data() : unit.values.data();
      clear(values, shape.count);
      for (std::size_t t = 0; t < shape.tensors.size(); ++t)
        tensors_.initialise(context, shape.tensors[t], values + shape.offsets[t]);
      if (comes_and_goes()) copy(values + (zero_ >= 3 ? shard_begin(unit) : 0), unit.values.data(), own);
      if (keeps_gradients()) clear(unit.gradients.data(), unit.gradients.size());
      units_.push_back(std::move(unit));
      bind(units_.back());
    }
    make_pieces();
  }

  // ---------------------------------------------------------------------------------------------------- an optimizer's

  const std::vector<Piece>& pieces() const { return pieces_; }
  std::vector<nn::TensorShape> shapes() const {
    std::vector<nn::TensorShape> all;
    for (const Piece& piece : pieces_) all.push_back(piece.shape);
    return all;
  }
  /// Where the pieces' parameters are.
  std::vector<T*> values() {
    std::vector<T*> all;
    for (const Piece& piece : pieces_) all.push_back(mine(units_[piece.unit]) + (piece.offset - begin(piece.unit)));
    return all;
  }
  /// Numbers of a unit's pieces: first and one behind the last.
  std::pair<std::size_t, std::size_t> pieces_of(std::size_t unit) const {
    const auto at = [](const Piece& piece) { return piece.unit; };
    const auto range = std::ranges::equal_range(pieces_, unit, {}, at);
    return {std::size_t(range.begin() - pieces_.begin()), std::size_t(range.end() - pieces_.begin())};
  }
  std::size_t size() const { return units_.size(); }
  /// Whether a micro-batch's gradients are added up over ranks before the next one's are there. Otherwise they all add up in
  /// place first.
  bool keeps_micro_batches_apart() const { return !always() || zero_ >= 2; }
  /// Whether the weights, and so mine(), are in host memory.
  bool streamed() const { return streamed_; }
  /// The number of the unit of this name, or size().
  std::size_t number(std::string_view name) const {
    std::size_t u = 0;
    while (u < units_.size() && units_[u].shape.name != name) ++u;
    return u;
  }
  const std::string& name(std::size_t unit) const { return units_[unit].shape.name; }
  /// What this rank updates of a unit: from which element on, and how many.
  std::size_t begin(std::size_t unit) const { return zero_ ? shard_begin(units_[unit]) : 0; }
  std::size_t count(std::size_t unit) const { return zero_ ? units_[unit].shard : units_[unit].shape.count; }
  /// Its parameters there, and what it has of their gradients after the backward pass.
  T* mine(std::size_t unit) { return mine(units_[unit]); }
  T* my_gradients(std::size_t unit) {
    Unit& u = units_[unit];
    T* const whole = always() ? u.gradients.data() : u.whole_gradients.data();
    const bool is_shard = always() && zero_ >= 2;
    return is_shard ? whole : whole + begin(unit);
  }

  // ------------------------------------------------------------------------------------------------------------ a pass

  /// Makes a unit's parameters whole (ZeRO-3), or brings them from the host.
  void gather(std::string_view name) {
    Unit* unit = find(name);
    if (!unit || !comes_and_goes()) return;
    if (streamed_) {
      if (!unit->upload) begin_upload(*unit);
      CUDA_CHECK(cudaStreamWaitEvent(context_.stream(), unit->arrived));
    }
    if (streamed_ && zero_ < 3) {
      unit->whole = std::move(unit->upload);
      bind(*unit);
      return;
    }
    unit->whole = context_.buffer<T>(unit->shape.count, Category::parameters, unit->shape.name + " gathered");
    const T* const shard = streamed_ ? unit->upload.data() : unit->values.data();
    replicas_.all_gather(shard, unit->whole.data(), unit->shard, context_.stream());
    unit->upload.reset();
    bind(*unit);
  }
  /// Begins to bring a unit's parameters that will be gathered next.
  void prefetch(std::string_view name) {
    Unit* unit = find(name);
    if (unit && streamed_ && !unit->upload) begin_upload(*unit);
  }
  /// Gives that back.
  void release(std::string_view name) {
    if (Unit* unit = find(name)) unit->whole.reset();
  }
  /// Room for a unit's whole gradients, where it is not always there.
  void make_gradients(std::string_view name) {
    Unit* unit = find(name);
    if (!unit || !trained_ || (always() && zero_ < 2) || unit->whole_gradients) return;
    unit->whole_gradients =
        context_.buffer<T>(unit->shape.count, Category::gradients, unit->shape.name + " gradient, whole");
    clear(unit->whole_gradients.data(), unit->shape.count);
    bind(*unit);
  }
  /// Of a unit whose backward pass of a micro-batch is over: this rank's shard of the sum over the replicas is kept
  /// (ZeRO-2 and 3), and the room given back.
  void reduce_to_shard(std::string_view name, bool accumulate) {
    Unit* unit = find(name);
    if (!unit || !always() || zero_ < 2) return;
    DeviceBuffer<T> more;
    if (accumulate)
      more = context_.buffer<T>(unit->shard, Category::gradients, unit->shape.name + " gradient, to be added");
    T* const shard = unit->gradients.data();
    replicas_.reduce_scatter(unit->whole_gradients.data(), accumulate ? more.data() : shard, unit->shard,
                             context_.stream());
    if (accumulate) nn::add_residual(context_, shard, more.data(), nullptr, shard, 1, unit->shard);
    unit->whole_gradients.reset();
  }
  /// Sums a unit's complete gradients over the replicas on `stream`, in place: all of them (ZeRO-0), or of this rank's
  /// shard only. Of gradients that are always there ZeRO-2 and 3 have done so.
  void sum_gradients(std::string_view name, cudaStream_t stream) {
    Unit* unit = find(name);
    if (!unit || (always() && zero_ >= 2)) return;
    T* const g = always() ? unit->gradients.data() : unit->whole_gradients.data();
    if (zero_ == 0)
      replicas_.all_reduce(g, unit->shape.count, stream);
    else
      replicas_.reduce_scatter(g, g + shard_begin(*unit), unit->shard, stream);
  }
  /// A unit's whole gradients, which the caller owns from now on.
  DeviceBuffer<T> hand_over(std::size_t unit) {
    DeviceBuffer<T> gradients = std::move(units_[unit].whole_gradients);
    bind(units_[unit]);
    return gradients;
  }
  /// What the two stages of a pipeline that have a tied token table must add up: where it is, and how many elements.
  std::pair<T*, std::size_t> shared_token() {
    const std::size_t unit = number("token");
    if (zero_ >= 1) return {my_gradients(unit), units_[unit].shard};
    Unit& token = units_[unit];
    T* const gradients = always() ? token.gradients.data() : token.whole_gradients.data();
    return {gradients + token.shape.offsets[0], tensors_.shapes[token.shape.tensors[0]].count()};
  }
  /// The gradients at the beginning of a unit: of the tensors that come first there, and how many elements.
  std::pair<T*, std::size_t> first_gradients(std::string_view name) {
    Unit* const unit = find(name);
    const bool kept = always() && zero_ < 2;
    return {kept ? unit->gradients.data() : unit->whole_gradients.data(), unit->shape.first};
  }
  /// What the replicas need of each other's updates (ZeRO-1 and 2).
  void gather_updates(std::size_t unit) {
    if (zero_ != 1 && zero_ != 2) return;
    Unit& u = units_[unit];
    replicas_.all_gather(u.values.data() + shard_begin(u), u.values.data(), u.shard, context_.stream());
  }
  /// What a step that failed has left.
  void clear_pass() noexcept {
    if (streamed_) report_if_failed(cudaStreamSynchronize(copies_), "cudaStreamSynchronize");
    for (Unit& unit : units_) {
      unit.upload.reset();
      unit.whole.reset();
      unit.whole_gradients.reset();
      bind(unit);
    }
  }

  /// A hash of this rank's parameters.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    for (const Unit& unit : units_) {
      DeviceBuffer<T> from_host;
      if (streamed_) {
        from_host = context_.buffer<T>(unit.values.size(), Category::parameters, unit.shape.name);
        copy(unit.values.data(), from_host.data(), unit.values.size());
      }
      const T* const values = streamed_ ? from_host.data() : unit.values.data();
      hash = nn::fingerprint(context_, values, unit.values.size() * sizeof(T), hash);
    }
    return hash;
  }

  /// What this rank has of the gradient of tensor `i`, which has `count` elements, after a step; for tests.
  struct OfTensor {
    std::size_t first, count;  ///< elements of the tensor
    const T* data;
  };
  OfTensor gradient(std::size_t i, std::size_t count) const {
    for (const Unit& unit : units_)
      for (std::size_t t = 0; t < unit.shape.tensors.size(); ++t) {
        if (unit.shape.tensors[t] != i) continue;
        const std::size_t at = unit.shape.offsets[t];
        const std::size_t mine = zero_ ? shard_begin(unit) : 0;
        const std::size_t end = mine + (zero_ ? unit.shard : unit.shape.count);
        const std::size_t first = std::max(at, mine);
        const std::size_t last = std::max(first, std::min(at + count, end));
        return {first - at, last - first, unit.gradients.data() + first - (zero_ >= 2 ? mine : 0)};
      }
    return {};
  }

 private:
  struct Unit {
    nn::UnitShape shape;
    std::size_t shard;       // elements
    DeviceBuffer<T> values;  // in host memory where they are streamed
    DeviceBuffer<T> gradients, whole, whole_gradients;
    DeviceBuffer<T> upload;  // on its way from the host
    Event arrived;
  };
  bool comes_and_goes() const { return streamed_ || zero_ >= 3; }
  // Nothing of the work that is queued from now on has to be over before: what is there waits for nothing else.
  void begin_upload(Unit& unit) {
    unit.upload =
        context_.buffer<T>(unit.values.size(), Category::parameters, unit.shape.name + " on its way from the host");
    allocated_.record(context_.stream());
    CUDA_CHECK(cudaStreamWaitEvent(copies_, allocated_));
    CUDA_CHECK(cudaMemcpyAsync(unit.upload.data(), unit.values.data(), unit.values.size() * sizeof(T),
                               cudaMemcpyHostToDevice, copies_));
    unit.arrived.record(copies_);
  }
  bool always() const { return gradients_ == nn::GradientLife::always; }
  bool keeps_gradients() const { return trained_ && always(); }
  Unit* find(std::string_view name) {
    const std::size_t unit = number(name);
    return unit < units_.size() ? &units_[unit] : nullptr;
  }
  std::size_t shard_begin(const Unit& unit) const { return std::size_t(replicas_.rank()) * unit.shard; }
  T* mine(Unit& unit) {
    const bool is_shard = zero_ == 0 || zero_ >= 3;
    return unit.values.data() + (is_shard ? 0 : shard_begin(unit));
  }
  void make_pieces() {
    if (!trained_) return;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const nn::UnitShape& shape = units_[u].shape;
      // The first layer's unit is named "layer 1" and so on; an optimizer asks whether it is an embedding.
      if (zero_) {
        pieces_.push_back({{shape.name, shape.name, 1, units_[u].shard}, u, begin(u)});
        continue;
      }
      for (std::size_t t = 0; t < shape.tensors.size(); ++t)
        pieces_.push_back({tensors_.shapes[shape.tensors[t]], u, shape.offsets[t]});
    }
  }
  void clear(T* data, std::size_t count) { CUDA_CHECK(cudaMemsetAsync(data, 0, count * sizeof(T), context_.stream())); }
  void copy(const T* from, T* to, std::size_t count) const {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, context_.stream()));
  }
  void bind(Unit& unit) {
    T* const values = comes_and_goes() ? unit.whole.data() : unit.values.data();
    T* const gradients = always() && zero_ < 2 ? unit.gradients.data() : unit.whole_gradients.data();
    for (std::size_t t = 0; t < unit.shape.tensors.size(); ++t)
      tensors_.bind(unit.shape.tensors[t], values ? values + unit.shape.offsets[t] : nullptr,
                    gradients ? gradients + unit.shape.offsets[t] : nullptr);
  }

  Context& context_;
  UnitTensors<T> tensors_;
  Communicator& replicas_;
  int zero_;
  nn::GradientLife gradients_;
  bool streamed_;
  bool trained_;
  Stream copies_;
  Event allocated_;
  std::vector<Unit> units_;
  std::vector<Piece> pieces_;
};

}  // namespace oomlab::train
