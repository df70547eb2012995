#pragma once
// The weights of a model as the trainer keeps them in units: as they are, or, where they are frozen, in fewer bits. And
// the adapters beside them.

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/models/adapters.h"
#include "nn/models/transformer.h"
#include "nn/layers/frozen_store.h"
#include "train/groups.h"
#include "train/job.h"
#include "train/units.h"

namespace oomlab::train {

template <class T>
class Base {
 public:
  /// For the weights of `model`. The context, the job and the model must outlive it. Throws OutOfMemory, and
  /// std::invalid_argument for a format without a store.
  Base(Context& context, const Job& job, nn::Transformer<T>& model, const nn::MakeFrozenStore<T>& make_store)
      : context_(context), job_(job), model_(model) {
    if (job.base.scheme == quantised::Scheme::as_is) return;
    if (!make_store) throw std::invalid_argument("nobody says how a base in fewer bits is stored");
    store_ = make_store(nn::tensors_of(model.spec(), model.slice()));
    store_->begin_encoding(context);
  }
  Base(const Base&) = delete;
  Base& operator=(const Base&) = delete;

  UnitTensors<T> tensors(int replicas) {
    UnitTensors<T> tensors = tensors_of_model(model_, static_cast<std::size_t>(replicas), job_.seed);
    if (!store_) return tensors;
    const auto elements_of = [&](std::size_t i) {
      return store_->bytes(i) ? store_->bytes(i) / sizeof(T) : tensors.shapes[i].count();
    };
    tensors.units = nn::units_of(tensors.shapes, static_cast<std::size_t>(replicas), elements_of,
                                 [](std::size_t) { return false; });
    tensors.bind = [this](std::size_t i, T* value, T* gradient) { bind(i, value, gradient); };
    tensors.initialise = [this](Context& context, std::size_t i, T* value) { initialise(context, i, value); };
    return tensors;
  }
  /// All of them are made: what only that needed is given back.
  void made() {
    if (!store_) return;
    store_->end_encoding(context_);
    const std::size_t count = nn::tensors_of(model_.spec(), model_.slice()).size();
    for (std::size_t i = 0; i < count; ++i)
      if (store_->bytes(i)) model_.bind_frozen(i, store_->matrix(i));
  }

 private:
  void bind(std::size_t i, T* value, T* gradient) {
    if (store_->bytes(i) == 0) return model_.bind(i, value, gradient);
    store_->bind(i, reinterpret_cast<std::byte*>(value));
  }
  void initialise(Context& context, std::size_t i, T* value) {
    if (store_->bytes(i) == 0) return model_.initialise(context, i, value, job_.seed);
    store_->bind(i, reinterpret_cast<std::byte*>(value));
    store_->encode(context, i, [this, i](Context& c, std::size_t first, std::size_t count, float* to) {
      model_.initialise_piece(c, i, first, count, to, job_.seed);
    });
  }

  Context& context_;
  const Job& job_;
  nn::Transformer<T>& model_;
  std::unique_ptr<nn::FrozenStore<T>> store_;
};

/// The tensors of a slice's adapters. A layer's are a unit; those that all parts of the layer have come first in it. The set
/// must outlive what is returned.
template <class T>
UnitTensors<T> tensors_of_adapters(nn::AdapterSet<T>& adapters, int replicas, const nn::Slice& slice) {
  const std::vector<nn::TensorShape>& shapes = adapters.shapes();
  return {
      .shapes = shapes,
      .units = nn::units_of(
          shapes, static_cast<std::size_t>(replicas), [&](std::size_t i) { return shapes[i].count(); },
          [&](std::size_t i) { return slice.parts > 1 && adapters.on_all_parts(i); }),
      .bind = [&adapters](std::size_t i, T* value, T* gradient) { adapters.bind(i, value, gradient); },
      .initialise = [&adapters](Context& context, std::size_t i, T* value) { adapters.initialise(context, i, value); }};
}

/// Adapters beside a frozen base, in units: they are all that is trained.
template <class T>
class TrainedAdapters {
 public:
  /// Of `model`, which uses them from now on. The context, the job and the groups must outlive them. Throws OutOfMemory:
  /// nothing stays allocated.
  TrainedAdapters(Context& context, const Job& job, nn::Transformer<T>& model, Groups& groups)
      : context_(context),
        parts_(groups.parts),
        set_(job.spec, job.adapters, model.slice(), job.seed),
        units_(context, tensors_of_adapters(set_, groups.replicas.ranks(), model.slice()), groups.replicas,
               job.layout.zero, job.gradients) {
    model.train_only(job.trained);
    model.set_adapters(&set_);
  }
  TrainedAdapters(const TrainedAdapters&) = delete;
  TrainedAdapters& operator=(const TrainedAdapters&) = delete;

  Units<T>& units() { return units_; }
  const Units<T>& units() const { return units_; }
  /// From now on other values are dropped: those of this step, from 0.
  void begin_step(std::uint64_t step) { set_.begin_step(step); }
  /// A unit's gradients of a micro-batch are there. Of tensors that all parts have each part has a share of the gradient:
  /// they are summed up when a micro-batch's gradients are used, and otherwise once, behind the last micro-batch.
  void sum_over_parts(std::string_view unit, bool last) {
    const bool apart = units_.keeps_micro_batches_apart();
    if (parts_.ranks() == 1 || (!apart && !last)) return;
    const std::uint64_t before = parts_.bytes_sent();
    const auto [gradients, count] = units_.first_gradients(unit);
    parts_.all_reduce(gradients, count, context_.stream());
    if (!apart) sent_once_ += parts_.bytes_sent() - before;
  }
  /// What that has sent for all micro-batches of a step together, bytes.
  std::uint64_t sent_once() const { return sent_once_; }

 private:
  Context& context_;
  Communicator& parts_;
  nn::AdapterSet<T> set_;
  Units<T> units_;
  std::uint64_t sent_once_ = 0;
};

}  // namespace oomlab::train
