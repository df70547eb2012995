// One rank of a communicator between processes: nccl_rank SCENARIO RANK RANKS FILE. The first rank leaves the id in
// FILE. Prints what it got, or what NCCL said.

#include <nccl.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "oomlab_host.h"

namespace {

using namespace oomlab;

ncclUniqueId id_from(const std::string& file, bool mine) {
  ncclUniqueId id{};
  if (mine) {
    if (ncclGetUniqueId(&id) != ncclSuccess) throw std::runtime_error(ncclGetLastError(nullptr));
    std::ofstream(file + ".part", std::ios::binary).write(id.internal, sizeof id);
    std::filesystem::rename(file + ".part", file);
    return id;
  }
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::ifstream(file, std::ios::binary).read(id.internal, sizeof id);
  return id;
}

// The first rank waits until the others have ended (a while): one that comes late is to hear why there is nobody.
void end_after_all(const std::string& file, int rank, int ranks) {
  if (rank > 0) {
    std::ofstream(file + ".ended" + std::to_string(rank));
    return;
  }
  for (int i = 0, other = 1; i < 2000 && other < ranks; ++i) {
    if (std::filesystem::exists(file + ".ended" + std::to_string(other)))
      ++other;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int explain(ncclResult_t result) {
  std::printf("error %d: %s\n", int(result), ncclGetLastError(nullptr));
  return 1;
}

// All calls once, with more than a socket takes at once; a hash of all that came.
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

int run(const std::string& scenario, int rank, int ranks, const std::string& file) {
  expect_processes();
  if (scenario == "foreign") {  // an id of nobody
    ncclUniqueId id{};
    std::memset(&id, 0x5a, sizeof id);
    ncclComm_t comm = nullptr;
    return explain(ncclCommInitRank(&comm, ranks, id, rank));
  }
  const ncclUniqueId id = id_from(file, rank == 0);
  ncclComm_t comm = nullptr;
  const int claimed = scenario == "sizes" && rank == 1 ? ranks + 1 : ranks;
  if (scenario == "missing" && rank == 1) return 0;
  const int as = scenario == "twice" && rank == 2 ? 1 : rank;
  if (const ncclResult_t result = ncclCommInitRank(&comm, claimed, id, as)) {
    explain(result);
    if (scenario == "sizes" || scenario == "twice") end_after_all(file, rank, ranks);
    return 1;
  }
  std::uint64_t hash = 0;
  if (scenario.ends_with("killed")) {  // after it has worked for a while
    (void)everything(comm, rank, ranks, hash);
    if (rank == (scenario == "killed" ? 1 : 0)) std::raise(SIGKILL);
  }
  if (scenario == "stalled" && rank == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
  if (scenario == "aborted" && rank == 1) {
    (void)ncclCommAbort(comm);
    return 0;
  }
  if (scenario == "early") {  // the first rank is done; the others have something to say to each other
    if (rank > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      float* v = nullptr;
      CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&v), 2 * sizeof(float)));
      v[0] = float(rank);
      const int other = 3 - rank;
      if (const ncclResult_t result = ncclGroupStart()) return explain(result);
      (void)ncclSend(v, 1, ncclFloat32, other, comm, nullptr);
      (void)ncclRecv(v + 1, 1, ncclFloat32, other, comm, nullptr);
      if (const ncclResult_t result = ncclGroupEnd()) return explain(result);
      if (v[1] != float(other)) return 1;
      CUDA_CHECK(cudaFree(v));
    }
  } else if (const ncclResult_t result = everything(comm, rank, ranks, hash)) {
    explain(result);
    (void)ncclCommAbort(comm);
    return 1;
  }
  if (const ncclResult_t result = ncclCommDestroy(comm)) return explain(result);
  std::printf("%016llx live: %s\n", static_cast<unsigned long long>(hash), host::describe(host::live()).c_str());
  return 0;
}

}  // namespace

int main(int, char** argv) {
  try {
    return run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
}
