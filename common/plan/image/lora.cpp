#include "plan/image/lora.h"

#include <stdexcept>

#include "plan/image/unet_walk.h"
#include "plan/levers.h"
#include "plan/optimizer_state.h"

namespace oomlab::image {

std::vector<TensorOf> lora_tensors(const UNetSpec& spec, std::uint64_t rank) {
  if (rank == 0) throw std::invalid_argument("an adapter's rank is at least 1");
  std::vector<TensorOf> adapters;
  for (const TensorOf& tensor : tensors_of(spec))
    for (const char* const end : {".to_q.weight", ".to_k.weight", ".to_v.weight", ".to_out.0.weight"}) {
      if (!tensor.name.ends_with(end)) continue;
      const std::string layer = tensor.name.substr(0, tensor.name.rfind('.'));
      adapters.push_back({layer + ".lora_A.weight", {rank, tensor.shape[1]}});
      adapters.push_back({layer + ".lora_B.weight", {tensor.shape[0], rank}});
    }
  return adapters;
}

std::uint64_t lora_parameters(const UNetSpec& spec, std::uint64_t rank) { return parameters(lora_tensors(spec, rank)); }

namespace {

void add_adapters(Simulation& simulation, const UNetSpec& spec, std::uint64_t rank) {
  const nn::OptimizerForm optimizer{.weights = plan::usual_weights(simulation.run().dtype)};
  for (const TensorOf& tensor : lora_tensors(spec, rank)) {
    const std::uint64_t bytes = checked_product(tensor.elements(), simulation.element_bytes());
    simulation.bytes(bytes, Category::parameters);
    simulation.bytes(bytes, Category::gradients);
    const nn::TensorShape shape{tensor.name, tensor.name, tensor.shape[0], tensor.shape[1]};
    simulation.bytes(nn::state_bytes(shape, optimizer), Category::optimizer);
  }
  simulation.bytes(nn::kScaleStateBytes, Category::optimizer);
  simulation.bytes(sizeof(float), Category::workspace);  // the loss
}

}  // namespace

TrainingCost cost_of_training(const PipelineSpec& spec, const Run& run, const LoraForm& lora, nn::InputSize latents) {
  if (!spec.unet()) throw std::invalid_argument(spec.title + " has no U-Net: its adapters are not planned");
  if (run.residency != Residency::all)
    throw std::invalid_argument("the weights of a denoiser that is trained are all on the device");
  require_latents(spec, latents);
  const UNetSpec& unet = *spec.unet();
  Simulation simulation(run);
  Weights weights(simulation, tensors_of(unet), run.denoiser_bits);
  add_adapters(simulation, unet, lora.rank);

  // The batch: latents with noise, the noise, timesteps, the rows of texts; of SDXL pooled rows and six numbers, too.
  const std::uint64_t images = run.batch, tokens = spec.context_tokens();
  const std::uint64_t of_image = checked_product(checked_product(latents.height, latents.width), unet.in_channels);
  const auto data = [&](std::uint64_t width, std::uint64_t bytes) {
    simulation.bytes(checked_product(checked_product(images, width), bytes), Category::data);
  };
  const std::uint64_t element = simulation.element_bytes();
  data(of_image, element);
  data(of_image, element);
  data(1, sizeof(float));
  data(checked_product(tokens, unet.context), element);
  if (unet.added_condition) {
    data(unet.added_condition - 6 * unet.added_time, element);
    data(6, sizeof(float));
  }

  UNetWalk walk(simulation, weights, unet, images, latents, tokens, lora.rank);
  const Buffer prediction = walk.forward();
  simulation.add_linear(checked_product(images, of_image), 1, 1);  // its distance from the noise
  walk.backward(prediction);
  return {simulation.peak(), simulation.work().multiply_adds};
}

}  // namespace oomlab::image
