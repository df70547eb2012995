// Facts about the embedded digits, computed from the original CSV by other means.

#include <algorithm>
#include <numeric>

#include "data/dataset.h"
#include "files.h"

namespace oomlab::test {
namespace {

std::uint64_t fnv1a(const Bytes& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const std::uint8_t b : bytes) hash = (hash ^ b) * 0x100000001b3ull;
  return hash;
}

TEST(Digits, AreTheOriginalOnes) {
  const data::Dataset d = data::digits();
  EXPECT_EQ(d.count, 1797u);
  EXPECT_EQ(d.height, 8u);
  EXPECT_EQ(d.width, 8u);
  EXPECT_EQ(d.classes, 10u);
  EXPECT_EQ(d.white, 16);
  EXPECT_EQ(d.name, "digits");
  ASSERT_EQ(d.images.size(), 1797u * 64);
  ASSERT_EQ(d.labels.size(), 1797u);
  EXPECT_EQ(*std::max_element(d.images.begin(), d.images.end()), 16);
  EXPECT_EQ(std::accumulate(d.images.begin(), d.images.end(), 0), 561718);
  EXPECT_EQ(fnv1a(d.images), 0x493fa2f67df550a1ull);
  EXPECT_EQ(fnv1a(d.labels), 0x5c66ed875b0a9785ull);
  std::vector<int> of_class(10);
  for (const std::uint8_t l : d.labels) ++of_class[l];
  EXPECT_EQ(of_class, (std::vector<int>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}));
}

TEST(Digits, SurviveARoundTripThroughFiles) {
  const data::Dataset d = data::digits();
  const Folder folder;
  folder.write_gzip("train-images-idx3-ubyte.gz", images_of(d));
  folder.write("train-labels-idx1-ubyte", labels_of(d));
  const data::Dataset again = data::read_idx_folder(folder.path());
  EXPECT_EQ(again.images, d.images);
  EXPECT_EQ(again.labels, d.labels);
  EXPECT_EQ(again.classes, 10u);
}

}  // namespace
}  // namespace oomlab::test
