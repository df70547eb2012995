#pragma once
// The small decoder that ships with the course, bytes-llama: bench/publishing/make_checkpoint.cpp trained it on the
// course's text.

#include <cstddef>
#include <span>

namespace oomlab::data {

namespace embedded {
extern const std::span<const unsigned char> model_safetensors;
}

/// The bytes of its safetensors file, built into the program.
inline std::span<const std::byte> shipped_checkpoint() { return std::as_bytes(embedded::model_safetensors); }

}  // namespace oomlab::data
