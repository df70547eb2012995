#include "data/dataset.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <functional>
#include <new>
#include <span>
#include <system_error>
#include <utility>

namespace oomlab::data {
namespace embedded {
extern const std::span<const unsigned char> images_idx3_ubyte_gz, labels_idx1_ubyte_gz;
}

namespace {

constexpr std::uint32_t kImagesMagic = 0x803, kLabelsMagic = 0x801;
constexpr std::size_t kMostBytes = std::size_t(4) << 30;  // a few megabytes of gzip may unpack to any number

// ----------------------------------------------------------------------------------------------- where bytes come from

// A plain or gzip file, read front to back.
class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    InputFile plain(path);
    const int descriptor = plain.release();
    file_ = gzdopen(descriptor, "rb");
    if (file_) return;
    ::close(descriptor);
    throw std::bad_alloc();
  }
  ~File() { gzclose_r(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Fewer bytes than asked for mean the end of the file.
  std::size_t read(std::uint8_t* to, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
      const unsigned piece = static_cast<unsigned>(std::min<std::size_t>(bytes - done, 1u << 20));
      errno = 0;
      const int got = gzread(file_, to + done, piece);
      if (got > 0) done += static_cast<std::size_t>(got);
      if (got < static_cast<int>(piece)) {
        int code = Z_OK;
        const char* message = gzerror(file_, &code);
        if (code == Z_ERRNO || (got < 0 && code == Z_OK))
          throw DataError(fmt::format("cannot read '{}': {}", path_, std::generic_category().message(errno)));
        if (code == Z_BUF_ERROR) throw DataError(fmt::format("'{}' is a damaged gzip file: it ends too early", path_));
        if (code != Z_OK && code != Z_STREAM_END) {
          std::string_view why = message;  // zlib puts the descriptor before it: "<fd:3>: "
          if (const std::size_t end = why.find(">: "); why.starts_with("<fd:") && end != why.npos)
            why.remove_prefix(end + 3);
          throw DataError(fmt::format("'{}' is a damaged gzip file: {}", path_, why));
        }
        break;
      }
    }
    return done;
  }

 private:
  std::string path_;
  gzFile file_;
};

// A gzip file in memory.
std::vector<std::uint8_t> unpack(std::span<const unsigned char> packed) {
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  stream.next_in = const_cast<unsigned char*>(packed.data());
  stream.avail_in = static_cast<unsigned>(packed.size());
  std::vector<std::uint8_t> bytes;
  int code = Z_OK;
  try {
    while (code == Z_OK) {
      const std::size_t done = bytes.size();
      bytes.resize(done + (1 << 16));
      stream.next_out = bytes.data() + done;
      stream.avail_out = 1 << 16;
      code = inflate(&stream, Z_NO_FLUSH);
      bytes.resize(bytes.size() - stream.avail_out);
    }
  } catch (...) {
    inflateEnd(&stream);
    throw;
  }
  inflateEnd(&stream);
  if (code != Z_STREAM_END) throw DataError("the embedded digits are damaged");
  return bytes;
}

// -------------------------------------------------------------------------------------------------------------- format

using Read = std::function<std::size_t(std::uint8_t*, std::size_t)>;

struct Idx {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> bytes;
};

Idx parse_idx(const std::string& path, const Read& read, std::uint32_t magic, std::size_t dimensions) {
  const auto number = [](const std::uint8_t* p) {
    return std::uint32_t(p[0]) << 24 | std::uint32_t(p[1]) << 16 | std::uint32_t(p[2]) << 8 | std::uint32_t(p[3]);
  };
  const std::size_t header_bytes = 4 + 4 * dimensions;
  std::uint8_t header[16];
  std::size_t got = read(header, header_bytes);
  if (got >= 4 && number(header) != magic)
    throw DataError(fmt::format("'{}' has magic number 0x{:08x}; expected 0x{:08x} ({})", path, number(header), magic,
                                magic == kImagesMagic ? "IDX images" : "IDX labels"));
  if (got < header_bytes)
    throw DataError(fmt::format("'{}' is truncated: its header needs {} bytes, found {}", path, header_bytes, got));

  Idx idx;
  std::size_t bytes = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::size_t size = number(header + 4 + 4 * d);
    idx.dimensions.push_back(size);
    if (size != 0 && bytes > kMostBytes / size)
      throw DataError(fmt::format("'{}' announces more than 4 GiB of data; its header is damaged", path));
    bytes *= size;
  }
  // The header is not believed: memory grows with what is really there.
  while (idx.bytes.size() < bytes) {
    const std::size_t done = idx.bytes.size(), piece = std::min<std::size_t>(bytes - done, 1 << 20);
    idx.bytes.resize(done + piece);
    got = read(idx.bytes.data() + done, piece);
    if (got < piece)
      throw DataError(fmt::format("'{}' is truncated: {} bytes expected, {} found", path, header_bytes + bytes,
                                  header_bytes + done + got));
  }
  std::uint8_t extra;
  if (read(&extra, 1) != 0)
    throw DataError(
        fmt::format("'{}' goes on after the {} bytes that its header announces", path, header_bytes + bytes));
  return idx;
}

Dataset combine(const std::string& images_path, Idx images, const std::string& labels_path, Idx labels) {
  const std::size_t count = images.dimensions[0];
  if (count != labels.dimensions[0])
    throw DataError(fmt::format("'{}' has {} images but '{}' has {} labels", images_path, count, labels_path,
                                labels.dimensions[0]));
  if (images.bytes.empty())
    throw DataError(fmt::format("'{}' holds no images ({} of {} x {} pixels)", images_path, count, images.dimensions[1],
                                images.dimensions[2]));
  Dataset dataset;
  dataset.count = count;
  dataset.height = images.dimensions[1];
  dataset.width = images.dimensions[2];
  dataset.classes = std::size_t(*std::max_element(labels.bytes.begin(), labels.bytes.end())) + 1;
  dataset.images = std::move(images.bytes);
  dataset.labels = std::move(labels.bytes);
  dataset.name = images_path;
  return dataset;
}

}  // namespace

Dataset digits() {
  const auto parse = [](std::span<const unsigned char> packed, std::uint32_t magic, std::size_t dimensions) {
    const std::vector<std::uint8_t> bytes = unpack(packed);
    std::size_t at = 0;
    return parse_idx(
        "embedded digits",
        [&](std::uint8_t* to, std::size_t n) {
          n = std::min(n, bytes.size() - at);
          std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), n, to);
          at += n;
          return n;
        },
        magic, dimensions);
  };
  Dataset dataset = combine("embedded digits", parse(embedded::images_idx3_ubyte_gz, kImagesMagic, 3),
                            "embedded digits", parse(embedded::labels_idx1_ubyte_gz, kLabelsMagic, 1));
  dataset.name = "digits";
  dataset.white = 16;
  return dataset;
}

Dataset read_idx(const std::string& images_path, const std::string& labels_path) {
  const auto parse = [](const std::string& path, std::uint32_t magic, std::size_t dimensions) {
    File file(path);
    return parse_idx(
        path, [&](std::uint8_t* to, std::size_t n) { return file.read(to, n); }, magic, dimensions);
  };
  return combine(images_path, parse(images_path, kImagesMagic, 3), labels_path, parse(labels_path, kLabelsMagic, 1));
}

Dataset read_idx_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) throw DataError(fmt::format("data folder '{}' does not exist", folder));
  if (!fs::is_directory(status)) throw DataError(fmt::format("data folder '{}' is not a folder", folder));
  const bool empty = fs::is_empty(folder, error);
  if (error) throw DataError(fmt::format("cannot read data folder '{}': {}", folder, error.message()));
  if (empty) throw DataError(fmt::format("data folder '{}' is empty", folder));
  const auto find = [&](const char* name) {
    for (const char* prefix : {"train-", ""})
      for (const char* suffix : {"", ".gz"}) {
        const fs::path path = fs::path(folder) / (std::string(prefix) + name + suffix);
        if (fs::exists(path, error)) return path.string();
      }
    throw DataError(fmt::format("data folder '{}' has no [train-]{}[.gz]", folder, name));
  };
  const std::string images = find("images-idx3-ubyte"), labels = find("labels-idx1-ubyte");
  Dataset dataset = read_idx(images, labels);
  dataset.name = folder;
  return dataset;
}

// --------------------------------------------------------------------------------------------------------------- split

Split split(const Dataset& dataset, double held_out_fraction, std::uint64_t seed) {
  if (!(held_out_fraction >= 0.0 && held_out_fraction <= 1.0))
    throw std::invalid_argument(fmt::format("held-out fraction must be 0 to 1, not {}", held_out_fraction));
  std::vector<std::size_t> order(dataset.count);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Fisher and Yates, with SplitMix64 (the library's shuffle differs between platforms). The bias of the
  // remainder is below 2^-30 for any dataset that fits in memory.
  std::uint64_t state = seed;
  const auto next = [&] {
    std::uint64_t x = state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  };
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next() % i]);

  const auto held_out = static_cast<std::size_t>(std::llround(held_out_fraction * static_cast<double>(dataset.count)));
  const auto take = [&](std::size_t first, std::size_t last, const char* suffix) {
    Dataset part;
    part.count = last - first;
    part.height = dataset.height;
    part.width = dataset.width;
    part.classes = dataset.classes;
    part.white = dataset.white;
    part.name = dataset.name + suffix;
    part.images.reserve(part.count * dataset.pixels());
    part.labels.reserve(part.count);
    for (std::size_t i = first; i < last; ++i) {
      const auto image = dataset.images.begin() + static_cast<std::ptrdiff_t>(order[i] * dataset.pixels());
      part.images.insert(part.images.end(), image, image + static_cast<std::ptrdiff_t>(dataset.pixels()));
      part.labels.push_back(dataset.labels[order[i]]);
    }
    return part;
  };
  const std::size_t train = dataset.count - held_out;
  return {take(0, train, " (train)"), take(train, dataset.count, " (held out)")};
}

}  // namespace oomlab::data
