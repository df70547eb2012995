// Devices that processes share (OOMLAB_HOST_SHARED). Host backend only. Real processes, forked: each is made anew with
// a machine that names the file.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "../forked.h"
#include "contract.h"
#include "cuda/backend.h"
#include "oomlab_host.h"

namespace sharing_of_devices {

using namespace oomlab;
using test::comes_true, test::end_of, test::start;
namespace fs = std::filesystem;

constexpr std::size_t KiB = 1 << 10;

/// What processes of a test tell each other: zeros, in memory that they share.
template <class T>
class Board {
 public:
  Board() : t_(static_cast<T*>(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Board() { munmap(static_cast<void*>(t_), sizeof(T)); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  T* operator->() const { return t_; }

 private:
  T* t_;
};

class Sharing : public testing::Test {
 protected:
  void SetUp() override {
    (void)cudaGetLastError();
    std::string name = (fs::temp_directory_path() / "oomlab.XXXXXX").string();
    ASSERT_TRUE(mkdtemp(name.data()));
    folder_ = name;
  }
  void TearDown() override {
    host::configure(initial_);  // leaves
    EXPECT_TRUE(fs::is_empty(folder_)) << "the file stays";
    fs::remove_all(folder_);
    EXPECT_EQ(cudaSuccess, cudaGetLastError());
  }
  host::Machine machine(std::size_t capacity = 8 * MiB, std::size_t context = 0) const {
    host::Machine m;
    m.capacity = capacity;
    m.shared = folder_ + "/devices";
    m.context = context;
    return m;
  }
  static std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  static void* allocate(std::size_t bytes) {
    void* p = nullptr;
    return cudaMalloc(&p, bytes) == cudaSuccess ? p : (cudaGetLastError(), nullptr);
  }
  std::string folder_;
  const host::Machine initial_ = host::machine();
};

void give_back(void* address) { EXPECT_EQ(cudaFree(address), cudaSuccess); }

TEST_F(Sharing, WhatOneHasTheOtherLacksToTheByte) {
  Board<std::atomic<int>> stage;
  const pid_t other = start([&] {
    host::configure(machine());
    if (!allocate(3 * MiB)) return 1;
    stage->store(1);
    comes_true([&] { return stage->load() == 2; });
    return 0;  // its bytes still allocated, and nothing says goodbye
  });
  ASSERT_TRUE(comes_true([&] { return stage->load() == 1; }));
  host::configure(machine());
  EXPECT_EQ(free_bytes(), 5 * MiB);
  EXPECT_EQ(allocate(5 * MiB + 1), nullptr);
  void* const mine = allocate(5 * MiB);
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(free_bytes(), 0u);
  EXPECT_EQ(allocate(1), nullptr);
  const auto all = device_processes(0);
  ASSERT_EQ(all.size(), 2u);
  const std::string name = fs::read_symlink("/proc/self/exe").filename().string().substr(0, 15);
  for (const DeviceProcess& process : all) {
    EXPECT_EQ(process.bytes, process.pid == static_cast<unsigned>(getpid()) ? 5 * MiB : 3 * MiB);
    EXPECT_TRUE(process.pid == static_cast<unsigned>(getpid()) || process.pid == static_cast<unsigned>(other));
    EXPECT_EQ(process.name, name);
  }
  EXPECT_FALSE(may_fill_device(0, 0));
  stage->store(2);
  // It is over, and nobody has asked for its exit code yet: its bytes are there all the same.
  void* more = nullptr;
  EXPECT_TRUE(comes_true([&] { return (more = allocate(3 * MiB)) != nullptr; }));
  EXPECT_EQ(end_of(other), 0);
  EXPECT_EQ(device_processes(0).size(), 1u);
  EXPECT_TRUE(may_fill_device(0, 0));
  give_back(mine);
  give_back(more);
  EXPECT_EQ(free_bytes(), 8 * MiB);
}

// Who is stopped while it comes or goes, or while it counts, keeps nobody waiting for ever.
TEST_F(Sharing, AWaitForAnotherProcessHasAnEnd) {
  host::Machine impatient = machine();
  impatient.patience = std::chrono::milliseconds(20);
  const int door = open(impatient.shared.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(door, 0);
  ASSERT_EQ(flock(door, LOCK_EX), 0);
  try {
    host::configure(impatient);
    ADD_FAILURE();
  } catch (const std::invalid_argument& why) {
    EXPECT_NE(std::string(why.what()).find("has kept them locked for 20 ms"), std::string::npos) << why.what();
  }
  ASSERT_EQ(flock(door, LOCK_UN), 0);
  host::configure(impatient);
  void* const mine = allocate(MiB);
  ASSERT_NE(mine, nullptr);

  Board<std::atomic<int>> stage;
  const pid_t other = start([&] {
    constexpr std::size_t kFirst = 2 * sizeof(std::size_t);  // two numbers, and then the mutex
    void* const books = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, door, 0);
    if (pthread_mutex_lock(reinterpret_cast<pthread_mutex_t*>(static_cast<char*>(books) + kFirst)) != 0) return 1;
    stage->store(1);
    while (stage->load() != 2) usleep(100);
    return 0;  // with the mutex: it is robust
  });
  EXPECT_TRUE(comes_true([&] { return stage->load() == 1; }));
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, MiB), cudaErrorInitializationError);
  EXPECT_NE(std::string(cudaGetErrorString(cudaGetLastError())).find("is one stopped?"), std::string::npos);
  give_back(mine);  // which needs nobody
  stage->store(2);
  EXPECT_EQ(end_of(other), 0);
  EXPECT_NE(more = allocate(MiB), nullptr);
  give_back(more);
  close(door);
}

// The harness asks for what is free at every allocation. That costs a call of the system for all processes together,
// and not a look into /proc for each: seventy of them did not come to an end.
TEST_F(Sharing, AskingWhatIsFreeReadsNothing) {
  const auto reads = [] {
    std::ifstream file("/proc/self/io");
    long count = -1;
    for (std::string word; file >> word;)
      if (word == "syscr:") file >> count;
    return count;
  };
  if (reads() < 0) GTEST_SKIP() << "this system does not count reads";
  Board<std::atomic<int>> stage;
  std::vector<pid_t> others;
  for (int i = 0; i < 4; ++i)
    others.push_back(start([&] {
      host::configure(machine());
      if (!allocate(MiB)) return 1;
      ++*stage.operator->();
      while (stage->load() < 100) usleep(100);
      return 0;
    }));
  ASSERT_TRUE(comes_true([&] { return stage->load() == 4; }));
  host::configure(machine());
  EXPECT_EQ(free_bytes(), 4 * MiB);
  const long before = reads();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(free_bytes(), 4 * MiB);
  EXPECT_LT(reads() - before, 100);
  stage->store(100);
  for (const pid_t other : others) EXPECT_EQ(end_of(other), 0);
  EXPECT_EQ(free_bytes(), 8 * MiB);
}

// What a pool keeps is lacking, too, and what it trims is back. A pool grows by 2 MiB at least.
TEST_F(Sharing, APoolsCacheIsTaken) {
  Board<std::atomic<int>> stage;
  const auto reach = [&](int number) {
    stage->store(number);
    comes_true([&] { return stage->load() != number; });
  };
  const pid_t other = start([&] {
    host::configure(machine());
    cudaMemPool_t pool = nullptr;
    std::uint64_t all = UINT64_MAX;
    void* p = nullptr;
    if (cudaDeviceGetDefaultMemPool(&pool, 0) || cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all) ||
        cudaMallocAsync(&p, 4 * MiB, nullptr) || cudaFreeAsync(p, nullptr) || cudaDeviceSynchronize())
      return 1;
    reach(1);
    if (cudaMemPoolTrimTo(pool, 0)) return 1;
    reach(3);
    return 0;
  });
  host::configure(machine());
  ASSERT_TRUE(comes_true([&] { return stage->load() == 1; }));
  EXPECT_EQ(free_bytes(), 4 * MiB);
  EXPECT_EQ(allocate(5 * MiB), nullptr);
  stage->store(2);
  ASSERT_TRUE(comes_true([&] { return stage->load() == 3; }));
  void* const p = allocate(8 * MiB);
  EXPECT_NE(p, nullptr);
  give_back(p);
  stage->store(4);
  EXPECT_EQ(end_of(other), 0);
}

TEST_F(Sharing, AContextCostsWhoeverTouchesTheDevice) {
  host::configure(machine(8 * MiB, 3 * MiB));
  EXPECT_TRUE(host::sharers(0).empty());
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);  // the usual way to make one
  ASSERT_EQ(host::sharers(0).size(), 1u);
  EXPECT_EQ(free_bytes(), 5 * MiB);
  const auto with_context = [&](const std::function<bool()>& first) {
    return start([&, first] {
      host::configure(machine(8 * MiB, 3 * MiB));
      return first() && free_bytes() == 2 * MiB && host::live() == host::Live{} ? 0 : 1;
    });
  };
  EXPECT_EQ(end_of(with_context([] { return cudaSetDevice(0) == cudaSuccess; })), 0);
  EXPECT_EQ(end_of(with_context([] { return free_bytes() == 2 * MiB; })), 0);
  EXPECT_EQ(end_of(with_context([] {
              void* const p = allocate(2 * MiB);
              return p && free_bytes() == 0 && cudaFree(p) == cudaSuccess;
            })),
            0);
  Board<std::atomic<int>> stage;
  const pid_t late = start([&] {
    host::configure(machine(8 * MiB, 3 * MiB));
    comes_true([&] { return stage->load() == 1; });
    const bool refused = cudaSetDevice(0) == cudaErrorMemoryAllocation && !allocate(1) &&
                         cudaFree(nullptr) == cudaErrorMemoryAllocation && free_bytes() == 0;
    return refused ? 0 : 1;
  });
  void* const p = allocate(4 * MiB);  // 1 MiB is left: too little for another context
  stage->store(1);
  EXPECT_EQ(end_of(late), 0);
  give_back(p);
  EXPECT_EQ(free_bytes(), 5 * MiB);
}

TEST_F(Sharing, ABadFileIsRefusedInWords) {
  const auto refused = [&](const host::Machine& machine, const char* word) {
    try {
      host::configure(machine);
      ADD_FAILURE() << "not refused: " << word;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  host::Machine nowhere = machine();
  nowhere.shared = folder_ + "/no/such";
  refused(nowhere, "No such file");
  nowhere.shared = folder_ + "/text";
  std::ofstream(nowhere.shared) << "precious";
  refused(nowhere, "another file");
  EXPECT_EQ(fs::file_size(nowhere.shared), 8u);
  fs::remove(nowhere.shared);
  Board<std::atomic<int>> stage;
  const pid_t other = start([&] {
    host::configure(machine());
    stage->store(1);
    comes_true([&] { return stage->load() == 2; });
    host::configure(host::Machine{});
    return 0;
  });
  ASSERT_TRUE(comes_true([&] { return stage->load() == 1; }));
  refused(machine(9 * MiB), "8388608 bytes");
  stage->store(2);
  EXPECT_EQ(end_of(other), 0);
  EXPECT_TRUE(fs::is_empty(folder_));
  host::configure(machine(9 * MiB));  // nobody shares the other ones any more
  EXPECT_EQ(free_bytes(), 9 * MiB);
}

// All are killed: a file with a name stays, and whoever comes next finds none of their bytes, nor their lock; a file
// without a name is gone.
TEST_F(Sharing, AllAreKilledAndTheNextOneHasEverything) {
  for (int round = 0; round < 8; ++round) {  // now and then one is killed that has the lock
    const host::Machine small = machine(8 * MiB), large = machine(16 * MiB);
    std::vector<pid_t> all;
    Board<std::atomic<int>> ready;
    for (int i = 0; i < 4; ++i)
      all.push_back(start([&] {
        host::configure(small);
        ready->fetch_add(allocate(MiB) != nullptr);
        while (ready->load() < 9) give_back(allocate(512));
        return 0;
      }));
    ASSERT_TRUE(comes_true([&] { return ready->load() == 4; }));
    for (const pid_t pid : all) kill(pid, SIGKILL);
    for (const pid_t pid : all) EXPECT_EQ(end_of(pid), 128 + SIGKILL);
    EXPECT_TRUE(fs::exists(small.shared));
    host::configure(large);
    EXPECT_EQ(free_bytes(), 16 * MiB);
    EXPECT_TRUE(host::sharers(0).empty());
    host::configure(host::Machine{});
  }
}

// Bar of the suite: 8 processes allocate and free at random, one is killed. OOMLAB_SHARING_ROUNDS: how often (nightly:
// 200).
struct Round {
  std::atomic<std::size_t> live[8];  // what each has, less than or equal to what it is charged
  std::atomic<unsigned> freed;       // how often a `live` has become smaller; then its bytes are freed
  std::atomic<bool> over_the_top;    // more was there than the device has
  std::atomic<int> started, refused;
};
int random_process(Round& round, int number, int doomed, const host::Machine& machine, unsigned seed, int allocations) {
  host::configure(machine);
  std::mt19937 random(seed);
  std::vector<std::pair<void*, std::size_t>> blocks;
  ++round.started;
  const auto drop = [&](std::size_t i) {
    round.live[number] -= blocks[i].second;
    ++round.freed;
    if (cudaFree(blocks[i].first) != cudaSuccess) return false;
    blocks[i] = blocks.back();
    blocks.pop_back();
    return true;
  };
  for (int i = 0; i < allocations || number == doomed; ++i) {  // the doomed one works until it is killed
    const std::size_t bytes = (1 + random() % 512) * 512;
    void* p = nullptr;
    const cudaError_t code = cudaMalloc(&p, bytes);
    if (code == cudaSuccess) {
      blocks.emplace_back(p, bytes);
      round.live[number] += bytes;
      // A sum of one moment: nobody frees meanwhile, or the same bytes might be seen in two places.
      const unsigned freed = round.freed;
      std::size_t sum = 0;  // without the one that is killed: its bytes may be another's before anybody says so here
      for (int k = 0; k < 8; ++k) sum += k == doomed ? 0 : round.live[k].load();
      if (sum > machine.capacity && freed == round.freed) round.over_the_top = true;
    } else if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      ++round.refused;
    } else {
      return 2;
    }
    while (!blocks.empty() && (code != cudaSuccess || random() % 8 < 3))
      if (drop(random() % blocks.size()); random() % 2) break;
  }
  while (!blocks.empty())
    if (!drop(blocks.size() - 1)) return 3;
  host::configure(host::Machine{});
  return host::live() == host::Live{} ? 0 : 4;
}

TEST_F(Sharing, EightProcessesAndOneIsKilled) {
  const char* const asked = std::getenv("OOMLAB_SHARING_ROUNDS");
  const int rounds = asked ? std::atoi(asked) : OOMLAB_ROUNDS > 2 ? 2 : 1;
  const int allocations = OOMLAB_ROUNDS > 2 ? 2000 : 200;
  std::mt19937 random(1);
  int killed_at_work = 0, refused = 0;
  for (int r = 0; r < rounds; ++r) {
    SCOPED_TRACE("round " + std::to_string(r));
    const host::Machine m = machine(2 * MiB);
    const int doomed = static_cast<int>(random() % 8);
    Board<Round> round;
    host::configure(m);
    pid_t pids[8];
    for (int number = 0; number < 8; ++number)
      pids[number] = start([&, number] {
        return random_process(*round.operator->(), number, doomed, m, static_cast<unsigned>(r * 8 + number),
                              allocations);
      });
    ASSERT_TRUE(comes_true([&] { return round->started.load() >= 4; }));
    usleep(random() % 20'000);  // at any moment
    kill(pids[doomed], SIGKILL);
    const auto lists_it = [&] {
      const auto all = host::sharers(0);
      return std::ranges::count(all, static_cast<unsigned>(pids[doomed]), &host::Sharer::pid) > 0;
    };
    EXPECT_TRUE(comes_true([&] { return !lists_it(); })) << "its bytes are not back";
    for (int number = 0; number < 8; ++number) {
      const int end = end_of(pids[number]);
      if (number == doomed)
        killed_at_work += end == 128 + SIGKILL;
      else
        EXPECT_EQ(end, 0) << "process " << number;
    }
    EXPECT_FALSE(round->over_the_top.load());
    EXPECT_EQ(free_bytes(), m.capacity);
    refused += round->refused.load();
    host::configure(host::Machine{});
    EXPECT_TRUE(fs::is_empty(folder_));
  }
  EXPECT_GT(refused, 0) << "the device was never full";
  EXPECT_GE(killed_at_work * 2, rounds) << "most had ended before they were killed";
}

}  // namespace sharing_of_devices
