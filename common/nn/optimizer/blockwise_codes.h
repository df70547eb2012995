#pragma once
// Numbers in blocks as codes of 8 bits (dynamic_code.h), and back: for checks. An update encodes its moments itself.

#include <cstddef>
#include <cstdint>

#include "memory/context.h"

namespace oomlab::nn {

/// from[count] in blocks of 256: codes[count] of 8 bits, and an absmax for each block; all on the device. Without a
/// sign the numbers are at least 0 (Dettmers et al., "8-bit optimizers via block-wise quantization", 2022).
void encode_blocks(Context& context, const float* from, std::size_t count, bool with_sign, std::uint8_t* codes,
                   float* absmax);
/// And back: to[count].
void decode_blocks(Context& context, const std::uint8_t* codes, const float* absmax, std::size_t count, bool with_sign,
                   float* to);

}  // namespace oomlab::nn
