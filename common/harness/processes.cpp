#include "harness/processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <thread>

#include "harness/chapter.h"
#include "memory/files.h"

namespace oomlab {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPoll{1}, kSignOfLife{500};
// Nobody computes in the thread that sends signs of life: a process that gives none has ended or is stopped. Only the
// time counts in which this process itself listens: where the machine stood still, all have been silent.
constexpr std::chrono::seconds kSilence{6};

std::unique_ptr<Processes> launched;  // null: this one only

// Values of one process, to be read by another of the same program.
class Packed {
 public:
  template <class T>
  Packed& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packed& put(const std::string& text) {
    put(text.size());
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Unpacked {
 public:
  explicit Unpacked(const std::string& bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value{};
    if constexpr (std::is_same_v<T, std::string>) {
      const auto size = get<std::size_t>();
      need(size);
      value = bytes_.substr(at_, size);
      at_ += size;
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      need(sizeof value);
      std::memcpy(&value, bytes_.data() + at_, sizeof value);
      at_ += sizeof value;
    }
    return value;
  }

 private:
  void need(std::size_t size) const {
    if (size > bytes_.size() - at_) throw std::runtime_error("a message of another process is cut off");
  }
  const std::string& bytes_;
  std::size_t at_ = 0;
};

void pack(Packed& to, const OutOfMemoryReport& r) {
  to.put(static_cast<const OutOfMemoryFigures&>(r));
  to.put(r.tag).put(r.largest_live.size());
  for (const LiveBlock& b : r.largest_live) to.put(b.requested).put(b.bytes).put(b.category).put(b.tag);
}

OutOfMemoryReport unpack_report(Unpacked& from) {
  OutOfMemoryReport r{from.get<OutOfMemoryFigures>(), {}, {}};
  r.tag = from.get<std::string>();
  r.largest_live.resize(from.get<std::size_t>());
  for (LiveBlock& b : r.largest_live) {
    b.requested = from.get<std::size_t>(), b.bytes = from.get<std::size_t>();
    b.category = from.get<Category>(), b.tag = from.get<std::string>();
  }
  return r;
}

// How a body ended: with what it returned, or with an exception.
enum class Ending { returned, out_of_memory, skipped, usage, cannot_run, interrupted, rank_failed, failed };

std::string ending_of(const std::function<std::string()>& body) {
  const auto text = [](Ending ending, const char* what) { return Packed().put(ending).put(std::string(what)).bytes(); };
  try {
    return Packed().put(Ending::returned).put(body()).bytes();
  } catch (const OutOfMemory& error) {
    Packed packed;
    packed.put(Ending::out_of_memory);
    pack(packed, error.report());
    return packed.bytes();
  } catch (const RankFailed& error) {
    Packed packed;
    packed.put(Ending::rank_failed).put(std::string(error.what())).put(error.out_of_memory()).put(error.only_follows());
    return packed.bytes();
  } catch (const VariantSkipped& error) {
    return text(Ending::skipped, error.what());
  } catch (const UsageError& error) {
    return text(Ending::usage, error.what());
  } catch (const BadFile& error) {
    return text(Ending::usage, error.what());
  } catch (const std::length_error& error) {
    return text(Ending::usage, error.what());
  } catch (const CannotRunHere& error) {
    return text(Ending::cannot_run, error.what());
  } catch (const Interrupted& error) {
    return text(Ending::interrupted, error.what());
  } catch (const std::bad_alloc&) {
    return text(Ending::failed, "out of host memory (std::bad_alloc)");
  } catch (const std::exception& error) {
    return text(Ending::failed, error.what());
  }
}

bool only_follows(const std::string& ending) {
  Unpacked packed(ending);
  if (packed.get<Ending>() != Ending::rank_failed) return false;
  (void)packed.get<std::string>(), (void)packed.get<bool>();
  return packed.get<bool>();
}

// What the body returned; throws what it threw.
std::string outcome_of(const std::string& ending) {
  Unpacked packed(ending);
  const auto kind = packed.get<Ending>();
  if (kind == Ending::out_of_memory) throw OutOfMemory(unpack_report(packed));
  auto text = packed.get<std::string>();
  switch (kind) {
    case Ending::returned: return text;
    case Ending::skipped: throw VariantSkipped(text);
    case Ending::usage: throw UsageError(text);
    case Ending::cannot_run: throw CannotRunHere(text);
    case Ending::interrupted: throw Interrupted();
    case Ending::rank_failed: {
      const bool out_of_memory = packed.get<bool>();
      throw RankFailed(text, out_of_memory, packed.get<bool>());
    }
    case Ending::out_of_memory:
    case Ending::failed: break;
  }
  throw std::runtime_error(text);
}

bool failed_in(const std::string& ending) { return Unpacked(ending).get<Ending>() != Ending::returned; }

// Nothing can be unwound: the body's thread may wait for the process that is lost.
[[noreturn]] void give_up(int process) {
  std::fprintf(stderr, "rank %d: the process has not answered for %d seconds; rank %d ends the job\n", process,
               static_cast<int>(kSilence.count()), processes().rank());
  processes().abort(1);
  std::_Exit(1);
}

// One call of on_all_processes() in this process. A message is the number of the call, and an ending, or nothing: a
// sign of life. A process may be one call ahead of another; what it says is kept for then.
class Meeting {
 public:
  explicit Meeting(std::atomic<bool>* failed) : failed_(failed), number_(next_++) {
    endings_.resize(std::size_t(processes().size()));
    silent_.resize(endings_.size());
    if (const auto early = early_.find(number_); early != early_.end()) {
      for (auto& [from, ending] : early->second) end(from, std::move(ending));
      early_.erase(early);
    }
  }
  void end(int process, std::string ending) {
    if (failed_ && failed_in(ending)) *failed_ = true;
    endings_[std::size_t(process)] = std::move(ending);
  }
  void tell_all(const std::string& ending) {
    for (int to = 0; to < processes().size(); ++to)
      if (to != processes().rank()) processes().send(to, Packed().put(number_).put(ending).bytes());
  }
  /// Takes what has come. Returns true when all have ended.
  bool listen() {
    while (const auto message = processes().receive()) {
      Unpacked packed(message->second);
      const auto number = packed.get<std::uint64_t>();
      auto ending = packed.get<std::string>();
      silent_[std::size_t(message->first)] = {};
      if (ending.empty()) continue;
      number == number_ ? end(message->first, std::move(ending))
                        : void(early_[number].emplace_back(message->first, std::move(ending)));
    }
    const Clock::time_point now = Clock::now();
    if (now - told_ > kSignOfLife) {
      tell_all("");
      told_ = now;
    }
    const Clock::duration passed = std::min<Clock::duration>(now - listened_, 100 * kPoll);
    listened_ = now;
    bool all = true;
    for (std::size_t i = 0; i < endings_.size(); ++i) {
      all &= !endings_[i].empty();
      if (int(i) != processes().rank() && (silent_[i] += passed) > kSilence) give_up(static_cast<int>(i));
    }
    return all;
  }
  /// By process; throws what the first one threw that did not only follow from another's.
  std::vector<std::string> outcomes() const {
    for (const bool follows : {false, true})
      for (const std::string& ending : endings_)
        if (failed_in(ending) && only_follows(ending) == follows) (void)outcome_of(ending);
    std::vector<std::string> all;
    for (const std::string& ending : endings_) all.push_back(outcome_of(ending));
    return all;
  }

 private:
  static inline std::uint64_t next_ = 0;
  static inline std::map<std::uint64_t, std::vector<std::pair<int, std::string>>> early_;
  std::atomic<bool>* failed_;
  std::uint64_t number_;
  std::vector<std::string> endings_;     // by process; empty: not yet
  std::vector<Clock::duration> silent_;  // since when nothing has come
  Clock::time_point told_{}, listened_ = Clock::now();
};

}  // namespace

void Processes::abort(int exit_code) { std::_Exit(exit_code); }

bool started_by_launcher() {
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE"})
    if (const char* text = std::getenv(size); text && std::strtol(text, nullptr, 10) > 1) return true;
  return false;
}

Processes& processes() {
  static Processes alone;
  return launched ? *launched : alone;
}
ProcessScope::ProcessScope() {
  if (started_by_launcher()) launched = join_launcher();
}
ProcessScope::~ProcessScope() { launched.reset(); }

std::vector<std::string> on_all_processes(const std::function<std::string()>& body, std::atomic<bool>* failed) {
  if (processes().size() == 1) return {body()};
  Meeting meeting(failed);
  std::string mine;
  std::atomic<bool> done{false};
  std::thread worker([&] {
    mine = ending_of(body);
    done = true;
  });
  for (bool told = false; !meeting.listen() || !told; std::this_thread::sleep_for(kPoll)) {
    if (told || !done) continue;
    meeting.tell_all(mine);
    meeting.end(processes().rank(), mine);
    told = true;
  }
  worker.join();
  return meeting.outcomes();
}

void made_by_the_first_process(void* data, std::size_t bytes, const std::function<void()>& make) {
  if (processes().size() == 1) return make();
  const std::string made = on_first_process([&] {
    make();
    return std::string(static_cast<const char*>(data), bytes);
  });
  std::memcpy(data, made.data(), bytes);
}

std::string on_first_process(const std::function<std::string()>& body) {
  return on_all_processes([&] { return processes().rank() == 0 ? body() : std::string(); }).front();
}

}  // namespace oomlab
