#pragma once
// Files as llama.cpp's quantiser writes them: which type each tensor has in a Q4_K_M, IQ4_XS, Q8_0, …, and its bytes.
//
// A type stores blocks of 32 or 256 values of a row: codes, and the scales that they share (ggml-common.h). A kind mixes
// types: most matrices have its own, the output, the values' projection and some of the down-projections more bits. The
// rules were read in llama.cpp's src/llama-quant.cpp of 2026; tests/fit_engines holds them to the bits per weight that
// its tools/quantize/README.md publishes.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model/huggingface.h"

namespace oomlab::fit {

/// How a tensor of a GGUF file is stored.
enum class GgufType {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq1_s,
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq4_nl,
  iq4_xs,
};
/// "q4_0": for --cache-type.
const char* name_of(GgufType type);
/// Values of a block.
std::uint64_t block_of(GgufType type);
/// Bytes of `rows` rows of `columns` values, of whole blocks. Throws std::invalid_argument where a row has none, and
/// std::length_error where 64 bits do not hold the figure.
std::uint64_t gguf_bytes(GgufType type, std::uint64_t rows, std::uint64_t columns);

/// What a file is called by: "q4_k_m". Those of one to three bits are made with an importance matrix, as published ones
/// are; the others without.
struct GgufKind {
  const char* name;
  GgufType base;  ///< of most matrices
};
/// All of them, those of more bits first.
std::span<const GgufKind> gguf_kinds();
/// By its name, in capitals or not; nullptr: there is none.
const GgufKind* gguf_kind(std::string_view name);

struct GgufTensor {
  std::string name;     ///< transformers', without the layer's number
  std::uint64_t layer;  ///< from 1; 0: none
  GgufType type;
  std::uint64_t rows, columns;
  std::uint64_t bytes() const { return gguf_bytes(type, rows, columns); }
};
/// Every tensor of a file. Throws std::invalid_argument for a model that is no decoder (bert, vit).
std::vector<GgufTensor> gguf_tensors(const nn::HfShape& shape, const GgufKind& kind);

}  // namespace oomlab::fit
