#include "memory/out_of_memory.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "blocks.h"
#include "memory/resource.h"

namespace oomlab {
namespace {

using Cause = OutOfMemoryReport::Cause;

OutOfMemoryReport asked(std::size_t bytes) {
  OutOfMemoryReport report;
  report.requested = bytes;
  report.requested_rounded = round_to_granule(bytes);
  report.category = Category::activations;
  report.tag = "layer 3 hidden";
  return report;
}

OutOfMemoryReport under_budget(std::size_t bytes, std::size_t limit, std::size_t live) {
  OutOfMemoryReport report = asked(bytes);
  report.by_limit = true;
  report.limit = limit;
  report.limit_used = report.live = report.live_requested = report.reserved = live;
  report.device_total = report.device_free = 1024 * kMiB;
  return report;
}

OutOfMemoryReport on_device(std::size_t bytes, std::size_t total, std::size_t free, std::size_t live) {
  OutOfMemoryReport report = asked(bytes);
  report.live = report.live_requested = report.reserved = live;
  report.device_total = total;
  report.device_free = free;
  return report;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Cause, UnderABudget) {
  EXPECT_EQ(under_budget(65 * kMiB, 64 * kMiB, 0).cause(), Cause::too_big);
  EXPECT_EQ(under_budget(64 * kMiB, 64 * kMiB, kMiB).cause(), Cause::live);
  EXPECT_EQ(under_budget(1000, 1000, 0).cause(), Cause::rounding) << "the request itself is rounded";
  OutOfMemoryReport small = under_budget(kMiB, 64 * kMiB, 64 * kMiB);
  small.live_requested = 2 * kMiB;
  EXPECT_EQ(small.cause(), Cause::rounding) << "many small blocks are";
  // An allocator between ledger and budget holds everything, and most of it is free.
  OutOfMemoryReport cache = under_budget(10 * kMiB, 64 * kMiB, 64 * kMiB);
  cache.live = cache.live_requested = 20 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::cached);
  cache.largest_free_block = 9 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::fragmented);
  cache.largest_free_block = 10 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::cached);
  // Another ledger under the same budget.
  OutOfMemoryReport shared = under_budget(10 * kMiB, 64 * kMiB, 60 * kMiB);
  shared.live = shared.live_requested = shared.reserved = kMiB;
  EXPECT_EQ(shared.cause(), Cause::live);
}

TEST(Cause, OnADevice) {
  EXPECT_EQ(on_device(65 * kMiB, 64 * kMiB, 64 * kMiB, 0).cause(), Cause::too_big);
  EXPECT_EQ(on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 60 * kMiB).cause(), Cause::live);
  EXPECT_EQ(on_device(10 * kMiB, 64 * kMiB, 20 * kMiB, 44 * kMiB).cause(), Cause::fragmented);
  EXPECT_EQ(on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, kMiB).cause(), Cause::other_process);
  EXPECT_EQ(on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 56 * kMiB).cause(), Cause::live)
      << "4 MiB are the context's own, not another process's";
  OutOfMemoryReport cache = on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 40 * kMiB);
  cache.reserved = 60 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::cached);
  cache.largest_free_block = 5 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::fragmented);
  cache = on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 52 * kMiB);
  cache.reserved = 60 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::cached) << "cache and device together are enough";
  cache = on_device(50 * kMiB, 64 * kMiB, 0, 24 * kMiB);
  cache.reserved = 64 * kMiB;
  EXPECT_EQ(cache.cause(), Cause::live) << "the rest is in this run's own cache, not in another process";
  OutOfMemoryReport small = on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 60 * kMiB);
  small.live_requested = kMiB;
  EXPECT_EQ(small.cause(), Cause::rounding);
  OutOfMemoryReport step = on_device(kMiB / 8, 9 * kMiB, kMiB, 8 * kMiB);
  step.cache_released = true;
  EXPECT_EQ(step.cause(), Cause::rounding);
  EXPECT_NE(explain(step).find("rounding: a device is handed out in steps of 2.00 MiB, and 1.00 MiB is free."),
            std::string::npos)
      << explain(step);
}

TEST(Cause, OfNothingKnown) {
  EXPECT_EQ(asked(kMiB).cause(), Cause::live);
  EXPECT_EQ(asked(std::size_t(1) << 62).cause(), Cause::live);
}

TEST(Headline, NamesTheDevice) {
  OutOfMemoryReport report = on_device(20 * kMiB, 8192 * kMiB, 16 * kMiB, 7000 * kMiB);
  report.reserved = 7168 * kMiB - kMiB;
  report.device = 1;
  EXPECT_EQ(headline(report),
            "CUDA out of memory. Tried to allocate 20.00 MiB for layer 3 hidden. GPU 1 has a total capacity "
            "of 8.00 GiB "
            "of which 16.00 MiB is free. This run has 6.84 GiB allocated, and 167.00 MiB is reserved but "
            "unallocated.");
}

TEST(Headline, NamesTheBudget) {
  OutOfMemoryReport report = under_budget(20 * kMiB, 512 * kMiB, 500 * kMiB);
  EXPECT_TRUE(contains(headline(report), "under a budget of 512.00 MiB of which 12.00 MiB is free."))
      << headline(report);
  report.by_limit = false;
  EXPECT_TRUE(contains(headline(report), "under a budget of 512.00 MiB.")) << headline(report);
}

TEST(Headline, LeavesOutWhatIsNotKnown) {
  OutOfMemoryReport report = asked(512);
  report.tag.clear();
  EXPECT_EQ(headline(report), "CUDA out of memory. Tried to allocate 512 bytes. This run has 0 bytes allocated.");
}

TEST(Explain, ShowsTheArithmetic) {
  const std::string text = explain(under_budget(20 * kMiB, 512 * kMiB, 500 * kMiB));
  EXPECT_TRUE(contains(text, "20.00 MiB asked + 500.00 MiB live - 512.00 MiB budget = 8.00 MiB short")) << text;
  const std::string device = explain(on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 60 * kMiB));
  EXPECT_TRUE(contains(device, "10.00 MiB asked - 4.00 MiB free - 0 bytes cached = 6.00 MiB short")) << device;
}

TEST(Explain, ListsTheLargestTags) {
  OutOfMemoryReport report = under_budget(20 * kMiB, 512 * kMiB, 500 * kMiB);
  report.largest_live = {{nullptr, 300 * kMiB, 300 * kMiB, Category::activations, "attention scores"},
                         {nullptr, 200 * kMiB, 200 * kMiB, Category::optimizer, "first moment"}};
  report.live_by_category[Category::activations] = 300 * kMiB;
  report.live_by_category[Category::optimizer] = 200 * kMiB;
  const std::string text = explain(report);
  EXPECT_TRUE(contains(text, "300.00 MiB  activations  attention scores")) << text;
  EXPECT_TRUE(contains(text, "200.00 MiB  optimizer    first moment")) << text;
  EXPECT_TRUE(contains(text, "Live by category: optimizer 200.00 MiB, activations 300.00 MiB")) << text;
}

// Every recommendation names a chapter that is there, and a figure in bytes; none is known to be bad, or is not shown.
void expect_good_advice(const std::string& text) {
  const std::string title = "What helps:\n";
  ASSERT_TRUE(contains(text, title)) << text;
  std::istringstream lines(text.substr(text.find(title) + title.size()));
  const std::regex form("  - chapter ([0-9][0-9]), .*[0-9] (bytes|[KMGT]iB).*");
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, form)) << line;
    const char* const named = std::getenv("OOMLAB_CHECKERS");  // where a kit has them
    const std::filesystem::path chapters = std::filesystem::path(named ? named : OOMLAB_CHECKERS) / "../../chapters";
    EXPECT_TRUE(std::ranges::any_of(std::filesystem::directory_iterator(chapters), [&](const auto& entry) {
      return entry.path().filename().string().starts_with(match[1].str() + "_");
    })) << line;
    EXPECT_FALSE(contains(line, "on demand")) << line;
  }
  EXPECT_GE(count, 1u) << text;
}

// The same report in both languages: as many lines, and in each line the same sizes, of the same chapter.
void expect_same_in_chinese(const OutOfMemoryReport& report) {
  const std::string english = explain(report), chinese = explain(report, /*chinese=*/true);
  const std::string head = headline(report) + "\n";
  ASSERT_TRUE(english.starts_with(head)) << english;
  ASSERT_TRUE(chinese.starts_with(head)) << chinese;
  EXPECT_TRUE(contains(chinese, "\n原因：")) << chinese;
  EXPECT_TRUE(contains(chinese, "\n可以怎么做：\n  - ")) << chinese;
  std::istringstream ours(english.substr(head.size())), theirs(chinese.substr(head.size()));
  const std::regex size("([0-9.]+) (bytes|字节|[KMGT]iB)"), chapter("^  - (chapter|第) ([0-9][0-9])");
  std::string a, b;
  while (std::getline(ours, a)) {
    ASSERT_TRUE(std::getline(theirs, b)) << chinese;
    const auto sizes = [&](const std::string& line) {
      std::multiset<std::string> found;
      for (std::sregex_iterator i(line.begin(), line.end(), size), end; i != end; ++i)
        found.insert((*i)[1].str() + ((*i)[2] == "字节" ? " bytes" : " " + (*i)[2].str()));
      return found;
    };
    EXPECT_EQ(sizes(a), sizes(b)) << a << "\n" << b;
    std::smatch in_english, in_chinese;
    ASSERT_EQ(std::regex_search(a, in_english, chapter), std::regex_search(b, in_chinese, chapter)) << b;
    EXPECT_EQ(in_english[2].str(), in_chinese[2].str()) << b;
    if (a.starts_with("  - ")) {
      EXPECT_NE(a, b);
    }
  }
  EXPECT_FALSE(std::getline(theirs, b)) << chinese;
}

TEST(Explain, AdvisesByTheLargestCategory) {
  const auto with_most = [](Category category, std::size_t gradients = 0) {
    OutOfMemoryReport report = under_budget(kMiB, 64 * kMiB, 64 * kMiB);
    report.category = category;
    report.live_by_category[Category::gradients] = gradients;
    report.live_by_category[category] = 63 * kMiB;  // 64 with the request
    expect_same_in_chinese(report);
    return explain(report);
  };
  EXPECT_TRUE(contains(with_most(Category::activations), "chapter 01, a smaller batch"));
  EXPECT_TRUE(contains(with_most(Category::activations), "half the activations, 32.00 MiB less"));
  EXPECT_TRUE(contains(with_most(Category::activations), "8 micro-batches need an eighth, 56.00 MiB less"));
  EXPECT_TRUE(contains(with_most(Category::activations), "checkpointing"));
  EXPECT_TRUE(contains(with_most(Category::optimizer), "SGD keeps no optimizer state, 64.00 MiB less"));
  EXPECT_TRUE(contains(with_most(Category::parameters), "FP16 or BF16"));
  EXPECT_FALSE(contains(with_most(Category::parameters, kMiB), "FP16 or BF16")) << "master weights take what it saves";
  EXPECT_TRUE(contains(with_most(Category::parameters, kMiB), "ZeRO-3"));
  EXPECT_FALSE(contains(with_most(Category::parameters), "chapter 01"));
  EXPECT_TRUE(contains(with_most(Category::data), "--budget: 65.00 MiB or more for this request"));
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    for (const std::size_t gradients : {std::size_t(0), kMiB}) {
      SCOPED_TRACE(c);
      expect_good_advice(with_most(static_cast<Category>(c), gradients));
    }
}

TEST(Explain, EveryCauseHasAReasonAndAdvice) {
  OutOfMemoryReport rounding = under_budget(1000, 1000, 0);
  OutOfMemoryReport cached = on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, 40 * kMiB);
  cached.reserved = 60 * kMiB;
  const std::vector<OutOfMemoryReport> reports = {under_budget(65 * kMiB, 64 * kMiB, 0),
                                                  under_budget(64 * kMiB, 64 * kMiB, kMiB),
                                                  rounding,
                                                  on_device(10 * kMiB, 64 * kMiB, 20 * kMiB, 44 * kMiB),
                                                  cached,
                                                  on_device(10 * kMiB, 64 * kMiB, 4 * kMiB, kMiB)};
  const std::vector<std::string> words = {"more than the whole budget", "live blocks",    "rounding", "fragmentation",
                                          "the allocator's cache",      "other processes"};
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].cause(), static_cast<Cause>(i));
    const std::string text = explain(reports[i]);
    EXPECT_TRUE(contains(text, "\nWhy: ")) << text;
    EXPECT_TRUE(contains(text, words[i])) << text;
    expect_good_advice(text);
    expect_same_in_chinese(reports[i]);
    EXPECT_NE(text.back(), '\n');
    // What empties its cache by itself before it fails, as cudaMallocAsync's pool and PyTorch's allocator do, is never
    // told to: then the cause is another.
    EXPECT_FALSE(contains(text, "empty_cache") || contains(text, "trim")) << text;
  }
}

TEST(Explain, SaysTheSameInChinese) {
  OutOfMemoryReport report = under_budget(20 * kMiB, 512 * kMiB, 500 * kMiB);
  report.largest_live = {{nullptr, 300 * kMiB, 300 * kMiB, Category::activations, "attention {scores}"}};
  report.live_by_category[Category::activations] = 300 * kMiB;
  report.live_by_category[Category::optimizer] = 200 * kMiB;
  const std::string text = explain(report, /*chinese=*/true);
  EXPECT_TRUE(
      contains(text, "存活的块占满了预算：申请 20.00 MiB + 存活 500.00 MiB - 预算 512.00 MiB = 还差 8.00 MiB。"))
      << text;
  EXPECT_TRUE(contains(text, "300.00 MiB  activations  attention {scores}")) << "tags stay as they are: " << text;
  EXPECT_TRUE(contains(text, "各类存活：优化器 200.00 MiB，激活 300.00 MiB")) << text;
  EXPECT_TRUE(contains(text, "第 02 章，梯度累积：分成 8 个微批只要八分之一，省 280.00 MiB")) << text;
  for (const std::size_t others : {std::size_t(0), 100 * kMiB})  // what other reasons there are
    for (const bool on_host : {false, true}) {
      OutOfMemoryReport shared = under_budget(40 * kMiB, 512 * kMiB, 500 * kMiB);
      shared.limit_used_by_others = others;
      shared.on_host = on_host;
      shared.live_by_category[Category::optimizer] = 60 * kMiB;
      expect_same_in_chinese(shared);
      shared.by_limit = false;
      expect_same_in_chinese(shared);
    }
  OutOfMemoryReport step = on_device(kMiB / 8, 9 * kMiB, kMiB, 8 * kMiB);
  step.cache_released = true;
  expect_same_in_chinese(step);
}

TEST(OutOfMemory, IsItsHeadline) {
  const OutOfMemory error(asked(kMiB));
  EXPECT_EQ(error.what(), headline(error.report()));
}

// -------------------------------------------------------------------------------------------------------- met for real

// Fills `memory` until it throws; the report of that.
OutOfMemoryReport fill(TrackingResource& memory, std::size_t bytes, std::size_t then_ask) {
  std::vector<void*> blocks;
  OutOfMemoryReport report;
  for (;;) {
    try {
      blocks.push_back(memory.allocate(bytes, nullptr, Category::activations, "filler"));
    } catch (const OutOfMemory&) {
      break;
    }
  }
  try {
    (void)memory.allocate(then_ask, nullptr, Category::gradients, "asked");
    ADD_FAILURE() << "served";
  } catch (const OutOfMemory& error) {
    report = error.report();
  }
  for (void* block : blocks) memory.deallocate(block, bytes, nullptr);
  return report;
}

TEST(OutOfMemoryForReal, BudgetFullOfLiveBlocks) {
  CudaResource bottom;
  LimitingResource limited(bottom, 8 * kMiB);
  Ledger ledger;
  ledger.set_limit_bytes(8 * kMiB);
  ledger.record_timeline(true);
  TrackingResource memory(limited, ledger);
  const OutOfMemoryReport report = fill(memory, kMiB, 3 * kMiB);
  EXPECT_EQ(report.cause(), Cause::live);
  EXPECT_TRUE(report.by_limit);
  EXPECT_EQ(report.limit, 8 * kMiB);
  EXPECT_EQ(report.live, 8 * kMiB);
  EXPECT_EQ(report.reserved, 8 * kMiB);
  EXPECT_EQ(report.requested, 3 * kMiB);
  EXPECT_EQ(report.tag, "asked");
  EXPECT_EQ(report.category, Category::gradients);
  EXPECT_GT(report.device_total, 0u);
  ASSERT_EQ(report.largest_live.size(), 1u);
  EXPECT_EQ(report.largest_live[0].bytes, 8 * kMiB);
  EXPECT_EQ(report.live_by_category[Category::activations], 8 * kMiB);
  EXPECT_EQ(ledger.live_bytes(), 0u);
  std::size_t notes = 0;
  for (const TimelineEvent& event : ledger.timeline()) notes += event.kind == TimelineEvent::Kind::out_of_memory;
  EXPECT_EQ(notes, 2u);
}

TEST(OutOfMemoryForReal, MoreThanTheBudget) {
  CudaResource bottom;
  LimitingResource limited(bottom, 8 * kMiB);
  Ledger ledger;
  TrackingResource memory(limited, ledger);
  EXPECT_EQ(fill(memory, kMiB, 9 * kMiB).cause(), Cause::too_big);
}

TEST(OutOfMemoryForReal, BudgetLostToRounding) {
  CudaResource bottom;
  LimitingResource limited(bottom, 64 * 1024);
  Ledger ledger;
  TrackingResource memory(limited, ledger);
  const OutOfMemoryReport report = fill(memory, 4, 16 * 1024);
  EXPECT_EQ(report.cause(), Cause::rounding);
  EXPECT_EQ(report.live, 64u * 1024);
  EXPECT_EQ(report.live_requested, 4u * 128);
}

TEST(OutOfMemoryForReal, ArenaNotReset) {
  CudaResource bottom;
  ArenaResource arena(bottom, 8 * kMiB, nullptr);
  Ledger ledger;
  TrackingResource memory(arena, ledger);
  memory.deallocate(memory.allocate(6 * kMiB, nullptr), 6 * kMiB, nullptr);
  try {
    (void)memory.allocate(4 * kMiB, nullptr);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.report().cause(), Cause::fragmented);
    EXPECT_EQ(error.report().largest_free_block, 2 * kMiB);
    EXPECT_TRUE(contains(explain(error.report()), "the largest free block is 2.00 MiB"));
  }
}

TEST(OutOfMemoryForReal, MoreThanTheDevice) {
  CudaResource bottom;
  Ledger ledger;
  TrackingResource memory(bottom, ledger);
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  try {
    (void)memory.allocate(total + kMiB, nullptr, Category::parameters, "embedding");
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.report().cause(), Cause::too_big);
    EXPECT_FALSE(error.report().by_limit);
    EXPECT_EQ(error.report().device_total, total);
    EXPECT_TRUE(contains(error.what(), "for embedding. GPU 0 has a total capacity of")) << error.what();
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace oomlab
