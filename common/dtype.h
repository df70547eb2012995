#pragma once
// Number formats, one row each: the name that options and result files have for it, its bits, what is stored beside it
// where groups of values share a scale, and the words that other software has for it. Nothing else in this repository
// knows how many bytes a format takes, or what anybody calls it (tests/docs/formats_test.py).
//
// A format is not a recipe. "16 bits with FP32 master weights" (train/precision.h), "INT8 with a scale for each row"
// (chapter 12) and the like say how a format is used, and ask its row for the rest.
//
// Bits and smallest normal numbers: IEEE 754 (fp64, fp32, fp16); NVIDIA's "A100 Tensor Core GPU Architecture", 2020
// (tf32, bf16); Micikevicius et al., "FP8 Formats for Deep Learning", 2022. Words: safetensors' Dtype, PyTorch's
// torch.dtype, CUDA's library_types.h and cublas_api.h.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oomlab {

/// A number format. First those in which models are stored and multiplied, then what else files may hold.
enum class DType : unsigned char {
  fp32,
  tf32,  ///< a way of multiplying: stored as fp32, of which tensor cores read 19 bits
  fp16,
  bf16,
  fp8_e4m3,
  fp8_e5m2,
  int8,
  int4,  ///< in groups: scale · (code - zero)
  nf4,   ///< in groups: absmax · table[code] (Dettmers et al., "QLoRA", 2023)
  fp64,
  int64,
  int32,
  int16,
  uint64,
  uint32,
  uint16,
  uint8,
  boolean,
};

/// A number that is stored beside the codes of a format.
struct Scale {
  DType type;
  std::size_t groups;  ///< so many groups share one; 0: all of a tensor
};
/// GPTQ's (Frantar et al., 2022): a scale and a zero for each group.
inline constexpr Scale kInt4Scales[] = {{DType::bf16, 1}, {DType::int4, 1}};
/// Double quantisation: the groups' absmax in 8 bits, for 256 of them a scale, and the mean of all.
inline constexpr Scale kNf4Scales[] = {{DType::int8, 1}, {DType::fp32, 256}, {DType::fp32, 0}};
/// A group is a row, or where nobody says how long one is, the tensor.
inline constexpr Scale kInt8Scales[] = {{DType::fp32, 1}};

/// What is known of a format. A word that somebody does not have is empty.
struct DTypeRow {
  DType type;
  const char* name;                 ///< "fp32": for options, result files and messages
  unsigned bits;                    ///< of a value as it is stored, without scales
  const char* safetensors = "";     ///< "F32"
  const char* torch = "";           ///< "float32": torch.float32, and torch_dtype in a config.json
  const char* cublas = "";          ///< "CUDA_R_32F": a cudaDataType; tf32 is a cublasComputeType_t
  double smallest_normal = 0;       ///< below it a value has fewer significant bits; 0: an integer, or a code
  std::size_t group = 0;            ///< values that share a scale, where nobody says otherwise; 0: there are no groups
  std::span<const Scale> scales{};  ///< stored beside the values
};

// clang-format off
/// In the order of DType.
inline constexpr DTypeRow kDTypes[] = {
    {DType::fp32,     "fp32",     32, "F32",     "float32",       "CUDA_R_32F",     0x1p-126},
    {DType::tf32,     "tf32",     32, "",        "",              "CUBLAS_COMPUTE_32F_FAST_TF32", 0x1p-126},
    {DType::fp16,     "fp16",     16, "F16",     "float16",       "CUDA_R_16F",     0x1p-14},
    {DType::bf16,     "bf16",     16, "BF16",    "bfloat16",      "CUDA_R_16BF",    0x1p-126},
    {DType::fp8_e4m3, "fp8_e4m3",  8, "F8_E4M3", "float8_e4m3fn", "CUDA_R_8F_E4M3", 0x1p-6},
    {DType::fp8_e5m2, "fp8_e5m2",  8, "F8_E5M2", "float8_e5m2",   "CUDA_R_8F_E5M2", 0x1p-14},
    {DType::int8,     "int8",      8, "I8",      "int8",          "CUDA_R_8I",      0, 0,   kInt8Scales},
    {DType::int4,     "int4",      4, "",        "",              "CUDA_R_4I",      0, 128, kInt4Scales},
    {DType::nf4,      "nf4",       4, "",        "",              "",               0, 64,  kNf4Scales},
    {DType::fp64,     "fp64",     64, "F64",     "float64",       "CUDA_R_64F",     0x1p-1022},
    {DType::int64,    "int64",    64, "I64",     "int64",         "CUDA_R_64I"},
    {DType::int32,    "int32",    32, "I32",     "int32",         "CUDA_R_32I"},
    {DType::int16,    "int16",    16, "I16",     "int16",         "CUDA_R_16I"},
    {DType::uint64,   "uint64",   64, "U64",     "uint64",        "CUDA_R_64U"},
    {DType::uint32,   "uint32",   32, "U32",     "uint32",        "CUDA_R_32U"},
    {DType::uint16,   "uint16",   16, "U16",     "uint16",        "CUDA_R_16U"},
    {DType::uint8,    "uint8",     8, "U8",      "uint8",         "CUDA_R_8U"},
    {DType::boolean,  "bool",      8, "BOOL",    "bool",          ""},
};
// clang-format on

/// The row of a format. Throws std::invalid_argument for what is no enumerator.
constexpr const DTypeRow& row_of(DType type) {
  const auto at = static_cast<std::size_t>(type);
  if (at >= std::size(kDTypes)) throw std::invalid_argument("a number format that is in no row of dtype.h");
  return kDTypes[at];
}
/// Whether row_of() finds each format's row.
constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].type != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(rows_are_in_order());

/// "fp32", "bf16", "fp8_e4m3", ...
constexpr const char* name_of(DType type) { return row_of(type).name; }
/// safetensors' word: "F32"; empty where it has none.
constexpr const char* safetensors_word(DType type) { return row_of(type).safetensors; }
/// PyTorch's and config.json's word: "float32"; empty where they have none.
constexpr const char* torch_word(DType type) { return row_of(type).torch; }

/// The format of this name; nothing when there is none.
constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.type;
  }
  return std::nullopt;
}
/// The same. Throws std::invalid_argument, with one line, when there is none.
inline DType parse_dtype(std::string_view name) {
  if (const std::optional<DType> type = dtype_named(name)) return *type;
  throw std::invalid_argument(std::string("'").append(name) + "' is no number format");
}
/// The format that safetensors call so; nothing when there is none.
constexpr std::optional<DType> dtype_of_safetensors(std::string_view word) {
  for (const DTypeRow& row : kDTypes) {
    if (!word.empty() && word == row.safetensors) return row.type;
  }
  return std::nullopt;
}

/// Bits of a value as it is stored, without scales.
constexpr unsigned bits(DType type) { return row_of(type).bits; }

/// Bytes of one value. Throws std::invalid_argument for int4 and nf4, of which two share a byte.
constexpr std::size_t element_bytes(DType type) {
  const DTypeRow& row = row_of(type);
  if (row.bits % 8 != 0) throw std::invalid_argument(std::string("a value of ") + row.name + " has no byte of its own");
  return row.bits / 8;
}

/// Bytes of `count` values without scales, rounded up to whole ones. Throws std::length_error when 64 bits do not hold
/// that.
constexpr std::uint64_t bytes_of(DType type, std::uint64_t count) {
  const std::uint64_t of_eight = bits(type);  // eight values have so many bytes
  const std::uint64_t rest = (count % 8 * bits(type) + 7) / 8;
  if (count / 8 > (std::numeric_limits<std::uint64_t>::max() - rest) / of_eight) {
    throw std::length_error(std::to_string(count) + " values of " + name_of(type) +
                            " have more bytes than 64 bits hold");
  }
  return count / 8 * of_eight + rest;
}

/// Bytes of what is stored beside `count` values of one tensor: 0 for formats without scales. Each kind of scale is
/// rounded up to whole bytes on its own. `group`: values that share a scale; 0: as the format's row says. Throws
/// std::length_error as bytes_of().
constexpr std::uint64_t scale_bytes(DType type, std::uint64_t count, std::uint64_t group = 0) {
  const DTypeRow& row = row_of(type);
  if (count == 0) return 0;
  if (group == 0) group = row.group;
  if (group == 0) group = count;
  const std::uint64_t groups = (count - 1) / group + 1;
  std::uint64_t sum = 0;
  for (const Scale& scale : row.scales) {
    const std::uint64_t scales = scale.groups == 0 ? 1 : (groups - 1) / scale.groups + 1;
    const std::uint64_t bytes = bytes_of(scale.type, scales);
    if (bytes > std::numeric_limits<std::uint64_t>::max() - sum) {
      throw std::length_error(std::string("scales of ") + row.name + " have more bytes than 64 bits hold");
    }
    sum += bytes;
  }
  return sum;
}

/// Bits of a value of a large tensor, its share of the scales included: 4.127 of nf4. `group` as for scale_bytes().
constexpr double bits_with_scales(DType type, std::uint64_t group = 0) {
  const DTypeRow& row = row_of(type);
  if (group == 0) group = row.group;
  double sum = row.bits;
  for (const Scale& scale : row.scales) {
    const double values = static_cast<double>(group) * static_cast<double>(scale.groups);
    if (values > 0) sum += bits(scale.type) / values;
  }
  return sum;
}

/// Those in which models are trained and served here, as --precision takes them.
inline constexpr std::array kModelDTypes = {DType::fp32, DType::fp16, DType::bf16};

/// Names, one after the other, in a text that lives as long as the program.
struct NameList {
  char text[64] = {};
};
/// "fp32, fp16 or bf16" of `between` ", " and `last` " or ". `word`: the column of the table that the words are from. At
/// compile time only: there a text that is too long is an error.
template <std::size_t n>
consteval NameList names_of(const std::array<DType, n>& types, std::string_view between, std::string_view last,
                            const char* DTypeRow::*word = &DTypeRow::name) {
  NameList list;
  std::size_t length = 0;
  const auto add = [&](std::string_view more) {
    for (const char c : more) list.text[length++] = c;
  };
  for (std::size_t i = 0; i < n; ++i) {
    if (i > 0) add(i + 1 < n ? between : last);
    add(row_of(types[i]).*word);
  }
  list.text[length] = '\0';
  return list;
}

}  // namespace oomlab
