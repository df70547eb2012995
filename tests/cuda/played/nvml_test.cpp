// What is said of devices beside those that CUDA shows, by NVML played (nvml.cpp here), and without one.

#include "nvml.h"

#include <gtest/gtest.h>

namespace oomlab {
namespace {

TEST(Nvml, ListsGpusAndSlicesWithTheirMemory) {
  const Nvml played(PLAYED_NVML);
  const auto all = listed_devices(played);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].name, "GPU A");
  EXPECT_FALSE(all[0].sliced || all[0].slice);
  EXPECT_TRUE(all[1].sliced);
  EXPECT_EQ(all[2].name, "GPU B MIG 1g.5gb");
  EXPECT_EQ(all[2].total, std::size_t(4864) << 20);
  EXPECT_EQ(all[2].free, std::size_t(4000) << 20);
  EXPECT_TRUE(all[3].slice);
  const auto lines = remarks_on(all, 1, "0", false);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "GPU B, 40.00 GiB, is in slices (MIG), and a process gets one of them:");
  EXPECT_EQ(lines[1], "  GPU B MIG 1g.5gb: 3.91 GiB free of 4.75 GiB  UUID of GPU B MIG 1g.5gb");
  EXPECT_EQ(lines[3], "CUDA_VISIBLE_DEVICES=0: this process sees 1 of 3 devices");
}

TEST(Nvml, AbsentItIsSilent) {
  const Nvml absent("libno-such-thing.so");
  EXPECT_FALSE(absent.ready());
  EXPECT_TRUE(listed_devices(absent).empty());
  EXPECT_TRUE(remarks_on({}, 1, nullptr, false).empty());
  EXPECT_EQ(remarks_on({}, 0, "", false), (std::vector<std::string>{"CUDA_VISIBLE_DEVICES=: this process sees 0"}));
}

TEST(Nvml, NamesMemoryThatWindowsLends) {
  EXPECT_TRUE(is_wsl("Linux version 5.15.90.1-microsoft-standard-WSL2 (oe-user@oe-host)"));
  EXPECT_FALSE(is_wsl("Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)"));
  const auto lines = remarks_on({}, 1, nullptr, true);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("Sysmem Fallback"), std::string::npos);
}

}  // namespace
}  // namespace oomlab
