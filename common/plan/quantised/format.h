#pragma once
// How a matrix of weights is stored in fewer bits, and what that takes.
//
//   scheme        a weight is                               bits   beside them
//   int8_tensor   scale * q, q in -127...127                8      one scale for the matrix
//   int8_row      the same                                  8      a scale for each row, FP32
//   int4          scale * (q - zero), q and zero in 0...15  4      for each group a scale in BF16 and a zero: 20 bits
//   nf4           absmax * code[q]                          4      for each block of 64 an absmax in 8 bits, for 256 of
//                                                                  these a scale in FP32, and the mean of all
//
// NF4 and its double quantisation: Dettmers et al., "QLoRA", 2023. Groups with a scale and a zero: Frantar et al.,
// "GPTQ", 2022.
//
// Codes of four bits: 32 bytes hold 64 weights, the first 32 in the lower halves, the others in the upper ones (as
// llama.cpp's Q4_0 has them, of half the length). A matrix [out, in] is one row after the other, and groups and blocks
// are cut from that line as it comes.

#include <array>
#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "plan/bytes.h"

namespace oomlab::quantised {

enum class Scheme { as_is, int8_tensor, int8_row, int4, nf4 };
/// Those with fewer bits.
inline constexpr std::array kSchemes = {Scheme::int8_tensor, Scheme::int8_row, Scheme::int4, Scheme::nf4};
/// The number format of the codes. Throws std::invalid_argument for as_is, which has none of its own.
DType code_dtype(Scheme scheme);
/// "int8_row", as files name it: the number format, and which scales it has where there is a choice.
const char* name_of(Scheme scheme);

/// What is not quantised is stored in one of these.
inline constexpr std::array kRestDTypes = {DType::fp32, DType::bf16};
/// Weights of int4 that share a scale and a zero, unless somebody says otherwise.
inline constexpr std::size_t kInt4Group = row_of(DType::int4).group;

struct Format {
  Scheme scheme = Scheme::as_is;
  std::uint64_t group = kInt4Group;  ///< of int4
  bool dynamic = false;              ///< int8_row: what is multiplied with the weights is quantised, too, when it comes
  friend bool operator==(const Format&, const Format&) = default;
};

inline constexpr std::size_t kBlock = row_of(DType::nf4).group;              ///< weights that share an absmax, of nf4
inline constexpr std::size_t kBlocks = row_of(DType::nf4).scales[1].groups;  ///< blocks that share a scale for that
inline constexpr std::size_t kPair = 64;  ///< codes of four bits that share bytes: i and i + 32

/// Something that is stored of a matrix.
struct Part {
  const char* name = "";      ///< in a file, behind the matrix' own; "": there is none
  DType type = DType::uint8;  ///< two codes of four bits are one value of uint8
  std::uint64_t count = 0;
  std::uint64_t bytes() const { return checked_product(count, element_bytes(type)); }
};
inline constexpr std::size_t kCodes = 0, kScales = 1, kSmall = 2, kMean = 3;  ///< of Parts
using Parts = std::array<Part, 4>;
/// The parts of `count` weights in `rows` rows. as_is has none. Throws std::invalid_argument, with one line, for groups
/// that do not divide the weights.
Parts parts_of(const Format& format, std::uint64_t rows, std::uint64_t count);

/// Where all parts of a matrix lie in one buffer, one behind the other, each begins at a multiple of this many bytes.
inline constexpr std::uint64_t kPartAlign = 16;

/// Bytes of a matrix as a file has it, and as the ledger counts it: each part a buffer of its own.
struct MatrixBytes {
  std::uint64_t stored = 0;
  std::uint64_t allocated = 0;
  /// Throws std::length_error.
  void add(const MatrixBytes& other);
};
/// `element_bytes`: of a weight that is stored as it is.
MatrixBytes matrix_bytes(const Format& format, std::uint64_t rows, std::uint64_t width, std::uint64_t element_bytes);

/// Weights in FP32 that are on the device at a time while a matrix of `count` is made: an eighth of it, and at most
/// 16 MiB, in whole rows or groups.
std::uint64_t piece_of(const Format& format, std::uint64_t count, std::uint64_t width);
/// Bytes that are there, as the ledger counts them, while matrices are made.
struct LoadingBytes {
  std::uint64_t piece = 0;    ///< weights in FP32
  std::uint64_t largest = 0;  ///< the absmax of all blocks
  std::uint64_t total() const { return checked_sum(piece, largest); }
  /// As much as the largest of several needs.
  void at_least(const LoadingBytes& other);
};
/// Of a matrix [rows, width].
LoadingBytes loading_bytes(const Format& format, std::uint64_t rows, std::uint64_t width);

}  // namespace oomlab::quantised
