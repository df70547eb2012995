#pragma once
// NCCL, as far as the course uses it, implemented on the host: between threads of this process, one rank a device, and
// (after host::expect_processes()) between processes, through whatever carries their messages: MPI.
// Names, signatures, enumerators and their values are those of NCCL 2.28. What is not implemented is not declared.
//
// Where host and GPU differ:
//   - a call returns when its work is done (with deferred streams it waits for its stream first), so a rank waits for
//     the others inside the call; sums are taken in the order of the ranks, in FP32 for the 16-bit types: every rank
//     gets the same bits, and every run;
//   - what would hang for ever there is an error here: a rank that never comes, or has left
//     (ncclRemoteError), ranks that call different things, a message that nobody receives (ncclInvalidUsage).
//     ncclGetLastError() says who and what. "Never" is OOMLAB_HOST_NCCL_TIMEOUT seconds (60);
//   - in plan mode arguments are checked, and nobody is waited for.

#include <cuda_runtime.h>

#include <cstddef>

#define NCCL_UNIQUE_ID_BYTES 128

typedef struct ncclComm* ncclComm_t;
typedef struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;

typedef enum { ncclInt8 = 0, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;

#define NCCL_CONFIG_UNDEF_INT (-2147483647 - 1)
typedef struct ncclConfig {
  size_t size;
  unsigned int magic, version;
  int blocking;  // 0, or anything else for yes
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), 0xcafebeef, 22800, NCCL_CONFIG_UNDEF_INT }

const char* ncclGetErrorString(ncclResult_t result);
/// What this thread's last failed call complained of; "" when none did.
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
/// On the current device; two ranks of one communicator cannot share a device. Waits for all ranks.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
/// The same; with config.blocking = 0 it does not wait: the communicator is being set up while ncclCommGetAsyncError()
/// says ncclInProgress, and until then nothing else may be called with it but ncclCommAbort().
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
/// Leaves at once; the other ranks' calls end with ncclRemoteError. In rendezvous mode the abort of one of several
/// communicators that this thread has worked with says ncclInvalidUsage, unless it is one of a group: see nccl.h of
/// cuda/.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result);

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);

ncclResult_t ncclGroupStart(void);
/// ncclInProgress where a communicator does not block: ncclCommGetAsyncError() says when its calls have begun.
ncclResult_t ncclGroupEnd(void);
