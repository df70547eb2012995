#pragma once
// Bytes: rounding, reading "512MiB", writing "512.00 MiB".

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "dtype.h"

namespace oomlab {

/// Every allocation is rounded up to this many bytes before it is counted, on every backend: cudaMalloc aligns to
/// at least 256, and PyTorch's caching allocator rounds to 512, so "allocated" here and there are the same figure.
inline constexpr std::uint64_t kGranule = 512;

/// "No limit".
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

/// `bytes` rounded up to the granule; 0 stays 0. Throws std::length_error when that does not fit 64 bits.
std::uint64_t round_to_granule(std::uint64_t bytes);

/// count × element_bytes. Throws std::length_error when that does not fit 64 bits.
std::uint64_t checked_product(std::uint64_t count, std::uint64_t element_bytes);

/// a + b. Throws std::length_error when that does not fit 64 bits.
std::uint64_t checked_sum(std::uint64_t a, std::uint64_t b);
/// The same of several, such as buffers with names.
std::uint64_t checked_sum(std::initializer_list<std::uint64_t> summands);

/// Bytes of a buffer [rows, width], as the ledger counts them. Throws as they do.
std::uint64_t buffer_bytes(std::uint64_t rows, std::uint64_t width, DType type);
/// Of an address on the device, whatever machine plans.
inline constexpr DType kAddress = DType::uint64;

/// Reads a size: digits, optionally a decimal point, then B, KiB, MiB, GiB, TiB (1024), KB, MB, GB, TB (1000), or
/// nothing (bytes); one blank may stand before the unit. Case-insensitive. Throws std::invalid_argument with one line that says what is allowed; zero, a
/// negative or an overflowing size is refused too.
std::uint64_t parse_bytes(std::string_view text);

/// "0 bytes", "512 bytes", "1.50 KiB", "512.00 MiB", "2.00 GiB": two decimals as PyTorch's messages have them.
std::string format_bytes(std::uint64_t bytes);

}  // namespace oomlab
