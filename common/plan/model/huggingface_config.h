#pragma once
// Models of Hugging Face's families by their config.json, by the names that people type, and from TransformerSpec.

#include <string>
#include <string_view>
#include <vector>

#include "plan/model/huggingface.h"
#include "plan/model/transformer.h"

namespace oomlab::nn {

/// Reads a config.json whose text this is, of the model types that HfFamily names (and gemma3_text); where the language
/// model is in text_config, that part. What the file may leave out has transformers' value. Throws
/// std::invalid_argument with one line that begins with `name` and names the key.
HfShape parse_hf_config(std::string_view json, const std::string& name);

/// A model of huggingface_models.cpp's table: "meta-llama/Llama-3.1-8B", "Llama-3.1-8B-Instruct", "llama3.1-8b". Case,
/// what stands before a slash, punctuation, and endings that change no shape (-instruct, -chat, -it, -hf, -base) do not
/// matter. Throws std::invalid_argument with one line that lists the nearest names, also for a name that is not printable ASCII.
HfShape hf_model(std::string_view typed);
/// All of the table, their names as they stand on the hub.
const std::vector<HfShape>& hf_models();

/// The same model as transformers has it: gpt2's, bert's, llama's or qwen2's modules.
HfShape hf_shape_of(const TransformerSpec& spec);

}  // namespace oomlab::nn
