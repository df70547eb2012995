#pragma once
// Weights of models of llama's style in one safetensors file, under the names that Hugging Face's transformers give
// them. There Q, K and V are three matrices, and so are the gate and the other half of an MLP two; here they are rows
// of one.
//
//   here                           there, in this order
//   token embedding                model.embed_tokens.weight
//   layer 1 norm 1 gamma           model.layers.0.input_layernorm.weight
//   layer 1 qkv weight             model.layers.0.self_attn.{q,k,v}_proj.weight
//   layer 1 qkv bias               model.layers.0.self_attn.{q,k,v}_proj.bias
//   layer 1 projection weight      model.layers.0.self_attn.o_proj.weight
//   layer 1 norm 2 gamma           model.layers.0.post_attention_layernorm.weight
//   layer 1 gate and up weight     model.layers.0.mlp.{gate,up}_proj.weight
//   layer 1 contract weight        model.layers.0.mlp.down_proj.weight
//   final norm gamma               model.norm.weight
//   head weight                    lm_head.weight

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "memory/context.h"
#include "nn/files/safetensors.h"
#include "nn/models/transformer.h"

namespace oomlab::nn {

/// A tensor of a file, and where its values are in a model.
struct CheckpointTensor {
  std::string name;                ///< in the file
  std::vector<std::size_t> shape;  ///< there
  std::size_t tensor = 0;          ///< of the model
  std::size_t first = 0;           ///< the element of that tensor at which its values begin
  std::size_t count() const;
};

/// What a file must have for these tensors of a model (as of tensors_of(); whole layers, not parts of them), in the
/// order of the model. Throws std::invalid_argument for a tensor that has no name there.
std::vector<CheckpointTensor> checkpoint_tensors(const TransformerSpec& spec, std::span<const TensorShape> tensors);

/// Throws StateFileError, in one line, unless the file has all of these with their shapes and a type that weights have.
void require_tensors(const SafetensorsFile& file, std::span<const CheckpointTensor> tensors);
/// Fills `to` from a file. F32, F16 and BF16 become T, rounded to the nearest, in pieces of at most 1 MiB on the host,
/// copied on the context's stream. Everything is checked before the first byte is copied; what the file has besides is
/// ignored. In plan mode it is checked only. Throws StateFileError with one line that names the tensor which is not
/// there, or has another shape or a type that no weight has.
template <class T>
void load_tensors(Context& context, std::span<const CheckpointTensor> tensors, std::span<const ParameterOf<T>> to,
                  const SafetensorsFile& file);
/// Writes them, as save_state() does.
template <class T>
void save_tensors(Context& context, std::span<const CheckpointTensor> tensors, std::span<const ParameterOf<T>> from,
                  const std::string& path);

/// The weights of a model, or of some of its layers. Throws as checkpoint_tensors() and load_tensors().
template <class T>
void load_weights(Context& context, Transformer<T>& model, const std::string& path) {
  const std::vector<TensorShape> shapes = tensors_of(model.spec(), model.slice());
  const std::vector<ParameterOf<T>> parameters = model.parameters();
  load_tensors<T>(context, checkpoint_tensors(model.spec(), shapes), parameters, SafetensorsFile(path));
}
/// With model_config_of(spec) as config.json beside it, transformers load it. Throws as checkpoint_tensors() and
/// save_state().
template <class T>
void save_weights(Context& context, Transformer<T>& model, const std::string& path) {
  const std::vector<TensorShape> shapes = tensors_of(model.spec(), model.slice());
  const std::vector<ParameterOf<T>> parameters = model.parameters();
  save_tensors<T>(context, checkpoint_tensors(model.spec(), shapes), parameters, path);
}

}  // namespace oomlab::nn
