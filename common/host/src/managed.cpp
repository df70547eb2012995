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
#include <list>
#include <optional>
#include <thread>

#include "runtime.h"

namespace oomlab::host {
namespace {

constexpr std::size_t page_bytes = 64 << 10;
constexpr int on_host = cudaCpuDeviceId, nowhere = cudaInvalidDeviceId;

enum Rights : unsigned char { closed = PROT_NONE, read_only = PROT_READ, open = PROT_READ | PROT_WRITE };

struct Region;
struct Page {
  Region* region = nullptr;
  std::list<Page*>::iterator place = {};              // among the pages of its device, or of none
  std::int8_t device = on_host, preferred = nowhere;  // whose memory holds it; where it would rather be
  std::int8_t prefetched = nowhere;                   // where it was last sent
  bool host = false;                                  // the host's memory holds it
  bool read_mostly = false;                           // advice
  Rights shown = open;                                // what mprotect was told
  std::uint64_t mapped_by = 0;                        // devices that use it wherever it is

  bool fresh() const { return device == on_host && !host; }
  bool both() const { return device != on_host && host; }
};

struct Region {
  explicit Region(std::size_t bytes) : pages((bytes + page_bytes - 1) / page_bytes) {
    for (Page& page : pages) {
      page.region = this;
      page.place = on_no_device.insert(on_no_device.end(), &page);
    }
    base = static_cast<char*>(lazy_allocate(mapped_bytes()));
    if (!base) throw std::bad_alloc();
    poison(base, bytes);
    ASAN_POISON_MEMORY_REGION(base + bytes, mapped_bytes() - bytes);
  }
  ~Region() {
    ASAN_UNPOISON_MEMORY_REGION(base, mapped_bytes());
    munmap(base, mapped_bytes());
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  std::size_t mapped_bytes() const { return pages.size() * page_bytes; }

  std::vector<Page> pages;
  std::list<Page*> on_no_device;
  char* base = nullptr;
  bool broken = false;  // the system refused a change of protection: left open for good
};

// The lock of all of this. The signal handler takes it, too, so nobody touches managed memory while holding it.
struct Spin {
  Spin() {
    while (busy.test_and_set(std::memory_order_acquire)) continue;
  }
  ~Spin() { busy.clear(std::memory_order_release); }
  static constinit inline std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

// The books, and what happens to pages. Only with a Spin held. What the signal handler calls does not allocate.
struct Pager {
  std::map<const char*, std::unique_ptr<Region>> regions;  // by address
  std::list<Page*> residents[most_devices];                // the oldest first
  std::size_t limits[most_devices] = {};                   // bytes
  const std::size_t least = std::max(16u, 4 * std::thread::hardware_concurrency()) * page_bytes;
  int view = on_host, workers = 0;  // whose pages are open; pieces of device work that run now
  PagingCounters counters = {};

  // What the view may do with a page as it is now.
  Rights rights(const Page& page) const {
    const bool here = view == on_host ? page.host : page.device == view;
    const bool mapped = view != on_host && !page.fresh() && (page.mapped_by >> view & 1);
    if (!here && !mapped) return closed;
    return page.both() ? read_only : open;
  }

  // Tells the system what the view may do with pages of a region, in as few calls as possible.
  void show(Region& region, Page* first, Page* last) const {
    for (Page *page = first, *end; page < last; page = end) {
      const Rights wanted = rights(*page);
      for (end = page; end < last && rights(*end) == wanted && end->shown != wanted; ++end) end->shown = wanted;
      char* const start = region.base + (page - region.pages.data()) * std::ptrdiff_t(page_bytes);
      if (end > page && !region.broken && mprotect(start, std::size_t(end - page) * page_bytes, wanted) != 0) {
        region.broken = true;
        (void)mprotect(region.base, region.mapped_bytes(), open);
      }
      end = std::max(end, page + 1);
    }
  }
  void show(Page& page) const { show(*page.region, &page, &page + 1); }
  void show(Region& region) const { show(region, region.pages.data(), region.pages.data() + region.pages.size()); }

  void set_view(int device) {
    if (view == device) return;
    view = device;
    for (const auto& [base, region] : regions) show(*region);
  }

  // To a device, as its newest page, or off the one that has it. Splicing does not allocate.
  void move(Page& page, int device) {
    const auto list_of = [&](int d) -> std::list<Page*>& { return d < 0 ? page.region->on_no_device : residents[d]; };
    list_of(device).splice(list_of(device).end(), list_of(page.device), page.place);
    page.device = static_cast<std::int8_t>(device);
  }

  void evict_to(int device, std::size_t most) {
    while (residents[device].size() * page_bytes > most) {
      Page& page = *residents[device].front();
      if (!page.host) counters.bytes_to_host += page_bytes;  // the host has no copy yet
      page.host = true;
      move(page, on_host);
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
      if (!page.read_mostly) move(page, on_host);
    } else {
      if (page.device == place) return;
      const bool was_on_host = page.host;
      move(page, on_host);  // from another device
      evict_to(place, std::max(limits[place], least) - page_bytes);
      if (moves) counters.bytes_to_device += page_bytes;
      ++counters.pages_in;
      move(page, place);
      page.host = was_on_host && page.read_mostly;
    }
    show(page);
  }

  Page* find_page(const void* address) {
    const char* const p = static_cast<const char*>(address);
    const auto next = regions.upper_bound(p);
    if (next == regions.begin()) return nullptr;
    Region& region = *std::prev(next)->second;
    const std::size_t number = std::size_t(p - region.base) / page_bytes;
    return number < region.pages.size() ? &region.pages[number] : nullptr;
  }

  // The view has touched a page that was not open to it.
  void fault(Page& page, bool write) {
    if (workers == 0) set_view(on_host);  // nobody works on a device, so it is the host that touches
    const Rights now = rights(page);
    if (page.shown < now) return show(page);  // it changed after this thread's access began
    if (now == open || (now == read_only && !write)) return;
    ++counters.faults;
    if (now == read_only) {  // it is in two places, and about to be written
      if (view == page.device)
        page.host = false;
      else
        move(page, on_host);
      return show(page);
    }
    if (page.fresh() && page.preferred != nowhere) bring(page, page.preferred);
    if (page.device != page.preferred || view == on_host) return bring(page, view);
    page.mapped_by |= std::uint64_t(1) << view;
    show(page);
  }
};
Pager& pager() {
  static Pager& all = *new Pager;  // never destroyed, like the runtime
  return all;
}
constinit std::atomic<bool> in_use{false};  // there are regions
struct sigaction previous_action;

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
  if (Page* const page = pager().find_page(info->si_addr))
    pager().fault(*page, is_write(context));
  else  // the access faults again, and whoever handled that before does so now
    sigaction(signal, &previous_action, nullptr);
}

void install_handler() {
  [[maybe_unused]] static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &previous_action) == 0;
  }();
}

template <class Visit>
void for_pages(const void* address, std::size_t bytes, Visit visit) noexcept {
  const Spin spin;
  Page* const first = pager().find_page(address);
  Page* const last = pager().find_page(static_cast<const char*>(address) + bytes - 1);
  if (!first || !last || first->region != last->region) return;  // freed since the work was queued
  for (Page* page = first; page <= last; ++page) visit(*page);
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

DeviceView::DeviceView(int device) noexcept : active_(in_use.load(std::memory_order_relaxed)) {
  if (!active_) return;
  const Spin spin;
  if (pager().workers++ == 0) pager().set_view(device);
}
DeviceView::~DeviceView() {
  if (!active_) return;
  const Spin spin;
  --pager().workers;  // the view stays until the next synchronising call: launches in a row cost nothing
}

void managed_host_view() noexcept {
  if (!in_use.load(std::memory_order_relaxed)) return;
  const Spin spin;
  if (pager().workers == 0) pager().set_view(on_host);
}

void* managed_allocate(std::size_t bytes) {
  install_handler();
  auto made = std::make_unique<Region>(bytes);
  const Spin spin;
  Region& region = *(pager().regions[made->base] = std::move(made));
  pager().show(region);  // fresh: closed to everybody
  in_use = true;
  return region.base;
}

bool managed_holds(const void* address) noexcept {
  const Spin spin;
  return pager().find_page(address) != nullptr;
}

void managed_free(void* address) noexcept {
  const Spin spin;
  const auto region = pager().regions.extract(static_cast<const char*>(address));
  for (Page& page : region.mapped()->pages) pager().move(page, on_host);
  in_use = !pager().regions.empty();
  if (!in_use) pager().view = on_host;
}

std::size_t managed_resident(int device) noexcept {
  const Spin spin;
  return pager().residents[device].size() * page_bytes;
}

void managed_set_limit(int device, std::size_t bytes) noexcept {
  const Spin spin;
  pager().limits[device] = bytes;
  pager().evict_to(device, bytes);
}

PagingCounters take_paging_counters() noexcept {
  const Spin spin;
  return std::exchange(pager().counters, {});
}

}  // namespace oomlab::host

using namespace oomlab::host;

cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation where, unsigned int flags,
                                 cudaStream_t handle) {
  return entry("cudaMemPrefetchAsync", [&] {
    CUstream_st& stream = find_stream(handle);
    require(flags == 0);
    const int place = place_of(address, bytes, where);
    if (runtime().planning) return;
    execute(stream, [=] {
      for_pages(address, bytes, [place, &counters = pager().counters](Page& page) {
        const std::uint64_t moved = counters.bytes_to_device;
        pager().bring(page, place);
        page.prefetched = static_cast<std::int8_t>(place);
        counters.bytes_prefetched += counters.bytes_to_device - moved;
      });
    });
  });
}

cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation where) {
  return entry("cudaMemAdvise", [&] {
    require(advice == cudaMemAdviseSetReadMostly || advice == cudaMemAdviseSetPreferredLocation ||
            advice == cudaMemAdviseSetAccessedBy);
    const bool anywhere = advice == cudaMemAdviseSetReadMostly;
    const int place = place_of(address, bytes, anywhere ? cudaMemLocation{cudaMemLocationTypeHost, 0} : where);
    if (runtime().planning) return;
    for_pages(address, bytes, [&](Page& page) {
      if (anywhere)
        page.read_mostly = true;
      else if (advice == cudaMemAdviseSetPreferredLocation)
        page.preferred = static_cast<std::int8_t>(place);
      else if (place != on_host)
        page.mapped_by |= std::uint64_t(1) << place;
      pager().show(page);
    });
  });
}

// In plan mode, too, a range is checked; its pages have no place.
cudaError_t cudaMemRangeGetAttribute(void* data, size_t data_bytes, cudaMemRangeAttribute attribute,
                                     const void* address, size_t bytes) {
  return entry("cudaMemRangeGetAttribute", [&] {
    const bool sent = attribute == cudaMemRangeAttributeLastPrefetchLocation;
    require(data && data_bytes == sizeof(int) && (sent || attribute == cudaMemRangeAttributePreferredLocation));
    (void)place_of(address, bytes, {cudaMemLocationTypeHost, 0});
    std::optional<int> all;  // of all pages, if it is the same
    for_pages(address, bytes, [&](const Page& page) {
      const int own = sent ? page.prefetched : page.preferred;
      all = all.value_or(own) == own ? own : nowhere;
    });
    *static_cast<int*>(data) = all.value_or(nowhere);
  });
}
