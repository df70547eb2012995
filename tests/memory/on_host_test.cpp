// The host's memory, counted and limited like a device's.

#include <gtest/gtest.h>

#include <cstring>

#include "../device.h"
#include "blocks.h"
#include "memory/context.h"

namespace oomlab {
namespace {

class HostMemoryOf : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_DEVICE(); }
};

OutOfMemoryReport refusal_of(TrackingResource& memory, std::size_t bytes) {
  try {
    memory.deallocate(memory.allocate(bytes, nullptr, Category::gradients, "sums"), bytes, nullptr);
  } catch (const OutOfMemory& error) {
    return error.report();
  }
  return {};
}

TEST_F(HostMemoryOf, HasAPeakOfEachKindByCategory) {
  HostMemory host;
  HostBytes expected;
  {
    const DeviceBuffer<float> a(host.pinned(), nullptr, 1000, Category::optimizer, "moments");
    const DeviceBuffer<char> b(host.pinned(), nullptr, 1, Category::gradients, "sums");
    DeviceBuffer<char> c(host.pageable(), nullptr, 5000, Category::data, "a batch");
    const DeviceBuffer<char> d(host.managed(), nullptr, 600, Category::optimizer, "moments");
    std::memset(c.data(), 1, c.bytes());
    expected.pinned[Category::optimizer] = 4096;
    expected.pinned[Category::gradients] = 512;
    expected.pageable[Category::data] = 5120;
    expected.managed[Category::optimizer] = 1024;
    EXPECT_EQ(host.live_bytes(), expected.total());
  }
  EXPECT_EQ(host.live_bytes(), 0u);
  EXPECT_EQ(host.peak(), expected);
}

TEST_F(HostMemoryOf, HasOneBudgetForAllKinds) {
  HostMemory host({.limit = 10'000, .of_others = 4000});
  TrackingResource* const kinds[] = {&host.pinned(), &host.pageable(), &host.managed()};
  const DeviceBuffer<char> held(host.pageable(), nullptr, 4096, Category::data, "held");
  for (TrackingResource* kind : kinds) {
    const OutOfMemoryReport report = refusal_of(*kind, 2000);
    EXPECT_TRUE(report.on_host && report.by_limit);
    EXPECT_EQ(report.requested, 2000u);
    EXPECT_EQ(report.requested_rounded, 2048u);
    EXPECT_EQ(report.limit, 10'000u);
    EXPECT_EQ(report.limit_used, 8096u);
    EXPECT_EQ(report.limit_used_by_others, 4000u);
    EXPECT_EQ(report.tag, "sums");
    EXPECT_EQ(report.cause(), OutOfMemoryReport::Cause::live);
    EXPECT_EQ(report.device_total, 0u) << "no device is to blame";
    EXPECT_EQ(refusal_of(*kind, 1500).requested, 0u) << "what fits is served after a refusal";
    EXPECT_EQ(refusal_of(*kind, 20'000).cause(), OutOfMemoryReport::Cause::too_big);
  }
  EXPECT_EQ(host.live_bytes(), 4096u);
}

TEST_F(HostMemoryOf, RefusesWhenOthersHaveAllOfIt) {
  HostMemory host({.limit = 10'000, .of_others = 20'000});
  EXPECT_TRUE(refusal_of(host.pinned(), 1).by_limit);
}

TEST(OutOfHostMemory, ExplainsItself) {
  OutOfMemoryReport report;
  report.on_host = report.by_limit = true;
  report.requested = report.requested_rounded = 20 * kMiB;
  report.category = Category::optimizer;
  report.tag = "moments";
  report.live = 40 * kMiB;
  report.live_by_category[Category::optimizer] = 40 * kMiB;
  report.limit = 64 * kMiB;
  report.limit_used = 48 * kMiB;
  report.limit_used_by_others = 8 * kMiB;
  EXPECT_EQ(
      headline(report),
      "Out of host memory. Tried to allocate 20.00 MiB for moments under a host memory budget of 64.00 MiB of which "
      "16.00 MiB is free. This run has 40.00 MiB allocated on the host.");
  const std::string text = explain(report);
  EXPECT_NE(
      text.find("20.00 MiB asked + 40.00 MiB live + 8.00 MiB of the other ranks - 64.00 MiB budget = 4.00 MiB short"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("of 60.00 MiB up to 45.00 MiB less"), std::string::npos) << text;
  EXPECT_NE(text.find("--host-memory: 68.00 MiB or more"), std::string::npos) << text;
  report.by_limit = false;
  EXPECT_NE(explain(report).find("the system has no 20.00 MiB to give"), std::string::npos);
}

}  // namespace
}  // namespace oomlab
