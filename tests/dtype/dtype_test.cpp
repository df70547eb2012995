// Number formats: a row each, with names of its own, and as many bytes as the C++ types and a sum by hand have.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cuda/dtype_of.h"
#include "dtype.h"

namespace oomlab {
namespace {

TEST(DType, NamesAreUniqueAndComeBack) {
  std::set<std::string> names;
  for (const DTypeRow& row : kDTypes) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(dtype_named(row.name), row.type);
    EXPECT_EQ(parse_dtype(name_of(row.type)), row.type);
  }
  EXPECT_EQ(dtype_named("fp9"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
  try {
    parse_dtype("fp9");
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "'fp9' is no number format");
  }
}

TEST(DType, WordsOfOthersAreUniqueAndComeBack) {
  for (const char* DTypeRow::*word : {&DTypeRow::safetensors, &DTypeRow::torch, &DTypeRow::cublas}) {
    std::set<std::string> words;
    for (const DTypeRow& row : kDTypes) {
      const std::string text = row.*word;
      if (!text.empty()) {
        EXPECT_TRUE(words.insert(text).second) << text;
      }
    }
  }
  for (const DTypeRow& row : kDTypes) {
    const std::string word = safetensors_word(row.type);
    if (!word.empty()) {
      EXPECT_EQ(dtype_of_safetensors(word), row.type);
    }
  }
  EXPECT_EQ(dtype_of_safetensors(""), std::nullopt);
  EXPECT_EQ(dtype_of_safetensors("f32"), std::nullopt);
  EXPECT_STREQ(torch_word(DType::bf16), "bfloat16");
}

template <class T>
void expect_row_of() {
  EXPECT_EQ(element_bytes(kDTypeOf<T>), sizeof(T)) << name_of(kDTypeOf<T>);
  EXPECT_EQ(bytes_of(kDTypeOf<T>, 7), 7 * sizeof(T)) << name_of(kDTypeOf<T>);
}

TEST(DType, IsAsLongAsItsType) {
  expect_row_of<float>();
  expect_row_of<__half>();
  expect_row_of<__nv_bfloat16>();
  expect_row_of<std::int8_t>();
  expect_row_of<std::int32_t>();
}

TEST(DType, HasAWordOfCublas) {
  EXPECT_EQ(data_type_of(DType::fp32), CUDA_R_32F);
  EXPECT_EQ(data_type_of(DType::fp16), CUDA_R_16F);
  EXPECT_EQ(data_type_of(DType::bf16), CUDA_R_16BF);
  EXPECT_EQ(data_type_of(DType::int8), CUDA_R_8I);
  EXPECT_EQ(data_type_of(DType::int32), CUDA_R_32I);
  EXPECT_THROW(data_type_of(DType::nf4), std::invalid_argument);
}

TEST(DType, IsRoundedUpToBytes) {
  EXPECT_EQ(bytes_of(DType::int4, 0), 0u);
  EXPECT_EQ(bytes_of(DType::int4, 1), 1u);
  EXPECT_EQ(bytes_of(DType::nf4, 9), 5u);
  EXPECT_THROW(element_bytes(DType::int4), std::invalid_argument);
  EXPECT_THROW(element_bytes(DType::nf4), std::invalid_argument);
  EXPECT_THROW(row_of(static_cast<DType>(200)), std::invalid_argument);
}

TEST(DType, HasNoMoreBytesThan64BitsHold) {
  const std::uint64_t most = ~std::uint64_t(0);
  EXPECT_EQ(bytes_of(DType::int8, most), most);
  EXPECT_EQ(bytes_of(DType::int4, most), (std::uint64_t(1) << 63));
  EXPECT_EQ(bytes_of(DType::fp32, most / 4), most - 3);
  EXPECT_THROW(bytes_of(DType::fp32, most / 4 + 1), std::length_error);
  EXPECT_THROW(bytes_of(DType::fp64, most), std::length_error);
  EXPECT_THROW(scale_bytes(DType::int8, most, 1), std::length_error);
}

TEST(DType, CountsScales) {
  EXPECT_EQ(scale_bytes(DType::bf16, 1000), 0u);
  EXPECT_EQ(scale_bytes(DType::int8, 1000), 4u);             // the tensor's
  EXPECT_EQ(scale_bytes(DType::int8, 1000, 10), 400u);       // a row's
  EXPECT_EQ(scale_bytes(DType::int4, 128 * 3), 3 * 2 + 2u);  // a scale for each group, and two zeros a byte
  EXPECT_EQ(scale_bytes(DType::int4, 64 * 3, 64), 3 * 2 + 2u);
  EXPECT_EQ(scale_bytes(DType::nf4, 64 * 257), 257 + 2 * 4 + 4u);
  EXPECT_EQ(scale_bytes(DType::nf4, 65), 2 + 4 + 4u);  // the last block is shorter
  EXPECT_EQ(scale_bytes(DType::nf4, 0), 0u);
  EXPECT_DOUBLE_EQ(bits_with_scales(DType::fp32), 32);
  EXPECT_DOUBLE_EQ(bits_with_scales(DType::int4), 4 + 20.0 / 128);
  EXPECT_DOUBLE_EQ(bits_with_scales(DType::int4, 16), 4 + 20.0 / 16);
  EXPECT_DOUBLE_EQ(bits_with_scales(DType::nf4), 4 + 8.0 / 64 + 32.0 / (64 * 256));
}

TEST(DType, IsListedByName) {
  constexpr NameList choice = names_of(kModelDTypes, ", ", " or ");
  EXPECT_STREQ(choice.text, "fp32, fp16 or bf16");
  constexpr NameList words = names_of(kModelDTypes, " ", " ", &DTypeRow::safetensors);
  EXPECT_STREQ(words.text, "F32 F16 BF16");
}

TEST(DType, ChoosesAType) {
  const auto bytes = []<class T>(T) { return sizeof(T); };
  EXPECT_EQ((with_type_of<float, __half>(DType::fp16, bytes)), 2u);
  EXPECT_EQ((with_type_of<float, __half>(DType::fp32, bytes)), 4u);
  EXPECT_THROW((with_type_of<float, __half>(DType::bf16, bytes)), std::invalid_argument);
}

}  // namespace
}  // namespace oomlab
