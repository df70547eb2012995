// Masks of dropout on the inputs of adapters.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "device.h"
#include "nn/models/adapters.h"
#include "nn/ops/dropout.h"

namespace {

using namespace oomlab;
using namespace oomlab::nn;
using namespace oomlab::test;

TEST(Dropout, MasksHaveTheShareThatIsAskedFor) {
  Device device;
  constexpr std::size_t kCount = 40000;
  constexpr MatrixPart kAll{.rows = 200, .columns = 200, .all_columns = 200};
  for (const float kept : {0.5f, 0.9f}) {
    auto mask = device.context.buffer<std::uint8_t>(kCount, Category::activations, "mask");
    draw_mask(device.context, mask.data(), kAll, kept, 1, 2);
    const auto first = device.download(mask);
    double sum = 0;
    for (const std::uint8_t m : first) sum += m;
    EXPECT_NEAR(sum / kCount, kept, 0.01);
    draw_mask(device.context, mask.data(), kAll, kept, 1, 2);
    EXPECT_EQ(device.download(mask), first);
    draw_mask(device.context, mask.data(), kAll, kept, 1, 3);
    EXPECT_NE(device.download(mask), first);
  }
}

// Whoever has some layers, a part of each, and some rows draws there what the whole model draws for all rows; and in
// another step, for another row, column, slot or layer something else.
TEST(Dropout, MasksOfASliceAreThoseOfTheWholeModel) {
  constexpr std::size_t kRows = 12, kLayer = 1, kStep = 3;
  Device device;
  const TransformerSpec spec = parse_transformer("llama:2-4-2-16-24");
  const AdapterForm form{.rank = 2, .alpha = 4, .dropout = 0.5f};
  const auto drawn = [&](const Slice& slice, std::size_t rows, std::size_t first_row, std::size_t step) {
    AdapterSet<float> set(spec, form, slice, 1);
    set.begin_step(step);
    std::vector<std::vector<std::uint8_t>> all;
    for (const auto& mask : set.draw_masks(device.context, kLayer, {{rows, first_row}}))
      all.push_back(device.download(mask));
    return all;
  };
  const auto whole = drawn({}, kRows, 0, kStep);
  EXPECT_NE(drawn({}, kRows, 0, kStep + 1), whole);
  EXPECT_NE(drawn({}, kRows, 1, kStep), whole);
  const std::vector<AdapterSlot> slots = adapter_slots(spec, form.targets);
  for (const std::size_t parts : {1, 2})
    for (std::size_t part = 0; part < parts; ++part)
      for (const std::size_t first_row : {0, 5, 8}) {
        const Slice slice{.first_layer = kLayer, .layers = 1, .part = part, .parts = parts};
        const auto mine = drawn(slice, 4, first_row, kStep);
        ASSERT_EQ(mine.size(), slots.size());
        for (std::size_t s = 0; s < slots.size(); ++s) {
          const std::size_t in = slots[s].in, columns = slots[s].of_part(parts).in;
          ASSERT_EQ(mine[s].size(), 4 * columns);
          for (std::size_t i = 0; i < mine[s].size(); ++i) {
            const std::size_t column = (columns < in ? part * columns : 0) + i % columns;
            ASSERT_EQ(mine[s][i], whole[s][(first_row + i / columns) * in + column])
                << slots[s].name << ", part " << part << " of " << parts << ", row " << first_row << ", " << i;
          }
        }
      }
}

}  // namespace
