#pragma once
// Included before a lesson: another program seems to take a quarter of what is free, and to give it back, between any two
// questions. What a lesson asserts must be about its own bytes.

#include <cuda_runtime.h>

#include <cstddef>

inline cudaError_t mem_get_info_beside_a_neighbour(std::size_t* free, std::size_t* total) {
  static bool taken = false;
  const cudaError_t error = cudaMemGetInfo(free, total);
  taken = !taken;
  if (error == cudaSuccess && taken) *free -= *free / 4;
  return error;
}
#define cudaMemGetInfo mem_get_info_beside_a_neighbour
