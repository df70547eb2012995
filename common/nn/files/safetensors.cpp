#include "nn/files/safetensors.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "plan/json_values.h"

namespace oomlab::nn {

namespace {

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw StateFileError("'" + path + "' " + why);
}

// Builds the entries from a header's values. A tensor is checked as soon as its object has ended, so that many
// unfinished ones take no memory.
class HeaderReader {
 public:
  HeaderReader(std::uint64_t data_bytes, const std::string& path) : data_bytes_(data_bytes), path_(path) {}

  void value(std::span<const std::string> path, JsonValue& v) {
    using Kind = JsonValue::Kind;
    if (path.empty()) {
      if (v.kind != Kind::object) refuse_file(path_, "has a header that is no JSON object");
      return;
    }
    if (path.size() == 1) finish();
    if (path[0] == "__metadata__") {
      if (v.kind != (path.size() == 1 ? Kind::object : Kind::text))
        refuse_file(path_, "has a __metadata__ that is not an object of texts");
      return;
    }
    if (path.size() == 1) {
      draft_ = {};
      draft_.entry.name = path[0];
      if (v.kind != Kind::object) refuse("that is no JSON object");
      open_ = true;
    } else if (path[1] == "dtype") {
      if (v.kind != Kind::text) refuse("whose dtype is not a text");
      const std::optional<DType> dtype = dtype_of_safetensors(v.text);
      if (!dtype) refuse("whose dtype " + in_quotes(v.text) + " is unknown");
      draft_.entry.dtype = *dtype;
      draft_.has_dtype = true;
    } else if (path[1] == "shape") {
      if (v.kind != (path.size() == 2 ? Kind::list : Kind::whole)) refuse("whose shape is not a list of whole numbers");
      draft_.has_shape = true;
      if (path.size() > 2) draft_.entry.shape.push_back(v.whole);
    } else if (path[1] == "data_offsets") {
      if (v.kind != (path.size() == 2 ? Kind::list : Kind::whole) || draft_.offsets == 2)
        refuse("whose data_offsets are not two whole numbers");
      if (path.size() > 2) (draft_.offsets++ == 0 ? draft_.entry.begin : draft_.end) = v.whole;
    }  // other keys are not forbidden
  }

  std::vector<SafetensorsEntry> entries() {
    finish();
    const auto end_of = [](const SafetensorsEntry& e) { return e.begin + e.bytes; };
    // An empty one before what begins there. Of several by name: what an error names must not depend on the sort.
    std::ranges::sort(entries_, [&](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tuple(a.begin, end_of(a), std::string_view(a.name)) <
             std::tuple(b.begin, end_of(b), std::string_view(b.name));
    });
    std::uint64_t covered = 0;
    for (const SafetensorsEntry& e : entries_) {
      const std::string begins =
          "has a tensor " + in_quotes(e.name) + " that begins at byte " + std::to_string(e.begin);
      if (e.begin < covered) refuse_file(path_, begins + ", inside another one");
      if (e.begin > covered) refuse_file(path_, begins + "; no tensor has the bytes from " + std::to_string(covered));
      covered = end_of(e);
    }
    if (covered != data_bytes_)
      refuse_file(path_, "has " + std::to_string(data_bytes_ - covered) + " bytes behind its last tensor");
    std::ranges::sort(entries_, {}, &SafetensorsEntry::name);
    return std::move(entries_);
  }

 private:
  struct Draft {
    SafetensorsEntry entry;
    std::uint64_t end = 0;
    bool has_dtype = false, has_shape = false;
    int offsets = 0;
  };
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_file(path_, "has a tensor " + in_quotes(draft_.entry.name) + " " + why);
  }

  void finish() {
    if (!std::exchange(open_, false)) return;
    SafetensorsEntry& e = draft_.entry;
    if (!draft_.has_dtype) refuse("without dtype");
    if (!draft_.has_shape) refuse("without shape");
    if (draft_.offsets != 2) refuse("whose data_offsets are not two whole numbers");
    if (draft_.end < e.begin) refuse("that ends before it begins");
    if (draft_.end > data_bytes_)
      refuse("that ends at byte " + std::to_string(draft_.end) + " of " + std::to_string(data_bytes_));
    e.bytes = draft_.end - e.begin;
    std::uint64_t bytes = element_bytes(e.dtype);
    for (const std::size_t extent : e.shape)
      if (__builtin_mul_overflow(bytes, extent, &bytes)) refuse("whose shape takes more bytes than 64 bits can count");
    if (bytes != e.bytes)
      refuse("whose shape takes " + std::to_string(bytes) + " bytes; it has " + std::to_string(e.bytes));
    entries_.push_back(std::move(e));
  }

  const std::uint64_t data_bytes_;
  const std::string& path_;
  bool open_ = false;  // a tensor's object
  Draft draft_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                       const std::string& path) {
  if (!json.starts_with('{')) refuse_file(path, "has a header that is no JSON object");
  HeaderReader header(data_bytes, path);
  try {
    read_json_values(json, [&](std::span<const std::string> at, JsonValue& v) { header.value(at, v); });
  } catch (const JsonError& error) {
    refuse_file(path, std::string("has a header that ") + error.what());
  }
  return header.entries();
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), file_(std::in_place, path) {
  read_header(file_->bytes());
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> contents, std::string name)
    : path_(std::move(name)), contents_(contents) {
  read_header(contents.size());
}

void SafetensorsFile::read_header(std::uint64_t file_bytes) {
  unsigned char length[8];
  if (file_bytes < sizeof length)
    refuse_file(path_, "has " + std::to_string(file_bytes) + " bytes, too few for a safetensors file");
  read_at(0, std::as_writable_bytes(std::span(length)));
  std::uint64_t header_bytes = 0;
  for (std::size_t i = sizeof length; i-- > 0;) header_bytes = header_bytes << 8 | length[i];
  const std::string header = "has a header of " + std::to_string(header_bytes) + " bytes";
  if (header_bytes > kSafetensorsHeaderBytes)
    refuse_file(path_, header + "; the format allows " + std::to_string(kSafetensorsHeaderBytes));
  if (header_bytes > file_bytes - sizeof length)
    refuse_file(path_, header + " in a file of " + std::to_string(file_bytes));
  data_ = sizeof length + header_bytes;
  std::string json(header_bytes, '\0');
  read_at(sizeof length, std::as_writable_bytes(std::span(json)));
  entries_ = parse_safetensors_header(json, file_bytes - data_, path_);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto at = std::ranges::lower_bound(entries_, name, {}, &SafetensorsEntry::name);
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::uint64_t first, std::span<std::byte> to) const {
  if (first > entry.bytes || to.size() > entry.bytes - first)
    throw std::out_of_range("a tensor of a safetensors file is read beyond its end");
  read_at(data_ + entry.begin + first, to);
}

void SafetensorsFile::read_at(std::uint64_t first, std::span<std::byte> to) const {
  if (file_) return file_->read_at(first, to.data(), to.size());
  // The length of what is in memory is known, and does not change.
  std::copy_n(contents_.begin() + static_cast<std::ptrdiff_t>(first), to.size(), to.begin());
}

}  // namespace oomlab::nn
