#include "trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>

#include "pickle.h"
#include "plan/bytes.h"

namespace oomlab::bench {
namespace {

constexpr std::size_t kMostBytes = std::size_t(1) << 40;  // live at a time: no device has a tebibyte
constexpr std::size_t kMostLine = std::size_t(1) << 20;

/// Lines of a text, and complaints that say where.
class Lines {
 public:
  Lines(std::string_view text, const std::string& name) : text_(text), name_(name) {}
  bool next(std::string_view& line) {
    if (text_.empty()) return false;
    ++number_;
    const std::size_t end = text_.find('\n');
    line = text_.substr(0, end);
    if (line.size() > kMostLine) fail("has more than a million characters");
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw TraceError(fmt::format("{}, line {}: {}", name_, number_, what));
  }
  std::uint64_t number(std::string_view field, const char* what, int base = 10) const {
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    if (base == 16 && field.size() > 2 && field[0] == '0' && (field[1] == 'x' || field[1] == 'X'))
      field.remove_prefix(2);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, base);
    if (error != std::errc() || end != field.data() + field.size() || field.empty())
      fail(fmt::format("'{}' is no {}", field.substr(0, 40), what));
    return value;
  }
  std::size_t bytes(std::string_view field, std::size_t scale = 1) const {
    const std::uint64_t value = number(field, "size");
    if (value == 0) fail("a size of 0");
    if (value > kMostBytes / scale) fail(fmt::format("a size of {} is more than a tebibyte", value));
    return value * scale;
  }
  std::vector<std::string_view> fields(std::string_view line, std::size_t count) const {
    std::vector<std::string_view> result;
    for (std::size_t start = 0;;) {
      const std::size_t comma = line.find(',', start);
      result.push_back(line.substr(start, comma - start));
      if (comma == std::string_view::npos) break;
      start = comma + 1;
    }
    if (result.size() != count) fail(fmt::format("has {} fields, not {}", result.size(), count));
    return result;
  }

 private:
  std::string_view text_;
  const std::string& name_;
  std::size_t number_ = 0;
};

struct SnapshotEvent {
  std::string action;
  std::uint64_t address, stream;
  std::size_t bytes;
};

// The trace of the device that has the most events.
std::vector<SnapshotEvent> parse(std::string_view bytes, const std::string& name) {
  Unpickler unpickler(bytes, name);
  Ref root = nullptr;
  try {
    root = unpickler.load();
  } catch (const std::bad_alloc&) {
    throw TraceError(name + ": is too large");
  }
  const auto* dict = std::get_if<Dict>(&root->is);
  const auto traces = dict ? dict->find("device_traces") : Dict::const_iterator();
  const List* devices = dict && traces != dict->end() ? std::get_if<List>(&traces->second->is) : nullptr;
  if (!devices) throw TraceError(name + ": has no device_traces");
  const List* longest = nullptr;
  for (const Ref device : *devices) {
    const auto* list = std::get_if<List>(&device->is);
    if (!list) throw TraceError(name + ": device_traces is no list of lists");
    if (!longest || list->size() > longest->size()) longest = list;
  }
  std::vector<SnapshotEvent> events;
  if (!longest) return events;
  std::size_t index = 0;
  for (const Ref entry : *longest) {
    const auto* fields = std::get_if<Dict>(&entry->is);
    const auto complain = [&](const std::string& what) {
      throw TraceError(fmt::format("{}, event {}: {}", name, index, what));
    };
    if (!fields) complain("is no dictionary");
    const auto integer = [&](const char* key) -> std::uint64_t {
      const auto found = fields->find(key);
      const auto* value = found == fields->end() ? nullptr : std::get_if<std::int64_t>(&found->second->is);
      if (!value) return 0;
      if (*value < 0 && std::string_view(key) == "size") complain("a negative size");
      return static_cast<std::uint64_t>(*value);
    };
    const auto action = fields->find("action");
    const auto* text = action == fields->end() ? nullptr : std::get_if<std::string>(&action->second->is);
    if (!text) complain("has no action");
    events.push_back({*text, integer("addr"), integer("stream"), integer("size")});
    if (events.back().bytes > kMostBytes) complain("a size of more than a tebibyte");
    ++index;
  }
  return events;
}

// What a replay could not hold, whatever was freed or allocated before: also blocks that were live from the beginning.
void require_possible(const Trace& trace) {
  std::size_t live = 0;
  for (const TraceEvent& e : trace.events) {
    live = e.allocates ? live + e.bytes : live - e.bytes;
    if (live > kMostBytes) throw TraceError(trace.name + ": more than a tebibyte is live at a time");
  }
}

}  // namespace

std::size_t Trace::live_peak() const {
  std::size_t live = 0, peak = 0;
  for (const TraceEvent& e : events) {
    const std::size_t bytes = round_to_granule(e.bytes);
    live = e.allocates ? live + bytes : live - bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

Trace parse_rmm_csv(std::string_view text, const std::string& name) {
  Trace trace{name, 0, {}};
  Lines lines(text, name);
  std::string_view line;
  if (!lines.next(line)) throw TraceError(name + ": is empty");
  if (line != "Thread,Time,Action,Pointer,Size,Stream") lines.fail("is not RMM's header");
  std::unordered_map<std::uint64_t, TraceEvent> live;
  while (lines.next(line)) {
    if (line.empty()) continue;
    const auto f = lines.fields(line, 6);
    if (f[2] == "allocate failure" || f[2] == "allocation failure") continue;
    const std::uint64_t pointer = lines.number(f[3], "pointer", 16);
    if (f[2] == "allocate") {
      const TraceEvent event{true, trace.blocks, lines.bytes(f[4]), lines.number(f[5], "stream", 16)};
      if (!live.emplace(pointer, event).second) lines.fail(fmt::format("{:#x} is allocated already", pointer));
      ++trace.blocks;
      trace.events.push_back(event);
    } else if (f[2] == "free") {
      const auto found = live.find(pointer);
      if (found == live.end()) lines.fail(fmt::format("{:#x} is freed, but it is not allocated", pointer));
      TraceEvent event = found->second;
      event.allocates = false;
      event.stream = lines.number(f[5], "stream", 16);
      live.erase(found);
      trace.events.push_back(event);
    } else {
      lines.fail(fmt::format("'{}' is no action", f[2].substr(0, 40)));
    }
  }
  require_possible(trace);
  return trace;
}

Trace parse_minimalloc_csv(std::string_view text, const std::string& name, std::size_t scale) {
  Trace trace{name, 0, {}};
  Lines lines(text, name);
  std::string_view line;
  if (!lines.next(line)) throw TraceError(name + ": is empty");
  if (line != "id,lower,upper,size") lines.fail("is not MiniMalloc's header");
  std::vector<std::tuple<std::uint64_t, bool, std::size_t>> times;  // at one time, frees (false) first
  std::vector<std::size_t> sizes;
  while (lines.next(line)) {
    if (line.empty()) continue;
    const auto f = lines.fields(line, 4);
    const std::uint64_t lower = lines.number(f[1], "time"), upper = lines.number(f[2], "time");
    if (lower >= upper) lines.fail(fmt::format("lives from {} to {}", lower, upper));
    const std::size_t id = sizes.size();
    sizes.push_back(lines.bytes(f[3], scale));
    times.emplace_back(lower, true, id);
    times.emplace_back(upper, false, id);
  }
  std::sort(times.begin(), times.end());
  trace.blocks = sizes.size();
  for (const auto& [time, allocates, id] : times) trace.events.push_back({allocates, id, sizes[id], 0});
  require_possible(trace);
  return trace;
}

Trace parse_snapshot(std::string_view bytes, const std::string& name) {
  const std::vector<SnapshotEvent> events = parse(bytes, name);
  Trace trace{name, 0, {}};
  // A block that is freed and was never allocated was live before recording began.
  std::map<std::uint64_t, bool> seen;
  std::unordered_map<std::uint64_t, TraceEvent> live;
  const auto begin = [&](const SnapshotEvent& e) {
    const TraceEvent event{true, trace.blocks++, e.bytes, e.stream};
    live[e.address] = event;
    trace.events.push_back(event);
  };
  for (const SnapshotEvent& e : events) {
    if (e.action == "alloc") seen[e.address] = true;
    if (e.action == "free_completed" && !std::exchange(seen[e.address], true) && e.bytes) begin(e);
  }
  std::size_t index = 0;
  for (const SnapshotEvent& e : events) {
    if (e.action == "alloc") {
      if (!e.bytes) throw TraceError(fmt::format("{}, event {}: a size of 0", name, index));
      if (live.count(e.address))
        throw TraceError(fmt::format("{}, event {}: {:#x} is allocated already", name, index, e.address));
      begin(e);
    } else if (e.action == "free_completed") {
      const auto found = live.find(e.address);
      if (found == live.end())
        throw TraceError(fmt::format("{}, event {}: {:#x} is freed, but it is not allocated", name, index, e.address));
      TraceEvent event = found->second;
      event.allocates = false;
      live.erase(found);
      trace.events.push_back(event);
    }
    ++index;
  }
  require_possible(trace);
  return trace;
}

Trace read_trace(const std::string& path, std::size_t minimalloc_scale) {
  const std::string bytes = read_file(path, std::size_t(4) << 30);
  const std::string name = path.substr(path.find_last_of('/') + 1);
  if (!bytes.empty() && static_cast<unsigned char>(bytes[0]) == 0x80) return parse_snapshot(bytes, name);
  if (bytes.starts_with("id,")) return parse_minimalloc_csv(bytes, name, minimalloc_scale);
  return parse_rmm_csv(bytes, name);
}

std::string rmm_csv(const Trace& trace) {
  std::string text = "Thread,Time,Action,Pointer,Size,Stream\n";
  std::size_t time = 0;
  for (const TraceEvent& e : trace.events)
    text += fmt::format("0,{},{},{:#x},{},{:x}\n", time++, e.allocates ? "allocate" : "free", (e.id + 1) * kGranule,
                        e.bytes, e.stream);
  return text;
}

}  // namespace oomlab::bench
