// The simulated policies against cases worked out by hand from their documented constants.

#include "plan/allocator/policies.h"

#include <gtest/gtest.h>

namespace oomlab::bench {
namespace {

TEST(PyTorchPolicy, SegmentsOfTwoTwentyAndTheirOwnSize) {
  PyTorchPolicy p(UINT64_MAX, false);
  ASSERT_TRUE(p.allocate(0, 1, 0));  // small: a segment of 2 MiB
  EXPECT_EQ(p.reserved(), 2 * kMiB);
  ASSERT_TRUE(p.allocate(1, kMiB, 0));  // still small, and fits beside it
  EXPECT_EQ(p.reserved(), 2 * kMiB);
  ASSERT_TRUE(p.allocate(2, kMiB, 0));  // 1 MiB - 512 is left: another segment
  EXPECT_EQ(p.reserved(), 4 * kMiB);
  ASSERT_TRUE(p.allocate(3, kMiB + 1, 0));  // large: 20 MiB
  EXPECT_EQ(p.reserved(), 24 * kMiB);
  ASSERT_TRUE(p.allocate(4, 9 * kMiB, 0));  // from the same
  EXPECT_EQ(p.reserved(), 24 * kMiB);
  ASSERT_TRUE(p.allocate(5, 10 * kMiB, 0));  // its own, 10 MiB is not below 10 MiB
  EXPECT_EQ(p.reserved(), 34 * kMiB);
  ASSERT_TRUE(p.allocate(6, 10 * kMiB + 1, 0));  // rounded to 2 MiB
  EXPECT_EQ(p.reserved(), 46 * kMiB);
  ASSERT_TRUE(p.allocate(7, 1, 9));  // another stream shares nothing
  EXPECT_EQ(p.reserved(), 48 * kMiB);
}

TEST(PyTorchPolicy, ALargeBlockIsCutOnlyWhenMoreThanAMiBRemains) {
  PyTorchPolicy p(UINT64_MAX, false);
  ASSERT_TRUE(p.allocate(0, 12 * kMiB, 0));
  p.free(0);
  ASSERT_TRUE(p.allocate(1, 11 * kMiB, 0));  // exactly 1 MiB would remain: not cut
  ASSERT_TRUE(p.allocate(2, 600 * kKiB + kMiB, 0));
  EXPECT_EQ(p.reserved(), 32 * kMiB) << "the rest was not there";
  p.free(1);
  ASSERT_TRUE(p.allocate(3, 11 * kMiB - 512, 0));  // now more remains
  ASSERT_TRUE(p.allocate(4, kMiB + 512, 0));
  EXPECT_EQ(p.reserved(), 32 * kMiB);
}

TEST(PyTorchPolicy, OutOfMemoryGivesWholeSegmentsBack) {
  PyTorchPolicy p(40 * kMiB, false);
  ASSERT_TRUE(p.allocate(0, 20 * kMiB, 0));
  ASSERT_TRUE(p.allocate(1, 16 * kMiB, 0));
  p.free(0);
  EXPECT_EQ(p.reserved(), 36 * kMiB);
  ASSERT_TRUE(p.allocate(2, 22 * kMiB, 0));
  EXPECT_EQ(p.reserved(), 38 * kMiB);
  EXPECT_FALSE(p.allocate(3, 4 * kMiB, 0));
}

TEST(PyTorchPolicy, ExpandableGrowsByTwentyAndGivesFreePagesBack) {
  PyTorchPolicy p(100 * kMiB, true);
  ASSERT_TRUE(p.allocate(0, 30 * kMiB, 0));
  EXPECT_EQ(p.reserved(), 40 * kMiB);
  ASSERT_TRUE(p.allocate(1, 30 * kMiB, 0));
  EXPECT_EQ(p.reserved(), 60 * kMiB);
  ASSERT_TRUE(p.allocate(2, 1, 0));
  EXPECT_EQ(p.reserved(), 62 * kMiB) << "the small pool, by 2 MiB";
  p.free(0);  // all of page 0, and half of page 1
  EXPECT_EQ(p.reserved(), 62 * kMiB) << "kept";
  ASSERT_TRUE(p.allocate(3, 40 * kMiB, 0));  // 62 + 40 is too much: page 0 goes back first
  EXPECT_EQ(p.reserved(), 82 * kMiB);
  EXPECT_FALSE(
      p.allocate(4, 25 * kMiB, 0));          // page 0 and the half of page 1 are 30 MiB of addresses: one page is there
  ASSERT_TRUE(p.allocate(5, 10 * kMiB, 0));  // the half of page 1
  EXPECT_EQ(p.reserved(), 82 * kMiB);
}

TEST(TensorFlowPolicy, RegionsDoubleAndChunksAreCutAtTwice) {
  TensorFlowPolicy p(UINT64_MAX);
  ASSERT_TRUE(p.allocate(0, 1, 0));
  EXPECT_EQ(p.reserved(), 2 * kMiB);
  ASSERT_TRUE(p.allocate(1, 3 * kMiB, 0));  // the next region is of 4
  EXPECT_EQ(p.reserved(), 6 * kMiB);
  ASSERT_TRUE(p.allocate(2, 1 * kMiB, 0));  // 4 < 2 * 3: not cut there, but the first region has room
  EXPECT_EQ(p.reserved(), 6 * kMiB);
  ASSERT_TRUE(p.allocate(3, 1 * kMiB, 0));
  EXPECT_GT(p.reserved(), 6 * kMiB);
}

TEST(RmmPolicy, GrowthsDoNotGrowTogether) {
  RmmPolicy p(1024);  // the complaint: grown in pieces, 1024 bytes cannot be had from 1024
  ASSERT_TRUE(p.allocate(0, 256, 0));
  ASSERT_TRUE(p.allocate(1, 256, 0));
  p.free(0);
  p.free(1);
  EXPECT_LE(p.reserved(), 1024u);
  EXPECT_FALSE(p.allocate(2, 1024, 0));
}

}  // namespace
}  // namespace oomlab::bench
