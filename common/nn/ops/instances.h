#pragma once
// The types that tensors are stored as. Operators and models are instantiated for each of them, where they are defined.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// `instances` is a macro of one type.
#define OOMLAB_FOR_EACH_TYPE(instances) instances(float) instances(__half) instances(__nv_bfloat16)
