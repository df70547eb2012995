#pragma once
// Files in the safetensors format, as Hugging Face publishes weights: eight bytes that say how long the header is
// (little endian), a JSON header that names each tensor with its type, shape and place, then the bytes of all tensors
// without a gap (github.com/huggingface/safetensors, "Format"). What such a file says is not believed: every number is
// checked against the file before memory is taken for it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "nn/files/state_file.h"

namespace oomlab::nn {

/// A tensor of a file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::fp32;       ///< one that safetensors have a word for
  std::vector<std::size_t> shape;  ///< row-major; empty: one element
  std::uint64_t begin = 0;         ///< in the part behind the header
  std::uint64_t bytes = 0;         ///< the product of the shape, times element_bytes(dtype)
};

/// Of a header, at most: the format's own limit.
inline constexpr std::uint64_t kSafetensorsHeaderBytes = 100'000'000;

/// Reads a header of a file that has `data_bytes` behind it. The entries come sorted by name. They do not overlap, and
/// cover every byte of the data, as the format demands. Throws StateFileError, in one line that begins with `path` and
/// says what is wrong. Memory is a small multiple of the header's.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                       const std::string& path);

/// A file that is open, and whose header has been read.
class SafetensorsFile {
 public:
  /// Throws StateFileError as parse_safetensors_header(), and for what is too short; BadFile for what is no file, or
  /// cannot be read.
  explicit SafetensorsFile(const std::string& path);
  /// The contents of a file, in memory that lives as long; `name` stands for the path.
  SafetensorsFile(std::span<const std::byte> contents, std::string name);
  const std::string& path() const noexcept { return path_; }
  /// Sorted by name.
  const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }
  /// Null where there is none.
  const SafetensorsEntry* find(std::string_view name) const noexcept;
  /// Fills `to` with the bytes of a tensor from its byte `first` on. Throws BadFile when the file cannot be read or
  /// has become shorter, std::out_of_range when the tensor has not so many bytes.
  void read(const SafetensorsEntry& entry, std::uint64_t first, std::span<std::byte> to) const;

 private:
  void read_header(std::uint64_t file_bytes);
  void read_at(std::uint64_t first, std::span<std::byte> to) const;

  std::string path_;
  std::optional<InputFile> file_;        // or
  std::span<const std::byte> contents_;  // in memory
  std::uint64_t data_ = 0;               // where the data begins
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace oomlab::nn
