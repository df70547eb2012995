#pragma once
// NCCL with checked return codes, and an owner for a communicator. One rank a device, one thread a rank.
//
// When a rank fails, the others must not wait for it for ever. On GPUs only their own ncclCommAbort() ends what they
// have begun. So communicators do not block: a call that cannot end yet says ncclInProgress, and is asked again
// (NCCL's user guide, "Fault tolerance"). While it waits, everybody looks at a flag that the ranks share; whoever fails
// raises it. Ranks of several processes end together because their launcher (mpirun) ends them.

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <thread>

#include "cuda/check.h"
#include "plan/interrupt.h"

struct __half;
struct __nv_bfloat16;

namespace oomlab {

/// A NCCL call failed. what() names the error, the call, and what NCCL says about it.
class NcclError : public std::runtime_error {
 public:
  NcclError(ncclResult_t result, const char* call)
      : std::runtime_error(std::string("ncclResult_t ") + std::to_string(int(result)) + " (" +
                           ncclGetErrorString(result) + ") from " + call + ": " + ncclGetLastError(nullptr)),
        result_(result) {}
  ncclResult_t result() const noexcept { return result_; }

 private:
  ncclResult_t result_;
};

class RemoteNcclError final : public NcclError, public AnotherRankFailed {
  using NcclError::NcclError;
};

/// Clears the thread's last CUDA error and throws NcclError, or RemoteNcclError for ncclRemoteError.
[[noreturn]] inline void throw_nccl_error(ncclResult_t result, const char* call) {
  (void)cudaGetLastError();
  if (result == ncclRemoteError) throw RemoteNcclError(result, call);
  throw NcclError(result, call);
}

#define NCCL_CHECK(call)                                                            \
  do {                                                                              \
    const ncclResult_t oomlab_nccl = (call);                                        \
    if (oomlab_nccl != ncclSuccess) ::oomlab::throw_nccl_error(oomlab_nccl, #call); \
  } while (false)

template <class T>
inline constexpr ncclDataType_t kNcclType = ncclInt8;
template <>
inline constexpr ncclDataType_t kNcclType<float> = ncclFloat32;
template <>
inline constexpr ncclDataType_t kNcclType<__half> = ncclFloat16;
template <>
inline constexpr ncclDataType_t kNcclType<__nv_bfloat16> = ncclBfloat16;

/// The ranks of one group, as one of them sees it. A group of one does nothing and needs no NCCL.
class Communicator {
 public:
  Communicator() = default;
  /// On the current device; waits until all ranks are here, or one has failed. `failed` is raised by any rank that
  /// fails; it must outlive this. Throws NcclError.
  Communicator(const ncclUniqueId& id, int ranks, int rank, const std::atomic<bool>& failed)
      : rank_(rank), ranks_(ranks), failed_(&failed), exceptions_(std::uncaught_exceptions()) {
    if (ranks == 1) return;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle(ncclCommInitRankConfig(&comm_, ranks, id, rank, &config), "ncclCommInitRankConfig");
    } catch (...) {
      leave(/*abort=*/true);
      throw;
    }
  }
  /// Leaves. While an exception is on its way: aborts, so that the others end too.
  ~Communicator() {
    if (comm_) leave(must_abort());
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// For the destructor of what owns several: where one must abort, all do, in one group. One after the other they may
  /// wait for ever: an abort gives memory back, that waits for all work of the device, and what is queued for the next
  /// communicator ends only when that aborts, too (NCCL issue 1013; a group aborts all first, from NCCL 2.22 on).
  static void abort_together(std::initializer_list<Communicator*> all) noexcept {
    if (std::ranges::none_of(all, [](const Communicator* c) { return c->comm_ && c->must_abort(); })) return;
    const bool grouped = report_if_failed(ncclGroupStart(), "ncclGroupStart");
    for (Communicator* c : all) c->leave(/*abort=*/true);
    if (grouped) report_if_failed(ncclGroupEnd(), "ncclGroupEnd");
  }

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  /// Payload that this rank has sent so far, bytes, with ring algorithms: 2 (N − 1) / N of an all-reduce's bytes, and
  /// (N − 1) / N of a reduce-scatter's, an all-gather's, a broadcast's and a reduce's.
  std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }

  /// All of these are queued on `stream`; counts are elements. Throw NcclError.
  template <class T>
  void all_reduce(T* data, std::size_t count, cudaStream_t stream) {
    if (!comm_) return;
    settle(ncclAllReduce(data, data, count, kNcclType<T>, ncclSum, comm_, stream), "ncclAllReduce");
    count_ring(2 * count * sizeof(T));
  }
  /// Rank r gets the sum of part r: data[ranks · count] to part[count].
  template <class T>
  void reduce_scatter(const T* data, T* part, std::size_t count, cudaStream_t stream) {
    if (!comm_) {
      if (data != part) copy(data, part, count, stream);
      return;
    }
    settle(ncclReduceScatter(data, part, count, kNcclType<T>, ncclSum, comm_, stream), "ncclReduceScatter");
    count_ring(count * sizeof(T) * std::size_t(ranks_));
  }
  /// part[count] of each rank to data[ranks · count].
  template <class T>
  void all_gather(const T* part, T* data, std::size_t count, cudaStream_t stream) {
    if (!comm_) {
      if (data != part) copy(part, data, count, stream);
      return;
    }
    settle(ncclAllGather(part, data, count, kNcclType<T>, comm_, stream), "ncclAllGather");
    count_ring(count * sizeof(T) * std::size_t(ranks_));
  }
  template <class T>
  void broadcast(T* data, std::size_t count, int root, cudaStream_t stream) {
    if (!comm_) return;
    settle(ncclBroadcast(data, data, count, kNcclType<T>, root, comm_, stream), "ncclBroadcast");
    count_ring(count * sizeof(T));
  }
  template <class T>
  void reduce(T* data, std::size_t count, int root, cudaStream_t stream) {
    if (!comm_) return;
    settle(ncclReduce(data, data, count, kNcclType<T>, ncclSum, root, comm_, stream), "ncclReduce");
    count_ring(count * sizeof(T));
  }
  template <class T>
  void send(const T* data, std::size_t count, int peer, cudaStream_t stream) {
    settle(ncclSend(data, count, kNcclType<T>, peer, comm_, stream), "ncclSend");
    bytes_sent_ += count * sizeof(T);
  }
  template <class T>
  void receive(T* data, std::size_t count, int peer, cudaStream_t stream) {
    settle(ncclRecv(data, count, kNcclType<T>, peer, comm_, stream), "ncclRecv");
  }

  /// In one group: of each of these, `bytes` bytes at `own` to the next rank, and as many from the one before to `others`.
  template <class Passed>
  void pass_on(std::initializer_list<Passed> all, cudaStream_t stream) {
    const int next = (rank_ + 1) % ranks_;
    const int before = (rank_ + ranks_ - 1) % ranks_;
    in_a_group([&] {
      for (const Passed& p : all) send(static_cast<const std::byte*>(p.own), p.bytes, next, stream);
      for (const Passed& p : all) receive(static_cast<std::byte*>(p.others), p.bytes, before, stream);
    });
  }
  /// All-to-all, in one group: part p of `own` goes to rank p, whose part for this rank comes to the same place of
  /// `others`. Both have as many parts as there are ranks, of so many bytes.
  void exchange(const void* own, void* others, std::size_t bytes_of_part, cudaStream_t stream) {
    const auto* const from = static_cast<const std::byte*>(own);
    auto* const to = static_cast<std::byte*>(others);
    const auto each_other = [&](auto body) {
      for (int peer = 0; peer < ranks_; ++peer)
        if (peer != rank_) body(peer, std::size_t(peer) * bytes_of_part);
    };
    const std::size_t mine = std::size_t(rank_) * bytes_of_part;
    copy(from + mine, to + mine, bytes_of_part, stream);
    in_a_group([&] {
      each_other([&](int peer, std::size_t at) { send(from + at, bytes_of_part, peer, stream); });
      each_other([&](int peer, std::size_t at) { receive(to + at, bytes_of_part, peer, stream); });
    });
  }

  /// Ends a group of calls of this communicator alone; they are queued when this returns. Throws NcclError.
  void end_group() const { settle(ncclGroupEnd(), "ncclGroupEnd"); }

  /// Waits for the stream, but not for ranks that have failed. Throws NcclError, CudaError.
  void wait(cudaStream_t stream) const {
    if (comm_)
      for (cudaError_t code; (code = cudaStreamQuery(stream)) != cudaSuccess; std::this_thread::yield()) {
        check_interrupt();
        (void)cudaGetLastError();
        if (code != cudaErrorNotReady) throw_cuda_error(code, "cudaStreamQuery", __FILE__, __LINE__);
        ncclResult_t result = ncclSuccess;
        NCCL_CHECK(ncclCommGetAsyncError(comm_, &result));
        if (result != ncclSuccess) throw_nccl_error(result, "ncclCommGetAsyncError");
        if (*failed_) throw_nccl_error(ncclRemoteError, "waiting for a rank that has failed");
      }
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }

 private:
  // A call that fails ends the group, too. Sends come first in it: without the receives behind them nobody waits.
  template <class Calls>
  void in_a_group(Calls calls) const {
    NCCL_CHECK(ncclGroupStart());
    try {
      calls();
    } catch (...) {
      (void)ncclGroupEnd();
      throw;
    }
    end_group();
  }
  // The end of a call that may still be in progress; throws for one that fails, and when a rank has failed.
  void settle(ncclResult_t result, const char* call) const {
    for (; result == ncclInProgress; std::this_thread::sleep_for(std::chrono::microseconds(20))) {
      check_interrupt();
      if (*failed_) throw_nccl_error(ncclRemoteError, call);
      NCCL_CHECK(ncclCommGetAsyncError(comm_, &result));
    }
    if (result != ncclSuccess) throw_nccl_error(result, call);
  }
  bool must_abort() const noexcept { return std::uncaught_exceptions() > exceptions_ || *failed_; }
  void leave(bool abort) noexcept {
    if (!comm_) return;
    report_if_failed(abort ? ncclCommAbort(comm_) : ncclCommDestroy(comm_),
                     abort ? "ncclCommAbort" : "ncclCommDestroy");
    comm_ = nullptr;
  }
  // For what must not throw. Returns whether it succeeded.
  static bool report_if_failed(ncclResult_t result, const char* call) noexcept {
    if (result == ncclSuccess || result == ncclInProgress) return true;
    std::fprintf(stderr, "%s: %s: %s\n", call, ncclGetErrorString(result), ncclGetLastError(nullptr));
    return false;
  }
  template <class T>
  static void copy(const T* from, T* to, std::size_t count, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToDevice, stream));
  }
  void count_ring(std::size_t bytes) noexcept { bytes_sent_ += bytes / std::size_t(ranks_) * std::size_t(ranks_ - 1); }

  ncclComm_t comm_ = nullptr;
  int rank_ = 0, ranks_ = 1;
  const std::atomic<bool>* failed_ = nullptr;
  int exceptions_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace oomlab
