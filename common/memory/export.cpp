#include "memory/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/text.h"

namespace oomlab {
namespace {

using Kind = TimelineEvent::Kind;

// -------------------------------------------------------------------------------------------------------------- pickle

// Writes a pickle with the few opcodes that every reader of snapshots knows, and no memo.
class Pickle {
 public:
  Pickle() { out_ += "\x80\x02"; }  // PROTO 2
  std::string finish() {
    out_ += '.';  // STOP
    return std::move(out_);
  }

  void text(std::string_view value) {
    const std::string clean = clean_utf8(value);
    out_ += 'X';  // BINUNICODE
    little_endian(clean.size(), 4);
    out_ += clean;
  }
  void integer(std::uint64_t value) {
    // Protocol integers are signed; nothing that is counted here comes near the largest one.
    value = std::min<std::uint64_t>(value, std::numeric_limits<std::int64_t>::max());
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      out_ += 'J';  // BININT
      little_endian(value, 4);
      return;
    }
    int bytes = 5;  // four hold no more than BININT does: the top bit is the sign
    while (bytes < 8 && (value >> (8 * bytes - 1)) != 0) ++bytes;
    out_ += '\x8a';  // LONG1
    out_ += static_cast<char>(bytes);
    little_endian(value, bytes);
  }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }  // NEWTRUE, NEWFALSE
  void pair(std::uint64_t first, std::uint64_t second) {
    integer(first);
    integer(second);
    out_ += '\x86';  // TUPLE2
  }

  void begin_dict() { out_ += "}("; }  // EMPTY_DICT MARK
  void key(std::string_view name) { text(name); }
  void text(std::string_view name, std::string_view value) { key(name), text(value); }
  void integer(std::string_view name, std::uint64_t value) { key(name), integer(value); }
  void boolean(std::string_view name, bool value) { key(name), boolean(value); }
  void end_dict() { out_ += 'u'; }  // SETITEMS

  // Readers that spread a whole list as arguments of one call break on a long one, so items go in batches.
  class List {
   public:
    explicit List(Pickle& pickle) : out_(pickle.out_) { out_ += ']'; }  // EMPTY_LIST
    void item() {
      if (items_ == kBatch) end();
      if (items_++ == 0) out_ += '(';  // MARK
    }
    void end() {
      if (items_ != 0) out_ += 'e';  // APPENDS
      items_ = 0;
    }

   private:
    static constexpr int kBatch = 1000;
    std::string& out_;
    int items_ = 0;
  };

 private:
  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  std::string out_;
};

std::uint64_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

// The stack that the viewer shows for a block: its tag on top, then the phases it was made in, innermost
// first.
using Frames = std::vector<std::string_view>;

Frames frames_of(std::string_view tag, const Frames& phases) {
  Frames frames = {tag};
  frames.insert(frames.end(), phases.rbegin(), phases.rend());
  return frames;
}

void put_frames(Pickle& pickle, const Frames& frames, const std::string& program) {
  pickle.key("frames");
  Pickle::List list(pickle);
  for (const std::string_view frame : frames) {
    list.item();
    pickle.begin_dict();
    pickle.text("name", frame);
    pickle.text("filename", program);
    pickle.integer("line", 0);
    pickle.end_dict();
  }
  list.end();
}

void put_trace(Pickle& pickle, const Ledger& ledger, const std::string& program,
               std::map<const void*, Frames>& frames_of_live) {
  Pickle::List trace(pickle);
  Frames phases;
  const auto entry = [&](const char* action, const TimelineEvent& event, const Frames& frames) {
    const bool oom = event.kind == Kind::out_of_memory;
    trace.item();
    pickle.begin_dict();
    pickle.text("action", action);
    pickle.integer(oom ? "device_free" : "addr", oom ? event.device_free : number(event.address));
    pickle.integer("size", event.bytes);
    pickle.integer("stream", 0);
    pickle.integer("time_us", static_cast<std::uint64_t>(std::max<std::int64_t>(event.time_us, 0)));
    put_frames(pickle, frames, program);
    pickle.end_dict();
  };
  for (const TimelineEvent& event : ledger.timeline()) {
    switch (event.kind) {
      case Kind::phase_begin: phases.push_back(event.label); break;
      case Kind::phase_end: phases.pop_back(); break;
      case Kind::alloc: {
        const Frames& frames = frames_of_live[event.address] = frames_of(event.label, phases);
        entry("segment_alloc", event, frames);
        entry("alloc", event, frames);
        break;
      }
      case Kind::free: {
        const Frames& frames = frames_of_live[event.address];
        entry("free_requested", event, frames);
        entry("free_completed", event, frames);
        entry("segment_free", event, frames);
        frames_of_live.erase(event.address);
        break;
      }
      case Kind::out_of_memory: entry("oom", event, frames_of(event.label, phases)); break;
      case Kind::processor_work: break;
    }
  }
  trace.end();
}

// Every live block is a segment of its own, with exactly one block.
void put_segments(Pickle& pickle, const Ledger& ledger, int device, const std::string& program,
                  const std::map<const void*, Frames>& frames_of_live) {
  constexpr std::size_t kLargeBytes = std::size_t(1) << 20;
  Pickle::List segments(pickle);
  for (const auto& [address, block] : ledger.live_blocks()) {
    const auto known = frames_of_live.find(address);
    const Frames frames = known != frames_of_live.end() ? known->second : Frames{block.tag};
    segments.item();
    pickle.begin_dict();
    pickle.integer("device", static_cast<std::uint64_t>(device));
    pickle.integer("address", number(address));
    for (const char* key : {"total_size", "allocated_size", "active_size"}) pickle.integer(key, block.bytes);
    pickle.integer("requested_size", block.requested);
    pickle.integer("stream", 0);
    pickle.text("segment_type", block.bytes > kLargeBytes ? "large" : "small");
    pickle.key("segment_pool_id");
    pickle.pair(0, 0);
    pickle.boolean("is_expandable", false);
    put_frames(pickle, frames, program);
    pickle.key("blocks");
    Pickle::List blocks(pickle);
    blocks.item();
    pickle.begin_dict();
    pickle.integer("address", number(address));
    pickle.integer("size", block.bytes);
    pickle.integer("requested_size", block.requested);
    pickle.text("state", "active_allocated");
    put_frames(pickle, frames, program);
    pickle.end_dict();
    blocks.end();
    pickle.end_dict();
  }
  segments.end();
}

}  // namespace

std::string chrome_trace(const Ledger& ledger, int device, const std::string& process_name) {
  const std::vector<TimelineEvent>& timeline = ledger.timeline();
  // Where each phase ends; one that is still open reaches to the last event.
  std::int64_t last_us = 0;
  for (const TimelineEvent& event : timeline) last_us = std::max(last_us, event.time_us);
  std::vector<std::int64_t> end_us(timeline.size(), last_us);
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    if (timeline[i].kind == Kind::phase_begin) open.push_back(i);
    if (timeline[i].kind != Kind::phase_end) continue;
    end_us[open.back()] = timeline[i].time_us;
    open.pop_back();
  }
  const bool reserved_known =
      std::any_of(timeline.begin(), timeline.end(), [](const TimelineEvent& e) { return e.reserved_after != 0; });

  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  const auto add = [&]<class... Values>(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(json), format, std::forward<Values>(values)...);
  };
  add(R"({{"ph":"M","name":"process_name","pid":1,"tid":1,"ts":0,"args":{{"name":{}}}}})", json_string(process_name));
  json +=
      ",\n"
      R"({"ph":"M","name":"thread_name","pid":1,"tid":1,"ts":0,"args":{"name":"phases"}})";
  if (std::ranges::any_of(timeline, [](const TimelineEvent& e) { return e.kind == Kind::processor_work; }))
    json +=
        ",\n"
        R"({"ph":"M","name":"thread_name","pid":1,"tid":2,"ts":0,"args":{"name":"processor"}})";
  ByCategory by_category;
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    const TimelineEvent& event = timeline[i];
    if (event.kind != Kind::phase_end) json += ",\n";
    switch (event.kind) {
      case Kind::phase_end: break;  // part of the slice
      case Kind::processor_work:
        add(R"({{"ph":"X","name":{},"pid":1,"tid":2,"ts":{},"dur":{}}})", json_string(event.label), event.time_us,
            event.duration_us);
        break;
      case Kind::phase_begin:
        add(R"({{"ph":"X","name":{},"pid":1,"tid":1,"ts":{},"dur":{}}})", json_string(event.label), event.time_us,
            end_us[i] - event.time_us);
        break;
      case Kind::out_of_memory:
        add(R"({{"ph":"i","s":"g","name":{},"pid":1,"tid":1,"ts":{},"args":{{"category":"{}",)"
            R"("requested":{},"allocated":{},"device_free":{}}}}})",
            json_string(fmt::format("out of memory: {}", event.label)), event.time_us, name_of(event.category),
            event.requested, event.allocated_after, event.device_free);
        break;
      case Kind::alloc:
      case Kind::free:
        if (event.kind == Kind::alloc)
          by_category[event.category] += event.bytes;
        else
          by_category[event.category] -= event.bytes;
        add(R"({{"ph":"C","name":"gpu{} memory","pid":1,"ts":{},"args":{{"allocated":{})", device, event.time_us,
            event.allocated_after);
        if (reserved_known) add(R"(,"reserved":{})", event.reserved_after);
        add("}}}},\n"
            R"({{"ph":"C","name":"gpu{} by category","pid":1,"ts":{},"args":{{)",
            device, event.time_us);
        for (std::size_t c = 0; c < kCategoryCount; ++c)
          add(R"({}"{}":{})", c == 0 ? "" : ",", name_of(static_cast<Category>(c)), by_category.bytes[c]);
        json += "}}";
        break;
    }
  }
  json += "\n]}\n";
  return json;
}

std::string memory_snapshot(const Ledger& ledger, int device, const std::string& program) {
  Pickle pickle;
  std::map<const void*, Frames> frames_of_live;
  pickle.begin_dict();
  pickle.key("device_traces");
  Pickle::List traces(pickle);
  for (int other = 0; other < device; ++other) {  // the index of a trace in the list is its device
    traces.item();
    Pickle::List(pickle).end();
  }
  traces.item();
  put_trace(pickle, ledger, program, frames_of_live);
  traces.end();
  pickle.key("segments");
  put_segments(pickle, ledger, device, program, frames_of_live);
  pickle.key("allocator_settings");
  pickle.begin_dict();
  pickle.boolean("expandable_segments", false);
  pickle.end_dict();
  pickle.end_dict();
  return pickle.finish();
}

}  // namespace oomlab
