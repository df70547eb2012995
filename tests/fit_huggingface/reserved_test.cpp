// What is held from the device, by replay: cases by hand, and the allocator's rules written a second time, plainly, on
// the traces that come with the course.

#include "plan/pytorch/reserved.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "../../bench/allocators/trace.h"
#include "plan/model/huggingface_config.h"
#include "plan/pytorch/huggingface.h"

namespace oomlab::fit {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t(1) << 20;
using Events = std::vector<MemoryEvent>;

std::uint64_t peak(const Events& events, TorchSegments segments) { return reserved_by_replay(events, segments).peak; }

TEST(Reserved, ByHand) {
  const Events small{{0, 512, false}, {1, 512, false}};
  EXPECT_EQ(peak(small, TorchSegments::native), 2 * kMiB);
  EXPECT_EQ(peak(small, TorchSegments::expandable), 2 * kMiB);
  EXPECT_EQ(reserved_by_replay(small, TorchSegments::native).live, 1024u);
  // 30 and 50 MiB: a segment each, or one that has grown by pages of 20 to 80.
  // A block of 41 MiB in a segment of 42 MiB, of which the rest is too small for another.
  const Events uncut{{0, 41 * kMiB, false}};
  EXPECT_EQ(reserved_by_replay(uncut, TorchSegments::native).allocated, 42 * kMiB);
  EXPECT_EQ(reserved_by_replay(uncut, TorchSegments::expandable).allocated, 41 * kMiB);
  const Events grown{{0, 30 * kMiB, false}, {0, 30 * kMiB, true}, {1, 50 * kMiB, false}};
  EXPECT_EQ(reserved_by_replay(grown, TorchSegments::native).allocated, 50 * kMiB);
  EXPECT_EQ(peak(grown, TorchSegments::native), 80 * kMiB);
  EXPECT_EQ(peak(grown, TorchSegments::expandable), 60 * kMiB);
  EXPECT_EQ(reserved_by_replay(grown, TorchSegments::native).live, 50 * kMiB);
  // Of another stream: nothing is shared.
  const Events streams{{0, 30 * kMiB, false}, {0, 30 * kMiB, true}, {1, 30 * kMiB, false, 1}};
  EXPECT_EQ(peak(streams, TorchSegments::native), 60 * kMiB);
  EXPECT_EQ(peak({{0, 0, false}, {0, 0, true}}, TorchSegments::native), 0u) << "an empty tensor has no block";
  EXPECT_EQ(peak({}, TorchSegments::native), 0u);
}

TEST(Reserved, ABudgetGivesCachedMemoryBackBeforeItFails) {
  const Events events{{0, 30 * kMiB, false}, {0, 30 * kMiB, true}, {1, 50 * kMiB, false}};
  const Reserved tight = reserved_by_replay(events, TorchSegments::native, 60 * kMiB);
  EXPECT_TRUE(tight.fits);
  EXPECT_EQ(tight.peak, 50 * kMiB);
  EXPECT_FALSE(reserved_by_replay(events, TorchSegments::native, 49 * kMiB).fits);
}

TEST(Reserved, RefusesWhatIsNoTrace) {
  EXPECT_THROW(peak({{3, 1, true}}, TorchSegments::native), std::invalid_argument);
  EXPECT_THROW(peak({{3, 1, false}, {3, 1, false}}, TorchSegments::native), std::invalid_argument);
  EXPECT_THROW(peak({{3, 1, false}, {3, 1, true}, {3, 1, true}}, TorchSegments::native), std::invalid_argument);
}

// The rules without any index: all blocks of all segments in a row, looked through for each request.
class Plain {
 public:
  void allocate(std::uint64_t id, std::uint64_t bytes, std::uint64_t stream) {
    const std::uint64_t size = std::max<std::uint64_t>(512, (bytes + 511) / 512 * 512);
    const bool small = size <= kMiB;
    Block* best = nullptr;
    for (Block& block : blocks_)
      if (block.id == kFree && block.small == small && block.stream == stream && block.size >= size &&
          (!best || block.size < best->size))
        best = &block;
    if (!best) {
      const std::uint64_t segment = small              ? 2 * kMiB
                                    : size < 10 * kMiB ? 20 * kMiB
                                                       : (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      reserved_ += segment;
      blocks_.push_back({segment, segments_++, stream, kFree, small});
      best = &blocks_.back();
    }
    const auto at = blocks_.begin() + (best - blocks_.data());
    const std::uint64_t rest = at->size - size;
    at->id = id;
    if (small ? rest < 512 : rest <= kMiB) return;
    Block left = *at;
    at->size = size;
    left.size = rest;
    left.id = kFree;
    blocks_.insert(at + 1, left);
  }
  void free(std::uint64_t id) {
    for (Block& block : blocks_)
      if (block.id == id) block.id = kFree;
    for (std::size_t i = 0; i + 1 < blocks_.size();) {
      const bool joined =
          blocks_[i].id == kFree && blocks_[i + 1].id == kFree && blocks_[i].segment == blocks_[i + 1].segment;
      if (!joined) {
        ++i;
        continue;
      }
      blocks_[i].size += blocks_[i + 1].size;
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
  std::uint64_t reserved() const { return reserved_; }

 private:
  static constexpr std::uint64_t kFree = UINT64_MAX;
  struct Block {
    std::uint64_t size, segment, stream, id;
    bool small;
  };
  std::vector<Block> blocks_;
  std::uint64_t reserved_ = 0, segments_ = 0;
};

std::uint64_t plainly(const Events& events) {
  Plain plain;
  for (const MemoryEvent& event : events) {
    if (event.release)
      plain.free(event.id);
    else
      plain.allocate(event.id, event.bytes, event.stream);
  }
  return plain.reserved();
}

// What PyTorch's own allocator held of the same traces on a GPU (bench/peers/pytorch_allocator.py): to the digits printed.
TEST(Reserved, AsPyTorchsOwnAllocatorOnAGpu) {
  std::ifstream table(std::string(OOMLAB_TRACES) + "/../results/peers/pytorch_allocator_nvidia-h100-80gb-hbm3.txt");
  ASSERT_TRUE(table);
  std::size_t rows = 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string name, live, native, expandable;
    if (!(words >> name >> live >> native >> expandable) || !name.ends_with(".csv")) continue;
    Events events;
    for (const bench::TraceEvent& event : bench::read_trace(std::string(OOMLAB_TRACES) + "/" + name).events)
      events.push_back({event.id, event.bytes, !event.allocates, static_cast<std::uint32_t>(event.stream)});
    const auto ratio = [&](TorchSegments segments) {
      const Reserved reserved = reserved_by_replay(events, segments);
      return fmt::format("{:.4f}", double(reserved.peak) / double(reserved.live));
    };
    EXPECT_EQ(fmt::format("{:.1f}", double(reserved_by_replay(events, TorchSegments::native).live) / double(kMiB)),
              live);
    EXPECT_EQ(ratio(TorchSegments::native), native) << name;
    EXPECT_EQ(ratio(TorchSegments::expandable), expandable) << name;
    ++rows;
  }
  EXPECT_EQ(rows, 4u);
}

TEST(Reserved, RecordedTraces) {
  std::size_t traces = 0;
  for (const auto& file : std::filesystem::directory_iterator(OOMLAB_TRACES)) {
    const bench::Trace trace = bench::read_trace(file.path().string());
    Events events;
    for (const bench::TraceEvent& event : trace.events)
      events.push_back({event.id, event.bytes, !event.allocates, static_cast<std::uint32_t>(event.stream)});
    const Reserved native = reserved_by_replay(events, TorchSegments::native);
    const Reserved expandable = reserved_by_replay(events, TorchSegments::expandable);
    EXPECT_EQ(native.peak, plainly(events)) << file.path();
    EXPECT_EQ(native.live, trace.live_peak()) << file.path();
    EXPECT_GE(expandable.peak, native.live);
    EXPECT_LT(double(expandable.peak), 1.15 * double(native.live)) << file.path();
    EXPECT_TRUE(reserved_by_replay(events, TorchSegments::native, native.peak).fits);
    EXPECT_FALSE(reserved_by_replay(events, TorchSegments::native, native.live - 1).fits);
    ++traces;
  }
  EXPECT_GE(traces, 4u);
}

// Two steps of a decoder: what the tape says is what the allocator hears of.
TEST(Reserved, OfAStep) {
  HfStep step{.batch = 1, .seq = 512, .weights = DType::bf16, .checkpoint = true};
  const nn::HfShape& shape = nn::hf_model("qwen2.5-0.5b");
  const HfPeak whole = huggingface_peak(shape, step, true);
  const Reserved native = reserved_by_replay(whole.events, TorchSegments::native);
  const Reserved expandable = reserved_by_replay(whole.events, TorchSegments::expandable);
  EXPECT_EQ(native.live, whole.bytes.total());
  EXPECT_EQ(native.peak, plainly(whole.events));
  EXPECT_GT(native.peak, native.live);
  EXPECT_LE(expandable.peak, native.peak);
  EXPECT_EQ(huggingface_peak(shape, step).bytes, whole.bytes) << "a recording changes nothing";

  step.ranks = HfRanks{.parallel = HfParallel::fsdp2, .count = 4};
  const HfPeak shards = huggingface_peak(shape, step, true);
  bool gathers = false;
  for (const MemoryEvent& event : shards.events) gathers |= event.stream != 0;
  EXPECT_TRUE(gathers) << "weights are gathered on a stream of their own";
  EXPECT_LT(reserved_by_replay(shards.events, TorchSegments::native).peak, native.peak);
}

}  // namespace
}  // namespace oomlab::fit
