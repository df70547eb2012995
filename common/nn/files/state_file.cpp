#include "nn/files/state_file.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "cuda/backend.h"
#include "cuda/check.h"

namespace oomlab::nn {

namespace {

constexpr std::size_t kPiece = std::size_t(1) << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw StateFileError("'" + path + "' " + what);
}

// The length and the header: the same for the same tensors, so that reading is comparing.
std::string header_of(const std::vector<StateTensor>& tensors, const char* format = nullptr) {
  std::string json = "{";
  if (format) json += std::string(R"("__metadata__":{"format":")") + format + "\"}";
  std::size_t offset = 0;
  for (const StateTensor& t : tensors) {
    const std::string_view type = safetensors_word(t.type);
    if (type.empty()) throw std::invalid_argument(std::string("safetensors have no word for ") + name_of(t.type));
    if (json.size() > 1) json += ",";
    std::string shape;
    for (const std::size_t extent : t.shape) {
      if (!shape.empty()) shape += ",";
      shape += std::to_string(extent);
    }
    if (shape.empty()) shape = std::to_string(t.bytes / element_bytes(t.type));
    json += "\"" + t.name + "\":{\"dtype\":\"" + std::string(type) + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
            std::to_string(offset) + "," + std::to_string(offset + t.bytes) + "]}";
    offset += t.bytes;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // the bytes after it begin aligned
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return header + json;
}

}  // namespace

void save_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors,
                const char* format) {
  if (planning()) return;
  OutputFile file(path);
  file.write(header_of(tensors, format));
  std::vector<char> piece(kPiece);
  for (const StateTensor& t : tensors)
    for (std::size_t first = 0; first < t.bytes; first += kPiece) {
      const std::size_t now = std::min(kPiece, t.bytes - first);
      CUDA_CHECK(cudaMemcpyAsync(piece.data(), static_cast<const char*>(t.data) + first, now, cudaMemcpyDeviceToHost,
                                 context.stream()));
      context.synchronize();
      file.write({piece.data(), now});
    }
  file.finish();
}

void load_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors) {
  const std::string expected = header_of(tensors);
  std::size_t bytes = expected.size();
  for (const StateTensor& t : tensors) bytes += t.bytes;
  InputFile file(path);
  if (file.bytes() != bytes)
    fail(path, "has " + std::to_string(file.bytes()) + " bytes; this state has " + std::to_string(bytes));
  const auto read_all = [&](char* to, std::size_t count) {
    if (file.read(to, count) < count) fail(path, "ends early");
  };
  std::string found(expected.size(), '\0');
  read_all(found.data(), found.size());
  if (found != expected) fail(path, "holds other tensors than this state");
  std::vector<char> piece(kPiece);
  for (const StateTensor& t : tensors)
    for (std::size_t first = 0; first < t.bytes; first += kPiece) {
      const std::size_t now = std::min(kPiece, t.bytes - first);
      read_all(piece.data(), now);
      CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(t.data) + first, piece.data(), now, cudaMemcpyHostToDevice,
                                 context.stream()));
      context.synchronize();
    }
}

}  // namespace oomlab::nn
