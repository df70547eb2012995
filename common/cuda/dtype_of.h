#pragma once
// Number formats (dtype.h) as C++ types and as what cuBLAS takes.

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "dtype.h"

namespace oomlab {

/// The format of a C++ type. Types that are not listed here do not compile.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::fp32> {};
template <>
struct DTypeOf<__half> : std::integral_constant<DType, DType::fp16> {};
template <>
struct DTypeOf<__nv_bfloat16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<DType, DType::int8> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::int32> {};
template <class T>
inline constexpr DType kDTypeOf = DTypeOf<T>::value;

/// cuBLAS's word for a type of matrices. Throws std::invalid_argument for formats that no product here has.
constexpr cudaDataType data_type_of(DType type) {
  switch (type) {
    case DType::fp32: return CUDA_R_32F;
    case DType::fp16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::int8: return CUDA_R_8I;
    case DType::int32: return CUDA_R_32I;
    default: throw std::invalid_argument(std::string("no matrix product here has operands of ") + name_of(type));
  }
}

/// make(T{}) with the one of these types that has this format. Throws std::invalid_argument when none has.
template <class First, class... Others, class Make>
auto with_type_of(DType type, Make make) {
  if (type == kDTypeOf<First>) return make(First{});
  if constexpr (sizeof...(Others) > 0) {
    return with_type_of<Others...>(type, make);
  } else {
    throw std::invalid_argument(std::string("no kernels here are compiled for ") + name_of(type));
  }
}

}  // namespace oomlab
