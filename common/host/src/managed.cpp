// Managed memory that really pages.
//
// Every 64 KiB page is on the host or on one device. While device work runs (DeviceView), pages of that device are
// open and all others are closed (mprotect); touching a closed page faults, and the handler moves it: it is counted,
// charged to the device, and the device's oldest pages are evicted when it is full. After a synchronising call the
// host's pages are open instead. Contents never move, only the books and the protection do.
//
// Limits, all of them harmless for a course: pages of two devices that work at the same moment are all charged to the
// first one; a device always keeps a few pages, whatever its capacity, because an instruction may need several at once;
// a system call (read(2), say) that is handed a page of a device fails with EFAULT instead of migrating it.

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "runtime.h"

#ifdef OOMLAB_HOST_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (void)0
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (void)0
#endif

namespace oomlab::host {
namespace {

constexpr std::size_t page_bytes = 64 << 10;
constexpr int on_host = -1;

struct Region;
struct Page {
  Region* region;
  Page *older, *newer;  // its place among the pages of its device
  int owner;
  bool open;
};
struct Region {
  char* base;
  std::size_t bytes, count;
  bool broken;  // the system refused a change of protection: left open for good
  Region* next;
  std::unique_ptr<Page[]> pages;
};
struct Resident {
  Page *oldest, *newest;
  std::atomic<std::size_t> bytes;
  std::size_t limit;
};

// All of this is used inside the signal handler: no allocation, one spin lock, which nobody holds while touching
// managed memory.
constinit std::atomic_flag busy = ATOMIC_FLAG_INIT;
constinit std::atomic<Region*> regions{nullptr};
constinit Resident residents[64]{};
constinit int view = on_host, workers = 0;  // whose pages are open; pieces of device work that run now
constinit PagingCounters counters{};
struct sigaction previous_action;

struct Spin {
  Spin() {
    while (busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Spin() { busy.clear(std::memory_order_release); }
};

std::size_t least_resident() {
  static const std::size_t pages = std::max(16u, 4 * std::thread::hardware_concurrency());
  return pages * page_bytes;
}

void protect(Region& region, std::size_t first, std::size_t count, bool open) {
  if (region.broken) return;
  const int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (mprotect(region.base + first * page_bytes, count * page_bytes, protection) != 0) {
    region.broken = true;
    (void)mprotect(region.base, region.count * page_bytes, PROT_READ | PROT_WRITE);
  }
  for (std::size_t i = first; i < first + count; ++i) region.pages[i].open = open;
}

void show_view() {  // opens and closes what the view asks for, in as few calls as possible
  for (Region* region = regions; region; region = region->next) {
    for (std::size_t i = 0, end; i < region->count; i = end) {
      const bool open = region->pages[i].owner == view;
      const auto differs = [&](std::size_t p) {
        return (region->pages[p].owner == view) == open && region->pages[p].open != open;
      };
      for (end = i; end < region->count && differs(end);) ++end;
      if (end > i)
        protect(*region, i, end - i, open);
      else
        ++end;
    }
  }
}

void set_view(int device) {
  if (view == device) return;
  view = device;
  show_view();
}

void unlink(Page& page) {
  if (page.owner == on_host) return;
  Resident& r = residents[page.owner];
  (page.older ? page.older->newer : r.oldest) = page.newer;
  (page.newer ? page.newer->older : r.newest) = page.older;
  r.bytes -= page_bytes;
}

void move_page(Page& page, int owner) {
  unlink(page);
  page.owner = owner;
  if (owner != on_host) {
    Resident& r = residents[owner];
    page.older = r.newest;
    page.newer = nullptr;
    (r.newest ? r.newest->newer : r.oldest) = &page;
    r.newest = &page;
    r.bytes += page_bytes;
    ++counters.pages_in;
  }
  if (page.open != (owner == view))
    protect(*page.region, static_cast<std::size_t>(&page - page.region->pages.get()), 1, owner == view);
}

void evict_to(int device, std::size_t most) {
  Resident& r = residents[device];
  while (r.oldest && r.bytes > most) {
    move_page(*r.oldest, on_host);
    ++counters.pages_evicted;
  }
}

void bring(Page& page, int device) {
  if (page.owner == device) return;
  if (device != on_host) {
    const std::size_t most = std::max(residents[device].limit, least_resident());
    evict_to(device, most < page_bytes ? 0 : most - page_bytes);
  }
  move_page(page, device);
}

Page* find_page(const void* address) {
  const char* const p = static_cast<const char*>(address);
  for (Region* region = regions; region; region = region->next)
    if (p >= region->base && p < region->base + region->count * page_bytes)
      return &region->pages[static_cast<std::size_t>(p - region->base) / page_bytes];
  return nullptr;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  {
    const Spin spin;
    if (Page* page = find_page(info->si_addr)) {
      if (workers == 0) set_view(on_host);  // nobody works on a device, so it is the host that touches
      if (page->owner != view) {
        ++counters.faults;
        bring(*page, view);
      } else if (!page->open) {
        protect(*page->region, static_cast<std::size_t>(page - page->region->pages.get()), 1, true);
      }
      return;  // and the access is tried again
    }
  }
  if (previous_action.sa_flags & SA_SIGINFO)
    previous_action.sa_sigaction(signal, info, context);
  else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN)
    sigaction(signal, &previous_action, nullptr);  // the access faults again, and ends the program
  else
    previous_action.sa_handler(signal);
}

void install_handler() {
  static const bool installed = [] {
    (void)least_resident();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
  (void)installed;
}

}  // namespace

DeviceView::DeviceView(int device) noexcept : active_(regions.load(std::memory_order_relaxed) != nullptr) {
  if (!active_) return;
  const Spin spin;
  if (workers++ == 0) set_view(device);
}
DeviceView::~DeviceView() {
  if (!active_) return;
  const Spin spin;
  --workers;  // the view stays until the next synchronising call: launches in a row cost nothing
}

void managed_host_view() noexcept {
  if (!regions.load(std::memory_order_relaxed)) return;
  const Spin spin;
  if (workers == 0) set_view(on_host);
}

void* managed_allocate(std::size_t bytes) {
  install_handler();
  auto region = std::make_unique<Region>();
  region->bytes = bytes;
  region->count = (bytes + page_bytes - 1) / page_bytes;
  region->pages = std::make_unique<Page[]>(region->count);
  region->base = static_cast<char*>(lazy_allocate(region->count * page_bytes));
  if (!region->base) throw std::bad_alloc();
  poison(region->base, bytes);
  ASAN_POISON_MEMORY_REGION(region->base + bytes, region->count * page_bytes - bytes);
  for (std::size_t i = 0; i < region->count; ++i) region->pages[i] = {region.get(), nullptr, nullptr, on_host, true};
  void* const address = region->base;
  const Spin spin;
  region->next = regions;
  regions = region.release();
  show_view();
  return address;
}

void managed_free(void* address) noexcept {
  std::unique_ptr<Region> region;
  {
    const Spin spin;
    Region* before = nullptr;
    Region* found = regions;
    for (; found && found->base != address; found = found->next) before = found;
    if (!found) return;
    if (before)
      before->next = found->next;
    else
      regions = found->next;
    for (std::size_t i = 0; i < found->count; ++i) unlink(found->pages[i]);
    if (!regions) view = on_host;
    region.reset(found);
  }
  ASAN_UNPOISON_MEMORY_REGION(region->base, region->count * page_bytes);
  lazy_free(region->base, region->count * page_bytes);
}

void managed_prefetch(const void* address, std::size_t bytes, int device) noexcept {
  const Spin spin;
  for (std::size_t done = 0; done < bytes;) {
    const char* const p = static_cast<const char*>(address) + done;
    Page* const page = find_page(p);
    if (!page) return;
    bring(*page, device);
    const char* const start = page->region->base + (page - page->region->pages.get()) * page_bytes;
    done += page_bytes - static_cast<std::size_t>(p - start);
  }
}

std::size_t managed_resident(int device) noexcept { return residents[device].bytes; }

void managed_set_limit(int device, std::size_t bytes) noexcept {
  const Spin spin;
  residents[device].limit = bytes;
  evict_to(device, bytes);
}

PagingCounters take_paging_counters() noexcept {
  const Spin spin;
  return std::exchange(counters, PagingCounters{});
}

namespace {

// A range of managed memory, and a place that it can be in. With the mutex held.
cudaError_t check_range(const void* address, std::size_t bytes, cudaMemLocation where) {
  const Block* block = find_block(address);
  if (!block || block->kind != Kind::managed || bytes == 0 || !in_bounds(address, bytes)) return cudaErrorInvalidValue;
  if (where.type == cudaMemLocationTypeDevice) return valid_device(where.id) ? cudaSuccess : cudaErrorInvalidDevice;
  return where.type == cudaMemLocationTypeHost ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation where, unsigned int flags,
                                 cudaStream_t handle) {
  return entry("cudaMemPrefetchAsync", cudaErrorUnknown, [&] {
    Lock lock = lock_runtime();
    CUstream_st* const stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (flags) return cudaErrorInvalidValue;
    const cudaError_t error = check_range(address, bytes, where);
    const int device = where.type == cudaMemLocationTypeDevice ? where.id : on_host;
    if (!error && !runtime().planning) execute(lock, *stream, [=] { managed_prefetch(address, bytes, device); });
    return error;
  });
}

cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation where) {
  return entry("cudaMemAdvise", cudaErrorUnknown, [&] {
    const Lock lock = lock_runtime();
    if (advice < cudaMemAdviseSetReadMostly || advice > cudaMemAdviseUnsetAccessedBy) return cudaErrorInvalidValue;
    const bool anywhere = advice <= cudaMemAdviseUnsetReadMostly || advice == cudaMemAdviseUnsetPreferredLocation;
    return check_range(address, bytes, anywhere ? cudaMemLocation{cudaMemLocationTypeHost, 0} : where);
  });  // advice is advice: nothing follows from it here
}
