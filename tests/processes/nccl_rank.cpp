// One rank of a communicator between processes: mpirun -np N nccl_rank SCENARIO FOLDER. Prints what it got, or what
// NCCL said. What one rank waits for another one has done is a file in the folder, which is empty at first.

#include <nccl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/check.h"
#include "harness/chapter.h"
#include "harness/processes.h"
#include "oomlab_host.h"

namespace {

using namespace oomlab;

std::string folder;

void has_done(const std::string& what) { std::ofstream(folder + "/" + what); }
void await(const std::string& what) {
  while (!std::filesystem::exists(folder + "/" + what)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

ncclUniqueId id_for_all() {
  ncclUniqueId id{};
  made_by_the_first_process(&id, sizeof id, [&] {
    if (ncclGetUniqueId(&id) != ncclSuccess) throw std::runtime_error(ncclGetLastError(nullptr));
  });
  return id;
}

int explain(int rank, ncclResult_t result) {
  std::printf("rank %d: error %d: %s\n", rank, int(result), ncclGetLastError(nullptr));
  return 1;
}

// All calls once, with more than a piece of a message; a hash of all that came.
ncclResult_t everything(ncclComm_t comm, int rank, int ranks, std::uint64_t& hash) {
  const std::size_t n = 300'000, all = n * std::size_t(ranks);
  float *mine = nullptr, *whole = nullptr;
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&mine), n * sizeof(float)));
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&whole), all * sizeof(float)));
  const auto note = [&] {
    for (std::size_t i = 0; i < all; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, whole + i, sizeof bits);
      hash = (hash ^ bits) * 0x100000001b3;
    }
  };
  const auto run = [&]() -> ncclResult_t {
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < n; ++i) mine[i] = float(i % 1000) * 0.1f + float(rank * 7 + round);
      if (const ncclResult_t r = ncclAllGather(mine, whole, n, ncclFloat32, comm, nullptr)) return r;
      note();
      if (const ncclResult_t r = ncclAllReduce(whole, whole, all, ncclFloat32, ncclSum, comm, nullptr)) return r;
      note();
      if (const ncclResult_t r = ncclReduceScatter(whole, mine, n, ncclFloat32, ncclSum, comm, nullptr)) return r;
      if (const ncclResult_t r = ncclBroadcast(mine, mine, n, ncclFloat32, round % ranks, comm, nullptr)) return r;
      std::memcpy(whole, mine, n * sizeof(float));
      note();
      // A ring, in a group.
      if (const ncclResult_t r = ncclGroupStart()) return r;
      if (const ncclResult_t r = ncclSend(mine, n, ncclFloat32, (rank + 1) % ranks, comm, nullptr)) return r;
      if (const ncclResult_t r = ncclRecv(whole, n, ncclFloat32, (rank + ranks - 1) % ranks, comm, nullptr)) return r;
      if (const ncclResult_t r = ncclGroupEnd()) return r;
      note();
    }
    return ncclSuccess;
  };
  const ncclResult_t result = run();
  CUDA_CHECK(cudaFree(mine));
  CUDA_CHECK(cudaFree(whole));
  return result;
}

// The first rank is done; the others have something to say to each other.
ncclResult_t go_on_without_the_first(ncclComm_t comm, int rank) {
  if (rank == 0) return ncclSuccess;
  await("0 has left");
  float* v = nullptr;
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&v), 2 * sizeof(float)));
  v[0] = float(rank);
  const int other = 3 - rank;
  if (const ncclResult_t result = ncclGroupStart()) return result;
  (void)ncclSend(v, 1, ncclFloat32, other, comm, nullptr);
  (void)ncclRecv(v + 1, 1, ncclFloat32, other, comm, nullptr);
  const ncclResult_t result = ncclGroupEnd();
  const bool right = v[1] == float(other);
  CUDA_CHECK(cudaFree(v));
  return result == ncclSuccess && !right ? ncclInternalError : result;
}

int run(const std::string& scenario, int rank, int ranks) {
  ncclComm_t comm = nullptr;
  if (scenario == "foreign") {  // an id of nobody
    ncclUniqueId id{};
    std::memset(&id, 0x5a, sizeof id);
    return explain(rank, ncclCommInitRank(&comm, ranks, id, rank));
  }
  const ncclUniqueId id = id_for_all();
  const int claimed = scenario == "sizes" && rank == 1 ? ranks + 1 : ranks;
  if (scenario == "missing" && rank == 1) return 0;
  // Where patience is lost, rank 0 loses it, with rank 1, which comes when the others have failed; rank 2, which could
  // also wait for rank 0, comes when that has.
  const auto in_turn = [&] {
    if (rank == 0) setenv("OOMLAB_HOST_NCCL_TIMEOUT", "0.2", 1);
    if (rank == 2) await("0 has failed");
    if (rank == 1) await("2 has failed");
  };
  const auto failed = [&](ncclResult_t result) {
    has_done(std::to_string(rank) + " has failed");
    return explain(rank, result);
  };
  if (scenario == "late" || scenario == "missing") in_turn();
  if (scenario == "lost before set-up" && rank == 1) std::raise(SIGKILL);
  const int as = scenario == "twice" && rank == 2 ? 1 : rank;
  if (const ncclResult_t result = ncclCommInitRank(&comm, claimed, id, as)) return failed(result);
  std::uint64_t hash = 0;
  if (scenario == "lost at work") {
    (void)everything(comm, rank, ranks, hash);
    if (rank == 1) std::raise(SIGKILL);
  }
  if (scenario == "stalled") in_turn();
  if (scenario == "aborted" && rank == 1) {
    (void)ncclCommAbort(comm);
    return 0;
  }
  if (const ncclResult_t result =
          scenario == "early" ? go_on_without_the_first(comm, rank) : everything(comm, rank, ranks, hash)) {
    failed(result);
    (void)ncclCommAbort(comm);
    return 1;
  }
  if (const ncclResult_t result = ncclCommDestroy(comm)) return failed(result);
  has_done(std::to_string(rank) + " has left");
  std::printf("rank %d: %016llx live: %s\n", rank, static_cast<unsigned long long>(hash),
              host::describe(host::live()).c_str());
  return 0;
}

}  // namespace

int main(int, char** argv) {
  try {
    folder = argv[2];
    const ProcessScope scope;
    return run(argv[1], processes().rank(), processes().size());
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
}
