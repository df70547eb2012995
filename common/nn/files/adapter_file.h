#pragma once
// Adapters in a folder as peft has them: adapter_config.json, and adapter_model.safetensors with A and B of each matrix
// under its name in Hugging Face's model, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".

#include <string>
#include <vector>

#include "memory/context.h"
#include "memory/files.h"
#include "nn/files/checkpoint.h"
#include "nn/models/adapters.h"
#include "plan/model/adapter_config.h"

namespace oomlab::nn {

inline constexpr const char* kAdapterConfig = "/adapter_config.json";
inline constexpr const char* kAdapterModel = "/adapter_model.safetensors";

/// What a file must have for these adapters, in the order of adapter_tensors(). Throws std::invalid_argument as
/// adapter_config_of().
std::vector<CheckpointTensor> adapter_file_tensors(const TransformerSpec& spec, const AdapterForm& form);

/// The form of the adapters in a folder. Throws BadFile for a file that cannot be read, and as parse_adapter_config().
inline AdapterForm read_adapter_form(const TransformerSpec& spec, const std::string& folder) {
  const std::string path = folder + kAdapterConfig;
  return parse_adapter_config(read_file(path, std::uint64_t(1) << 20), path, spec);
}
/// Fills a set of that form. Throws BadFile and StateFileError, in one line, as load_tensors(), also for a file with
/// another number of tensors.
template <class T>
void load_adapter(Context& context, const TransformerSpec& spec, AdapterSet<T>& adapters, const std::string& folder) {
  const SafetensorsFile file(folder + kAdapterModel);
  const std::vector<CheckpointTensor> tensors = adapter_file_tensors(spec, adapters.form());
  require_tensors(file, tensors);
  if (file.entries().size() != tensors.size())
    throw StateFileError("'" + file.path() + "' has " + std::to_string(file.entries().size()) +
                         " tensors; these adapters are " + std::to_string(tensors.size()));
  const std::vector<ParameterOf<T>> parameters = adapters.parameters();
  load_tensors<T>(context, tensors, parameters, file);
}
/// Writes both files into a folder that is there. Throws std::system_error, and as adapter_config_of().
template <class T>
void save_adapter(Context& context, const TransformerSpec& spec, AdapterSet<T>& adapters, const std::string& folder) {
  const std::string config = adapter_config_of(spec, adapters.form());
  const std::vector<ParameterOf<T>> parameters = adapters.parameters();
  save_tensors<T>(context, adapter_file_tensors(spec, adapters.form()), parameters, folder + kAdapterModel);
  if (planning()) return;
  write_file(folder + kAdapterConfig, config);
}

}  // namespace oomlab::nn
