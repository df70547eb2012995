#include "nn/models/image/weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "cuda/dtype_of.h"
#include "nn/ops/instances.h"

namespace oomlab::image {

ReadTensor tensors_from(const nn::SafetensorsFile& file) {
  return [&file](const TensorOf& tensor, std::span<float> values) {
    const auto refuse = [&](const char* why) {
      throw nn::StateFileError("'" + file.path() + "' has " + why + " '" + tensor.name + "'");
    };
    const nn::SafetensorsEntry* const entry = file.find(tensor.name);
    if (!entry) return refuse("no tensor");
    if (!std::ranges::equal(entry->shape, tensor.shape)) refuse("another shape of the tensor");
    if (std::ranges::find(kModelDTypes, entry->dtype) == kModelDTypes.end())
      refuse("no F32, F16 or BF16 in the tensor");
    std::vector<std::byte> bytes(entry->bytes);
    file.read(*entry, 0, bytes);
    with_type_of<float, __half, __nv_bfloat16>(entry->dtype, [&]<class From>(From value) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
        values[i] = static_cast<float>(value);
      }
    });
  };
}

namespace {

// Calls body(from, to) for each element of a tensor: where a file has it, and where it lies here.
template <class Body>
void each_element(const TensorOf& tensor, Body body) {
  if (tensor.shape.size() != 4) {
    for (std::size_t i = 0; i < tensor.elements(); ++i) body(i, i);
    return;
  }
  const std::size_t out = tensor.shape[0], in = tensor.shape[1], area = tensor.shape[2] * tensor.shape[3];
  std::size_t from = 0;
  for (std::size_t o = 0; o < out; ++o)
    for (std::size_t i = 0; i < in; ++i)
      for (std::size_t at = 0; at < area; ++at) body(from++, (o * area + at) * in + i);
}

std::vector<float> values_of(const TensorOf& tensor, const ReadTensor& read) {
  std::vector<float> values(tensor.elements());
  read(tensor, values);
  return values;
}

}  // namespace

template <class T>
WeightStore<T>::WeightStore(Context& context, std::vector<TensorOf> tensors, Residency residency,
                            const ReadTensor& read, const nn::MakeFrozenStore<T>& encode)
    : context_(context), residency_(residency) {
  for (TensorOf& tensor : tensors) {
    numbers_.emplace(tensor.name, tensors_.size());
    const std::size_t bytes = checked_product(tensor.elements(), sizeof(T));
    tensors_.push_back({std::move(tensor), bytes, kPlain, {}, {}});
  }
  if (encode) find_encoded(encode);
  if (frozen_) frozen_->begin_encoding(context);
  for (Tensor& tensor : tensors_) {
    if (residency != Residency::all)
      tensor.on_host = context.pinned<std::byte>(tensor.bytes, Category::parameters, tensor.of.name);
    if (tensor.encoded == kPlain)
      load(tensor, read);
    else
      this->encode(tensor, read);
  }
  if (frozen_) frozen_->end_encoding(context);
}

// Stores go by the names of decoders' matrices.
template <class T>
void WeightStore<T>::find_encoded(const nn::MakeFrozenStore<T>& encode) {
  std::vector<nn::TensorShape> shapes;
  for (Tensor& tensor : tensors_) {
    if (!is_linear(tensor.of)) continue;
    tensor.encoded = shapes.size();
    shapes.push_back({"layer " + tensor.of.name + " weight", tensor.of.name, tensor.of.shape[0], tensor.of.shape[1]});
  }
  frozen_ = encode(shapes);
  for (Tensor& tensor : tensors_)
    if (tensor.encoded != kPlain) tensor.bytes = frozen_->bytes(tensor.encoded);
}

template <class T>
void WeightStore<T>::load(Tensor& tensor, const ReadTensor& read) {
  const bool waits = residency_ != Residency::all;
  if (!waits) tensor.on_device = context_.buffer<std::byte>(tensor.bytes, Category::parameters, tensor.of.name);
  if (planning()) return;
  const std::vector<float> values = values_of(tensor.of, read);
  std::vector<T> converted(waits ? 0 : values.size());
  T* const there = waits ? reinterpret_cast<T*>(tensor.on_host.data()) : converted.data();
  each_element(tensor.of, [&](std::size_t from, std::size_t to) { there[to] = static_cast<T>(values[from]); });
  if (waits) return;
  CUDA_CHECK(cudaMemcpyAsync(tensor.on_device.data(), there, tensor.bytes, cudaMemcpyHostToDevice, context_.stream()));
  context_.synchronize();  // before `converted` is gone
}

template <class T>
void WeightStore<T>::encode(Tensor& tensor, const ReadTensor& read) {
  tensor.on_device = context_.buffer<std::byte>(tensor.bytes, Category::parameters, tensor.of.name);
  frozen_->bind(tensor.encoded, tensor.on_device.data());
  const std::vector<float> values = planning() ? std::vector<float>() : values_of(tensor.of, read);
  frozen_->encode(context_, tensor.encoded, [&](Context& c, std::size_t first, std::size_t count, float* to) {
    CUDA_CHECK(cudaMemcpyAsync(to, values.data() + first, count * sizeof(float), cudaMemcpyHostToDevice, c.stream()));
    c.synchronize();  // before `values` are gone, whatever comes next
  });
  if (!tensor.on_host) return;
  CUDA_CHECK(cudaMemcpyAsync(tensor.on_host.data(), tensor.on_device.data(), tensor.bytes, cudaMemcpyDeviceToHost,
                             context_.stream()));
  frozen_->bind(tensor.encoded, nullptr);
  tensor.on_device.reset();
}

template <class T>
typename WeightStore<T>::Lease WeightStore<T>::stage() {
  Lease lease(*this);
  if (residency_ == Residency::model)
    for (std::size_t i = 0; i < tensors_.size(); ++i) come(i, lease);
  return lease;
}

template <class T>
typename WeightStore<T>::Lease WeightStore<T>::block(const std::vector<std::string>& names) {
  Lease lease(*this);
  if (residency_ != Residency::layer) return lease;
  for (const std::string& name : names) {
    if (const auto itself = numbers_.find(name); itself != numbers_.end()) {
      come(itself->second, lease);
      continue;
    }
    const std::string with_dot = name + ".";
    auto next = numbers_.lower_bound(with_dot);
    if (next == numbers_.end() || !next->first.starts_with(with_dot))
      throw std::logic_error("no tensor's name begins with '" + with_dot + "'");
    for (; next != numbers_.end() && next->first.starts_with(with_dot); ++next) come(next->second, lease);
  }
  return lease;
}

template <class T>
void WeightStore<T>::come(std::size_t i, Lease& lease) {
  Tensor& tensor = tensors_[i];
  if (tensor.on_device) throw std::logic_error("'" + tensor.of.name + "' is on the device already");
  lease.tensors_.push_back(i);
  tensor.on_device = context_.buffer<std::byte>(tensor.bytes, Category::parameters, tensor.of.name);
  CUDA_CHECK(cudaMemcpyAsync(tensor.on_device.data(), tensor.on_host.data(), tensor.bytes, cudaMemcpyHostToDevice,
                             context_.stream()));
  if (tensor.encoded != kPlain) frozen_->bind(tensor.encoded, tensor.on_device.data());
}

template <class T>
void WeightStore<T>::leave(std::size_t i) noexcept {
  Tensor& tensor = tensors_[i];
  if (tensor.encoded != kPlain) frozen_->bind(tensor.encoded, nullptr);
  tensor.on_device.reset();
}

template <class T>
std::size_t WeightStore<T>::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? kPlain : found->second;
}

template <class T>
const typename WeightStore<T>::Tensor& WeightStore<T>::present(std::string_view name) const {
  const std::size_t i = find(name);
  if (i == kPlain) throw std::logic_error("there is no tensor '" + std::string(name) + "'");
  if (!tensors_[i].on_device) throw std::logic_error("'" + std::string(name) + "' is not on the device");
  return tensors_[i];
}

template <class T>
const T* WeightStore<T>::operator[](std::string_view name) const {
  const Tensor& tensor = present(name);
  if (tensor.encoded != kPlain) throw std::logic_error("'" + tensor.of.name + "' is in fewer bits");
  return reinterpret_cast<const T*>(tensor.on_device.data());
}

template <class T>
nn::Linear<nn::BaseWeights<T>> WeightStore<T>::linear(const std::string& name) const {
  const Tensor& tensor = present(name + ".weight");
  const bool encoded = tensor.encoded != kPlain;
  nn::Linear<nn::BaseWeights<T>> layer;
  layer.weights = {.data = encoded ? nullptr : reinterpret_cast<const T*>(tensor.on_device.data()),
                   .in = tensor.of.shape[1],
                   .out = tensor.of.shape[0],
                   .frozen = encoded ? frozen_->matrix(tensor.encoded) : nullptr};
  if (const std::string bias = name + ".bias"; find(bias) != kPlain) layer.bias = (*this)[bias];
  return layer;
}

template <class T>
std::span<const std::uint64_t> WeightStore<T>::shape(std::string_view name) const {
  const std::size_t i = find(name);
  if (i == kPlain) return {};
  return tensors_[i].of.shape;
}

#define OOMLAB_WEIGHT_STORE(T) template class WeightStore<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_WEIGHT_STORE)

}  // namespace oomlab::image
