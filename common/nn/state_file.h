#pragma once
// A model's and an optimizer's state in a file, in the safetensors format: eight bytes that say how long the header is,
// a JSON header that names each tensor with its type, shape and place, then the bytes. Python's safetensors reads it.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/context.h"

namespace oomlab::nn {

/// Device memory with a name. Not owned.
struct StateTensor {
  std::string name;
  const char* type = "F32";  ///< F32, F16, BF16, or U8 for bytes of another kind
  void* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::size_t> shape{};  ///< as the file says it; empty: one row of all elements
};

/// A file that cannot be written, or read, or that holds something else. what() is one line that names it.
class StateFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Writes the tensors, copied from the device in pieces of 1 MiB (waits for the stream), to a temporary name and
/// renames that, so that an old file is replaced whole or not at all. `format`, where not null, becomes the metadata of
/// this name, without which Hugging Face's libraries refuse a file: "pt". Throws StateFileError. In plan mode nothing
/// is written.
void save_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors,
                const char* format = nullptr);

/// Reads a file of save_state() back into the same tensors: same names, types, bytes, and order. Throws StateFileError
/// when the file holds anything else or ends early; it is checked before the first byte is copied.
void load_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors);

}  // namespace oomlab::nn
