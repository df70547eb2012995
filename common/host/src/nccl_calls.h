#pragma once
// What a rank asks of its communicator (nccl.cpp), and how that is done (nccl_collectives.cpp).

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "nccl_world.h"

struct ncclComm {
  std::shared_ptr<oomlab::host::World> world;  // null in plan mode
  int rank = 0, size = 0, device = 0;
  bool joining = false;  // set up without blocking: not all ranks have come yet,
  std::chrono::steady_clock::time_point patient_until = std::chrono::steady_clock::now();  // or waited for after this
};

namespace oomlab::host {

struct Request {
  Call call;
  ncclComm_t comm;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int op = 0, root = 0;  // root: or the peer
  cudaStream_t stream = nullptr;
};

const char* name_of(Call call);
/// Bytes of an element; 0 for a type that does not exist.
std::size_t bytes_of(ncclDataType_t type);
/// Elements of `send`, and of `receive`.
std::size_t sent(const Request& request);
std::size_t received(const Request& request);
/// Does them all: every first half, then every second one.
ncclResult_t run(const std::vector<Request>& requests);
/// Of a communicator that is being set up: ncclInProgress while a rank has not come.
ncclResult_t set_up_state(ncclComm& comm);
/// Returns `result`, and keeps the text for ncclGetLastError().
__attribute__((format(printf, 2, 3))) ncclResult_t complain(ncclResult_t result, const char* format, ...);
/// The failure of a world: the first one stands.
ncclResult_t fail(World& world, ncclResult_t result, const std::string& why);
const char* last_complaint();

}  // namespace oomlab::host
