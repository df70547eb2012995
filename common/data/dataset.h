#pragma once
// Labelled images on the host: the embedded digits, and files in the IDX format (MNIST and its relatives).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/files.h"

namespace oomlab::data {

/// A file or folder cannot be used. what() is one line that names it and says what is wrong.
class DataError : public BadFile {
 public:
  using BadFile::BadFile;
};

struct Dataset {
  std::size_t count = 0, height = 0, width = 0;
  std::size_t classes = 0;           ///< labels lie in 0…classes−1
  std::vector<std::uint8_t> images;  ///< [count, height, width]
  std::vector<std::uint8_t> labels;  ///< [count]
  std::string name;
  std::uint8_t white = 255;  ///< the value that means 1.0

  std::size_t pixels() const noexcept { return height * width; }
};

/// The 1,797 handwritten digits of 8×8 pixels that are built into the program (see digits/README.md). white
/// is 16.
Dataset digits();

/// Reads an IDX3 file of images and an IDX1 file of labels, plain or gzip. Throws DataError, and
/// BadFile for what cannot be read.
Dataset read_idx(const std::string& images_path, const std::string& labels_path);
/// The same for a folder that has [train-]images-idx3-ubyte[.gz] and [train-]labels-idx1-ubyte[.gz]. Throws
/// as that does.
Dataset read_idx_folder(const std::string& folder);

struct Split {
  Dataset train, held_out;
};
/// A seeded shuffle, then the last round(held_out_fraction · count) images are held out. The same on every
/// platform. Throws std::invalid_argument unless 0 ≤ held_out_fraction ≤ 1 (not NaN).
Split split(const Dataset& dataset, double held_out_fraction, std::uint64_t seed);

}  // namespace oomlab::data
