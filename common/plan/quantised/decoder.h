#pragma once
// A decoder whose linear layers are stored in fewer bits: its bytes, and those of reading a text with it, one token a
// sequence at a time. The matrices of the layers are quantised: Q, K and V, the projection, gate and up, and the last
// one of the MLP. The norms, the token embedding and the head stay as they are (as bitsandbytes, GPTQ and AWQ have it by
// default).

#include <cstdint>
#include <vector>

#include "plan/category.h"
#include "plan/model/transformer.h"
#include "plan/quantised/format.h"

namespace oomlab::quantised {

/// Whether a tensor is one that these formats quantise: the matrices of the layers.
bool is_quantised(const nn::TensorShape& shape);
/// as_is for what is not.
Format format_of(const nn::TensorShape& shape, const Format& format);

/// How linear layers are stored and multiplied, and the format of the rest, one of kRestDTypes: a variant of chapter 12.
struct ModelFormat {
  const char* name;
  Format linear;
  DType rest;
};
inline constexpr const char* kFp32 = name_of(DType::fp32);
inline constexpr const char* kBf16 = name_of(DType::bf16);
inline constexpr const char* kInt8Tensor = "int8 per tensor";
inline constexpr const char* kInt8 = "int8 per row";
inline constexpr const char* kInt4 = "int4 in groups";
inline constexpr const char* kNf4 = "nf4, double";
inline constexpr const char* kDynamic = "int8 dynamic";
/// All of them, weights as they are first.
std::vector<ModelFormat> model_formats(std::uint64_t int4_group, DType rest);

/// Bytes of a model: as a file has them, without its header, and as the ledger counts them; of each the part that is
/// quantised; and of pieces while it is made.
struct ModelBytes {
  MatrixBytes all;
  MatrixBytes quantised;
  LoadingBytes loading;
};
/// Throws as parts_of().
ModelBytes model_bytes(const nn::TransformerSpec& spec, const Format& linear, DType rest);

/// What dynamic products of up to `rows` rows need: codes [rows, in], a scale a row, and sums [rows, out] in INT32.
std::uint64_t dynamic_product_bytes(std::uint64_t rows, std::uint64_t in, std::uint64_t out);

/// `batches` times `sequences` sequences of `seq` tokens, each sequence with a cache of its own, which is contiguous.
struct Read {
  std::uint64_t sequences;
  std::uint64_t seq;
  std::uint64_t batches;
};
/// Peak bytes by category, without cuBLAS's workspace: the weights, and with them either what loading needs, or all that
/// reading does. Throws as parts_of(), and std::length_error.
ByCategory reading_bytes(const nn::TransformerSpec& spec, const Format& linear, DType rest, const Read& read);

}  // namespace oomlab::quantised
