#include "nn/files/adapter_file.h"

namespace oomlab::nn {

std::vector<CheckpointTensor> adapter_file_tensors(const TransformerSpec& spec, const AdapterForm& form) {
  (void)adapter_config_of(spec, form);  // throws where an adapter has no place there
  const std::vector<AdapterSlot> slots = adapter_slots(spec, form.targets);
  std::vector<CheckpointTensor> all;
  for (std::uint64_t layer = 0; layer < spec.layers; ++layer)
    for (const AdapterSlot& slot : slots) {
      const std::string at = (spec.llama() ? "base_model.model.model.layers." : "base_model.model.transformer.h.") +
                             std::to_string(layer) + "." + slot.path;
      all.push_back({at + ".lora_A.weight", {form.rank, slot.in}, all.size(), 0});
      all.push_back({at + ".lora_B.weight", {slot.out, form.rank}, all.size(), 0});
    }
  return all;
}

}  // namespace oomlab::nn
