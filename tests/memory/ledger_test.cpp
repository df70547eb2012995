#include "memory/ledger.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "blocks.h"

namespace oomlab {
namespace {

using Kind = TimelineEvent::Kind;

void charge(Ledger& ledger, std::uintptr_t number, std::size_t bytes, Category category = Category::activations,
            const std::string& tag = "block") {
  ledger.charge(address(number), bytes - 1, bytes, category, tag);
}

TEST(Ledger, CountsLiveAndPeak) {
  Ledger ledger;
  EXPECT_EQ(ledger.live_bytes(), 0u);
  EXPECT_EQ(ledger.limit_bytes(), kUnlimited);
  charge(ledger, 1, 1024);
  charge(ledger, 2, 2048);
  ledger.release(address(1));
  charge(ledger, 3, 512);
  EXPECT_EQ(ledger.live_bytes(), 2560u);
  EXPECT_EQ(ledger.peak_bytes(), 3072u);
  EXPECT_EQ(ledger.live_blocks().size(), 2u);
  EXPECT_EQ(ledger.live_blocks().at(address(3)).requested, 511u);
  ledger.reset_peak();
  EXPECT_EQ(ledger.peak_bytes(), 2560u);
  ledger.release(address(2));
  ledger.release(address(3));
  EXPECT_EQ(ledger.live_bytes(), 0u);
  EXPECT_EQ(ledger.live_by_category(), ByCategory());
}

TEST(Ledger, SplitsTheFirstPeakByCategory) {
  Ledger ledger;
  charge(ledger, 1, 1024, Category::parameters);
  charge(ledger, 2, 4096, Category::activations);
  const ByCategory first = ledger.live_by_category();
  ledger.release(address(2));
  charge(ledger, 3, 4096, Category::gradients);  // the same peak again: the first one stays
  EXPECT_EQ(ledger.peak_bytes(), 5120u);
  EXPECT_EQ(ledger.peak_by_category(), first);
  EXPECT_EQ(ledger.peak_by_category().total(), ledger.peak_bytes());
  charge(ledger, 4, 512, Category::optimizer);
  EXPECT_EQ(ledger.peak_by_category()[Category::activations], 0u);
  EXPECT_EQ(ledger.peak_by_category()[Category::gradients], 4096u);
  EXPECT_EQ(ledger.peak_by_category().total(), 5632u);
  ledger.release(address(1));
  ledger.reset_peak();
  EXPECT_EQ(ledger.peak_by_category(), ledger.live_by_category());
}

TEST(Ledger, AddsUpLiveTags) {
  Ledger ledger;
  charge(ledger, 1, 1024, Category::parameters, "weight");
  charge(ledger, 2, 1536, Category::activations, "hidden");
  charge(ledger, 3, 1024, Category::parameters, "weight");
  charge(ledger, 4, 1024, Category::gradients, "weight");
  charge(ledger, 5, 512, Category::data, "images");
  const std::vector<LiveBlock> all = ledger.largest_live(10);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].tag, "weight");
  EXPECT_EQ(all[0].category, Category::parameters);
  EXPECT_EQ(all[0].bytes, 2048u);
  EXPECT_EQ(all[0].requested, 2046u);
  EXPECT_EQ(all[1].tag, "hidden");
  EXPECT_EQ(all[2].category, Category::gradients);
  const std::vector<LiveBlock> two = ledger.largest_live(2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].tag, "hidden");
  EXPECT_TRUE(Ledger().largest_live(5).empty());
  charge(ledger, 6, 512, Category::data, "labels");  // beside the images, in their category
  EXPECT_EQ(ledger.largest_live(10).size(), 5u);
  EXPECT_EQ(ledger.largest_live(10)[3].bytes, 512u);
  for (const int gone : {1, 2, 3}) ledger.release(address(gone));  // a tag of which nothing is left is not named
  ASSERT_EQ(ledger.largest_live(10).size(), 3u);
  EXPECT_EQ(ledger.largest_live(10)[0].category, Category::gradients);
}

TEST(Ledger, PhasesNestAndStartWithWhatIsLive) {
  Ledger ledger;
  charge(ledger, 1, 1024, Category::parameters);
  {
    const Phase step(ledger, "step");
    {
      const Phase forward(ledger, "forward");
      charge(ledger, 2, 4096, Category::activations);
    }
    {
      const Phase backward(ledger, "backward");
      charge(ledger, 3, 512, Category::gradients);
      ledger.release(address(2));
    }
    { const Phase update(ledger, "update"); }
  }
  charge(ledger, 4, 1 << 20, Category::data);  // outside: counts for no phase
  const std::vector<PhasePeak> phases = ledger.phases();
  ASSERT_EQ(phases.size(), 4u);
  EXPECT_EQ(phases[0].name, "step");
  EXPECT_EQ(phases[0].peak_allocated, 5632u);
  EXPECT_EQ(phases[0].end_allocated, 1536u);
  EXPECT_EQ(phases[1].name, "forward");
  EXPECT_EQ(phases[1].peak_allocated, 5120u);
  EXPECT_EQ(phases[1].end_allocated, 5120u);
  EXPECT_EQ(phases[1].at_peak[Category::gradients], 0u);
  EXPECT_EQ(phases[2].name, "backward");
  EXPECT_EQ(phases[2].peak_allocated, 5632u);
  EXPECT_EQ(phases[2].end_allocated, 1536u);
  EXPECT_EQ(phases[3].name, "update");
  EXPECT_EQ(phases[3].peak_allocated, 1536u) << "a phase that allocates nothing still sees what is live";
  for (const PhasePeak& phase : phases) EXPECT_EQ(phase.at_peak.total(), phase.peak_allocated) << phase.name;
}

TEST(Ledger, APhaseKeepsTheLargestOfItsVisits) {
  Ledger ledger;
  for (const std::size_t bytes : {1024, 4096, 2048}) {
    const Phase forward(ledger, "forward");
    charge(ledger, 1, bytes);
    const Phase inner(ledger, "forward");  // inside itself: no double counting
    ledger.release(address(1));
  }
  ASSERT_EQ(ledger.phases().size(), 1u);
  EXPECT_EQ(ledger.phases()[0].peak_allocated, 4096u);
  EXPECT_EQ(ledger.phases()[0].end_allocated, 0u);
}

TEST(Ledger, KeepsPeaksOfWhatItIsTold) {
  Ledger ledger;
  ledger.note_reserved(1000, 5000);
  ledger.begin_phase("a");
  ledger.note_reserved(3000, 4000);
  ledger.end_phase();
  ledger.note_reserved(2000, 9000);
  EXPECT_EQ(ledger.peak_reserved_bytes(), 3000u);
  EXPECT_EQ(ledger.peak_device_used_bytes(), 9000u);
  EXPECT_EQ(ledger.phases()[0].peak_reserved, 3000u);
  EXPECT_EQ(ledger.phases()[0].peak_device_used, 5000u) << "what was known when the phase began";
  ledger.reset_peak();
  EXPECT_EQ(ledger.peak_reserved_bytes(), 2000u);
}

TEST(Ledger, RecordsNothingUnlessAsked) {
  Ledger ledger;
  charge(ledger, 1, 512);
  ledger.note_out_of_memory(1, 512, Category::data, "x", 0);
  const Phase phase(ledger, "a");
  ledger.release(address(1));
  EXPECT_TRUE(ledger.timeline().empty());
}

TEST(Ledger, RecordsTheTimeline) {
  Ledger ledger;
  ledger.record_timeline(true);
  {
    const Phase phase(ledger, "forward");
    std::string tag = "hidden";
    charge(ledger, 1, 1024, Category::activations, tag);
    tag = "overwritten";
    ledger.note_reserved(4096, 8192);
    ledger.note_out_of_memory(999, 1024, Category::workspace, "scratch", 77);
    ledger.release(address(1));
  }
  const std::vector<TimelineEvent>& events = ledger.timeline();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].kind, Kind::phase_begin);
  EXPECT_EQ(events[0].label, "forward");
  EXPECT_EQ(events[1].kind, Kind::alloc);
  EXPECT_EQ(events[1].address, address(1));
  EXPECT_EQ(events[1].requested, 1023u);
  EXPECT_EQ(events[1].bytes, 1024u);
  EXPECT_EQ(events[1].category, Category::activations);
  EXPECT_EQ(events[1].label, "hidden");
  EXPECT_EQ(events[1].allocated_after, 1024u);
  EXPECT_EQ(events[1].reserved_after, 0u);
  EXPECT_EQ(events[2].kind, Kind::out_of_memory);
  EXPECT_EQ(events[2].label, "scratch");
  EXPECT_EQ(events[2].device_free, 77u);
  EXPECT_EQ(events[2].allocated_after, 1024u);
  EXPECT_EQ(events[3].kind, Kind::free);
  EXPECT_EQ(events[3].label, "hidden");
  EXPECT_EQ(events[3].allocated_after, 0u);
  EXPECT_EQ(events[3].reserved_after, 4096u);
  EXPECT_EQ(events[4].kind, Kind::phase_end);
  EXPECT_EQ(events[4].label, "forward");
  for (std::size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i].time_us, events[i - 1].time_us);
}

TEST(Ledger, ATimelineBegunLateStartsWithWhatIsLive) {
  Ledger ledger;
  ledger.begin_phase("step");
  charge(ledger, 1, 1024, Category::parameters, "weight");
  charge(ledger, 2, 512, Category::parameters, "bias");
  ledger.record_timeline(true);
  ASSERT_EQ(ledger.timeline().size(), 3u);
  EXPECT_EQ(ledger.timeline()[0].kind, Kind::phase_begin);
  EXPECT_EQ(ledger.timeline()[2].allocated_after, 1536u);
  ledger.record_timeline(true);  // on already: goes on
  EXPECT_EQ(ledger.timeline().size(), 3u);
  ledger.release(address(1));
  ledger.end_phase();
  EXPECT_EQ(ledger.timeline().size(), 5u);
  ledger.record_timeline(false);
  ledger.release(address(2));
  EXPECT_EQ(ledger.timeline().size(), 5u);
  ledger.record_timeline(true);  // a new one
  EXPECT_TRUE(ledger.timeline().empty());
}

TEST(Ledger, AReleaseHasItsPlaceInTheTimeline) {
  Ledger ledger;
  ledger.record_timeline(true);
  constexpr std::uintptr_t kBlocks = 1000;
  ledger.begin_phase("a");
  for (std::uintptr_t i = 1; i <= kBlocks; ++i) charge(ledger, i, 512);
  const std::size_t capacity = ledger.timeline().capacity();
  EXPECT_GE(capacity, 2 * (kBlocks + 1));
  for (std::uintptr_t i = 1; i <= kBlocks; ++i) ledger.release(address(i));
  ledger.end_phase();
  EXPECT_EQ(ledger.timeline().capacity(), capacity) << "frees and ends may not allocate";
  EXPECT_EQ(ledger.timeline().size(), 2 * (kBlocks + 1));
}

TEST(LedgerDeathTest, StopsOnProgrammingErrors) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Ledger ledger;
  charge(ledger, 1, 512);
  EXPECT_DEATH(ledger.release(address(2)), "released that is not live");
  EXPECT_DEATH(charge(ledger, 1, 512), "charged at an address that is live");
  EXPECT_DEATH(ledger.end_phase(), "none is open");
}

}  // namespace
}  // namespace oomlab
