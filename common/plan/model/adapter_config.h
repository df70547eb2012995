#pragma once
// Adapters as peft's adapter_config.json says them (github.com/huggingface/peft). What such a file may ask for and
// AdapterForm does not do is refused, so that an adapter never computes something else.

#include <string>
#include <string_view>

#include "plan/model/adapters.h"

namespace oomlab::nn {

/// Reads an adapter_config.json, whose text this is, for adapters of this model; `name` is what errors begin with. What
/// the file may leave out has the value that peft gives it. Throws std::invalid_argument with one line that names the
/// key.
AdapterForm parse_adapter_config(std::string_view json, const std::string& name, const TransformerSpec& spec);
/// With it peft loads what save_adapter() (nn/files/adapter_file.h) writes; parse_adapter_config() makes the same form of
/// it, but that targets are named one by one. Throws std::invalid_argument for targets that no matrix of peft's is: Q or
/// V of a gpt, whose c_attn is one.
std::string adapter_config_of(const TransformerSpec& spec, const AdapterForm& form);

}  // namespace oomlab::nn
