#include "bench/puzzling/judge.h"
#include <map>

void arena_open(size_t bytes);
void* arena_allocate(size_t bytes);
void arena_free(void* address);
void arena_close();

using namespace oomlab::puzzle;

namespace {

// The free gaps between these blocks, {start: bytes}.
std::map<std::size_t, std::size_t> gaps(const std::map<std::size_t, std::size_t>& blocks, std::size_t arena) {
  std::map<std::size_t, std::size_t> found;
  std::size_t end = 0;
  for (const auto& [start, bytes] : blocks) {
    if (start > end) found[end] = start - end;
    end = start + bytes;
  }
  if (arena > end) found[end] = arena - end;
  return found;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  for (const int round : {1, 2, 3}) {
    const std::size_t arena = std::size_t(random_between(100, 300)) * 512;
    Allowed allowed;
    allowed.no_kernel = allowed.keeps_memory = true;
    Case now("arena of " + std::to_string(arena) + " bytes, round " + std::to_string(round), arena, allowed);
    const int operations = size(400, 40);
    std::map<std::size_t, std::size_t> blocks;
    char* base = nullptr;
    now.call([&] { arena_open(arena); });
    // All of it once: the last piece ends where the arena does, and has nobody behind it.
    now.call([&] { base = static_cast<char*>(arena_allocate(arena)); });
    if (!base) refuse("all of an arena that is empty was refused.", "arena 还空着，整块申请却被拒绝了。");
    now.call([&] { arena_free(base); });
    for (int i = 0; i < operations; ++i) {
      if (!blocks.empty() && random_between(0, 99) < 45) {
        auto victim = blocks.begin();
        std::advance(victim, random_between(0, int(blocks.size()) - 1));
        char* const address = base + victim->first;
        now.call([&] { arena_free(address); });
        blocks.erase(victim);
        continue;
      }
      const std::size_t asked = std::size_t(random_between(1, random_between(0, 3) ? 6000 : 40000)),
                        bytes = counted(asked);
      char* got = nullptr;
      now.call([&] { got = static_cast<char*>(arena_allocate(asked)); });
      std::size_t best = SIZE_MAX;
      for (const auto& [start, gap] : gaps(blocks, arena))
        if (gap >= bytes) best = std::min(best, gap);
      const std::string wish = std::to_string(bytes), op = std::to_string(i + 1);
      if (!got && best != SIZE_MAX)
        refuse("request " + op + ": " + wish + " bytes were refused, and " + std::to_string(best) +
                   " are free side by side.",
               "第 " + op + " 次申请：" + wish + " 字节被拒绝，而有 " + std::to_string(best) + " 字节连在一起空着。");
      if (!got) continue;
      const std::size_t offset = std::size_t(got - base);
      const auto gap = gaps(blocks, arena);
      auto in = gap.upper_bound(offset);
      const std::string from = std::to_string(offset), to = std::to_string(offset + bytes);
      if (got < base || offset + bytes > arena)
        refuse("request " + op + " of " + wish + " bytes got those from " + from + " to " + to +
                   ", and the arena has " + std::to_string(arena) +
                   ". Were sizes rounded up to 512, and is no piece longer than it is?",
               "第 " + op + " 次申请（" + wish + " 字节）得到 " + from + " 到 " + to + "，而 arena 只有 " +
                   std::to_string(arena) + " 字节。大小都向上取整到 512 了吗？有没有哪一块记得比实际的长？");
      if (offset % 512)
        refuse("request " + op + ": not at a multiple of 512. Were sizes rounded up to 512?",
               "第 " + op + " 次申请：偏移不是 512 的倍数。大小都向上取整到 512 了吗？");
      if (in == gap.begin() || (--in, offset + bytes > in->first + in->second))
        refuse("request " + op + " of " + wish + " bytes got those from " + from + " to " + to +
                   ", and some of them are taken. Did the piece that was split become shorter? And is nothing split "
                   "off where a "
                   "piece fits exactly? A rest of 0 bytes has the next piece's offset.",
               "第 " + op + " 次申请（" + wish + " 字节）得到 " + from + " 到 " + to +
                   "，而其中一部分已被占用。被切分的那一块变短了吗？恰好合适的块没有再切分吧？0 "
                   "字节的剩余与下一块的偏移相同。");
      if (in->second > best)
        refuse("request " + op + " of " + wish + " bytes was taken from a place where " + std::to_string(in->second) +
                   " are free side by side, and another has " + std::to_string(best) +
                   ", which is enough. Is the smallest piece chosen that is large enough, are all free neighbours "
                   "joined, and is no rest lost? Where a piece fits exactly, a rest of 0 bytes would take the next "
                   "piece's place.",
               "第 " + op + " 次申请（" + wish + " 字节）取自一处连在一起有 " + std::to_string(in->second) +
                   " 字节空闲的地方，而另一处有 " + std::to_string(best) +
                   " 字节，已经够用。选的是够用的最小一块吗？空闲的邻居都合并了吗？剩余部分有没有丢失？恰好合适时，0 "
                   "字节的剩余会顶掉下一块。");
      blocks[offset] = bytes;
    }
    now.call([&] { arena_close(); });
  }
}
