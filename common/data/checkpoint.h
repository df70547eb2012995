#pragma once
// The small decoder that ships with the course, bytes-llama: bench/publishing/make_checkpoint.cpp trained it on the
// course's text.

#include <cstddef>
#include <span>

namespace oomlab::data {

/// The bytes of its safetensors file, built into the program.
std::span<const std::byte> shipped_checkpoint();

}  // namespace oomlab::data
