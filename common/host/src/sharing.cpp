// Devices that several processes share: one accounting in a file that all of them have mapped.
//
// A process has a slot, with its bytes of each device. Only the process itself changes them, one store at a time, so
// the books are right whenever it is killed; and the mutex is robust: whoever comes next takes over from one that died
// with it. The slot and the bytes of a process that is gone are free: whoever needs memory, or asks for it, looks. A
// process is known by its number and by when it started, because numbers come again.
//
// Coming and going is guarded by flock(). The first one in makes the books, the last one out removes the file; when all
// are killed, a file with a name stays, until somebody comes again, and goes.
//
// Who is stopped while it has one of the two locked would keep all others waiting: after Machine::patience they give
// up.

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "runtime.h"

namespace oomlab::host {
namespace {

constexpr std::uint64_t ready = 0x3030'6265'4c6d'6f4f;
constexpr int most_sharers = 64;

struct Slot {
  std::atomic<pid_t> pid;  // 0: free
  std::uint64_t start;     // of the process, in the system's clock ticks
  std::size_t bytes[most_devices];
};
struct Books {
  int devices;
  std::size_t capacity;  // of each
  pthread_mutex_t mutex;
  std::uint64_t state;  // `ready`, once all of it is made
  Slot slots[most_sharers];
};

Books* books = nullptr;  // null: this process has not joined yet, or shares nothing
Slot* mine = nullptr;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::invalid_argument("OOMLAB_HOST_SHARED='" + path + "': " + why);
}

// Asks again and again, and does not wait to be woken: a process that is killed when it has given the mutex back, and
// has not woken the next one yet, did not die as its owner, and whoever waits would sleep for ever.
template <class Taken>
void wait_until(const Machine& machine, Taken taken) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + machine.patience; !taken(); usleep(50))
    if (Clock::now() > end)
      refuse(machine.shared, "a process that shares the devices has kept them locked for " +
                                 std::to_string(machine.patience.count()) + " ms; is one stopped?");
}

struct Door {  // the file, and for this scope the right to come or go
  explicit Door(const Machine& machine) {
    const std::string& path = machine.shared;
    do {
      if (file >= 0) close(file);  // the last one out has just removed what was opened
      file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (file < 0 || fstat(file, &opened)) refuse(path, std::strerror(errno));
      try {
        wait_until(machine, [&] { return flock(file, LOCK_EX | LOCK_NB) == 0; });
      } catch (...) {
        close(file);
        throw;
      }
    } while (stat(path.c_str(), &named) || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev);
  }
  ~Door() { (void)flock(file, LOCK_UN), close(file); }  // a mapping keeps a file open, and locked
  int file = -1;
  struct stat opened = {}, named = {};
};

struct Lock {
  explicit Lock(const Machine& machine) {
    int taken = EBUSY;
    wait_until(machine, [&] { return (taken = pthread_mutex_trylock(&books->mutex)) != EBUSY; });
    if (taken == EOWNERDEAD) pthread_mutex_consistent(&books->mutex);
  }
  ~Lock() { pthread_mutex_unlock(&books->mutex); }
};

template <class Work>
auto in_order(const Machine& machine, Work work) {
  const Lock lock(machine);
  return work();
}

// When a process started; 0 when it is over, though its parent may not have asked yet. And its name.
std::uint64_t start_of(pid_t pid, std::string* name = nullptr) {
  std::string text;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
  const std::size_t first = text.find('('), last = text.rfind(')');  // a name may have anything in it
  if (last == text.npos || std::strchr("ZX", text[last + 2])) return 0;
  if (name) *name = text.substr(first + 1, last - first - 1);
  std::size_t at = last + 1;  // of the space before field 3; the start is field 22
  for (int field = 3; field < 22 && at != text.npos; ++field) at = text.find(' ', at + 1);
  return at == text.npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

// The processes of the slots as files that can be read when one is over: asking for all of them is one call, and it is
// asked at every allocation that the harness watches. What /proc says takes a thousand times as long, and the others
// wait.
struct Watched {
  pid_t pid = 0;
  std::uint64_t start = 0;
  int file = -1;
};
Watched watched[most_sharers];

void watch(Watched& one, pid_t pid, std::uint64_t start) {
  if (one.pid == pid && one.start == start) return;
  if (one.file >= 0) close(one.file);
  one = {pid, start, pid ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1};
  if (one.file < 0 || start_of(pid) == start) return;
  close(one.file);  // the number is another process's by now
  one.file = -1;
}

// With the lock: frees the slots of processes that are gone. How many are left, this one's included.
int bury_the_dead() {
  pollfd ends[most_sharers];
  for (int i = 0; i < most_sharers; ++i) {
    Slot& slot = books->slots[i];
    const pid_t pid = &slot == mine ? 0 : slot.pid.load();
    watch(watched[i], pid, pid ? slot.start : 0);
    ends[i] = {watched[i].file, POLLIN, 0};
  }
  const bool asked = poll(ends, most_sharers, 0) >= 0;
  int alive = 0;
  for (int i = 0; i < most_sharers; ++i) {
    Slot& slot = books->slots[i];
    const pid_t pid = slot.pid.load();
    if (pid && &slot != mine)
      if (asked && ends[i].fd >= 0 ? ends[i].revents != 0 : start_of(pid) != slot.start) slot.pid = 0;
    alive += slot.pid.load() != 0;
  }
  return alive;
}

std::size_t held(int device) {
  std::size_t bytes = 0;
  for (const Slot& slot : books->slots) bytes += slot.pid.load() ? slot.bytes[device] : 0;
  return bytes;
}

// Before main(): a file without a name.
[[maybe_unused]] const bool nameless = [] {
  const char* const wanted = std::getenv("OOMLAB_HOST_SHARED");
  const int made = wanted && std::strcmp(wanted, "children") == 0 ? memfd_create("oomlab", 0) : -1;
  const int file = made < 0 ? -1 : fcntl(made, F_DUPFD, 3);  // never in place of a closed standard output
  if (made >= 0) close(made);
  return file >= 0 && !setenv("OOMLAB_HOST_SHARED", ("/proc/self/fd/" + std::to_string(file)).c_str(), 1);
}();

// The child of a fork is another process: it joins by itself, at its first call.
void forget() {
  books = nullptr, mine = nullptr;
  for (Watched& one : watched) watch(one, 0, 0);
}

}  // namespace

void shared_join(const Machine& machine) {
  if (books || machine.shared.empty()) return;
  const Door door(machine);
  const auto require = [&](bool met, const std::string& why) {
    if (!met) forget(), refuse(machine.shared, why);
  };
  require(!door.opened.st_size || door.opened.st_size == sizeof(Books), "is another file");
  const bool grown = !ftruncate(door.file, sizeof(Books));
  require(grown, std::strerror(errno));
  void* const mapped = mmap(nullptr, sizeof(Books), PROT_READ | PROT_WRITE, MAP_SHARED, door.file, 0);
  require(mapped != MAP_FAILED, std::strerror(errno));
  books = static_cast<Books*>(mapped);
  if (books->state != ready || in_order(machine, bury_the_dead) == 0) {  // new, or nobody's
    new (books) Books{machine.devices, machine.capacity, {}, 0, {}};
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&books->mutex, &attributes);
    books->state = ready;
  }
  require(books->devices == machine.devices && books->capacity == machine.capacity,
          "its devices are " + std::to_string(books->devices) + " of " + std::to_string(books->capacity) + " bytes");
  for (Slot& slot : books->slots)  // nobody else comes meanwhile
    if (slot.pid.load() == 0) mine = &slot;
  require(mine, "64 processes share them already");
  [[maybe_unused]] static const bool once = !std::atexit(shared_leave) && !pthread_atfork(nullptr, nullptr, forget);
  std::ranges::fill(mine->bytes, 0);
  mine->start = start_of(getpid());
  mine->pid = getpid();  // from here on it counts
}

void shared_leave() {
  if (!books) return;
  try {
    const Door door(machine());
    mine->pid = 0;
    mine = nullptr;
    if (in_order(machine(), bury_the_dead) == 0) (void)unlink(machine().shared.c_str());
    munmap(books, sizeof(Books));
  } catch (const std::exception&) {  // somebody removed the folder: nobody else will come
  }
  forget();
}

bool shared_take(int device, std::size_t bytes) {
  if (machine().shared.empty()) return true;
  shared_join(machine());
  const Lock lock(machine());
  if (bytes > books->capacity - held(device)) bury_the_dead();
  if (bytes > books->capacity - held(device)) return false;
  mine->bytes[device] += bytes;
  return true;
}

void shared_give(int device, std::size_t bytes) {
  if (!books) return;  // and without the lock: it is one store, and nobody may wait to give
  mine->bytes[device] -= std::min(bytes, mine->bytes[device]);
}

std::size_t shared_by_others(int device) {
  if (machine().shared.empty()) return 0;
  shared_join(machine());
  const Lock lock(machine());
  bury_the_dead();
  return held(device) - mine->bytes[device];
}

std::vector<Sharer> sharers(int device) {
  const std::lock_guard guard(runtime().mutex);
  std::vector<Sharer> all;
  if (shared_by_others(device); !books) return all;
  const Lock lock(machine());
  std::string name;
  for (const Slot& slot : books->slots)
    if (const pid_t pid = slot.pid.load(); pid && slot.bytes[device] && start_of(pid, &name) == slot.start)
      all.push_back({static_cast<unsigned>(pid), slot.bytes[device], name});
  return all;
}

}  // namespace oomlab::host
