// The reader's calls of the CUDA runtime, counted and limited. Included by nobody; linked to every judge.

#include "spy.h"

#include "watch.h"

// From here on the calls are the runtime's.
#undef cudaMalloc
#undef cudaMallocHost
#undef cudaFree
#undef cudaFreeHost
#undef cudaGetLastError
#undef cudaPeekAtLastError
#undef cudaDeviceSynchronize

namespace oomlab::puzzle {
namespace {

std::string first_argument(const char* arguments) {
  std::string text(arguments);
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::strchr("([{", text[i])) ++depth;
    if (std::strchr(")]}", text[i])) --depth;
    if (text[i] == ',' && depth == 0) {
      text.resize(i);
      break;
    }
  }
  const std::size_t start = text.find_first_not_of("& ");
  return start == std::string::npos ? text : text.substr(start);
}

// True for the call whose turn it is to fail.
bool is_to_fail(const Spy& spy) {
  Watch& w = watch();
  if (spy.line < 0 && std::strcmp(spy.call, "cudaFree") == 0) return false;  // the judge's
  if (++w.calls != w.failing) return false;
  w.injected = true;
  w.failure = {spy.call, spy.line, cudaErrorMemoryAllocation};
  return true;
}

cudaError_t failed(const Spy& spy, cudaError_t error) {
  Watch& w = watch();
  if (error == cudaSuccess) return error;
  if (!w.injected) w.failure = {spy.call, spy.line, error};
  w.last_error = error;
  return error;
}

}  // namespace

cudaError_t Spy::enter() const {
  Watch& w = watch();
  w.in_reader = false;
  guard(w.blocks, false);
  const std::string name(call);
  if (name.find("Synchronize") != std::string::npos || name == "cudaMemcpy") ++w.synchronisations;
  return is_to_fail(*this) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t Spy::leave(cudaError_t error) const {
  Watch& w = watch();
  failed(*this, error);
  (void)cudaGetLastError();  // ours has it
  guard(w.blocks, true);
  w.in_reader = true;
  return error;
}

cudaError_t Spy::allocate(void** address, std::size_t bytes) const {
  Watch& w = watch();
  const Away away;
  if (w.visit) w.visit();
  if (!address) return failed(*this, cudaErrorInvalidValue);
  if (is_to_fail(*this)) return failed(*this, cudaErrorMemoryAllocation);
  if (bytes == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  const std::string name = first_argument(arguments);
  if (bytes > w.budget || w.live + counted(bytes) > w.budget) {
    w.out_of_memory = "\"call\": " + quoted(call) + ", \"line\": " + std::to_string(line) +
                      ", \"name\": " + quoted(name) + ", \"asked\": " + std::to_string(bytes) +
                      ", \"live\": " + std::to_string(w.live) + ", \"budget\": " + std::to_string(w.budget) +
                      ", \"blocks\": " + blocks_as_json();
    return failed(*this, cudaErrorMemoryAllocation);
  }
  if (counted(bytes) > w.allowed.largest)
    end("largest", "\"case\": " + quoted(w.case_name) + ", \"line\": " + std::to_string(line) +
                       ", \"name\": " + quoted(name) + ", \"bytes\": " + std::to_string(counted(bytes)) +
                       ", \"allowed\": " + std::to_string(w.allowed.largest));
  const std::size_t storage = guarded_size(bytes);
  if (const cudaError_t error = ::cudaMalloc(address, storage)) return failed(*this, error);
  const auto place = reinterpret_cast<std::uintptr_t>(*address);
  begin_guarding(place, w.blocks[place] = {name, line, bytes, counted(bytes), storage, false});
  w.live += counted(bytes);
  w.peak = std::max(w.peak, w.live);
  return cudaSuccess;
}

cudaError_t Spy::allocate_pinned(void** address, std::size_t bytes) const {
  Watch& w = watch();
  const Away away;
  if (is_to_fail(*this)) return failed(*this, cudaErrorMemoryAllocation);
  if (w.pinned + bytes > w.allowed.pinned_bytes)
    end("pinned_bytes", "\"line\": " + std::to_string(line) + ", \"bytes\": " + std::to_string(w.pinned + bytes) +
                            ", \"allowed\": " + std::to_string(w.allowed.pinned_bytes));
  if (const cudaError_t error = ::cudaMallocHost(address, bytes)) return failed(*this, error);
  if (!*address) return cudaSuccess;
  w.blocks[reinterpret_cast<std::uintptr_t>(*address)] = {first_argument(arguments), line, bytes, bytes, bytes, true};
  w.pinned += bytes;
  return cudaSuccess;
}

cudaError_t Spy::release(void* address) const {
  Watch& w = watch();
  const Away away;
  const bool fails = is_to_fail(*this);
  if (!address) return failed(*this, fails ? cudaErrorUnknown : cudaSuccess);
  const auto found = w.blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == w.blocks.end() || found->second.pinned) return failed(*this, cudaErrorInvalidValue);
  if (found->second.line == 0)
    end("not_yours", "\"line\": " + std::to_string(line) + ", \"name\": " + quoted(found->second.name));
  if (overrun(found->first, found->second)) end_overrun(found->second);
  end_guarding(found->first, found->second);
  w.live -= found->second.bytes;
  const cudaError_t error = ::cudaFree(address);
  w.blocks.erase(found);
  return failed(*this, fails ? cudaErrorUnknown : error);
}

cudaError_t Spy::release_pinned(void* address) const {
  Watch& w = watch();
  const Away away;
  const auto found = w.blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (!address) return cudaSuccess;
  if (found == w.blocks.end() || !found->second.pinned) return failed(*this, cudaErrorInvalidValue);
  w.pinned -= found->second.bytes;
  w.blocks.erase(found);
  return failed(*this, ::cudaFreeHost(address));
}

cudaError_t Spy::free_memory(std::size_t* free, std::size_t* total) const {
  Watch& w = watch();
  const Away away;
  if (w.visit) w.visit();
  if (!free || !total) return failed(*this, cudaErrorInvalidValue);
  if (is_to_fail(*this)) return failed(*this, cudaErrorUnknown);
  *total = w.budget;
  *free = w.budget > w.live ? w.budget - w.live : 0;
  return cudaSuccess;
}

cudaError_t Spy::last_error(bool forget) const {
  Watch& w = watch();
  const Away away;
  const cudaError_t error = w.last_error ? w.last_error : ::cudaPeekAtLastError();
  if (forget) {
    w.last_error = cudaSuccess;
    (void)::cudaGetLastError();
  }
  return error;
}

Launching::Launching(const cudaLaunchConfig_t& config) : config_(config) {
  Watch& w = watch();
  w.in_reader = false;
  ++w.launches;
  w.fewest_threads = std::min(w.fewest_threads, config.blockDim.x * config.blockDim.y * config.blockDim.z);
  guard(w.blocks, false);
}
Launching::~Launching() {
  Watch& w = watch();
  guard(w.blocks, true);
  w.in_reader = true;
}

cudaError_t Launching::done(cudaError_t error) const {
  const dim3 grid = config_.gridDim, block = config_.blockDim;
  if (error == cudaErrorInvalidConfiguration)
    watch().bad_launch = "{\"blocks\": " + std::to_string(std::size_t(grid.x) * grid.y * grid.z) +
                         ", \"threads\": " + std::to_string(std::size_t(block.x) * block.y * block.z) +
                         ", \"shared\": " + std::to_string(config_.dynamicSmemBytes) + "}";
  return error;
}

Away::Away() : was_(watch().in_reader) {
  watch().in_reader = false;
  guard(watch().blocks, false);
}
Away::~Away() {
  if (was_) guard(watch().blocks, true);
  watch().in_reader = was_;
}

cudaError_t allocate_as_reader(const char* name, void** address, std::size_t bytes) {
  return Spy{"cudaMalloc", name, -1}.allocate(address, bytes);
}
cudaError_t release_as_reader(void* address) { return Spy{"cudaFree", "", -1}.release(address); }

}  // namespace oomlab::puzzle
