#include "nn/optimizer/blockwise_codes.h"

#include "nn/ops/kernel.h"
#include "nn/optimizer/dynamic_code.h"

namespace oomlab::nn {

namespace {

template <bool kWithSign>
__global__ void encode_blocks_kernel(const float* from, std::size_t count, const __grid_constant__ DynamicCode code,
                                     std::uint8_t* codes, float* absmax) {
  for (std::size_t block : row_range((count + kCodeBlock - 1) / kCodeBlock)) {
    const std::size_t begin = block * kCodeBlock, n = count - begin < kCodeBlock ? count - begin : kCodeBlock;
    float most = 0.0f;
    for (std::size_t i : block_range(n)) most = fmaxf(most, fabsf(from[begin + i]));
    most = block_max(most);
    for (std::size_t i : block_range(n))
      codes[begin + i] = static_cast<std::uint8_t>(code_of<kWithSign>(code.bound, from[begin + i] * code_scale(most)));
    for ([[maybe_unused]] std::size_t once : block_range(1)) absmax[block] = most;
  }
}
__global__ void decode_blocks_kernel(const std::uint8_t* codes, const float* absmax, std::size_t count,
                                     const __grid_constant__ DynamicCode code, float* to) {
  for (std::size_t i : grid_range(count)) to[i] = code.value[codes[i]] * absmax[i / kCodeBlock];
}

}  // namespace

void encode_blocks(Context& context, const float* from, std::size_t count, bool with_sign, std::uint8_t* codes,
                   float* absmax) {
  launch(with_sign ? encode_blocks_kernel<true> : encode_blocks_kernel<false>, shape_for_rows(blocks_of(count)),
         context.stream(), from, count, with_sign ? kSignedCode : kUnsignedCode, codes, absmax);
}
void decode_blocks(Context& context, const std::uint8_t* codes, const float* absmax, std::size_t count, bool with_sign,
                   float* to) {
  launch(decode_blocks_kernel, shape_for_items(count), context.stream(), codes, absmax, count,
         with_sign ? kSignedCode : kUnsignedCode, to);
}

}  // namespace oomlab::nn
