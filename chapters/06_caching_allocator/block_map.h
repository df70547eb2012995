#pragma once
// Which piece of an address range is what: blocks that tile it, in address order, findable by address and by size.
//
// Finding by size is what makes an allocator slow. Here free blocks are listed by size class: 32 classes between two
// powers of two (up to 32 KiB every size has a class of its own), and a bit for each class says whether its list is
// empty. So a block that fits is two find-first-set instructions away, however many blocks there are.
//
// What is left of the time is cache misses, once there are many blocks. So a list is not a chain through the blocks,
// but chunks of 15 entries that repeat the blocks' sizes: looking for the best fit touches one chunk, and only the
// block that is taken.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace oomlab::caching_allocator {

/// A block's name in a BlockMap is where it starts, in granules.
using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = UINT32_MAX;

/// All positions and sizes in granules (512 bytes): 32 bits reach 2 TiB.
class BlockMap {
 public:
  enum class State : std::uint8_t { used, free, hole, lost };
  struct Block {
    BlockId start = kNoBlock;
    std::uint32_t size = 0;
    BlockId before = kNoBlock;  // neighbour in address order
    // Two bits of state; below, where a free block is listed (chunk * kChunk + index), or the owner of any other.
    std::uint32_t word = 0;
    std::uint32_t end() const { return start + size; }
    State state() const { return static_cast<State>(word >> 30); }
  };

  BlockMap() : table_(64) {}

  const Block& operator[](BlockId id) const { return table_[slot(id)]; }
  BlockId first() const { return last_ == kNoBlock ? kNoBlock : 0; }
  BlockId last() const { return last_; }
  BlockId after(const Block& block) const { return block.end() == end_ ? kNoBlock : block.end(); }
  /// Which lists a free block is in; for others, what they were given.
  std::uint16_t owner(const Block& block) const {
    const std::uint32_t rest = block.word & kRest;
    return block.state() == State::free ? chunks_[rest / kChunk].owner : static_cast<std::uint16_t>(rest);
  }
  std::size_t used() const { return used_; }    ///< blocks in use
  std::size_t holes() const { return holes_; }  ///< blocks that are holes
  /// Those of them that begin behind this block, which stays; to be asked for while there are none yet.
  void count_holes_behind(BlockId block) { counted_behind_ = block; }
  std::size_t holes_behind() const { return holes_behind_; }
  /// The block that holds a position inside the range. Walks: for the rare paths.
  BlockId at(std::uint32_t position) const {
    if (position >= end_ / 2) {
      BlockId id = last_;
      while (id > position) id = (*this)[id].before;
      return id;
    }
    BlockId id = 0;
    for (std::uint32_t end; (end = (*this)[id].end()) <= position;) id = end;
    return id;
  }

  /// The same, from a block that is not behind it; where `from` is no block any more, from an end of the range.
  BlockId at(std::uint32_t position, BlockId from) const {
    if (from > position || !starts(from)) return at(position);
    for (std::uint32_t end; (end = (*this)[from].end()) <= position;) from = end;
    return from;
  }

  /// Room for `more` further blocks, so that nothing below allocates. Throws std::bad_alloc:
  /// nothing has changed.
  void make_room(std::size_t more) {
    if (3 * (count_ + more) <= 2 * table_.size()) return;
    std::vector<Block> old(std::bit_ceil(2 * (count_ + more)));
    make_chunks(2 * old.size() / 3, lists_.size());
    old.swap(table_);
    for (const Block& block : old)
      if (block.start != kNoBlock) put(block);
  }
  /// Owners 0 … count − 1 exist from now on. Throws std::bad_alloc: nothing has changed.
  void add_owners(std::size_t count) {
    if (lists_.size() >= count) return;
    make_chunks(2 * table_.size() / 3, count);
    lists_.resize(count);
  }

  /// The used block that starts there; kNoBlock when there is none.
  BlockId find(std::uint32_t start) const {
    for (std::size_t i = home(start);; i = next(i)) {
      if (table_[i].start == start) return table_[i].state() == State::used ? start : kNoBlock;
      if (table_[i].start == kNoBlock) return kNoBlock;
    }
  }

  /// A free block of this owner, of at least `size`: the smallest of the first few of the class of `size`, else of the
  /// first few of the next class that has any. `thorough` looks through the whole class of `size`.
  BlockId find_free(std::uint16_t owner, std::uint32_t size, bool thorough) const {
    const Lists& lists = lists_[owner];
    const unsigned c = size_class(size);
    Entry best = smallest_of(lists.head[c], size, thorough);
    if (best.id != kNoBlock) return best.id;
    if (const unsigned next = next_class(lists, c + 1); next < kClasses)
      best = smallest_of(lists.head[next], size, false);
    return best.id;
  }

  /// Puts the first `size` of a free block to use; the rest stays free.
  void use(BlockId id, std::uint32_t size) {
    Block& block = table_[slot(id)];
    const std::uint16_t owns = owner(block);
    leave(block);
    if (block.size > size) enter(split(block, size), State::free, owns);
    enter(block, State::used, owns);
  }
  /// A new block at the end of the range.
  BlockId append(std::uint32_t size, State state, std::uint16_t owner) {
    Block& block = put({end_, size, last_});
    last_ = end_;
    end_ += size;
    ++count_;
    enter(block, state, owner);
    return last_;
  }
  /// Cuts a block: it keeps the first `size`, the rest becomes a block of the same kind. Returns the rest.
  BlockId cut(BlockId id, std::uint32_t size) {
    Block& block = table_[slot(id)];
    const State state = block.state();
    const std::uint16_t owns = owner(block);
    leave(block);
    Block& rest = split(block, size);
    enter(block, state, owns);
    enter(rest, state, owns);
    return rest.start;
  }
  /// Makes a block something else; free blocks (of one owner) and holes grow together with neighbours of their kind.
  /// Returns the block that it is part of now.
  BlockId change(BlockId id, State state, std::uint16_t owns = 0) {
    Block* block = &table_[slot(id)];
    // Among very many blocks each neighbour is a cache miss: have them come together.
    __builtin_prefetch(&table_[home(block->before)]);
    __builtin_prefetch(&table_[home(block->end())]);
    leave(*block);
    if (state == State::free || state == State::hole) {
      const auto same = [&](const Block& other) {
        return other.state() == state && (state == State::hole || owner(other) == owns);
      };
      const std::uint32_t had = block->size;
      if (const BlockId after_id = after(*block); after_id != kNoBlock)
        if (Block& after = table_[slot(after_id)]; same(after)) {
          leave(after);
          block->size += after.size;
          erase(after);
          block = &table_[slot(id)];
        }
      if (block->before != kNoBlock)
        if (Block& before = table_[slot(block->before)]; same(before)) {
          leave(before);
          before.size += block->size;
          id = before.start;
          erase(*block);
          block = &table_[slot(id)];
        }
      if (block->size != had) tell_after(*block);
    }
    enter(*block, state, owns);
    return id;
  }
  /// Removes the last block.
  void pop() {
    Block& block = table_[slot(last_)];
    leave(block);
    end_ = last_;
    last_ = block.before;
    erase(block);
  }

 private:
  static constexpr unsigned kFine = 32, kClasses = 28 * kFine, kChunk = 16;
  static constexpr std::uint32_t kNoChunk = UINT32_MAX, kRest = (1u << 30) - 1;
  struct Entry {
    std::uint32_t size;
    BlockId id;
  };
  struct alignas(64) Chunk {  // part of a class's list; only the first chunk of a list is not full
    std::array<Entry, kChunk - 1> entries;
    std::uint16_t count, owner;
    std::uint32_t next;
  };
  struct Lists {
    std::array<std::uint32_t, kClasses> head;            // first chunk
    std::array<std::uint32_t, kClasses / kFine> fine{};  // a bit a class
    std::uint32_t coarse = 0;                            // a bit a word of `fine`
    Lists() { head.fill(kNoChunk); }
  };

  // 0…63: one class a size; then kFine classes between powers of two.
  static unsigned size_class(std::uint32_t size) {
    if (size < 2 * kFine) return size;
    const unsigned exponent = static_cast<unsigned>(std::bit_width(size)) - 6;  // 1 for 64…127
    return exponent * kFine + (size >> exponent);
  }
  static unsigned next_class(const Lists& lists, unsigned c) {
    if (c >= kClasses) return kClasses;
    unsigned word = c / kFine;
    std::uint32_t bits = lists.fine[word] >> (c % kFine) << (c % kFine);
    if (!bits) {
      const std::uint32_t words = word + 1 < 32 ? lists.coarse >> (word + 1) << (word + 1) : 0;
      if (!words) return kClasses;
      word = static_cast<unsigned>(std::countr_zero(words));
      bits = lists.fine[word];
    }
    return word * kFine + static_cast<unsigned>(std::countr_zero(bits));
  }

  // As many chunks as `blocks` free blocks can need, however they spread over the classes of `owners`.
  void make_chunks(std::size_t blocks, std::size_t owners) {
    const std::size_t needed = std::min(blocks, kClasses * owners) + blocks / (kChunk - 1) + 1;
    spare_chunks_.reserve(needed);
    chunks_.reserve(needed);
    while (chunks_.size() < needed) {
      spare_chunks_.push_back(static_cast<std::uint32_t>(chunks_.size()));
      chunks_.push_back({});
    }
  }
  // The smallest block of at least `size` in a list's first chunk, or, with `thorough`, in all of the list.
  Entry smallest_of(std::uint32_t chunk, std::uint32_t size, bool thorough) const {
    Entry best{UINT32_MAX, kNoBlock};
    for (; chunk != kNoChunk; chunk = thorough ? chunks_[chunk].next : kNoChunk)
      for (std::uint32_t i = chunks_[chunk].count; i-- > 0;)
        if (const Entry& e = chunks_[chunk].entries[i]; e.size >= size && e.size < best.size) {
          best = e;
          if (e.size == size) return best;
        }
    return best;
  }

  bool starts(std::uint32_t start) const {
    for (std::size_t i = home(start);; i = next(i))
      if (table_[i].start == start || table_[i].start == kNoBlock) return table_[i].start == start && start != kNoBlock;
  }
  std::size_t home(std::uint32_t start) const { return (start * 0x9E3779B97F4A7C15ull >> 32) & (table_.size() - 1); }
  std::size_t next(std::size_t i) const { return (i + 1) & (table_.size() - 1); }
  std::size_t slot(BlockId id) const {  // of a block that exists
    std::size_t i = home(id);
    while (table_[i].start != id) i = next(i);
    return i;
  }
  Block& put(const Block& block) {
    std::size_t i = home(block.start);
    while (table_[i].start != kNoBlock) i = next(i);
    return table_[i] = block;
  }
  void erase(Block& block) {  // in no list; blocks behind it may move up
    std::size_t i = static_cast<std::size_t>(&block - table_.data());
    for (std::size_t j = next(i); table_[j].start != kNoBlock; j = next(j))
      if (((j - home(table_[j].start)) & (table_.size() - 1)) >= ((j - i) & (table_.size() - 1))) {
        table_[i] = table_[j];
        i = j;
      }
    table_[i] = {};
    --count_;
  }
  void tell_after(const Block& block) {
    if (const BlockId id = after(block); id != kNoBlock)
      table_[slot(id)].before = block.start;
    else
      last_ = block.start;
  }
  Block& split(Block& block, std::uint32_t size) {  // in no list
    Block& rest = put({block.start + size, block.size - size, block.start});
    block.size = size;
    ++count_;
    tell_after(rest);
    return rest;
  }
  void enter(Block& block, State state, std::uint16_t owns) {
    used_ += state == State::used;
    holes_ += state == State::hole;
    holes_behind_ += state == State::hole && block.start > counted_behind_;
    const std::uint32_t rest = state == State::free ? list(block, owns) : owns;
    block.word = static_cast<std::uint32_t>(state) << 30 | rest;
  }
  void leave(const Block& block) {
    used_ -= block.state() == State::used;
    holes_ -= block.state() == State::hole;
    holes_behind_ -= block.state() == State::hole && block.start > counted_behind_;
    if (block.state() == State::free) unlist(block);
  }
  std::uint32_t list(const Block& block, std::uint16_t owns) {
    Lists& lists = lists_[owns];
    const unsigned c = size_class(block.size);
    std::uint32_t& head = lists.head[c];
    if (head == kNoChunk || chunks_[head].count == kChunk - 1) {
      const std::uint32_t chunk = spare_chunks_.back();
      spare_chunks_.pop_back();
      chunks_[chunk].count = 0;
      chunks_[chunk].owner = owns;
      chunks_[chunk].next = head;
      head = chunk;
    }
    Chunk& first = chunks_[head];
    first.entries[first.count] = {block.size, block.start};
    lists.fine[c / kFine] |= 1u << c % kFine;
    lists.coarse |= 1u << c / kFine;
    return head * kChunk + first.count++;
  }
  void unlist(const Block& block) {  // the list's last entry takes its place
    const std::uint32_t place = block.word & kRest;
    Lists& lists = lists_[chunks_[place / kChunk].owner];
    const unsigned c = size_class(block.size);
    std::uint32_t& head = lists.head[c];
    Chunk& first = chunks_[head];
    const Entry moved = first.entries[--first.count];
    if (moved.id != block.start) {
      table_[slot(moved.id)].word = block.word;
      chunks_[place / kChunk].entries[place % kChunk] = moved;
    }
    if (first.count) return;
    spare_chunks_.push_back(head);
    head = first.next;
    if (head != kNoChunk) return;
    lists.fine[c / kFine] &= ~(1u << c % kFine);
    if (!lists.fine[c / kFine]) lists.coarse &= ~(1u << c / kFine);
  }

  std::vector<Block> table_;  // by home(start), or the next slot that was empty
  std::vector<Lists> lists_;  // by owner
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> spare_chunks_;
  BlockId last_ = kNoBlock;
  std::uint32_t end_ = 0;
  std::size_t count_ = 0, used_ = 0, holes_ = 0, holes_behind_ = 0;
  BlockId counted_behind_ = kNoBlock;
};

}  // namespace oomlab::caching_allocator
