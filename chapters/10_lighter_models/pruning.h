#pragma once
// Pruning of a network in two forms, and what each of them does to its bytes.
//
//   structured      whole channels go, those whose filters have the smallest norms (Li et al., 2017, arXiv:1608.08710).
//                   What is left is a smaller network: fewer weights, gradients, state, activations and products.
//   unstructured    the weights that are smallest in magnitude become zero, one by one (Han et al., 2015,
//                   arXiv:1506.02626). A zero takes as many bytes as any other number, and a mask of a byte for each
//                   weight is needed beside it, so that training leaves zeros as they are: more bytes, not fewer.
//
// Which channel goes depends on the weights, how many do not. So the pruned network's spec, and with it all of its
// bytes, is known before there are weights.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "nn/models/network.h"
#include "nn/ops/kernel.h"
#include "nn/optimizer/tensor_table.h"

namespace oomlab::lighter_models {

/// Throws std::invalid_argument, with one line, for 100 % or more.
inline void require_prunable(std::size_t percent) {
  if (percent >= 100)
    throw std::invalid_argument("pruning " + std::to_string(percent) + " % leaves nothing; prune 0 to 99 %");
}
/// floor(count · percent / 100): how many of `count` go; at most 99 %, so that one is left.
inline std::size_t pruned_of(std::size_t count, std::size_t percent) {
  return count / 100 * percent + count % 100 * percent / 100;
}

// ---------------------------------------------------------------------------------------------------------- structured

/// The layer that alone reads what layer i makes, or Layer::kNone: none, or several, or one reads it as `also`.
inline std::size_t only_reader(const nn::NetworkSpec& spec, std::size_t i) {
  std::size_t reader = nn::Layer::kNone, readers = 0;
  for (std::size_t r = i + 1; r < spec.layers.size(); ++r) {
    if (spec.layers[r].from == i + 1) reader = r, ++readers;
    if (spec.layers[r].also == i + 1) ++readers, reader = nn::Layer::kNone;
  }
  return readers == 1 ? reader : nn::Layer::kNone;
}

/// Layers (numbers from 0, ascending) whose output channels can go one by one: convolutions without `also` that one
/// other convolution reads, and no other layer; both dense, with weights that belong to them alone. In a residual
/// network these are the convolutions inside a block: what enters the sum must keep its channels.
inline std::vector<std::size_t> prunable(const nn::NetworkSpec& spec) {
  const auto is_dense = [&](std::size_t i) {
    return spec.layers[i].kind == nn::LayerKind::convolution && spec.layers[i].shares == nn::Layer::kNone &&
           std::none_of(spec.layers.begin(), spec.layers.end(), [&](const nn::Layer& l) { return l.shares == i; });
  };
  std::vector<std::size_t> layers;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const std::size_t reader = only_reader(spec, i);
    if (is_dense(i) && spec.layers[i].also == nn::Layer::kNone && reader != nn::Layer::kNone && is_dense(reader))
      layers.push_back(i);
  }
  return layers;
}

/// A smaller network, and where its layers are smaller.
struct PrunedSpec {
  struct Cut {
    std::size_t layer, reader;   ///< that loses output channels, and the one that loses as many input channels
    std::size_t channels, keep;  ///< before and after; at least one is kept
  };
  nn::NetworkSpec spec;   ///< "<name> pruned by 50 %"
  std::vector<Cut> cuts;  ///< ascending in `layer`, one for each prunable()
};
/// Each prunable() layer loses pruned_of() its channels. Throws as require_prunable().
inline PrunedSpec prune(const nn::NetworkSpec& spec, std::size_t percent) {
  require_prunable(percent);
  PrunedSpec pruned{spec, {}};
  for (const std::size_t i : prunable(spec)) {
    const std::size_t channels = spec.layers[i].out, keep = channels - pruned_of(channels, percent);
    pruned.cuts.push_back({i, only_reader(spec, i), channels, keep});
    pruned.spec.layers[i].out = keep;
  }
  pruned.spec.name += " pruned by " + std::to_string(percent) + " %";
  return pruned;
}

/// norms[row] = Σ |weights[row, ·]|.
__global__ inline void row_norms_kernel(const float* __restrict__ weights, float* __restrict__ norms, std::size_t rows,
                                        std::size_t width) {
  for (std::size_t row : row_range(rows)) {
    const float* const w = weights + row * width;
    const float norm = nn::block_sum_over<float>(width, [&](auto count, std::size_t i, float* sums) {
      for (std::size_t k = 0; k < count; ++k) sums[k] += fabsf(w[i + k]);
    });
    if (threadIdx.x == 0) norms[row] = norm;
  }
}

/// to[rows, taps, columns] = from[row_of[·], taps, column_of[·]], where a row of `from` has `from_columns` columns.
/// row_of and column_of may be null: then it is the same row, or column.
__global__ inline void gather_kernel(const float* __restrict__ from, float* __restrict__ to,
                                     const unsigned* __restrict__ row_of, const unsigned* __restrict__ column_of,
                                     std::size_t rows, std::size_t taps, std::size_t columns,
                                     std::size_t from_columns) {
  for (std::size_t i : grid_range(rows * taps * columns)) {
    const std::size_t column = i % columns, tap = i / columns % taps, row = i / columns / taps;
    const std::size_t from_row = row_of ? row_of[row] : row, from_column = column_of ? column_of[column] : column;
    to[i] = from[(from_row * taps + tap) * from_columns + from_column];
  }
}

/// The numbers of the `keep` largest norms, ascending; of equal ones those with the lower number. NaN is the smallest.
inline std::vector<unsigned> largest(const std::vector<float>& norms, std::size_t keep) {
  const auto key = [&](unsigned i) { return norms[i] == norms[i] ? norms[i] : -1.0f; };
  std::vector<unsigned> order(norms.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](unsigned a, unsigned b) { return key(a) > key(b); });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  return order;
}

inline std::map<std::string, nn::Parameter, std::less<>> by_name(std::vector<nn::Parameter> tensors) {
  std::map<std::string, nn::Parameter, std::less<>> all;
  for (nn::Parameter& t : tensors) all.emplace(t.name, t);
  return all;
}
inline const nn::Parameter& named(const std::map<std::string, nn::Parameter, std::less<>>& tensors,
                                  const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw std::logic_error("the network has no tensor '" + name + "'");
  return found->second;
}

/// Throws std::logic_error unless the layers that `pruned` cuts are layers of `spec` with as many `channels` as a cut
/// says, before or after it.
template <class Channels>
void require_cuts_of(const PrunedSpec& pruned, const nn::NetworkSpec& spec, Channels channels) {
  for (const PrunedSpec::Cut& cut : pruned.cuts) {
    const std::size_t layers = spec.layers.size();
    if (cut.layer >= layers || cut.reader >= layers || spec.layers[cut.layer].out != channels(cut))
      throw std::logic_error("'" + pruned.spec.name + "' does not belong to '" + spec.name + "'");
  }
}

/// Of each cut, the channels that stay: those with the largest L1 norms of their filters in `dense`, ascending. Norms
/// are computed on the device, and ranked on the host (waits for the stream). In plan mode all norms are 0, and the
/// first channels stay. Throws OutOfMemory, and std::logic_error when `pruned` is not of this network.
inline std::vector<std::vector<unsigned>> channels_to_keep(Context& context, nn::Network& dense,
                                                           const PrunedSpec& pruned) {
  require_cuts_of(pruned, dense.spec(), [](const PrunedSpec::Cut& cut) { return cut.channels; });
  const auto tensors = by_name(dense.parameters());
  std::vector<std::vector<unsigned>> kept;
  for (const PrunedSpec::Cut& cut : pruned.cuts) {
    const nn::Parameter& weight = named(tensors, dense.spec().layers[cut.layer].name + " weight");
    auto norms = context.buffer<float>(cut.channels, Category::workspace, "norms of filters");
    const std::size_t width = weight.count / cut.channels;
    launch(row_norms_kernel, nn::shape_for_short_rows(cut.channels, width), context.stream(), weight.value,
           norms.data(), cut.channels, width);
    std::vector<float> values(cut.channels);
    CUDA_CHECK(cudaMemcpyAsync(values.data(), norms.data(), norms.bytes(), cudaMemcpyDeviceToHost, context.stream()));
    context.synchronize();
    kept.push_back(largest(values, cut.keep));
  }
  return kept;
}

/// Copies what stays of `dense` into `small`, a network of pruned.spec: of a cut's layer the rows `kept` of its weight,
/// gamma, beta and running statistics; of its reader's weight [out, kernel, kernel, in] the same inputs; every other
/// tensor as it is. Gradients and an optimizer's state are not copied. On the device; waits for the stream. Throws
/// OutOfMemory, and std::logic_error when networks, cuts and lists do not belong together: before anything is copied,
/// because a kernel that reads outside of a tensor would end every other use of the device, too.
inline void copy_kept(Context& context, nn::Network& dense, nn::Network& small, const PrunedSpec& pruned,
                      const std::vector<std::vector<unsigned>>& kept) {
  require_cuts_of(pruned, dense.spec(), [](const PrunedSpec::Cut& cut) { return cut.channels; });
  require_cuts_of(pruned, small.spec(), [](const PrunedSpec::Cut& cut) { return cut.keep; });
  if (kept.size() != pruned.cuts.size()) throw std::logic_error("not one list of channels for each cut");
  for (std::size_t c = 0; c < kept.size(); ++c) {
    const PrunedSpec::Cut& cut = pruned.cuts[c];
    const bool inside = std::all_of(kept[c].begin(), kept[c].end(), [&](unsigned i) { return i < cut.channels; });
    if (kept[c].size() != cut.keep || !inside) throw std::logic_error("a list of channels is another cut's");
  }
  // All lists of channels in one buffer, and where each begins.
  std::vector<unsigned> lists;
  std::vector<std::size_t> begins;
  for (const auto& list : kept) begins.push_back(lists.size()), lists.insert(lists.end(), list.begin(), list.end());
  if (lists.empty()) lists.push_back(0);  // nothing can be pruned: no buffer is without bytes
  auto on_device = context.buffer<unsigned>(lists.size(), Category::workspace, "kept channels");
  CUDA_CHECK(
      cudaMemcpyAsync(on_device.data(), lists.data(), on_device.bytes(), cudaMemcpyHostToDevice, context.stream()));

  // What of a tensor stays: rows or columns of [rows, taps, columns].
  struct Selection {
    const unsigned *rows = nullptr, *columns = nullptr;
    std::size_t to_rows = 0, from_rows = 0, taps = 1, to_columns = 1, from_columns = 1;
  };
  std::map<std::string, Selection, std::less<>> selections;
  const auto weight_of = [&](std::size_t i) -> Selection& {
    const nn::NetworkSpec &old = dense.spec(), &spec = small.spec();
    const nn::Layer& layer = spec.layers[i];
    Selection& s = selections[layer.name + " weight"];
    s.to_rows = layer.out, s.from_rows = old.layers[i].out, s.taps = layer.kernel * layer.kernel;
    s.to_columns = spec.channels(layer.from), s.from_columns = old.channels(layer.from);
    return s;
  };
  for (std::size_t c = 0; c < pruned.cuts.size(); ++c) {
    const PrunedSpec::Cut& cut = pruned.cuts[c];
    const unsigned* const list = on_device.data() + begins[c];
    weight_of(cut.layer).rows = list;
    weight_of(cut.reader).columns = list;
    for (const char* what : {" gamma", " beta", " running mean", " running variance"}) {
      Selection& s = selections[small.spec().layers[cut.layer].name + what];
      s.rows = list, s.to_rows = cut.keep, s.from_rows = cut.channels;
    }
  }

  // Everything is compared before the first kernel is started.
  struct Copy {
    nn::Parameter from, to;
    const Selection* selection;  // null: the tensor as it is
  };
  std::vector<Copy> copies;
  const auto plan = [&](std::vector<nn::Parameter> from, const std::vector<nn::Parameter>& to) {
    const auto sources = by_name(std::move(from));
    for (const nn::Parameter& t : to) {
      const nn::Parameter& source = named(sources, t.name);
      const auto selection = selections.find(t.name);
      const bool whole = selection == selections.end();
      const Selection s = whole ? Selection{.to_rows = t.count} : selection->second;
      // Rows that are chosen come out of as many as the cut has; a tensor whose rows are all kept has them already.
      const std::size_t from_rows = s.rows ? s.from_rows : s.to_rows;
      if (s.to_rows * s.taps * s.to_columns != t.count || from_rows * s.taps * s.from_columns != source.count)
        throw std::logic_error("'" + t.name + "' differs in size");
      copies.push_back({source, t, whole ? nullptr : &selection->second});
    }
  };
  plan(dense.parameters(), small.parameters());
  plan(dense.statistics(), small.statistics());

  for (const Copy& copy : copies) {
    if (!copy.selection) {
      CUDA_CHECK(cudaMemcpyAsync(copy.to.value, copy.from.value, copy.to.count * sizeof(float),
                                 cudaMemcpyDeviceToDevice, context.stream()));
      continue;
    }
    const Selection& s = *copy.selection;
    launch(gather_kernel, shape_for_items(copy.to.count), context.stream(), copy.from.value, copy.to.value, s.rows,
           s.columns, s.to_rows, s.taps, s.to_columns, s.from_columns);
  }
  context.synchronize();  // `lists` must exist until they were copied
}

/// Bytes (category workspace) that channels_to_keep() and copy_kept() have at most, beside the two networks.
inline std::size_t pruning_bytes(const PrunedSpec& pruned) {
  std::size_t most = 1, kept = 0;
  for (const PrunedSpec::Cut& cut : pruned.cuts) most = std::max(most, cut.channels), kept += cut.keep;
  return round_to_granule(checked_product(std::max(most, kept), sizeof(float)));
}

// -------------------------------------------------------------------------------------------------------- unstructured

struct MaskedTensor {
  float* value;
  const unsigned char* mask;
  std::size_t count;
};

/// Weights whose mask is 0 become 0.
template <std::size_t kMost>
__global__ void apply_masks_kernel(const __grid_constant__ nn::TensorTable<MaskedTensor, kMost> table) {
  for (std::size_t t = 0; t < table.size; ++t) {
    float* const value = table.tensors[t].value;
    const unsigned char* const mask = table.tensors[t].mask;
    nn::for_packs(nn::GridRange{}, table.tensors[t].count, nn::aligned_for_packs(value), [&](auto w, std::size_t i) {
      using V = decltype(w);
      w = nn::load<V>(value, i);
      nn::each_lane<V>([&](std::size_t k) { w[k] = mask[i * V::size + k] ? w[k] : 0.0f; });
      nn::store(value, i, w);
    });
  }
}

/// counts[row] = the weights that are zero, of this row's share of all tensors, which are spread over `rows` rows.
template <std::size_t kMost>
__global__ void count_zeros_kernel(const __grid_constant__ nn::TensorTable<MaskedTensor, kMost> table,
                                   unsigned long long* counts, std::size_t rows) {
  for (std::size_t row : row_range(rows)) {
    unsigned long long zeros = 0;
    for (std::size_t t = 0; t < table.size; ++t) {
      const std::size_t share = (table.tensors[t].count + rows - 1) / rows;
      const std::size_t first = row * share < table.tensors[t].count ? row * share : table.tensors[t].count;
      const std::size_t rest = table.tensors[t].count - first;
      for (std::size_t i : block_range(rest < share ? rest : share)) zeros += table.tensors[t].value[first + i] == 0.0f;
    }
    zeros = block_sum(zeros);
    if (threadIdx.x == 0) counts[row] += zeros;
  }
}

/// A byte for each weight of a network, 0 where the weight is to be 0. "Weights" are all tensors whose names end so:
/// those of convolutions, of linear layers, and of squeeze and excitation. Biases and norms have none.
class Mask {
 public:
  /// Of each tensor with n weights, the floor(n · percent / 100) that are smallest in magnitude become zero; of equal
  /// ones those with the lower number; a NaN is larger than every number. Each tensor is copied to the host for that.
  /// The masks (category parameters, tag "<name> mask") stay, and refer to the network, which must live as long.
  /// Throws std::invalid_argument for 100 % or more, and OutOfMemory: then no weight has changed.
  Mask(Context& context, nn::Network& model, std::size_t percent) {
    require_prunable(percent);
    for (const nn::Parameter& p : model.parameters()) {
      if (!std::string_view(p.name).ends_with(" weight")) continue;
      masks_.push_back(context.buffer<unsigned char>(p.count, Category::parameters, p.name + " mask"));
      tensors_.push_back({p.value, masks_.back().data(), p.count});
    }
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const std::size_t zeros = pruned_of(tensors_[t].count, percent);
      masked_ += zeros;
      if (!planning()) choose(context, t, zeros);
    }
    apply(context);
  }

  /// Sets the masked weights to zero: after every step of an optimizer, which moves them.
  void apply(Context& context) {
    nn::launch_over_tensors(apply_masks_kernel<nn::kTensorsOfLaunch>, context.stream(), tensors_.size(),
                            Pack<float>::size, [&](std::size_t t) { return tensors_[t]; });
  }

  /// How many weights the masks hold at zero.
  std::size_t masked() const noexcept { return masked_; }
  /// How many weights are zero, counted on the device (waits for the stream). 0 in plan mode. Throws OutOfMemory.
  std::size_t zeros(Context& context) const {
    auto counts = context.buffer<unsigned long long>(kCounts, Category::workspace, "zero weights");
    CUDA_CHECK(cudaMemsetAsync(counts.data(), 0, counts.bytes(), context.stream()));
    nn::launch_over_tables(
        count_zeros_kernel<nn::kTensorsOfLaunch>, context.stream(), tensors_.size(),
        [](std::size_t) { return shape_for_rows(kCounts); }, [&](std::size_t t) { return tensors_[t]; }, counts.data(),
        kCounts);
    unsigned long long values[kCounts] = {};
    CUDA_CHECK(cudaMemcpyAsync(values, counts.data(), counts.bytes(), cudaMemcpyDeviceToHost, context.stream()));
    context.synchronize();
    return std::accumulate(values, values + kCounts, std::size_t(0));
  }

 private:
  static constexpr std::size_t kCounts = kGranule / sizeof(unsigned long long);

  void choose(Context& context, std::size_t t, std::size_t zeros) {
    const std::size_t count = tensors_[t].count;
    std::vector<float> values(count);
    CUDA_CHECK(cudaMemcpyAsync(values.data(), tensors_[t].value, count * sizeof(float), cudaMemcpyDeviceToHost,
                               context.stream()));
    context.synchronize();
    const auto key = [&](std::size_t i) { return values[i] == values[i] ? std::fabs(values[i]) : INFINITY; };
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t(0));
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(zeros);
    std::nth_element(order.begin(), middle, order.end(),
                     [&](std::size_t a, std::size_t b) { return key(a) != key(b) ? key(a) < key(b) : a < b; });
    std::vector<unsigned char> mask(count, 1);
    std::for_each(order.begin(), middle, [&](std::size_t i) { mask[i] = 0; });
    CUDA_CHECK(cudaMemcpyAsync(masks_[t].data(), mask.data(), count, cudaMemcpyHostToDevice, context.stream()));
    context.synchronize();  // `mask` must exist until it was copied
  }

  std::vector<DeviceBuffer<unsigned char>> masks_;
  std::vector<MaskedTensor> tensors_;
  std::size_t masked_ = 0;
};

/// What a Mask keeps, bytes (category parameters): one for each weight, each tensor rounded to the granule.
inline std::size_t mask_bytes(const nn::NetworkSpec& spec) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const nn::Layer& layer = spec.layers[i];
    if (layer.kind == nn::LayerKind::squeeze_excite)
      bytes += 2 * round_to_granule(checked_product(layer.squeeze, layer.out));
    else
      bytes += round_to_granule(spec.weights(i));
  }
  return bytes;
}
/// What Mask::zeros() has at most beside that (category workspace).
inline constexpr std::size_t kCountBytes = kGranule;

}  // namespace oomlab::lighter_models
