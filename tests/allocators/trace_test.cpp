// Readers of traces: what they accept, and the one line that they say about what they do not.

#include "../../bench/allocators/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace oomlab::bench {
namespace {

const std::string kRmm =
    "Thread,Time,Action,Pointer,Size,Stream\n"
    "1,10:00,allocate,0x1000,100,0\n"
    "1,10:01,allocate,0x2000,4096,7\n"
    "1,10:02,allocate failure,0x0,99999,0\n"
    "1,10:03,free,0x1000,100,0\n"
    "1,10:04,allocate,0x1000,512,0\n";
const std::string kMiniMalloc = "id,lower,upper,size\na,0,5,10\nb,5,9,20\nc,2,6,3\n";

// A snapshot as PyTorch writes it, by hand: protocol 2.
class Pickle {
 public:
  Pickle() { bytes_ = "\x80\x02"; }
  Pickle& op(char c) { return bytes_ += c, *this; }
  Pickle& text(const std::string& s) {
    bytes_ += 'X';
    for (int i = 0; i < 4; ++i) bytes_ += static_cast<char>(s.size() >> 8 * i);
    bytes_ += s;
    return *this;
  }
  Pickle& number(std::int64_t value) {
    bytes_ += '\x8a';
    bytes_ += '\x08';
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> 8 * i);
    return *this;
  }
  Pickle& event(const std::string& action, std::int64_t address, std::int64_t size, std::int64_t stream = 0) {
    op('}').op('(');
    text("action").text(action).text("addr").number(address).text("size").number(size).text("stream").number(stream);
    return op('u');
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};
template <class Fill>
std::string snapshot(Fill fill) {
  Pickle p;
  p.op('}').op('(').text("segments").op(']').text("device_traces").op(']').op('(').op(']').op('(');
  fill(p);
  p.op('e').op('e').op('u').op('.');
  return p.bytes();
}

std::string complaint(const std::function<void()>& read) {
  try {
    read();
  } catch (const BadFile& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Traces, Rmm) {
  const Trace trace = parse_rmm_csv(kRmm, "t.csv");
  ASSERT_EQ(trace.blocks, 3u);
  ASSERT_EQ(trace.events.size(), 4u);
  EXPECT_EQ(trace.events[1].bytes, 4096u);
  EXPECT_EQ(trace.events[1].stream, 7u);
  EXPECT_FALSE(trace.events[2].allocates);
  EXPECT_EQ(trace.events[2].id, 0u);
  EXPECT_EQ(trace.live_peak(), 512u + 4096);
  const Trace again = parse_rmm_csv(rmm_csv(trace), "again");
  ASSERT_EQ(again.events.size(), trace.events.size());
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    EXPECT_EQ(again.events[i].id, trace.events[i].id);
    EXPECT_EQ(again.events[i].bytes, trace.events[i].bytes);
    EXPECT_EQ(again.events[i].stream, trace.events[i].stream);
  }
}

TEST(Traces, MiniMallocFreesBeforeItAllocates) {
  const Trace trace = parse_minimalloc_csv(kMiniMalloc, "m.csv", 1024);
  ASSERT_EQ(trace.events.size(), 6u);
  EXPECT_EQ(trace.live_peak(), 23u * 1024);  // b begins when a ends
  EXPECT_EQ(trace.events[2].allocates, false);
}

TEST(Traces, Snapshot) {
  const std::string bytes = snapshot([](Pickle& p) {
    p.event("free_completed", 0x500, 2048);  // was live before recording began
    p.event("segment_alloc", 0x1000, 2 << 20).event("alloc", 0x1000, 1000, 3);
    p.event("free_requested", 0x1000, 1000, 3).event("free_completed", 0x1000, 1000, 3);
    p.event("alloc", 0x1000, 512);
  });
  const Trace trace = parse_snapshot(bytes, "s.pickle");
  ASSERT_EQ(trace.blocks, 3u);
  ASSERT_EQ(trace.events.size(), 5u);
  EXPECT_EQ(trace.events[0].bytes, 2048u);
  EXPECT_TRUE(trace.events[0].allocates);
  EXPECT_FALSE(trace.events[1].allocates);
  EXPECT_EQ(trace.events[2].stream, 3u);
}

TEST(Traces, ComplaintsNameTheLine) {
  const std::string head = "Thread,Time,Action,Pointer,Size,Stream\n";
  const auto rmm = [&](const std::string& lines) { return complaint([&] { (void)parse_rmm_csv(head + lines, "t"); }); };
  EXPECT_EQ(rmm("1,0,free,0x10,8,0\n"), "t, line 2: 0x10 is freed, but it is not allocated");
  EXPECT_EQ(rmm("1,0,allocate,0x10,8,0\n1,0,free,0x10,8,0\n1,0,free,0x10,8,0\n"),
            "t, line 4: 0x10 is freed, but it is not allocated");
  EXPECT_EQ(rmm("1,0,allocate,0x10,8,0\n1,0,allocate,0x10,8,0\n"), "t, line 3: 0x10 is allocated already");
  EXPECT_EQ(rmm("1,0,allocate,0x10,-8,0\n"), "t, line 2: '-8' is no size");
  EXPECT_EQ(rmm("1,0,allocate,0x10,9223372036854775808,0\n"),
            "t, line 2: a size of 9223372036854775808 is more than a tebibyte");
  EXPECT_EQ(rmm("1,0,allocate,0x10,700000000000,0\n1,0,allocate,0x20,700000000000,0\n"),
            "t: more than a tebibyte is live at a time");
  EXPECT_EQ(rmm("1,0,allocate,0x10,700000000000,0\n1,0,free,0x10,0,0\n1,0,allocate,0x20,700000000000,0\n"), "accepted");
  EXPECT_EQ(rmm("1,0,allocate,0x10,99999999999999999999,0\n"), "t, line 2: '99999999999999999999' is no size");
  EXPECT_EQ(rmm("1,0,allocate,0x10,0,0\n"), "t, line 2: a size of 0");
  EXPECT_EQ(rmm("1,0,allocate,0x10,8"), "t, line 2: has 5 fields, not 6");
  EXPECT_EQ(rmm("1,0,realloc,0x10,8,0\n"), "t, line 2: 'realloc' is no action");
  EXPECT_EQ(rmm("1,0,allocate,xyz,8,0\n"), "t, line 2: 'xyz' is no pointer");
  EXPECT_EQ(rmm(std::string(100'000'000, 'x')), "t, line 2: has more than a million characters");
  EXPECT_EQ(complaint([] { (void)parse_rmm_csv("", "t"); }), "t: is empty");
  EXPECT_EQ(complaint([] { (void)parse_rmm_csv("a,b\n", "t"); }), "t, line 1: is not RMM's header");
  const auto mini = [](const std::string& line) {
    return complaint([&] { (void)parse_minimalloc_csv("id,lower,upper,size\n" + line, "m", 1024); });
  };
  EXPECT_EQ(mini("a,5,5,10\n"), "m, line 2: lives from 5 to 5");
  EXPECT_EQ(mini("a,0,5,-1\n"), "m, line 2: '-1' is no size");
  EXPECT_EQ(mini("a,0,5\n"), "m, line 2: has 3 fields, not 4");
  EXPECT_EQ(mini("a,0,5,1099511627777\n"), "m, line 2: a size of 1099511627777 is more than a tebibyte");
  EXPECT_EQ(complaint([] { (void)read_trace("/nowhere/at/all"); }),
            "'/nowhere/at/all' cannot be read: No such file or directory");
  EXPECT_EQ(complaint([] { (void)read_trace("/dev/zero"); }), "'/dev/zero' is a device, not a file");
}

// What was live before recording began is live, too: frees of nearly a tebibyte each were replayed without an end.
TEST(Traces, FreesOfMoreThanAnyDeviceHasAreRefused) {
  const std::string bytes = snapshot([](Pickle& p) {
    p.event("free_completed", 0x1000, std::int64_t(1) << 39);
    p.event("free_completed", 0x2000, std::int64_t(1) << 39);
    p.event("free_completed", 0x3000, std::int64_t(1) << 39);
  });
  EXPECT_EQ(complaint([&] { (void)parse_snapshot(bytes, "s"); }), "s: more than a tebibyte is live at a time");
}

TEST(Traces, PicklesThatCallAreRefused) {
  const auto pickle = [](const std::string& bytes) { return complaint([&] { (void)parse_snapshot(bytes, "p"); }); };
  EXPECT_EQ(pickle("\x80\x02"
                   "cos\nsystem\n(X\x02\0\0\0idtR."),
            "p: byte 2 names a class or calls one; that is refused");
  EXPECT_EQ(pickle("\x80\x04\x8c\x02os\x8c\x06system\x93."), "p: byte 14 names a class or calls one; that is refused");
  EXPECT_EQ(pickle(std::string("\x80\x02}", 3)), "p: the pickle is cut off");
  EXPECT_EQ(pickle("\x80\x02}."), "p: has no device_traces");
  EXPECT_EQ(pickle("\x80\x02"
                   "0."),
            "p: the pickle takes more than it has");
  EXPECT_EQ(pickle("\x80\x02(e."), "p: the pickle takes more than it has");
  EXPECT_EQ(pickle("\x80\x09."), "p: pickle protocol 9 is unknown");
  EXPECT_EQ(pickle(snapshot([](Pickle& p) { p.event("alloc", 1, -5); })), "p, event 0: a negative size");
  EXPECT_EQ(pickle(snapshot([](Pickle& p) { p.event("alloc", 1, 5).event("alloc", 1, 5); })),
            "p, event 1: 0x1 is allocated already");
  EXPECT_EQ(pickle(snapshot(
                [](Pickle& p) { p.event("alloc", 1, 5).event("free_completed", 1, 5).event("free_completed", 1, 5); })),
            "p, event 2: 0x1 is freed, but it is not allocated");
  std::string deep = "\x80\x02";  // lists in lists, 100,000 deep
  deep += std::string(100000, ']') + std::string(99999, 'a') + ".";
  EXPECT_EQ(pickle(deep), "p: has no device_traces");
  EXPECT_EQ(pickle(std::string("\x80\x02]q\0h\0a.", 9)), "p: has no device_traces");  // a list that is in itself
}

// Mutations of good files: the readers accept or complain, and do nothing else. A million inputs with
// OOMLAB_FUZZ_INPUTS=1000000, which takes minutes.
TEST(Traces, Fuzz) {
  const char* wanted = std::getenv("OOMLAB_FUZZ_INPUTS");
  const std::size_t inputs = wanted ? std::strtoull(wanted, nullptr, 10) : 20000;
  const std::string good[] = {kRmm, kMiniMalloc, snapshot([](Pickle& p) {
                                p.event("alloc", 0x1000, 1000, 3).event("free_completed", 0x1000, 1000, 3);
                                p.event("alloc", 0x1000, 512).event("oom", 0, 77);
                              })};
  const std::string pieces[] = {
      ",", "\n", "0x", "-1",       "18446744073709551616", "allocate", "free",  "(",         "]",   "}", "e", "u",
      "a", "t",  ".",  "\x8a\x08", "X\xff\xff\xff\xff",    "q\x01",    "h\x01", "j\0\0\0\0", "\x94"};
  std::mt19937_64 random(1);
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < inputs; ++i) {
    const std::size_t reader = i % 3;
    std::string bytes = good[reader];
    for (std::size_t change = random() % 6; change > 0; --change) {
      const std::size_t at = random() % (bytes.size() + 1);
      switch (random() % 5) {
        case 0: bytes.resize(at); break;
        case 1: bytes.insert(at, pieces[random() % std::size(pieces)]); break;
        case 2: bytes.erase(at, random() % 8); break;
        case 3: bytes.insert(at, bytes.substr(random() % (bytes.size() + 1), random() % 64)); break;
        default:
          if (at < bytes.size()) bytes[at] = static_cast<char>(random());
      }
    }
    try {
      const Trace trace = reader == 0   ? parse_rmm_csv(bytes, "f")
                          : reader == 1 ? parse_minimalloc_csv(bytes, "f", 1024)
                                        : parse_snapshot(bytes, "f");
      (void)trace.live_peak();
      ++accepted;
    } catch (const TraceError&) {
    }
  }
  EXPECT_GT(accepted, inputs / 20);
  EXPECT_LT(accepted, inputs);
}

}  // namespace
}  // namespace oomlab::bench
