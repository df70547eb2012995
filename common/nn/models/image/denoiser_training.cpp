#include "nn/models/image/denoiser_training.h"

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "nn/models/read_loss.h"
#include "nn/ops/instances.h"
#include "nn/ops/matmul.h"
#include "nn/ops/values.h"

namespace oomlab::image {

namespace {

nn::OptimizerSettings settings_of(const nn::AdamWSettings& adamw) {
  nn::OptimizerSettings settings;
  settings.adamw = adamw;
  return settings;
}

template <class T>
Denoiser<T>& resident(Denoiser<T>& denoiser) {
  if (denoiser.weights().residency() != Residency::all)
    throw std::invalid_argument("the weights of a denoiser that is trained are all on the device");
  return denoiser;
}

}  // namespace

// Gradients of a mean over all latents are small; in FP16 what is below 6e-8 would be 0.
template <class T>
float DenoiserTraining<T>::loss_scale() noexcept {
  return std::is_same_v<T, __half> ? 1024.0f : 1.0f;
}

template <class T>
DenoiserTraining<T>::DenoiserTraining(Context& context, Denoiser<T>& denoiser, const LoraForm& form, std::uint64_t seed,
                                      const nn::AdamWSettings& adamw)
    : denoiser_(resident(denoiser)),
      adapters_(context, denoiser.spec(), form, seed),
      optimizer_(context, adapters_.parameters(), {.initial = loss_scale()}, settings_of(adamw)),
      loss_(context.buffer<float>(1, Category::workspace, "loss")) {
  denoiser_.set_adapters(&adapters_);
}

template <class T>
void DenoiserTraining<T>::gradients(Context& context, const NoisyBatch<T>& batch, const Form& form) {
  Tape<T> tape;
  DeviceBuffer<T> d = denoiser_.forward(context, batch.latents, batch.timesteps, batch.text, batch.batch, batch.size,
                                        form, batch.added, &tape);
  const std::size_t count = d.size();
  const float mean = 1 / static_cast<float>(count);
  nn::combine<T>(context, 1, d.data(), -1, batch.noise, d.data(), count);
  nn::gemm_strided<T, float>(context, false, true, 1, 1, count, mean, {d.data(), count, 0}, {d.data(), count, 0}, 0,
                             {loss_.data(), 1, 0}, 1);
  nn::combine<T>(context, 2 * mean * loss_scale(), d.data(), 0, d.data(), d.data(), count);
  denoiser_.backward(context, tape, std::move(d), batch.text, batch.batch, batch.size, form);
}

template <class T>
void DenoiserTraining<T>::step(Context& context, const NoisyBatch<T>& batch, const Form& form) {
  gradients(context, batch, form);
  optimizer_.step(context);
}

template <class T>
double DenoiserTraining<T>::loss(Context& context) const {
  return nn::read_loss(context, loss_);
}

#define OOMLAB_DENOISER_TRAINING(T) template class DenoiserTraining<T>;
OOMLAB_FOR_EACH_TYPE(OOMLAB_DENOISER_TRAINING)

}  // namespace oomlab::image
