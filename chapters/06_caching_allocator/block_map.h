#pragma once
// Which piece of an address range is what: blocks that tile it, in address order, findable by address and by size.
//
// Finding by size is what makes an allocator slow. Here free blocks hang in lists by size class: 32 classes between two
// powers of two (up to 32 KiB every size has a class of its own), and a bit for each class says whether its list is
// empty. So a block that fits is two find-first-set instructions away, however many blocks there are.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/bytes.h"

namespace oomlab::chapters {

/// A block's number in a BlockMap; stays the same as long as the block is not merged away.
using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = UINT32_MAX;

/// All positions and sizes in granules (512 bytes): 32 bits reach 2 TiB.
class BlockMap {
 public:
  enum class State : std::uint8_t { used, free, hole, lost };
  struct alignas(32) Block {  // two in a cache line, none across two
    std::uint32_t start, size;
    BlockId before = kNoBlock, after = kNoBlock;            // neighbours in address order
    BlockId list_before = kNoBlock, list_after = kNoBlock;  // neighbours in the list of a size class
    std::uint16_t owner = 0;                                // free: which lists it is in
    State state = State::lost;
    std::uint32_t end() const { return start + size; }
  };

  BlockMap() { slots_.resize(64); }

  const Block& operator[](BlockId id) const { return blocks_[id]; }
  BlockId first() const { return first_; }
  BlockId last() const { return last_; }
  std::size_t used() const { return used_; }    ///< blocks in use
  std::size_t holes() const { return holes_; }  ///< blocks that are holes
  /// The block that holds a position inside the range. Walks: for the rare paths.
  BlockId at(std::uint32_t position) const {
    if (position >= blocks_[last_].end() / 2) {
      BlockId id = last_;
      while (blocks_[id].start > position) id = blocks_[id].before;
      return id;
    }
    BlockId id = first_;
    while (blocks_[id].end() <= position) id = blocks_[id].after;
    return id;
  }

  /// Room for `more` further blocks, so that nothing below allocates. Throws std::bad_alloc:
  /// nothing has changed.
  void make_room(std::size_t more) {
    if (spare_.size() < more) {
      const std::size_t grown = blocks_.size() + std::max<std::size_t>(more, blocks_.size() / 2);
      spare_.reserve(grown);
      blocks_.reserve(grown);
      while (blocks_.size() < grown) {
        spare_.push_back(static_cast<BlockId>(blocks_.size()));
        blocks_.push_back({});
      }
    }
    if (2 * (used_ + 1) > slots_.size()) grow_slots();
  }
  /// Owners 0 … count − 1 exist from now on. Throws std::bad_alloc: nothing has changed.
  void add_owners(std::size_t count) {
    if (lists_.size() < count) lists_.resize(count);
  }

  /// The used block that starts there; kNoBlock when there is none.
  BlockId find(std::uint32_t start) const {
    for (std::size_t i = home(start);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].id == kNoBlock) return kNoBlock;
      if (slots_[i].start == start) return slots_[i].id;
    }
  }

  /// A free block of this owner, of at least `size`: the smallest of the first few of the class of `size`, else of the
  /// first few of the next class that has any. `thorough` looks through the whole class of `size`.
  BlockId find_free(std::uint16_t owner, std::uint32_t size, bool thorough) const {
    const Lists& lists = lists_[owner];
    unsigned c = size_class(size);
    BlockId best = kNoBlock;
    unsigned left = thorough ? UINT32_MAX : kLook;
    for (BlockId id = lists.head[c]; id != kNoBlock && left; id = blocks_[id].list_after, --left) {
      if (blocks_[id].size == size) return id;
      if (blocks_[id].size > size && (best == kNoBlock || blocks_[id].size < blocks_[best].size)) best = id;
    }
    if (best != kNoBlock) return best;
    c = next_class(lists, c + 1);
    if (c == kClasses) return kNoBlock;
    left = c < 2 * kFine ? 1 : kLook;  // below that, all blocks of a class are of one size
    for (BlockId id = lists.head[c]; id != kNoBlock && left; id = blocks_[id].list_after, --left)
      if (best == kNoBlock || blocks_[id].size < blocks_[best].size) best = id;
    return best;
  }

  /// Puts the first `size` of a free block to use; the rest stays free. Returns the rest, or kNoBlock.
  BlockId use(BlockId id, std::uint32_t size) {
    leave(id);
    const std::uint16_t owner = blocks_[id].owner;
    BlockId rest = kNoBlock;
    if (blocks_[id].size > size) {
      rest = split(id, size);
      enter(rest, State::free, owner);
    }
    enter(id, State::used, owner);
    return rest;
  }
  /// A new block at the end of the range.
  BlockId append(std::uint32_t size, State state, std::uint16_t owner) {
    const BlockId id = take_spare();
    Block& block = blocks_[id];
    block = {last_ == kNoBlock ? 0 : blocks_[last_].end(), size};
    block.before = last_;
    (last_ == kNoBlock ? first_ : blocks_[last_].after) = id;
    last_ = id;
    enter(id, state, owner);
    return id;
  }
  /// Cuts a block: it keeps the first `size`, the rest becomes a block of the same kind.
  BlockId cut(BlockId id, std::uint32_t size) {
    const State state = blocks_[id].state;
    const std::uint16_t owner = blocks_[id].owner;
    leave(id);
    const BlockId rest = split(id, size);
    enter(id, state, owner);
    enter(rest, state, owner);
    return rest;
  }
  /// Makes a block something else; free blocks (of one owner) and holes grow together with neighbours of their kind.
  /// Returns the block that it is part of now.
  BlockId change(BlockId id, State state, std::uint16_t owner = 0) {
    // Among very many blocks each neighbour is a cache miss: have them come together.
    if (blocks_[id].before != kNoBlock) __builtin_prefetch(&blocks_[blocks_[id].before]);
    if (blocks_[id].after != kNoBlock) __builtin_prefetch(&blocks_[blocks_[id].after]);
    leave(id);
    if (state == State::free || state == State::hole) {
      const auto same = [&](BlockId other) {
        return other != kNoBlock && blocks_[other].state == state &&
               (state == State::hole || blocks_[other].owner == owner);
      };
      if (const BlockId before = blocks_[id].before; same(before)) {
        leave(before);
        absorb_after(before);
        id = before;
      }
      if (const BlockId after = blocks_[id].after; same(after)) {
        leave(after);
        absorb_after(id);
      }
    }
    enter(id, state, owner);
    return id;
  }
  /// Removes the last block.
  void pop() {
    const BlockId id = last_;
    leave(id);
    last_ = blocks_[id].before;
    (last_ == kNoBlock ? first_ : blocks_[last_].after) = kNoBlock;
    spare_.push_back(id);
  }

 private:
  static constexpr unsigned kFine = 32, kLook = 4, kClasses = 28 * kFine;
  struct Lists {
    std::array<BlockId, kClasses> head;
    std::array<std::uint32_t, kClasses / kFine> fine{};  // a bit a class
    std::uint32_t coarse = 0;                            // a bit a word of `fine`
    Lists() { head.fill(kNoBlock); }
  };
  struct Slot {
    std::uint32_t start = 0;
    BlockId id = kNoBlock;
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

  std::size_t home(std::uint32_t start) const { return (start * 0x9E3779B97F4A7C15ull >> 32) & (slots_.size() - 1); }
  void put(Slot slot) {
    std::size_t i = home(slot.start);
    while (slots_[i].id != kNoBlock) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
  void grow_slots() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.id != kNoBlock) put(slot);
  }
  void erase_slot(std::uint32_t start) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = home(start);
    while (slots_[i].start != start || slots_[i].id == kNoBlock) i = (i + 1) & mask;
    for (std::size_t j = (i + 1) & mask; slots_[j].id != kNoBlock; j = (j + 1) & mask)
      if (((j - home(slots_[j].start)) & mask) >= ((j - i) & mask)) {
        slots_[i] = slots_[j];
        i = j;
      }
    slots_[i].id = kNoBlock;
  }

  BlockId take_spare() {
    const BlockId id = spare_.back();
    spare_.pop_back();
    return id;
  }
  BlockId split(BlockId id, std::uint32_t size) {  // both of them in no list
    const BlockId rest = take_spare();
    Block &front = blocks_[id], &back = blocks_[rest];
    back = {front.start + size, front.size - size};
    back.before = id;
    back.after = front.after;
    front.size = size;
    front.after = rest;
    (back.after == kNoBlock ? last_ : blocks_[back.after].before) = rest;
    return rest;
  }
  void absorb_after(BlockId id) {  // both of them in no list
    const BlockId gone = blocks_[id].after;
    Block& block = blocks_[id];
    block.size += blocks_[gone].size;
    block.after = blocks_[gone].after;
    (block.after == kNoBlock ? last_ : blocks_[block.after].before) = id;
    spare_.push_back(gone);
  }
  void enter(BlockId id, State state, std::uint16_t owner) {
    Block& block = blocks_[id];
    block.state = state;
    block.owner = owner;
    if (state == State::used) {
      put({block.start, id});
      ++used_;
    } else if (state == State::hole) {
      ++holes_;
    } else if (state == State::free) {
      Lists& lists = lists_[owner];
      const unsigned c = size_class(block.size);
      block.list_before = kNoBlock;
      block.list_after = lists.head[c];
      if (block.list_after != kNoBlock) blocks_[block.list_after].list_before = id;
      lists.head[c] = id;
      lists.fine[c / kFine] |= 1u << c % kFine;
      lists.coarse |= 1u << c / kFine;
    }
  }
  void leave(BlockId id) {
    Block& block = blocks_[id];
    if (block.state == State::used) {
      erase_slot(block.start);
      --used_;
    } else if (block.state == State::hole) {
      --holes_;
    } else if (block.state == State::free) {
      Lists& lists = lists_[block.owner];
      if (block.list_after != kNoBlock) blocks_[block.list_after].list_before = block.list_before;
      if (block.list_before != kNoBlock) {
        blocks_[block.list_before].list_after = block.list_after;
      } else {
        const unsigned c = size_class(block.size);
        lists.head[c] = block.list_after;
        if (block.list_after == kNoBlock) {
          lists.fine[c / kFine] &= ~(1u << c % kFine);
          if (!lists.fine[c / kFine]) lists.coarse &= ~(1u << c / kFine);
        }
      }
    }
    block.state = State::lost;  // in no list
  }

  std::vector<Block> blocks_;
  std::vector<BlockId> spare_;
  std::vector<Slot> slots_;
  std::vector<Lists> lists_;
  BlockId first_ = kNoBlock, last_ = kNoBlock;
  std::size_t used_ = 0, holes_ = 0;
};

}  // namespace oomlab::chapters
