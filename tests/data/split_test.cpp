#include <algorithm>
#include <cmath>

#include "data/dataset.h"
#include "files.h"

namespace oomlab::test {
namespace {

// Images of one pixel pair that is unique, so that they can be told apart.
data::Dataset numbered(std::size_t count) {
  data::Dataset d = counting_dataset(count, 1, 2, 5);
  for (std::size_t i = 0; i < count; ++i) {
    d.images[2 * i] = static_cast<std::uint8_t>(i / 256);
    d.images[2 * i + 1] = static_cast<std::uint8_t>(i % 256);
  }
  return d;
}
std::vector<std::size_t> numbers(const data::Dataset& d) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < d.count; ++i) {
    all.push_back(d.images[2 * i] * 256u + d.images[2 * i + 1]);
    EXPECT_EQ(d.labels[i], all.back() % 5);  // labels stay with their images
  }
  return all;
}

TEST(Split, EveryImageIsOnOneSide) {
  const data::Dataset d = numbered(1000);
  const auto [train, held_out] = data::split(d, 0.2, 1);
  EXPECT_EQ(train.count, 800u);
  EXPECT_EQ(held_out.count, 200u);
  EXPECT_EQ(train.name, "counting (train)");
  EXPECT_EQ(held_out.name, "counting (held out)");
  EXPECT_EQ(held_out.classes, 5u);
  auto all = numbers(train);
  const auto rest = numbers(held_out);
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  all.insert(all.end(), rest.begin(), rest.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i);
}

TEST(Split, DependsOnTheSeedAlone) {
  const data::Dataset d = numbered(100);
  EXPECT_EQ(data::split(d, 0.3, 7).train.images, data::split(d, 0.3, 7).train.images);
  EXPECT_NE(data::split(d, 0.3, 7).train.images, data::split(d, 0.3, 8).train.images);
  // as numbers, so that no platform has another order
  const auto order = numbers(data::split(numbered(10), 0.0, 1).train);
  EXPECT_EQ(order, (std::vector<std::size_t>{4, 2, 8, 1, 9, 3, 0, 6, 7, 5}));
}

TEST(Split, Edges) {
  const data::Dataset d = numbered(10);
  EXPECT_EQ(data::split(d, 0.0, 1).held_out.count, 0u);
  EXPECT_EQ(data::split(d, 1.0, 1).train.count, 0u);
  EXPECT_EQ(data::split(numbered(0), 0.5, 1).train.count, 0u);
  for (const double wrong : {-0.1, 1.1, double(NAN)}) EXPECT_THROW(data::split(d, wrong, 1), std::invalid_argument);
}

}  // namespace
}  // namespace oomlab::test
