#pragma once
// Low-rank adapters (Hu et al., "LoRA", 2021): beside a frozen matrix W [out, in] two small ones are trained,
// A [r, in] and B [out, r], and a layer computes y = x Wᵀ + s (x Aᵀ) Bᵀ, s = alpha / r. Their shapes, as those of a
// model's tensors in transformer.h.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model/transformer.h"

namespace oomlab::nn {

/// What of a model is trained.
enum class Trained {
  all,
  adapters,  ///< beside frozen weights; models of style gpt and llama
  head,      ///< the last matrix alone, which is not the token embedding: a model whose head is not tied
};

/// The matrices of a layer. Q, K and V are one, and so are gate and up.
enum class LayerMatrix { qkv, projection, up, down };

/// Which matrices have adapters, and of what size.
struct AdapterForm {
  std::uint64_t rank = 16;      ///< r
  float alpha = 32;             ///< alpha
  std::string targets = "all";  ///< see adapter_slots()
  float dropout = 0;            ///< share of an adapter's input that is dropped in training, below 1
  float scale() const { return alpha / static_cast<float>(rank); }  ///< s
  friend bool operator==(const AdapterForm&, const AdapterForm&) = default;
};

/// An adapter of a layer.
struct AdapterSlot {
  const char* name;                  ///< as peft has it, "q_proj"
  const char* path;                  ///< in a layer of Hugging Face's model, "self_attn.q_proj"
  LayerMatrix matrix;                ///< whose output it is added to,
  std::uint64_t first = 0, out = 0;  ///< these columns of it
  std::uint64_t in = 0;              ///< columns of A
  /// Whether ranks that share a layer (Slice::parts) have columns of its matrix, and with them columns of A, and all of
  /// B. Otherwise they have rows, with them rows of B, and all of A.
  bool by_columns() const { return matrix == LayerMatrix::projection || matrix == LayerMatrix::down; }
  /// What one of so many parts has of it.
  AdapterSlot of_part(std::uint64_t parts) const;
};

/// The slots that a model's layers may have, in order: llama q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
/// down_proj; gpt, whose Q, K and V are one matrix in its files, c_attn, attn.c_proj, c_fc, mlp.c_proj, and for Q and V
/// alone q and v.
std::vector<AdapterSlot> all_adapter_slots(const TransformerSpec& spec);
/// Those that `targets` names: "all"; "attention": of the matrices around attention; "qv": Q and V (Hu et al.); or
/// names of slots with commas between them. Throws std::invalid_argument, in one line, for a name that the model does
/// not have, for one that is there twice, for c_attn beside q or v, and for a model of another style.
std::vector<AdapterSlot> adapter_slots(const TransformerSpec& spec, std::string_view targets);
/// Adapters' tensors in order: of each layer, of each slot A [r, in] and B [out, r], or what a slice has of them. Their
/// units are the layers. Throws as adapter_slots().
std::vector<TensorShape> adapter_tensors(const TransformerSpec& spec, const AdapterForm& form, const Slice& slice = {});
/// Throws std::invalid_argument, in one line, for a rank of 0, a dropout that is not in [0, 1), and as
/// adapter_slots().
void require_adapters(const TransformerSpec& spec, const AdapterForm& form);
/// Σ r (in + out): what is trained.
std::uint64_t adapter_parameters(const TransformerSpec& spec, const AdapterForm& form);

}  // namespace oomlab::nn
