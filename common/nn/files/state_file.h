#pragma once
// A model's and an optimizer's state in a file, in the safetensors format: eight bytes that say how long the header is,
// a JSON header that names each tensor with its type, shape and place, then the bytes. Python's safetensors reads it.

#include <cstddef>
#include <string>
#include <vector>

#include "dtype.h"
#include "memory/context.h"
#include "memory/files.h"

namespace oomlab::nn {

/// Device memory with a name. Not owned.
struct StateTensor {
  std::string name;
  DType type = DType::fp32;  ///< uint8 for bytes of another kind
  void* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::size_t> shape{};  ///< as the file says it; empty: one row of all elements
};

/// A file that holds something else, or ends early. what() is one line that names it.
class StateFileError : public BadFile {
 public:
  using BadFile::BadFile;
};

/// Writes the tensors, copied from the device in pieces of 1 MiB (waits for the stream), to an OutputFile, so that an
/// old file is replaced whole or not at all. `format`, where not null, becomes the metadata of this name, without which
/// Hugging Face's libraries refuse a file: "pt". Throws std::system_error, and std::invalid_argument for a type that
/// safetensors have no word for. In plan mode nothing is written.
void save_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors,
                const char* format = nullptr);

/// Reads a file of save_state() back into the same tensors: same names, types, bytes, and order. Throws StateFileError
/// when the file holds anything else or ends early, BadFile when it cannot be read; it is checked before the first byte
/// is copied.
void load_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors);

}  // namespace oomlab::nn
