// The reader of IDX files: what it accepts, and the one line it says about everything else.

#include "data/dataset.h"
#include "files.h"

namespace oomlab::test {
namespace {

const data::Dataset kData = counting_dataset(7, 3, 5, 4);

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const BadFile& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

void expect_same(const data::Dataset& found, const data::Dataset& expected) {
  EXPECT_EQ(found.count, expected.count);
  EXPECT_EQ(found.height, expected.height);
  EXPECT_EQ(found.width, expected.width);
  EXPECT_EQ(found.classes, expected.classes);
  EXPECT_EQ(found.images, expected.images);
  EXPECT_EQ(found.labels, expected.labels);
  EXPECT_EQ(found.white, 255);
}

class Idx : public ::testing::Test {
 protected:
  Folder folder;
  std::string images = folder.write("images", images_of(kData)), labels = folder.write("labels", labels_of(kData));
  std::string error_with_images(const Bytes& bytes) {
    folder.write("images", bytes);
    return error_of([&] { data::read_idx(images, labels); });
  }
  std::string error_with_labels(const Bytes& bytes) {
    folder.write("labels", bytes);
    return error_of([&] { data::read_idx(images, labels); });
  }
};

TEST_F(Idx, Plain) { expect_same(data::read_idx(images, labels), kData); }

TEST_F(Idx, Gzip) {
  expect_same(data::read_idx(folder.write_gzip("i.gz", images_of(kData)), folder.write_gzip("l.gz", labels_of(kData))),
              kData);
}

TEST_F(Idx, LargerThanOnePiece) {
  const data::Dataset large = counting_dataset(3000, 28, 28, 10);
  folder.write("images", images_of(large));
  folder.write("labels", labels_of(large));
  expect_same(data::read_idx(images, labels), large);
}

TEST_F(Idx, FolderWithAnyOfTheNames) {
  for (const std::string prefix : {"", "train-"})
    for (const bool gzip : {false, true}) {
      const Folder f;
      const auto write = [&](const std::string& name, const Bytes& bytes) {
        gzip ? f.write_gzip(prefix + name + ".gz", bytes) : f.write(prefix + name, bytes);
      };
      write("images-idx3-ubyte", images_of(kData));
      write("labels-idx1-ubyte", labels_of(kData));
      expect_same(data::read_idx_folder(f.path()), kData);
      EXPECT_EQ(data::read_idx_folder(f.path()).name, f.path());
    }
}

TEST_F(Idx, FolderErrors) {
  EXPECT_EQ(error_of([] { data::read_idx_folder("/no/such/folder"); }), "data folder '/no/such/folder' does not exist");
  EXPECT_EQ(error_of([&] { data::read_idx_folder(images); }), "data folder '" + images + "' is not a folder");
  const Folder empty;
  EXPECT_EQ(error_of([&] { data::read_idx_folder(empty.path()); }), "data folder '" + empty.path() + "' is empty");
  empty.write("other", {1});
  EXPECT_EQ(error_of([&] { data::read_idx_folder(empty.path()); }),
            "data folder '" + empty.path() + "' has no [train-]images-idx3-ubyte[.gz]");
  empty.write("images-idx3-ubyte", images_of(kData));
  EXPECT_EQ(error_of([&] { data::read_idx_folder(empty.path()); }),
            "data folder '" + empty.path() + "' has no [train-]labels-idx1-ubyte[.gz]");
}

TEST_F(Idx, FilesThatCannotBeRead) {
  EXPECT_EQ(error_of([&] { data::read_idx("/no/such/file", labels); }),
            "'/no/such/file' cannot be read: No such file or directory");
  EXPECT_EQ(error_of([&] { data::read_idx("/dev/zero", labels); }), "'/dev/zero' is a device, not a file");
  EXPECT_EQ(error_of([&] { data::read_idx(images, folder.path()); }),
            "'" + folder.path() + "' is a folder, not a file");
}

TEST_F(Idx, WrongMagic) {
  EXPECT_EQ(error_with_images(labels_of(kData)),
            "'" + images + "' has magic number 0x00000801; expected 0x00000803 (IDX images)");
  folder.write("images", images_of(kData));
  EXPECT_EQ(error_with_labels(images_of(kData)),
            "'" + labels + "' has magic number 0x00000803; expected 0x00000801 (IDX labels)");
  folder.write("labels", labels_of(kData));
  EXPECT_EQ(error_with_images({'P', 'K', 3, 4}),
            "'" + images + "' has magic number 0x504b0304; expected 0x00000803 (IDX images)");
}

TEST_F(Idx, Truncated) {
  const Bytes whole = images_of(kData);
  EXPECT_EQ(error_with_images({}), "'" + images + "' is truncated: its header needs 16 bytes, found 0");
  for (std::size_t size = 1; size < whole.size(); ++size) {
    const std::string error = error_with_images({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_EQ(error, size < 16
                         ? "'" + images + "' is truncated: its header needs 16 bytes, found " + std::to_string(size)
                         : "'" + images + "' is truncated: 121 bytes expected, " + std::to_string(size) + " found");
  }
  folder.write("images", whole);
  Bytes fewer = labels_of(kData);
  fewer.pop_back();
  EXPECT_EQ(error_with_labels(fewer), "'" + labels + "' is truncated: 15 bytes expected, 14 found");
}

TEST_F(Idx, TrailingBytes) {
  Bytes more = images_of(kData);
  more.push_back(0);
  EXPECT_EQ(error_with_images(more), "'" + images + "' goes on after the 121 bytes that its header announces");
}

TEST_F(Idx, CountsThatDiffer) {
  EXPECT_EQ(error_with_labels(labels_of(counting_dataset(6, 1, 1, 4))),
            "'" + images + "' has 7 images but '" + labels + "' has 6 labels");
}

TEST_F(Idx, NoImages) {
  folder.write("labels", labels_of(counting_dataset(0, 1, 1, 4)));
  EXPECT_EQ(error_with_images(images_of(counting_dataset(0, 28, 28, 4))),
            "'" + images + "' holds no images (0 of 28 x 28 pixels)");
  folder.write("labels", labels_of(kData));
  EXPECT_EQ(error_with_images(images_of(counting_dataset(7, 0, 28, 4))),
            "'" + images + "' holds no images (7 of 0 x 28 pixels)");
}

TEST_F(Idx, AnnouncedSizesAreNotBelieved) {
  Bytes huge;
  for (const std::uint32_t n : {0x803u, 0xffffffffu, 0xffffffffu, 0xffffffffu}) append(huge, n);
  EXPECT_EQ(error_with_images(huge), "'" + images + "' announces more than 4 GiB of data; its header is damaged");
  // one GiB passes for a size, but is not allocated before it is there
  Bytes large;
  for (const std::uint32_t n : {0x803u, 0x4000u, 0x100u, 0x100u}) append(large, n);
  large.resize(100);
  EXPECT_EQ(error_with_images(large), "'" + images + "' is truncated: 1073741840 bytes expected, 100 found");
}

TEST_F(Idx, DamagedGzip) {
  const std::string path = folder.write_gzip("images", images_of(counting_dataset(2000, 3, 5, 4)));
  const Bytes whole = read_all(path);
  Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2));
  EXPECT_EQ(error_with_images(cut), "'" + images + "' is a damaged gzip file: it ends too early");
  Bytes flipped = whole;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  EXPECT_EQ(error_with_images(flipped), "'" + images + "' is a damaged gzip file: incorrect data check");
  flipped = whole;
  flipped[20] ^= 0xff;
  EXPECT_EQ(error_with_images(flipped).find("'" + images + "' is "),
            0u);  // damaged, or truncated, but an error
}

}  // namespace
}  // namespace oomlab::test
