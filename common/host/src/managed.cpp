// Managed memory that really pages.
//
// The contents of a 64 KiB page are valid on the host, on one device, or (read-mostly) on both; a page that nobody has
// touched is nowhere. While device work runs (DeviceView), pages that the device may use are open and all others are
// closed (mprotect); touching a closed page faults, and the handler moves it: it is counted, charged to the device,
// and the device's oldest pages are evicted when it is full. After a synchronising call the host's pages are open
// instead. Contents never move, only the books and the protection do.
//
// Advice is followed as a GPU would: accessed-by maps a page where it is, and so does a fault on a page that is at its
// preferred location; a read-mostly page is copied, and loses the copies when somebody writes. A fresh page is made
// where it is first touched, or at its preferred location; that moves no bytes.
//
// Limits, all of them harmless for a course: pages of two devices that work at the same moment are all charged to the
// first one; a read-mostly page is copied to one device only; a device always keeps a few pages, whatever its capacity,
// because an instruction may need several at once; a system call (read(2), say) that is handed a page of a device fails
// with EFAULT instead of migrating it.

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

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
enum Rights : unsigned char { closed, read_only, open };
struct Page {
  Region* region = nullptr;
  Page *older = nullptr, *newer = nullptr;            // its place among the pages of its device
  std::int8_t device = on_host, preferred = on_host;  // whose memory holds it; where it would rather be
  bool host = false;                                  // the host's memory holds it
  bool read_mostly = false, has_preferred = false;    // advice
  Rights shown = open;                                // what mprotect was told
  std::uint64_t mapped_by = 0;                        // devices that use it wherever it is

  bool fresh() const { return device == on_host && !host; }
  bool both() const { return device != on_host && host; }
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

// What the view may do with a page as it is now.
Rights rights(const Page& page) {
  const bool here = view == on_host ? page.host : page.device == view;
  const bool mapped = view != on_host && !page.fresh() && (page.mapped_by >> view & 1);
  if (!here && !mapped) return closed;
  return page.both() ? read_only : open;
}

// Tells the system what the view may do with pages [first, last) of a region, in as few calls as possible.
void show(Region& region, std::size_t first, std::size_t last) {
  for (std::size_t i = first, end; i < last; i = end) {
    const Rights wanted = rights(region.pages[i]);
    for (end = i; end < last && rights(region.pages[end]) == wanted && region.pages[end].shown != wanted; ++end)
      region.pages[end].shown = wanted;
    const int protection = wanted == open ? PROT_READ | PROT_WRITE : wanted == read_only ? PROT_READ : PROT_NONE;
    if (end > i && !region.broken && mprotect(region.base + i * page_bytes, (end - i) * page_bytes, protection) != 0) {
      region.broken = true;
      (void)mprotect(region.base, region.count * page_bytes, PROT_READ | PROT_WRITE);
    }
    end = std::max(end, i + 1);
  }
}

void show(Page& page) {
  const auto number = static_cast<std::size_t>(&page - page.region->pages.get());
  show(*page.region, number, number + 1);
}

void set_view(int device) {
  if (view == device) return;
  view = device;
  for (Region* region = regions; region; region = region->next) show(*region, 0, region->count);
}

void unlink(Page& page) {
  if (page.device == on_host) return;
  Resident& r = residents[page.device];
  (page.older ? page.older->newer : r.oldest) = page.newer;
  (page.newer ? page.newer->older : r.newest) = page.older;
  r.bytes -= page_bytes;
  page.device = on_host;
}

void link(Page& page, int device) {
  Resident& r = residents[device];
  page.device = static_cast<std::int8_t>(device);
  page.older = r.newest;
  page.newer = nullptr;
  (r.newest ? r.newest->newer : r.oldest) = &page;
  r.newest = &page;
  r.bytes += page_bytes;
  ++counters.pages_in;
}

void evict_to(int device, std::size_t most) {
  Resident& r = residents[device];
  while (r.oldest && r.bytes > most) {
    Page& page = *r.oldest;
    if (!page.host) counters.bytes_to_host += page_bytes;  // the host has no copy yet
    page.host = true;
    unlink(page);
    show(page);
    ++counters.pages_evicted;
  }
}

// Makes a page valid in a place; a read-mostly page stays valid where it was.
void bring(Page& page, int place) {
  const bool moves = !page.fresh();
  if (place == on_host) {
    if (page.host) return;
    if (moves) counters.bytes_to_host += page_bytes;
    page.host = true;
    if (!page.read_mostly) unlink(page);
  } else {
    if (page.device == place) return;
    const bool was_on_host = page.host;
    unlink(page);  // from another device
    const std::size_t most = std::max(residents[place].limit, least_resident());
    evict_to(place, most < page_bytes ? 0 : most - page_bytes);
    if (moves) counters.bytes_to_device += page_bytes;
    link(page, place);
    page.host = was_on_host && page.read_mostly;
  }
  show(page);
}

// A page that is in two places is about to be written by the view.
void drop_copies(Page& page) {
  if (view == page.device)
    page.host = false;
  else
    unlink(page);
  show(page);
}

Page* find_page(const void* address) {
  const char* const p = static_cast<const char*>(address);
  for (Region* region = regions; region; region = region->next)
    if (p >= region->base && p < region->base + region->count * page_bytes)
      return &region->pages[static_cast<std::size_t>(p - region->base) / page_bytes];
  return nullptr;
}

}  // namespace

bool managed_holds(const void* address) noexcept {
  const Spin spin;
  return find_page(address) != nullptr;
}

namespace {

// Tells a write to a read-only page from a read that faulted before another thread opened the page.
bool is_write([[maybe_unused]] const void* context) {
#ifdef __x86_64__
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
  return true;  // a copy may be dropped that could have stayed
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const Spin spin;
  Page* const page = find_page(info->si_addr);
  if (!page) {  // the access faults again, and whoever handled that before does so now
    sigaction(signal, &previous_action, nullptr);
    return;
  }
  if (workers == 0) set_view(on_host);  // nobody works on a device, so it is the host that touches
  const Rights now = rights(*page);
  if (page->shown < now) return show(*page);  // it changed after this thread's access began
  if (now == open || (now == read_only && !is_write(context))) return;
  ++counters.faults;
  if (now == read_only) return drop_copies(*page);
  if (page->fresh() && page->has_preferred) bring(*page, page->preferred);
  const bool settled = page->has_preferred && (page->preferred == on_host ? page->host && page->device == on_host
                                                                          : page->device == page->preferred);
  if (!settled || view == on_host) return bring(*page, view);
  page->mapped_by |= std::uint64_t(1) << view;
  show(*page);
}

void install_handler() {
  [[maybe_unused]] static const bool installed = [] {
    (void)least_resident();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
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
  for (std::size_t i = 0; i < region->count; ++i) region->pages[i].region = region.get();
  void* const address = region->base;
  const Spin spin;
  region->next = regions;
  show(*region, 0, region->count);  // fresh: closed to everybody
  regions = region.release();
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

template <class Visit>
void for_pages(const void* address, std::size_t bytes, Visit visit) {
  const Spin spin;
  Page* const first = bytes ? find_page(address) : nullptr;
  Page* const last = first ? find_page(static_cast<const char*>(address) + bytes - 1) : nullptr;
  if (!last || last->region != first->region) return;
  for (Page* page = first; page <= last; ++page) visit(*page);
}

// Moves pages without faults.
void managed_prefetch(const void* address, std::size_t bytes, int device) noexcept {
  for_pages(address, bytes, [device](Page& page) {
    const std::uint64_t moved = counters.bytes_to_device;
    bring(page, device);
    counters.bytes_prefetched += counters.bytes_to_device - moved;
  });
}

void managed_advise(const void* address, std::size_t bytes, cudaMemoryAdvise advice, int device) noexcept {
  for_pages(address, bytes, [&](Page& page) {
    switch (advice) {
      case cudaMemAdviseSetReadMostly: page.read_mostly = true; break;
      case cudaMemAdviseSetPreferredLocation:
        page.preferred = static_cast<std::int8_t>(device);
        page.has_preferred = true;
        break;
      case cudaMemAdviseSetAccessedBy:
        if (device != on_host) page.mapped_by |= std::uint64_t(1) << device;
        break;
    }
    show(page);
  });
}

// Refuses what is no range of managed memory. Where that is to go: a device, or the host.
int place_of(const void* address, std::size_t bytes, cudaMemLocation where) {
  const Block* block = find_block(address);
  require(block && block->kind == Kind::managed && bytes && in_bounds(address, bytes));
  if (where.type == cudaMemLocationTypeDevice) return require_device(where.id), where.id;
  require(where.type == cudaMemLocationTypeHost);
  return on_host;
}

}  // namespace
}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation where, unsigned int flags,
                                 cudaStream_t handle) {
  return entry("cudaMemPrefetchAsync", cudaErrorUnknown, [&](Lock& lock) {
    CUstream_st& stream = find_stream(handle);
    require(flags == 0);
    const int place = place_of(address, bytes, where);
    if (!runtime().planning) execute(lock, stream, [=] { managed_prefetch(address, bytes, place); });
  });
}

cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation where) {
  return entry("cudaMemAdvise", cudaErrorUnknown, [&](Lock&) {
    require(advice == cudaMemAdviseSetReadMostly || advice == cudaMemAdviseSetPreferredLocation ||
            advice == cudaMemAdviseSetAccessedBy);
    const bool anywhere = advice == cudaMemAdviseSetReadMostly;
    const int place = place_of(address, bytes, anywhere ? cudaMemLocation{cudaMemLocationTypeHost, 0} : where);
    if (!runtime().planning) managed_advise(address, bytes, advice, place);
  });
}
