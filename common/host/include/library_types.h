#pragma once
// Element types of cuBLAS operands: the ones that the host runtime computes with, under CUDA's numbers.

typedef enum cudaDataType_t {
  CUDA_R_32F = 0,
  CUDA_R_16F = 2,
  CUDA_R_8I = 3,
  CUDA_R_32I = 10,
  CUDA_R_16BF = 14,
} cudaDataType;
