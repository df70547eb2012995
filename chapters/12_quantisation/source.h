#pragma once
// Where weights come from, a piece of a tensor at a time: a safetensors file, the small decoder that ships with the
// course, or random numbers. A matrix that is quantised on its way is then never on the device as a whole.

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../11_inference/weights.h"
#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/files/checkpoint.h"
#include "nn/models/transformer.h"
#include "nn/ops/values.h"

namespace oomlab::quantisation {

/// Elements first ... first + count - 1 of a file's tensor, which is F32, F16 or BF16, as FP32.
inline std::vector<float> floats_of(const nn::SafetensorsFile& file, const nn::SafetensorsEntry& entry,
                                    std::size_t first, std::size_t count) {
  const std::size_t element = element_bytes(entry.dtype);
  std::vector<std::byte> bytes(count * element);
  file.read(entry, first * element, bytes);
  std::vector<float> values(count);
  with_type_of<float, __half, __nv_bfloat16>(entry.dtype, [&]<class From>(From value) {
    for (std::size_t k = 0; k < count; ++k) {
      std::memcpy(&value, bytes.data() + k * sizeof value, sizeof value);
      values[k] = static_cast<float>(value);
    }
  });
  return values;
}

/// A model's tensors, in the order of nn::tensors_of().
class Source : public inference::Weights {
 public:
  /// Throws as Weights().
  Source(nn::TransformerSpec spec, const std::optional<std::string>& file) : Weights(std::move(spec), file) {
    if (file_) entries_ = nn::checkpoint_tensors(spec_, shapes_);
  }

  /// Elements first ... first + count - 1 of tensor i, as FP32, to `to` on the device, on the context's stream. Throws
  /// nn::StateFileError, with one line that names the tensor, for a value that is not finite.
  void piece(Context& context, std::size_t i, std::size_t first, std::size_t count, float* to) const {
    if (planning()) return;
    if (!file_) return random_piece(context, i, first, count, to);
    for (const nn::CheckpointTensor& entry : entries_) {
      const std::size_t begin = std::max(first, entry.first),
                        end = std::min(first + count, entry.first + entry.count());
      if (entry.tensor != i || begin >= end) continue;
      const std::vector<float> values = read(entry, begin - entry.first, end - begin);
      CUDA_CHECK(cudaMemcpyAsync(to + (begin - first), values.data(), values.size() * sizeof(float),
                                 cudaMemcpyHostToDevice, context.stream()));
      context.synchronize();  // before `values` are gone
    }
  }

 private:
  // As a model begins, but that it does not matter which part of it one asks for.
  void random_piece(Context& context, std::size_t i, std::size_t first, std::size_t count, float* to) const {
    const nn::TensorShape& shape = shapes_[i];
    if (shape.name.ends_with("gamma")) return nn::fill(context, to, count, 1.0f);
    const float bound = std::sqrt(3.0f) * 0.02f * std::sqrt(768.0f / static_cast<float>(spec_.width));
    nn::fill_uniform_part(
        context, to, {.rows = 1, .columns = count, .first_row = 0, .first_column = first, .all_columns = shape.count()},
        bound, inference::kWeightSeed, i);
  }
  std::vector<float> read(const nn::CheckpointTensor& wanted, std::size_t first, std::size_t count) const {
    std::vector<float> values = floats_of(*file_, *file_->find(wanted.name), first, count);
    for (const float v : values)
      if (!std::isfinite(v))
        throw nn::StateFileError("'" + file_->path() + "' has a tensor '" + wanted.name + "' with a weight of " +
                                 (std::isnan(v) ? "NaN" : "infinity") + ", which no scale fits");
    return values;
  }

  std::vector<nn::CheckpointTensor> entries_;  // of the file
};

}  // namespace oomlab::quantisation
