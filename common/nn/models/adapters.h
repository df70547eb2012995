#pragma once
// The adapters of a decoder (nn/layers/adapter.h): their tensors, and where each belongs. A model works with one set at
// a time, or with none (Transformer::set_adapters()); several sets can take turns on the same frozen weights.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "memory/context.h"
#include "nn/layers/decoder_layer.h"
#include "nn/ops/values.h"
#include "nn/optimizer/optimizer.h"
#include "plan/model/adapters.h"

namespace oomlab::nn {

/// The mask of each adapter of a layer, in the order of the slots; empty where nothing is dropped.
using DropoutMasks = std::vector<DeviceBuffer<std::uint8_t>>;

template <class T>
class AdapterSet {
 public:
  /// Allocates A and B (category parameters), and with gradients also those (category gradients). A begins uniform in
  /// ±1 / √in, as peft has it, and B with 0: at first a model does what it did without. Throws OutOfMemory (nothing
  /// stays allocated), and as require_adapters().
  AdapterSet(Context& context, const TransformerSpec& spec, const AdapterForm& form, std::uint64_t seed,
             bool with_gradients = true)
      : AdapterSet(spec, form, Slice{}, seed) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const TensorShape& shape = shapes_[i];
      values_.push_back(context.buffer<T>(shape.count(), Category::parameters, shape.name));
      if (with_gradients)
        gradients_.push_back(context.buffer<T>(shape.count(), Category::gradients, shape.name + " gradient"));
      bind(i, values_[i].data(), with_gradients ? gradients_[i].data() : nullptr);
      initialise(context, i, values_[i].data());
    }
  }
  /// What a slice of a model has of them, where the caller says: see bind(). Nothing is allocated. Throws as
  /// require_adapters().
  AdapterSet(const TransformerSpec& spec, const AdapterForm& form, const Slice& slice, std::uint64_t seed)
      : form_(form), slice_(slice), seed_(seed) {
    require_adapters(spec, form);
    for (const AdapterSlot& slot : adapter_slots(spec, form.targets)) slots_.push_back(slot.of_part(slice.parts));
    shapes_ = adapter_tensors(spec, form, slice);
    at_.resize(shapes_.size());
  }
  /// Where tensor i is, and its gradient: neither is owned. Null: not now.
  void bind(std::size_t i, T* value, T* gradient) noexcept { at_[i] = {value, gradient}; }
  /// Fills tensor i with what it is at first: of a slice, the bits that the whole model has there.
  void initialise(Context& context, std::size_t i, T* value) const {
    const TensorShape& shape = shapes_[i];
    if (i % 2 == 1) return fill(context, value, shape.count(), 0.0f);
    const MatrixPart part = inputs_of(slots_[i / 2 % slots_.size()], shape.rows, 0);
    const std::uint64_t in_model = i + 2 * slice_.first_layer * slots_.size();
    fill_uniform_part(context, value, part, 1 / std::sqrt(static_cast<float>(part.all_columns)), seed_, in_model);
  }
  /// Whether all parts of a layer have all of tensor i, and each of them a share of its gradient.
  bool on_all_parts(std::size_t i) const { return slots_[i / 2 % slots_.size()].by_columns() == (i % 2 == 1); }

  const AdapterForm& form() const noexcept { return form_; }
  /// Of a layer.
  const std::vector<AdapterSlot>& slots() const noexcept { return slots_; }
  /// As adapter_tensors().
  const std::vector<TensorShape>& shapes() const noexcept { return shapes_; }
  /// In that order.
  std::vector<ParameterOf<T>> parameters() {
    std::vector<ParameterOf<T>> all;
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      all.push_back({shapes_[i].name, at_[i].value, at_[i].gradient, shapes_[i].count()});
    return all;
  }

  /// From now on other values are dropped: those of this step.
  void begin_step(std::uint64_t step) noexcept { step_ = step; }
  /// Rows that follow each other in the step, of which the first is number `number` there.
  struct RowRun {
    std::size_t rows, number;
  };
  /// Draws the masks of layer l of the model, from 0, for these rows (category activations). The same ones each time in a
  /// step, and in each slice and share of the rows what the whole model draws there. No mask where nothing is dropped.
  /// Throws OutOfMemory.
  DropoutMasks draw_masks(Context& context, std::size_t l, const std::vector<RowRun>& runs) const {
    DropoutMasks masks;
    if (form_.dropout == 0) return masks;
    std::size_t rows = 0;
    for (const RowRun& run : runs) rows += run.rows;
    for (const AdapterSlot& slot : slots_) {
      const std::uint64_t stream = (step_ << 32) + l * slots_.size() + masks.size();
      masks.push_back(
          context.buffer<std::uint8_t>(checked_product(rows, slot.in), Category::activations, "adapter dropout mask"));
      std::uint8_t* mask = masks.back().data();
      for (const RowRun& run : runs) {
        draw_mask(context, mask, inputs_of(slot, run.rows, run.number), 1 - form_.dropout, seed_, stream);
        mask += run.rows * slot.in;
      }
    }
    return masks;
  }

  /// Gives a layer, number l of the model from 0, its adapters. Without masks nothing is dropped.
  template <class W>
  void attach(std::size_t l, const DropoutMasks& masks, DecoderLayer<W>& layer) const {
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      Adapter<T> adapter = at(l, s);
      if (!masks.empty()) adapter.mask = masks[s].data();
      auto& adapters = matrix_of(layer, slots_[s].matrix).adapters;
      *std::ranges::find_if(adapters, [](const Adapter<T>& place) { return !place; }) = adapter;
    }
  }
  /// Adds all adapters to the frozen weights of a model, whose tensor i of tensors_of() is weights_at(i), or with `sign`
  /// −1 takes them away: afterwards it does without adapters what it does with them, within the rounding of T. Throws
  /// std::invalid_argument for weights that are not dense: they would have to be decoded, added to, and rounded to codes
  /// again.
  template <class WeightsAt>
  void merge(Context& context, const TransformerSpec& spec, WeightsAt weights_at, float sign = 1) const {
    const LayerSlots tensors = layer_slots(spec);
    for (std::size_t l = 0; l < spec.layers; ++l)
      for (std::size_t s = 0; s < slots_.size(); ++s) {
        const std::size_t first = embedding_tensors(spec) + l * static_cast<std::size_t>(tensors.count);
        T* const weights = weights_at(first + static_cast<std::size_t>(tensor_of(tensors, slots_[s].matrix)));
        if (!weights)
          throw std::invalid_argument("an adapter cannot be merged into weights that are stored in fewer bits");
        at(l, s).merge(context, weights, sign);
      }
  }

 private:
  // Some rows of a matrix whose columns are the inputs of a slot: those that this slice has.
  MatrixPart inputs_of(const AdapterSlot& slot, std::size_t rows, std::size_t first_row) const {
    const bool cut = slot.by_columns();
    return {.rows = rows,
            .columns = slot.in,
            .first_row = first_row,
            .first_column = cut ? slice_.part * slot.in : 0,
            .all_columns = slot.in * (cut ? slice_.parts : 1)};
  }
  template <class Layer>
  static auto& matrix_of(Layer& layer, LayerMatrix matrix) {
    switch (matrix) {
      case LayerMatrix::qkv: return layer.qkv;
      case LayerMatrix::projection: return layer.projection;
      case LayerMatrix::up: return layer.up;
      case LayerMatrix::down: break;
    }
    return layer.down;
  }
  static std::int8_t tensor_of(const LayerSlots& tensors, LayerMatrix matrix) {
    switch (matrix) {
      case LayerMatrix::qkv: return tensors.qkv;
      case LayerMatrix::projection: return tensors.projection;
      case LayerMatrix::up: return tensors.up;
      case LayerMatrix::down: break;
    }
    return tensors.down;
  }
  Adapter<T> at(std::size_t l, std::size_t s) const {
    const std::size_t a = 2 * ((l - slice_.first_layer) * slots_.size() + s);
    const AdapterSlot& slot = slots_[s];
    Adapter<T> adapter;
    adapter.rank = form_.rank;
    adapter.in = slot.in;
    adapter.first = slot.first;
    adapter.out = slot.out;
    adapter.scale = form_.scale();
    adapter.a = at_[a].value;
    adapter.b = at_[a + 1].value;
    adapter.d_a = at_[a].gradient;
    adapter.d_b = at_[a + 1].gradient;
    adapter.kept = 1 - form_.dropout;
    return adapter;
  }

  struct At {
    T* value = nullptr;
    T* gradient = nullptr;
  };
  AdapterForm form_;
  Slice slice_;
  std::uint64_t seed_;
  std::uint64_t step_ = 0;
  std::vector<AdapterSlot> slots_;
  std::vector<TensorShape> shapes_;
  std::vector<At> at_;
  std::vector<DeviceBuffer<T>> values_;  // where the set has memory of its own
  std::vector<DeviceBuffer<T>> gradients_;
};

}  // namespace oomlab::nn
