#include "plan/peak.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

namespace oomlab {
namespace {

TEST(PeakTracker, RemembersTheFirstOfEqualPeaks) {
  ByCategory resident;
  resident[Category::parameters] = 512;
  PeakTracker tracker(resident);
  EXPECT_EQ(tracker.peak_bytes(), 512u);
  tracker.add(Category::activations, 1024);
  tracker.drop(Category::activations, 1024);
  tracker.add(Category::gradients, 1024);
  EXPECT_EQ(tracker.live_bytes(), 1536u);
  EXPECT_EQ(tracker.live()[Category::gradients], 1024u);
  EXPECT_EQ(tracker.peak_bytes(), 1536u);
  EXPECT_EQ(tracker.peak().total(), 1536u);
  EXPECT_EQ(tracker.peak().at_peak[Category::activations], 1024u);
  EXPECT_EQ(tracker.peak().at_peak[Category::gradients], 0u);
}

TEST(PeakTracker, WhatCannotBeIsRefusedAndChangesNothing) {
  PeakTracker tracker;
  tracker.add(Category::data, 512);
  EXPECT_THROW(tracker.add(Category::activations, UINT64_MAX - 511), std::length_error);
  EXPECT_THROW(tracker.drop(Category::data, 513), std::logic_error);
  EXPECT_THROW(tracker.drop(Category::activations, 1), std::logic_error);
  EXPECT_EQ(tracker.live_bytes(), 512u);
  EXPECT_EQ(tracker.live()[Category::data], 512u);
  EXPECT_EQ(tracker.peak_bytes(), 512u);
}

TEST(PeakTracker, OfTwoThatAreEqualTheFirstCounts) {
  PeakBytes first, second;
  first.at_peak[Category::data] = second.at_peak[Category::workspace] = 512;
  EXPECT_EQ(later_peak(first, second).at_peak, first.at_peak);
  second.at_peak[Category::data] = 512;
  EXPECT_EQ(later_peak(first, second).at_peak, second.at_peak);
}

}  // namespace
}  // namespace oomlab
