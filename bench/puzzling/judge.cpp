// The judge's main program: bench/puzzle starts it, in a folder that is empty.
//   judge SEED run|small|fail:K DESCRIPTOR
// run: everything; small: small sizes; fail: small sizes, and the K-th call of the reader's that can fail does.
// What it found goes to the descriptor, a line of JSON.

#include "judge.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <random>

#include "watch.h"
#ifdef OOMLAB_HOST_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (void)(address), (void)(bytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (void)(address), (void)(bytes)
#endif

namespace oomlab::puzzle {
namespace {

std::mt19937_64& generator() {
  static std::mt19937_64 instance;
  return instance;
}
bool small_sizes = false;
int channel = -1;
std::string passed_cases;  // JSON

// A program that ends by itself, with a code that says so, has read what its call returned.
void at_exit() {
  if (watch().injected) end("noticed", "\"by\": \"exit\"");
  end("ended_early", "\"case\": " + quoted(watch().case_name));
}

// What a device array of so many bytes has now.
std::vector<char> read_back(std::uintptr_t address, std::size_t bytes) {
  std::vector<char> values(bytes);
  if (const cudaError_t error =
          cudaMemcpy(values.data(), reinterpret_cast<void*>(address), bytes, cudaMemcpyDeviceToHost))
    end("judge", "\"what\": " + quoted(cudaGetErrorName(error)));
  return values;
}

void check_end(const char* thrown) {
  Watch& w = watch();
  const std::string where = "\"case\": " + quoted(w.case_name);
  if (w.injected) {
    const std::string what = "\"call\": " + quoted(w.failure.call) + ", \"line\": " + std::to_string(w.failure.line);
    if (thrown || w.allowed.failed_allocations) end("noticed", what);
    end("unread", where + ", " + what);
  }
  if (thrown && !w.out_of_memory.empty()) end("over_budget", where + ", " + w.out_of_memory);
  if (thrown)
    end("threw", where + ", \"what\": " + quoted(thrown) + ", \"call\": " + quoted(w.failure.call) + ", \"line\": " +
                     std::to_string(w.failure.line) + (w.bad_launch.empty() ? "" : ", \"launch\": " + w.bad_launch));
  if (w.failure.error && !w.allowed.failed_allocations) end_unread();
  if (const cudaError_t error = cudaDeviceSynchronize())
    end("threw", where + ", \"what\": " + quoted(cudaGetErrorName(error)));
  if (host_peak() > w.allowed.host_bytes)
    end("host_bytes", where + ", \"bytes\": " + std::to_string(host_peak()) +
                          ", \"allowed\": " + std::to_string(w.allowed.host_bytes));
  if (w.launches == 0 && !w.allowed.no_kernel) end("no_kernel", where);
  if (w.launches && w.fewest_threads < w.allowed.threads)
    end("few_threads", where + ", \"count\": " + std::to_string(w.fewest_threads) +
                           ", \"allowed\": " + std::to_string(w.allowed.threads));
  if (w.launches > w.allowed.launches)
    end("launches",
        where + ", \"count\": " + std::to_string(w.launches) + ", \"allowed\": " + std::to_string(w.allowed.launches));
  if (w.synchronisations > w.allowed.synchronisations)
    end("synchronisations", where + ", \"count\": " + std::to_string(w.synchronisations) +
                                ", \"allowed\": " + std::to_string(w.allowed.synchronisations));
  for (const auto& [address, block] : w.blocks)
    if (overrun(address, block)) end_overrun(block);
  for (const auto& [address, block] : w.blocks)
    if (!block.input.empty() && read_back(address, block.input.size()) != block.input)
      end("input_changed", where + ", \"name\": " + quoted(block.name));
  for (const auto& [address, block] : w.blocks)
    if (block.line != 0 && !w.allowed.keeps_memory) end("leak", where + ", \"blocks\": " + blocks_as_json());
}

}  // namespace

Watch& watch() {
  alignas(Watch) static char
      storage[sizeof(Watch)];  // operator new asks for it, so it is not made by that; and it is never destroyed
  static Watch& instance = *new (storage) Watch;
  return instance;
}

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", unsigned(static_cast<unsigned char>(c)));
    if (static_cast<unsigned char>(c) < 0x20)
      json += escaped;
    else if (c == '"' || c == '\\')
      (json += '\\') += c;
    else
      json += c;
  }
  return json + '"';
}

std::string blocks_as_json() {
  std::string json = "[";
  for (const auto& [address, block] : watch().blocks) {
    if (block.pinned) continue;
    json += std::string(json.size() > 1 ? ", " : "") + "{\"name\": " + quoted(block.name) +
            ", \"line\": " + std::to_string(block.line) + ", \"bytes\": " + std::to_string(block.bytes) + "}";
  }
  return json + "]";
}

void end(const std::string& kind, const std::string& fields) {
  static std::atomic_flag ended;  // several threads of a kernel may crash at a time
  while (ended.test_and_set()) pause();
  const Failure& failure = watch().failure;
  if (watch().injected && kind != "noticed" && kind != "unread")  // whatever it is, it comes of that
    end("unread", "\"call\": " + quoted(failure.call) + ", \"line\": " + std::to_string(failure.line));
  const std::string line = "{\"kind\": " + quoted(kind) + (fields.empty() ? "" : ", " + fields) + "}\n";
  std::fflush(stdout);
  for (std::size_t written = 0; written < line.size();) {
    const ssize_t n = write(channel, line.data() + written, line.size() - written);
    if (n <= 0) break;
    written += std::size_t(n);
  }
  _exit(kind == "passed" || kind == "noticed" ? 0 : 1);
}

void end_overrun(const Block& block) {
  end("overrun", "\"case\": " + quoted(watch().case_name) + ", \"name\": " + quoted(block.name) +
                     ", \"bytes\": " + std::to_string(block.asked));
}

void end_unread() {
  const Watch& w = watch();
  end("unread", "\"case\": " + quoted(w.case_name) + ", \"call\": " + quoted(w.failure.call) +
                    ", \"line\": " + std::to_string(w.failure.line) +
                    (w.out_of_memory.empty() ? "" : ", \"oom\": {" + w.out_of_memory + "}"));
}

bool small() { return small_sizes; }
int random_between(int low, int high) { return low + int(generator()() % std::uint64_t(high - low + 1)); }
std::vector<float> random_numbers(std::size_t count, float scale) {
  std::vector<float> numbers(count);
  for (float& x : numbers) x = (float(generator()() >> 40) + 0.5f) / float(1 << 23) * scale - scale;
  return numbers;
}

void refuse(const std::string& english, const std::string& chinese) {
  end("rule",
      "\"case\": " + quoted(watch().case_name) + ", \"en\": " + quoted(english) + ", \"zh\": " + quoted(chinese));
}

Case::Case(const std::string& name, std::size_t budget, const Allowed& allowed) {
  Watch& w = watch();
  w.case_name = name;
  w.budget = budget;
  w.allowed = allowed;
  w.peak = w.live;
  w.visit = nullptr;
}
Case::~Case() {
  Watch& w = watch();
  w.visit = nullptr;
  w.forbidden.clear();
  for (auto next = w.blocks.begin(); next != w.blocks.end();) {
    if (next->second.line != 0) end("leak", "\"case\": " + quoted(w.case_name) + ", \"blocks\": " + blocks_as_json());
    w.live -= next->second.bytes;
    end_guarding(next->first, next->second);
    (void)cudaFree(reinterpret_cast<void*>(next->first));
    next = w.blocks.erase(next);
  }
  if (w.failing && w.calls < w.failing) return;
  passed_cases += std::string(passed_cases.empty() ? "" : ", ") + "{\"case\": " + quoted(w.case_name) +
                  ", \"budget\": " + std::to_string(w.budget) + ", \"peak\": " + std::to_string(w.peak) + "}";
}

void* Case::given_bytes(const char* name, const void* values, std::size_t bytes) {
  Watch& w = watch();
  void* address = nullptr;
  const std::size_t storage = guarded_size(bytes);
  if (const cudaError_t error = cudaMalloc(&address, storage))
    end("judge", "\"what\": " + quoted(cudaGetErrorName(error)));
  const cudaError_t error =
      values ? cudaMemcpy(address, values, bytes, cudaMemcpyHostToDevice) : cudaMemset(address, 0xff, bytes);
  if (error) end("judge", "\"what\": " + quoted(cudaGetErrorName(error)));
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  begin_guarding(place, w.blocks[place] = {name, 0, bytes, counted(bytes), storage, false});
  w.live += counted(bytes);
  w.peak = std::max(w.peak, w.live);
  return address;
}
void Case::keep_input(const void* address) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  Block& block = watch().blocks.at(place);
  block.input = read_back(place, block.asked);
}
void Case::refill_bytes(void* device, const void* values, std::size_t bytes) {
  if (const cudaError_t error = cudaMemcpy(device, values, bytes, cudaMemcpyHostToDevice))
    end("judge", "\"what\": " + quoted(cudaGetErrorName(error)));
  if (!watch().blocks.at(reinterpret_cast<std::uintptr_t>(device)).input.empty()) keep_input(device);
}
void Case::forbid(const void* from, std::size_t bytes) {
  watch().forbidden.emplace_back(const_cast<void*>(from), bytes);
}
void Case::read_bytes(void* to, const void* device, std::size_t bytes) const {
  if (const cudaError_t error = cudaMemcpy(to, device, bytes, cudaMemcpyDeviceToHost))
    end("judge", "\"what\": " + quoted(cudaGetErrorName(error)));
}

void Case::call(const std::function<void()>& readers) {
  Watch& w = watch();
  w.launches = w.synchronisations = 0;
  w.fewest_threads = UINT_MAX;
  w.failure = {};
  w.out_of_memory.clear();
  w.bad_launch.clear();
  w.last_error = cudaSuccess;
  begin_host_peak();
  std::string what;
  bool threw = false;
  for (const auto& [address, bytes] : w.forbidden) ASAN_POISON_MEMORY_REGION(address, bytes);
  guard(w.blocks, true);
  w.in_reader = true;
  try {
    readers();
  } catch (const std::exception& error) {
    threw = true;
    what = error.what();
  } catch (...) {
    threw = true;
    what = "?";
  }
  w.in_reader = false;
  guard(w.blocks, false);
  if (!w.forbidden.empty()) (void)cudaDeviceSynchronize();  // what is put off belongs to it; an error shows below
  for (const auto& [address, bytes] : w.forbidden) ASAN_UNPOISON_MEMORY_REGION(address, bytes);
  check_end(threw ? what.c_str() : nullptr);
}

std::string Case::place(const Places& places, std::size_t index) {
  const auto number = [](std::size_t n) { return std::to_string(n); };
  const std::size_t width = places.width;
  const std::string where = width ? number(index / width) + "][" + number(index % width) : number(index),
                    count = width ? number(places.count / width) + " x " + number(width) : number(places.count);
  return "\"case\": " + quoted(watch().case_name) + ", \"what\": " + quoted(places.name + ("[" + where) + "]") +
         ", \"count\": " + quoted(count);
}
void Case::never_written(const Places& places, std::size_t index) const { end("unwritten", place(places, index)); }
void Case::differs(const Places& places, std::size_t index, double got, double wanted) const {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, ", \"got\": \"%.9g\", \"wanted\": \"%.9g\"", got, wanted);
  end("differs", place(places, index) + numbers);
}

std::size_t Case::live() const { return watch().live; }
std::size_t Case::peak() const { return watch().peak; }
void Case::set_budget(std::size_t bytes) { watch().budget = bytes; }
void Case::at_each_call(std::function<void()> visit) { watch().visit = std::move(visit); }

}  // namespace oomlab::puzzle

int main(int argc, char** argv) {
  using namespace oomlab::puzzle;
  end_static_initialisers();
  const std::string how = argc > 2 ? argv[2] : "";
  generator().seed(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0);
  small_sizes = how != "run";
  if (how.rfind("fail:", 0) == 0) watch().failing = std::strtoull(how.c_str() + 5, nullptr, 10);
  channel = argc > 3 ? std::atoi(argv[3]) : 1;
  std::atexit(at_exit);
  if (std::getenv("OOMLAB_PUZZLE_CONFINED")) confine();
  start_guarding();
  try {
    judge_puzzle();
  } catch (const std::exception& error) {
    end("judge", "\"what\": " + quoted(error.what()));
  }
  end("passed", "\"calls\": " + std::to_string(watch().calls) + ", \"cases\": [" + passed_cases + "]");
}
