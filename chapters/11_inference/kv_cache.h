#pragma once
// Where the keys and values of past tokens live: in blocks of the shape in plan/serve/cache.h, each for `block_tokens`
// tokens of one request in all layers. How many tokens that is makes the difference between two ways to serve:
//   contiguous   block_tokens = the longest length there may be. A request takes one block when it is admitted, and
//                with it places for tokens that may never come
//   paged        block_tokens = 16. A request takes a block when a token needs it, wherever there is one: a table
//                lists them in order, as page tables do (Kwon et al., "PagedAttention", 2023)
// Requests that begin alike share the blocks of what they have in common. A block that several share is not written:
// who wants to gets a copy (copy on write). Blocks that nobody needs any more are kept, and handed out again.

#include <algorithm>
#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "memory/context.h"
#include "plan/serve/cache.h"

namespace oomlab::inference {

using serve::CacheShape;

/// The blocks of all requests, and who has which. Not thread-safe.
class KvCache {
 public:
  using Id = std::size_t;  ///< of an open request; never given twice

  /// Keeps no memory before the first reserve(). `careful`: check_books() after everything that changes them.
  KvCache(Context& context, const CacheShape& shape, bool careful = false)
      : context_(context), shape_(shape), careful_(careful) {}

  const CacheShape& shape() const noexcept { return shape_; }

  /// A request without tokens, or one whose first `tokens` tokens are those of another, which has at least as many
  /// (std::logic_error): it shares their blocks, the last of which may be filled in part.
  Id open() { return open_with({}, 0); }
  Id fork(Id other, std::size_t tokens) {
    const Table& from = tables_.at(other);
    require(tokens <= from.tokens, "a request has fewer tokens than another one shares");
    return open_with({from.blocks.begin(), from.blocks.begin() + shape_.blocks_for(tokens)}, tokens);
  }

  /// Makes room, so that the request's tokens up to number `tokens` can be written: takes the blocks that it lacks, and
  /// a copy of the one in which it goes on, if others share that. Throws OutOfMemory: then nothing has changed.
  void reserve(Id id, std::size_t tokens) {
    Table& table = tables_.at(id);
    const std::size_t needed = shape_.blocks_for(tokens), has = table.blocks.size(),
                      goes_on = table.tokens / shape_.block_tokens;
    const bool copy = tokens > table.tokens && goes_on < has && table.blocks[goes_on]->references > 1;
    const std::size_t wanted = (needed > has ? needed - has : 0) + (copy ? 1 : 0);
    table.blocks.reserve(needed);
    std::list<Block> fresh;  // given back, when one of them cannot be had
    while (free_.size() + fresh.size() < wanted) {
      fresh.push_back(make_block());
      most_blocks_ = std::max(most_blocks_, used_.size() + free_.size() + fresh.size());
    }
    free_.splice(free_.begin(), fresh);
    if (copy) copy_on_write(table.blocks[goes_on]);
    while (table.blocks.size() < needed) table.blocks.push_back(take_free());
    if (careful_) check_books();
  }
  /// `tokens` more tokens of the request are written, where it has room for them (std::logic_error).
  void advance(Id id, std::size_t tokens) {
    Table& table = tables_.at(id);
    require(table.tokens + tokens <= table.blocks.size() * shape_.block_tokens, "a token has no place");
    if (tokens > 0 && table.blocks[table.tokens / shape_.block_tokens]->references > 1) counted_twice_.reset();
    table.tokens += tokens, written_ += tokens;
    if (careful_) check_books();
  }
  /// The request ends. Its blocks are free, but those that others share.
  void close(Id id) {
    const auto table = tables_.find(id);
    require(table != tables_.end(), "a request is closed twice");
    for (const BlockAt block : table->second.blocks) drop(block);
    written_ -= table->second.tokens;
    tables_.erase(table);
    if (careful_) check_books();
  }
  /// Gives free blocks back to the context.
  void trim() noexcept { free_.clear(); }

  std::size_t tokens(Id id) const { return tables_.at(id).tokens; }
  std::size_t blocks_of(Id id) const { return tables_.at(id).blocks.size(); }
  /// Block i of the request, on the device, and its part in host memory.
  std::byte* block(Id id, std::size_t i) const { return tables_.at(id).blocks[i]->memory.data(); }
  float* processor_block(Id id, std::size_t i) const { return tables_.at(id).blocks[i]->processor.data(); }

  std::size_t requests() const noexcept { return tables_.size(); }
  std::size_t used_blocks() const noexcept { return used_.size(); }
  std::size_t free_blocks() const noexcept { return free_.size(); }
  /// The most that there were at a time, used or free.
  std::size_t most_blocks() const noexcept { return most_blocks_; }
  /// Places of used blocks that hold a token, each counted once, however many requests share it.
  std::size_t used_places() const {
    if (!counted_twice_) counted_twice_ = places_counted_twice();
    return written_ - *counted_twice_;
  }

  /// Throws std::logic_error unless every block is either free, and in no table, or used, and in as many tables as its
  /// references say; and every request has room for its tokens; and used_places() is right.
  void check_books() const {
    std::map<const Block*, std::size_t> in_tables;
    for (const auto& [id, table] : tables_) {
      require(table.tokens <= table.blocks.size() * shape_.block_tokens, "a request has no room for its tokens");
      for (const BlockAt block : table.blocks) ++in_tables[&*block];
    }
    for (const Block& block : free_)
      require(block.references == 0 && !in_tables.contains(&block), "a free block is used");
    for (const Block& block : used_) {
      const auto found = in_tables.find(&block);
      require(found != in_tables.end(), "a block is leaked");
      require(found->second == block.references, "a block's references are wrong");
    }
    require(in_tables.size() == used_.size(), "a table has a block that is not used");
    std::size_t tokens = 0;
    for (const auto& [id, table] : tables_) tokens += table.tokens;
    require(used_places() == tokens - places_counted_twice(), "places are counted wrong");
  }

 private:
  struct Block {
    DeviceBuffer<std::byte> memory;
    std::vector<float> processor;
    std::size_t references = 0;
  };
  using BlockAt = std::list<Block>::iterator;
  struct Table {
    std::vector<BlockAt> blocks;
    std::size_t tokens = 0;  // written
  };

  static void require(bool good, const char* what) {
    if (!good) throw std::logic_error(std::string("KV cache: ") + what);
  }
  Id open_with(std::vector<BlockAt> blocks, std::size_t tokens) {
    Table& table = tables_[next_];
    table = {std::move(blocks), tokens};
    written_ += tokens;
    for (const BlockAt block : table.blocks) ++block->references;
    if (!table.blocks.empty()) counted_twice_.reset();
    if (careful_) check_books();
    return next_++;
  }
  Block make_block() {
    Block block{context_.buffer<std::byte>(shape_.block_bytes(), Category::activations, "KV cache block"), {}};
    if (!planning()) block.processor.resize(shape_.cpu_numbers());
    return block;
  }
  BlockAt take_free() noexcept {
    const BlockAt block = free_.begin();
    used_.splice(used_.end(), free_, block);
    block->references = 1;
    return block;
  }
  void drop(BlockAt block) noexcept {
    if (--block->references == 0)
      free_.splice(free_.begin(), used_, block);
    else
      counted_twice_.reset();
  }
  // Of places that several requests have: once less than requests.
  std::size_t places_counted_twice() const {
    std::map<const Block*, std::size_t> shared;  // blocks that several requests have, and the most that one has there
    std::size_t sum = 0;
    for (const auto& [id, table] : tables_)
      // What is shared comes first in a table: what a request writes alone follows.
      for (std::size_t i = 0; i < table.blocks.size() && table.blocks[i]->references > 1; ++i) {
        const std::size_t first = i * shape_.block_tokens;
        const std::size_t here = std::min(shape_.block_tokens, table.tokens - std::min(table.tokens, first));
        std::size_t& most = shared[&*table.blocks[i]];
        sum += std::min(most, here);
        most = std::max(most, here);
      }
    return sum;
  }
  // The table's block, which others share, becomes one of its own.
  void copy_on_write(BlockAt& shared) {
    Block& own = free_.front();
    CUDA_CHECK(cudaMemcpyAsync(own.memory.data(), shared->memory.data(), own.memory.bytes(), cudaMemcpyDeviceToDevice,
                               context_.stream()));
    own.processor = shared->processor;
    --shared->references;
    counted_twice_.reset();
    shared = take_free();
  }

  Context& context_;
  CacheShape shape_;
  bool careful_;
  std::list<Block> used_, free_;
  std::map<Id, Table> tables_;
  Id next_ = 0;
  std::size_t written_ = 0;                           // tokens of all tables
  mutable std::optional<std::size_t> counted_twice_;  // places_counted_twice(), until what is shared changes
  std::size_t most_blocks_ = 0;
};

}  // namespace oomlab::inference
