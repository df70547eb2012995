// Fails every fallible call, one by one: CUDA calls, cuBLAS calls, and operator new. For each k, call number
// k fails once, and then from k on. After each: a typed error or a documented success, nothing left
// allocated, no CUDA error left behind, the ledger as it was, and the same work runs without the fault.
// (faults/operator_new.cpp is linked in.)

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "blocks.h"
#include "cuda/check.h"
#include "cuda/raii.h"
#include "memory/context.h"
#include "memory/export.h"
#include "memory/files.h"
#include "memory/resource.h"

// Linked with --wrap=close.
namespace {
bool close_fails = false;
}
extern "C" {
int __real_close(int file);
int __wrap_close(int file) {
  const int result = __real_close(file);
  if (!close_fails) return result;
  errno = EIO;
  return -1;
}
}

namespace oomlab {
namespace {

// The error that is typed, by name; "another exception" for all that may not come out.
std::string kind_of(const std::exception_ptr& error) {
  if (!error) return "none";
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory&) {
    return "OutOfMemory";
  } catch (const CudaError&) {
    return "CudaError";
  } catch (const CublasError&) {
    return "CublasError";
  } catch (const std::bad_alloc&) {
    return "bad_alloc";
  } catch (const std::system_error&) {
    return "system_error";
  } catch (...) {
    return "another exception";
  }
}

std::exception_ptr run_armed(const std::function<void()>& work, std::uint64_t k, bool from_then_on) {
  std::exception_ptr error;
  host::arm_fault(k, from_then_on);
  try {
    work();
  } catch (...) {
    host::disarm_fault();
    error = std::current_exception();
  }
  host::disarm_fault();
  return error;
}

// Runs the sweep. `after` checks what the work must leave as it was; it is called with no fault armed.
void sweep(
    const std::function<void()>& work, const std::function<void()>& after = [] {}) {
  work();
  after();
  const host::Live before = host::live();
  host::arm_fault(0, false);
  work();
  const std::uint64_t calls = host::fault_calls();
  host::disarm_fault();
  ASSERT_GT(calls, 0u) << "nothing here can fail";
  std::uint64_t failures = 0;
  for (std::uint64_t k = 1; k <= calls; ++k) {
    for (const bool from_then_on : {false, true}) {
      const std::exception_ptr error = run_armed(work, k, from_then_on);
      const std::string where = "call " + std::to_string(k) + " of " + std::to_string(calls) + " (" +
                                host::fault_site() + (from_then_on ? "), from then on" : "), once");
      failures += error != nullptr;
      ASSERT_NE(kind_of(error), "another exception") << where;
      ASSERT_EQ(cudaPeekAtLastError(), cudaSuccess) << where << " left an error behind";
      ASSERT_EQ(host::live(), before) << where << " left behind: " << host::describe(host::live());
      after();
      if (::testing::Test::HasFailure()) FAIL() << where;
      ASSERT_NO_THROW(work()) << "again, without the fault, after " << where;
      after();
    }
  }
  EXPECT_GT(failures, 0u) << "no fault was noticed";
}

// Blocks that go back by themselves, whatever is thrown.
class Blocks {
 public:
  Blocks(MemoryResource& memory, cudaStream_t stream) : memory_(memory), stream_(stream) { blocks_.reserve(8); }
  ~Blocks() {
    for (const auto& [address, bytes] : blocks_) memory_.deallocate(address, bytes, stream_);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  void add(std::size_t bytes) { blocks_.emplace_back(memory_.allocate(bytes, stream_), bytes); }

 private:
  MemoryResource& memory_;
  cudaStream_t stream_;
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

template <class Resource>
class FaultSweep : public ::testing::Test {};
using Resources = ::testing::Types<CudaResource, AsyncResource, ManagedResource, PinnedResource>;
TYPED_TEST_SUITE(FaultSweep, Resources);

TYPED_TEST(FaultSweep, AllocateAndDeallocate) {
  sweep([] {
    const Stream stream;
    TypeParam memory;
    {
      Blocks blocks(memory, stream);
      for (const std::size_t bytes : {std::size_t(1), std::size_t(4096), kMiB}) blocks.add(bytes);
    }
    EXPECT_LE(memory.reserved_bytes(), 64 * kMiB);
  });
}

TYPED_TEST(FaultSweep, UnderALimitInAnArena) {
  std::size_t limited_after = 0;
  sweep(
      [&] {
        limited_after = 1;
        const Stream stream;
        TypeParam bottom;
        LimitingResource limited(bottom, 4 * kMiB);
        struct Note {  // what is left of the budget when everything above it is gone
          ~Note() { after = limited.live_bytes(); }
          LimitingResource& limited;
          std::size_t& after;
        } note{limited, limited_after};
        ArenaResource arena(limited, 2 * kMiB, stream);
        Blocks blocks(arena, stream);
        blocks.add(kMiB);
        Blocks beside(limited, stream);
        beside.add(kMiB);
      },
      [&] { EXPECT_LE(limited_after, 1u) << "a free that failed stayed charged to the budget"; });
}

// What a ledger must show unchanged when an allocation failed.
struct Figures {
  explicit Figures(const Ledger& ledger)
      : live(ledger.live_bytes()), blocks(ledger.live_blocks().size()), by_category(ledger.live_by_category()) {}
  std::size_t live, blocks;
  ByCategory by_category;
  friend bool operator==(const Figures&, const Figures&) = default;
};

TYPED_TEST(FaultSweep, TrackedBuffersInPhases) {
  sweep([] {
    const Stream stream;
    TypeParam bottom;
    Ledger ledger;
    TrackingResource memory(bottom, ledger);
    memory.observe_device(true);
    const Figures empty(ledger);
    try {
      const Phase step(ledger, "a step with a name that is longer than any small string");
      const DeviceBuffer<float> kept(memory, stream, 100, Category::parameters, "kept from before the recording");
      ledger.record_timeline(true);
      for (const char* name : {"forward", "backward"}) {
        const Phase phase(ledger, name);
        const DeviceBuffer<float> a(memory, stream, 1000, Category::activations, "a tag of more than fifteen letters");
        const Figures before(ledger);
        try {
          const DeviceBuffer<float> b(memory, stream, 3000, Category::gradients, "another tag of many letters");
        } catch (...) {
          EXPECT_EQ(Figures(ledger), before);
          throw;
        }
        EXPECT_EQ(Figures(ledger), before);
      }
    } catch (...) {
      EXPECT_EQ(Figures(ledger), empty);
      throw;
    }
    EXPECT_EQ(Figures(ledger), empty);
    std::ptrdiff_t allocated = 0;
    for (const TimelineEvent& event : ledger.timeline()) {
      if (event.kind == TimelineEvent::Kind::alloc) allocated += static_cast<std::ptrdiff_t>(event.bytes);
      if (event.kind == TimelineEvent::Kind::free) allocated -= static_cast<std::ptrdiff_t>(event.bytes);
    }
    EXPECT_EQ(allocated, 0);
  });
}

TEST(FaultSweepOf, TheReportItself) {
  bool reported = false;
  sweep([&] {
    CudaResource bottom;
    LimitingResource limited(bottom, kMiB);
    Ledger ledger;
    ledger.set_limit_bytes(kMiB);
    ledger.record_timeline(true);
    TrackingResource memory(limited, ledger);
    const DeviceBuffer<char> held(memory, nullptr, kMiB / 2, Category::activations, "held, and named at length");
    try {
      const DeviceBuffer<char> refused(memory, nullptr, kMiB, Category::gradients, "refused, and named at length");
      ADD_FAILURE() << "served";
    } catch (const OutOfMemory& error) {
      // Whatever else failed, this much is always known.
      if (error.report().by_limit) {
        EXPECT_EQ(error.report().requested, kMiB);
        EXPECT_EQ(error.report().limit, kMiB);
        EXPECT_EQ(error.report().live, kMiB / 2);
        reported = true;
      }
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      EXPECT_FALSE(explain(error.report()).empty());
    }
  });
  EXPECT_TRUE(reported);
}

template <class Bottom>
void make_context() {
  Ledger ledger;
  try {
    Bottom bottom;
    Context context(bottom, ledger);
    const DeviceBuffer<float> buffer = context.buffer<float>(1000, Category::activations, "in the context");
  } catch (...) {
    EXPECT_EQ(ledger.live_bytes(), 0u);
    throw;
  }
  EXPECT_EQ(ledger.live_bytes(), 0u);
}
TEST(FaultSweepOf, AContextOnCudaMalloc) { sweep(make_context<CudaResource>); }
TEST(FaultSweepOf, AContextOnAPool) { sweep(make_context<AsyncResource>); }

// A workspace that cuBLAS has not taken, for example, would be counted beside the one that it uses.
TEST(Faults, NoneIsPassedOverWhileAContextIsMade) {
  CudaResource bottom;
  Ledger ledger;
  std::optional<Context> context;
  host::arm_fault(0, false);
  context.emplace(bottom, ledger);
  const std::uint64_t calls = host::fault_calls();
  host::disarm_fault();
  context.reset();
  EXPECT_GE(calls, 5u);
  for (std::uint64_t k = 1; k <= calls; ++k)
    EXPECT_NE(kind_of(run_armed(
                  [&] {
                    Ledger fresh;  // a ledger that has met these tags before has room for them
                    const Context made(bottom, fresh);
                  },
                  k, false)),
              "none")
        << host::fault_site();
}

TEST(FaultSweepOf, TheLedger) {
  sweep([] {
    Ledger ledger;
    ledger.record_timeline(true);
    const auto strongly = [&](const std::function<void()>& step) {
      const Figures before(ledger);
      const std::size_t peak = ledger.peak_bytes(), events = ledger.timeline().size();
      const std::size_t phases = ledger.phases().size();
      try {
        step();
      } catch (...) {
        EXPECT_EQ(Figures(ledger), before);
        EXPECT_EQ(ledger.peak_bytes(), peak);
        EXPECT_EQ(ledger.timeline().size(), events);
        host::disarm_fault();
        EXPECT_EQ(ledger.phases().size(), phases);
        throw;
      }
    };
    for (std::uintptr_t i = 1; i <= 6; ++i) {
      const std::string name = "a name that is no small string, number " + std::to_string(i % 4);
      strongly([&] { ledger.begin_phase(name); });
      strongly([&] {
        ledger.charge(reinterpret_cast<const void*>(i * kMiB), 511 * i, 512 * i, static_cast<Category>(i % 6), name);
      });
      strongly([&] { ledger.note_out_of_memory(1, 512, Category::data, name, 0); });
    }
    EXPECT_EQ(ledger.largest_live(2).size(), 2u);
    for (std::uintptr_t i = 1; i <= 6; ++i) {  // none of these may fail, whatever is armed
      ledger.release(reinterpret_cast<const void*>(i * kMiB));
      ledger.end_phase();
    }
    EXPECT_EQ(ledger.timeline().size(), 6u * 5);
  });
}

TEST(FaultSweepOf, WritingAFile) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "oomlab_fault_XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  const std::string path = (folder / "file with a name that is no small string").string();
  Ledger ledger;
  ledger.record_timeline(true);
  ledger.charge(reinterpret_cast<const void*>(kMiB), 512, 512, Category::data, "row");
  sweep(
      [&] {
        write_file(path, memory_snapshot(ledger, 1, "program"));
        write_file(path, chrome_trace(ledger, 1, "program"));
      },
      [&] {
        EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1) << "a file stayed";
        std::ifstream file(path, std::ios::binary);
        const std::string contents{std::istreambuf_iterator<char>(file), {}};
        EXPECT_TRUE(contents == chrome_trace(ledger, 1, "program") ||
                    contents == memory_snapshot(ledger, 1, "program"));
      });
  fs::remove_all(folder);
}

// Some file systems tell only then that they are full.
TEST(Faults, AFileThatCannotBeClosedDoesNotReplaceTheOldOne) {
  std::string name = (std::filesystem::temp_directory_path() / "oomlab_fault_XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  write_file(name + "/file", "old");
  close_fails = true;
  EXPECT_THROW(write_file(name + "/file", "new"), std::system_error);
  close_fails = false;
  std::ifstream file(name + "/file");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "old");
  EXPECT_EQ(std::filesystem::remove_all(name), 2u) << "the folder and the file, no temporary one";
}

}  // namespace
}  // namespace oomlab
