#pragma once
// Reads a pickle without Python: of all that a pickle may have, what a memory snapshot of PyTorch has, no more.

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "trace.h"

namespace oomlab::bench {

/// A value of a pickle. All of them belong to the Unpickler, because a pickle may build rings and endless chains.
struct Value;
using Ref = Value*;
using List = std::vector<Ref>;
using Dict = std::map<std::string, Ref, std::less<>>;
struct Mark {};
struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Dict, Mark> is;
};

/// Throws TraceError, which names the file. Every opcode that would name a class or call something is refused.
class Unpickler {
 public:
  Unpickler(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Ref load() {
    for (;;) {
      const std::size_t at = position_;
      const unsigned char op = take(1)[0];
      switch (op) {
        case 0x80: {  // PROTO
          const auto protocol = static_cast<unsigned char>(take(1)[0]);
          if (protocol > 5) fail(fmt::format("pickle protocol {} is unknown", protocol));
          break;
        }
        case 0x95: (void)take(8); break;  // FRAME
        case '}':
        case 0x8f: push(Dict{}); break;  // EMPTY_DICT
        case ']':
        case ')': push(List{}); break;  // EMPTY_LIST, EMPTY_TUPLE
        case '(': push(Mark{}); break;
        case 'N': push(std::monostate{}); break;
        case 0x88: push(true); break;
        case 0x89: push(false); break;
        case 'K': push(std::int64_t(static_cast<unsigned char>(take(1)[0]))); break;
        case 'M': push(std::int64_t(little(2))); break;
        case 'J': push(std::int64_t(static_cast<std::int32_t>(little(4)))); break;
        case 0x8a: {  // LONG1
          const auto size = static_cast<unsigned char>(take(1)[0]);
          if (size > 8) fail("an integer of more than 64 bits");
          std::uint64_t value = little(size);
          if (size && size < 8 && value >> (8 * size - 1) & 1) value |= ~std::uint64_t(0) << 8 * size;
          push(static_cast<std::int64_t>(value));
          break;
        }
        case 'G': {  // BINFLOAT, big-endian
          std::uint64_t bits = 0;
          for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
          push(std::bit_cast<double>(bits));
          break;
        }
        case 'U':                                                                           // SHORT_BINSTRING
        case 0x8c: push(std::string(take(static_cast<unsigned char>(take(1)[0])))); break;  // SHORT_BINUNICODE
        case 'X': push(std::string(take(little(4)))); break;                                // BINUNICODE
        case 0x8d: push(std::string(take(little(8)))); break;                               // BINUNICODE8
        case 'q': memo_[static_cast<unsigned char>(take(1)[0])] = top(); break;             // BINPUT
        case 'r': memo_[little(4)] = top(); break;                                          // LONG_BINPUT
        case 0x94: memo_.insert_or_assign(memo_.size(), top()); break;                      // MEMOIZE
        case 'h': get(static_cast<unsigned char>(take(1)[0])); break;                       // BINGET
        case 'j': get(little(4)); break;                                                    // LONG_BINGET
        case 'a': {                                                                         // APPEND
          const Ref item = pop();
          list_at_top().push_back(item);
          break;
        }
        case 'e': {  // APPENDS
          List items = pop_to_mark();
          List& list = list_at_top();
          list.insert(list.end(), items.begin(), items.end());
          break;
        }
        case 's': {  // SETITEM
          const Ref value = pop(), key = pop();
          set(dict_at_top(), key, value);
          break;
        }
        case 'u': {  // SETITEMS
          const List items = pop_to_mark();
          if (items.size() % 2) fail("a dictionary with a key and no value");
          for (std::size_t i = 0; i < items.size(); i += 2) set(dict_at_top(), items[i], items[i + 1]);
          break;
        }
        case 't':
        case 'l': push(pop_to_mark()); break;  // TUPLE, LIST
        case 0x85: tuple(1); break;
        case 0x86: tuple(2); break;
        case 0x87: tuple(3); break;
        case '0': (void)pop(); break;
        case '.': return pop();
        default:
          if (std::string_view("cRbioPQ\x81\x82\x83\x84\x92\x93").find(static_cast<char>(op)) != std::string_view::npos)
            fail(fmt::format("byte {} names a class or calls one; that is refused", at));
          fail(fmt::format("byte {} is no opcode of a memory snapshot ({:#04x})", at, op));
      }
    }
  }
  [[noreturn]] void fail(const std::string& what) const { throw TraceError(fmt::format("{}: {}", name_, what)); }

 private:
  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - position_) fail("the pickle is cut off");
    const std::string_view result = bytes_.substr(position_, count);
    position_ += count;
    return result;
  }
  std::uint64_t little(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view raw = take(count);
    for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t(static_cast<unsigned char>(raw[i])) << 8 * i;
    return value;
  }
  template <class T>
  void push(T&& value) {
    values_.emplace_back().is = std::forward<T>(value);
    stack_.push_back(&values_.back());
  }
  Ref top() {
    if (stack_.empty()) fail("the pickle takes more than it has");
    return stack_.back();
  }
  Ref pop() {
    const Ref result = top();
    stack_.pop_back();
    return result;
  }
  void get(std::size_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("the pickle refers to nothing");
    stack_.push_back(found->second);
  }
  List pop_to_mark() {
    std::size_t mark = stack_.size();
    while (mark > 0 && !std::holds_alternative<Mark>(stack_[mark - 1]->is)) --mark;
    if (mark == 0) fail("the pickle has no mark");
    List items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  List& list_at_top() {
    auto* list = std::get_if<List>(&top()->is);
    if (!list) fail("the pickle appends to no list");
    return *list;
  }
  Dict& dict_at_top() {
    auto* dict = std::get_if<Dict>(&top()->is);
    if (!dict) fail("the pickle sets an item of no dictionary");
    return *dict;
  }
  void set(Dict& dict, const Ref& key, const Ref& value) {
    if (const auto* text = std::get_if<std::string>(&key->is)) dict[*text] = value;  // others are of no interest here
  }
  void tuple(std::size_t count) {
    List items(count);
    for (std::size_t i = count; i > 0; --i) items[i - 1] = pop();
    push(std::move(items));
  }

  std::string_view bytes_;
  const std::string& name_;
  std::size_t position_ = 0;
  std::deque<Value> values_;
  List stack_;
  std::unordered_map<std::size_t, Ref> memo_;
};

}  // namespace oomlab::bench
