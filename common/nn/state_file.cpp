#include "nn/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cuda/backend.h"
#include "cuda/check.h"

namespace oomlab::nn {

namespace {

constexpr std::size_t kPiece = std::size_t(1) << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw StateFileError("'" + path + "' " + what);
}
[[noreturn]] void fail_with_errno(const std::string& path, const std::string& what) {
  fail(path, what + ": " + std::strerror(errno));
}

// The length and the header: the same for the same tensors, so that reading is comparing.
std::string header_of(const std::vector<StateTensor>& tensors, const char* format = nullptr) {
  std::string json = "{";
  if (format) json += std::string(R"("__metadata__":{"format":")") + format + "\"}";
  std::size_t offset = 0;
  for (const StateTensor& t : tensors) {
    const std::size_t element = std::strcmp(t.type, "F32") == 0 ? 4 : std::strcmp(t.type, "U8") == 0 ? 1 : 2;
    if (json.size() > 1) json += ",";
    std::string shape;
    for (const std::size_t extent : t.shape) {
      if (!shape.empty()) shape += ",";
      shape += std::to_string(extent);
    }
    if (shape.empty()) shape = std::to_string(t.bytes / element);
    json += "\"" + t.name + "\":{\"dtype\":\"" + t.type + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
            std::to_string(offset) + "," + std::to_string(offset + t.bytes) + "]}";
    offset += t.bytes;
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');  // the bytes after it begin aligned
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return header + json;
}

// A file descriptor, and a temporary file that goes away unless it is renamed.
struct File {
  int descriptor = -1;
  std::string temporary;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
};

void write_all(const File& file, const std::string& path, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = ::write(file.descriptor, from, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno(path, "cannot be written");
    from += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void read_all(const File& file, const std::string& path, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = ::read(file.descriptor, to, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_with_errno(path, "cannot be read");
    if (done == 0) fail(path, "ends early");
    to += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

}  // namespace

void save_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors,
                const char* format) {
  if (planning()) return;
  const std::string header = header_of(tensors, format);
  std::vector<char> piece(kPiece);
  File file;
  const std::string temporary = path + ".tmp";
  file.descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file.descriptor < 0) fail_with_errno(path, "cannot be written");
  file.temporary = temporary;
  write_all(file, path, header.data(), header.size());
  for (const StateTensor& t : tensors)
    for (std::size_t first = 0; first < t.bytes; first += kPiece) {
      const std::size_t now = std::min(kPiece, t.bytes - first);
      CUDA_CHECK(cudaMemcpyAsync(piece.data(), static_cast<const char*>(t.data) + first, now, cudaMemcpyDeviceToHost,
                                 context.stream()));
      context.synchronize();
      write_all(file, path, piece.data(), now);
    }
  const int closed = ::close(file.descriptor);
  file.descriptor = -1;
  if (closed != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) fail_with_errno(path, "cannot be written");
  file.temporary.clear();
}

void load_state(Context& context, const std::string& path, const std::vector<StateTensor>& tensors) {
  const std::string expected = header_of(tensors);
  std::size_t bytes = expected.size();
  for (const StateTensor& t : tensors) bytes += t.bytes;
  File file;
  file.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.descriptor < 0) fail_with_errno(path, "cannot be read");
  struct stat status {};
  if (::fstat(file.descriptor, &status) != 0) fail_with_errno(path, "cannot be read");
  if (static_cast<std::size_t>(status.st_size) != bytes)
    fail(path, "has " + std::to_string(status.st_size) + " bytes; this state has " + std::to_string(bytes));
  std::string found(expected.size(), '\0');
  read_all(file, path, found.data(), found.size());
  if (found != expected) fail(path, "holds other tensors than this state");
  std::vector<char> piece(kPiece);
  for (const StateTensor& t : tensors)
    for (std::size_t first = 0; first < t.bytes; first += kPiece) {
      const std::size_t now = std::min(kPiece, t.bytes - first);
      read_all(file, path, piece.data(), now);
      CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(t.data) + first, piece.data(), now, cudaMemcpyHostToDevice,
                                 context.stream()));
      context.synchronize();
    }
}

}  // namespace oomlab::nn
