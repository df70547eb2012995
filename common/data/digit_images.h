#pragma once
// The small image generator that ships with the course: bench/make_digit_images trained it on the course's digits
// (digit_images/README.md).

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oomlab::data {

namespace embedded {
extern const std::span<const unsigned char> autoencoder_safetensors, denoiser_safetensors, text_encoder_safetensors,
    classifier_safetensors;
}

/// The bytes of one of its safetensors files, built into the program: "autoencoder", "denoiser", "text_encoder" or
/// "classifier". Throws std::invalid_argument for another name.
inline std::span<const std::byte> digit_image_weights(std::string_view name) {
  if (name == "autoencoder") return std::as_bytes(embedded::autoencoder_safetensors);
  if (name == "denoiser") return std::as_bytes(embedded::denoiser_safetensors);
  if (name == "text_encoder") return std::as_bytes(embedded::text_encoder_safetensors);
  if (name == "classifier") return std::as_bytes(embedded::classifier_safetensors);
  throw std::invalid_argument("no weights of the digits' images are called '" + std::string(name) + "'");
}

}  // namespace oomlab::data
