#include "data/checkpoint.h"

namespace oomlab::data {

namespace embedded {
extern const std::span<const unsigned char> model_safetensors;
}

std::span<const std::byte> shipped_checkpoint() { return std::as_bytes(embedded::model_safetensors); }

}  // namespace oomlab::data
