#include "nn/models/image/lora.h"

#include <cmath>
#include <stdexcept>

#include "nn/ops/instances.h"
#include "nn/ops/values.h"

namespace oomlab::image {

template <class T>
LoraAdapters<T>::LoraAdapters(Context& context, const UNetSpec& spec, const LoraForm& form, std::uint64_t seed)
    : form_(form), tensors_(lora_tensors(spec, form.rank)) {
  if (tensors_.empty()) throw std::invalid_argument("a denoiser without attention has no adapters");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorOf& tensor = tensors_[i];
    const bool is_a = i % 2 == 0;
    values_.push_back(context.buffer<T>(tensor.elements(), Category::parameters, tensor.name));
    gradients_.push_back(context.buffer<T>(tensor.elements(), Category::gradients, tensor.name + " gradient"));
    const float bound = is_a ? 1 / std::sqrt(static_cast<float>(tensor.shape[1])) : 0.0f;
    nn::fill_uniform(context, values_.back().data(), values_.back().size(), bound, seed, i);
    if (is_a) number_of_a_.emplace(tensor.name.substr(0, tensor.name.find(".lora_A")), i);
  }
}

template <class T>
std::vector<nn::ParameterOf<T>> LoraAdapters<T>::parameters() {
  std::vector<nn::ParameterOf<T>> all;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    all.push_back({tensors_[i].name, values_[i].data(), gradients_[i].data(), values_[i].size()});
  return all;
}

template <class T>
nn::Adapter<T> LoraAdapters<T>::of(const std::string& layer) {
  const auto found = number_of_a_.find(layer);
  if (found == number_of_a_.end()) return {};
  const std::size_t a = found->second, b = a + 1;
  nn::Adapter<T> adapter;
  adapter.rank = form_.rank;
  adapter.in = tensors_[a].shape[1];
  adapter.out = tensors_[b].shape[0];
  adapter.scale = form_.scale();
  adapter.a = values_[a].data();
  adapter.b = values_[b].data();
  adapter.d_a = gradients_[a].data();
  adapter.d_b = gradients_[b].data();
  return adapter;
}

#define OOMLAB_LORA(T) template class LoraAdapters<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_LORA)

}  // namespace oomlab::image
