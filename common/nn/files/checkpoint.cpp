#include "nn/files/checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/ops/instances.h"
#include "plan/json_values.h"

namespace oomlab::nn {

namespace {

constexpr std::size_t kStagingBytes = std::size_t(1) << 20;

// The three names are those of Q, K and V, or of the MLP's two halves; else there is one.
struct CheckpointName {
  const char* here;
  const char* there[3];
};
constexpr CheckpointName kOfModel[] = {{"token embedding", {"model.embed_tokens.weight"}},
                                       {"final norm gamma", {"model.norm.weight"}},
                                       {"head weight", {"lm_head.weight"}}};
constexpr CheckpointName kOfLayer[] = {
    {"norm 1 gamma", {"input_layernorm.weight"}},
    {"qkv weight", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
    {"qkv bias", {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}},
    {"projection weight", {"self_attn.o_proj.weight"}},
    {"norm 2 gamma", {"post_attention_layernorm.weight"}},
    {"gate and up weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {"contract weight", {"mlp.down_proj.weight"}}};

// Splits "layer 12 qkv bias" into 12 and "qkv bias". Another name has the layer 0.
std::size_t layer_of(std::string_view& name) {
  constexpr std::string_view prefix = "layer ";
  if (!name.starts_with(prefix)) return 0;
  std::size_t layer = 0, at = prefix.size();
  for (; at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at)
    layer = layer * 10 + static_cast<std::size_t>(name[at] - '0');
  name.remove_prefix(std::min(name.size(), at + 1));
  return layer;
}

const CheckpointName* named(std::span<const CheckpointName> table, std::string_view name) {
  const auto at = std::ranges::find(table, name, &CheckpointName::here);
  return at == table.end() ? nullptr : &*at;
}

std::string text_of(std::span<const std::size_t> shape) {
  constexpr std::size_t most = 8;  // of a file's, which may have millions
  std::string text;
  for (const std::size_t extent : shape.first(std::min(most, shape.size())))
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + (shape.size() > most ? ", ...]" : "]");
}

constexpr NameList kWeightTypes = names_of(kModelDTypes, ", ", " or ", &DTypeRow::safetensors);

const SafetensorsEntry& checked_entry(const SafetensorsFile& file, const CheckpointTensor& wanted) {
  const SafetensorsEntry* const found = file.find(wanted.name);
  const std::string tensor = "tensor '" + wanted.name + "'";
  if (!found) throw StateFileError("'" + file.path() + "' has no " + tensor);
  const auto refuse = [&](const std::string& why) {
    throw StateFileError("'" + file.path() + "' has a " + tensor + " of " + why);
  };
  if (found->shape != wanted.shape)
    refuse("shape " + text_of(found->shape) + "; this model's is " + text_of(wanted.shape));
  if (std::ranges::find(kModelDTypes, found->dtype) == kModelDTypes.end())
    refuse(std::string("type ") + safetensors_word(found->dtype) + "; weights are " + kWeightTypes.text);
  return *found;
}

// `from` need not be aligned.
template <class From, class T>
void convert_values(const std::byte* from, T* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    if constexpr (std::is_same_v<From, T>)
      to[i] = value;  // its bits, whatever they are
    else
      to[i] = static_cast<T>(static_cast<float>(value));
  }
}

template <class T>
void convert(DType type, const std::byte* from, T* to, std::size_t count) {
  with_type_of<float, __half, __nv_bfloat16>(type, [&]<class From>(From) { convert_values<From>(from, to, count); });
}

}  // namespace

std::size_t CheckpointTensor::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t(1), checked_product);
}

std::vector<CheckpointTensor> checkpoint_tensors(const TransformerSpec& spec, std::span<const TensorShape> tensors) {
  std::vector<CheckpointTensor> all;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorShape& t = tensors[i];
    std::string_view name = t.name;
    const std::size_t layer = layer_of(name);
    const CheckpointName* const row = layer ? named(kOfLayer, name) : named(kOfModel, name);
    if (!row)
      throw std::invalid_argument("tensor " + in_quotes(t.name) + " of " + spec.name + " has no name in a file");
    const bool vector = name.ends_with("gamma") || name.ends_with("bias");
    const std::size_t length = vector ? t.columns : t.rows, width = vector ? 1 : t.columns;
    std::vector<std::size_t> parts = {length};
    if (row->there[1]) parts = {spec.hidden(), spec.hidden()};
    if (row->there[2]) {
      const std::size_t keys = checked_product(spec.keys(), spec.depth());
      parts = {spec.width, keys, keys};
    }
    std::size_t begin = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::string before = layer ? "model.layers." + std::to_string(layer - 1) + "." : "";
      std::vector<std::size_t> shape = {parts[p]};
      if (!vector) shape.push_back(width);
      all.push_back({before + row->there[p], std::move(shape), i, checked_product(begin, width)});
      begin = checked_sum(begin, parts[p]);
    }
    if (begin != length)
      throw std::invalid_argument("tensor " + in_quotes(t.name) + " is cut: a file has whole layers");
  }
  return all;
}

void require_tensors(const SafetensorsFile& file, std::span<const CheckpointTensor> tensors) {
  for (const CheckpointTensor& t : tensors) (void)checked_entry(file, t);
}

template <class T>
void load_tensors(Context& context, std::span<const CheckpointTensor> tensors, std::span<const ParameterOf<T>> to,
                  const SafetensorsFile& file) {
  std::vector<const SafetensorsEntry*> found;
  for (const CheckpointTensor& t : tensors) found.push_back(&checked_entry(file, t));
  if (planning()) return;
  std::vector<std::byte> read(kStagingBytes);
  std::vector<T> converted(kStagingBytes / sizeof(T));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t element = element_bytes(found[i]->dtype), count = tensors[i].count();
    const std::size_t most = kStagingBytes / std::max(element, sizeof(T));
    for (std::size_t first = 0; first < count; first += most) {
      const std::size_t now = std::min(most, count - first);
      file.read(*found[i], first * element, std::span(read).first(now * element));
      convert(found[i]->dtype, read.data(), converted.data(), now);
      CUDA_CHECK(cudaMemcpyAsync(to[tensors[i].tensor].value + tensors[i].first + first, converted.data(),
                                 now * sizeof(T), cudaMemcpyHostToDevice, context.stream()));
      context.synchronize();
    }
  }
}

template <class T>
void save_tensors(Context& context, std::span<const CheckpointTensor> tensors, std::span<const ParameterOf<T>> from,
                  const std::string& path) {
  std::vector<StateTensor> all;
  for (const CheckpointTensor& t : tensors)
    all.push_back({t.name, kDTypeOf<T>, from[t.tensor].value + t.first, t.count() * sizeof(T), t.shape});
  save_state(context, path, all, "pt");
}

#define OOMLAB_CHECKPOINT(T)                                                                               \
  template void load_tensors(Context&, std::span<const CheckpointTensor>, std::span<const ParameterOf<T>>, \
                             const SafetensorsFile&);                                                      \
  template void save_tensors(Context&, std::span<const CheckpointTensor>, std::span<const ParameterOf<T>>, \
                             const std::string&);
OOMLAB_FOR_EACH_TYPE(OOMLAB_CHECKPOINT)

}  // namespace oomlab::nn
