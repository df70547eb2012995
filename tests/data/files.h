#pragma once
// A folder that goes away, and IDX files in it.

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace oomlab::test {

using Bytes = std::vector<std::uint8_t>;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "oomlab-data-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(file(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return file(name);
  }
  std::string write_gzip(const std::string& name, const Bytes& bytes) const {
    const gzFile f = gzopen(file(name).c_str(), "wb");
    EXPECT_EQ(gzwrite(f, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    EXPECT_EQ(gzclose(f), Z_OK);
    return file(name);
  }

 private:
  std::string path_;
};

inline Bytes read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void append(Bytes& to, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<std::uint8_t>(number >> shift));
}
inline Bytes images_of(const data::Dataset& d) {
  Bytes bytes;
  for (const std::size_t n : {std::size_t(0x803), d.count, d.height, d.width})
    append(bytes, static_cast<std::uint32_t>(n));
  bytes.insert(bytes.end(), d.images.begin(), d.images.end());
  return bytes;
}
inline Bytes labels_of(const data::Dataset& d) {
  Bytes bytes;
  for (const std::size_t n : {std::size_t(0x801), d.count}) append(bytes, static_cast<std::uint32_t>(n));
  bytes.insert(bytes.end(), d.labels.begin(), d.labels.end());
  return bytes;
}

/// Pixels and labels that say where they are.
inline data::Dataset counting_dataset(std::size_t count, std::size_t height, std::size_t width, std::size_t classes) {
  data::Dataset d;
  d.count = count;
  d.height = height;
  d.width = width;
  d.classes = classes;
  for (std::size_t i = 0; i < count * height * width; ++i) d.images.push_back(static_cast<std::uint8_t>(i * 7));
  for (std::size_t i = 0; i < count; ++i) d.labels.push_back(static_cast<std::uint8_t>(i % classes));
  d.name = "counting";
  return d;
}

}  // namespace oomlab::test
