#pragma once
// A model's shape as Hugging Face's config.json says it. Known are those whose model is TransformerSpec::Style::llama:
// the model types llama, mistral and qwen2. What such a file may ask for and this model does not do is refused, so that
// weights are never computed with wrongly.

#include <string>
#include <string_view>

#include "plan/model/transformer.h"

namespace oomlab::nn {

/// Reads a config.json, whose text this is; `name` is what errors begin with, and the spec's name. What the file may
/// leave out has the value that Hugging Face's transformers give it.
///
/// A sliding window (mistral; qwen2 with use_sliding_window) that is shorter than max_position_embeddings becomes the
/// longest sequence: within the window every token sees all that are before it, so the results are the same.
///
/// A quantization_config changes how weights are stored and not what the model computes: the spec is that of the model
/// before it was quantised, and its stored_as says what was there, for whoever plans it to say so.
///
/// Throws std::invalid_argument with one line that names the key.
TransformerSpec parse_model_config(std::string_view json, const std::string& name);

/// Bytes of such a file that are read at most. Real ones have a few thousand.
inline constexpr std::uint64_t kMostConfigBytes = std::uint64_t(1) << 20;

/// A config.json with which transformers load what save_weights() (checkpoint.h) writes; parse_model_config() makes the
/// same spec of it, but for the name. Throws std::invalid_argument for a model of another style.
std::string model_config_of(const TransformerSpec& spec);

}  // namespace oomlab::nn
