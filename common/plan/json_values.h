#pragma once
// JSON from files that others wrote, value after value. No tree is built, nesting is bounded, and a key that an object
// has twice is refused: readers that take the first and readers that take the last would not agree.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oomlab::nn {

/// A value, or the beginning of a list or of an object.
struct JsonValue {
  enum class Kind {
    null,
    boolean,
    whole,   ///< 0 … 2^64 − 1, written without point and exponent
    number,  ///< any other
    text,
    list,
    object
  };
  Kind kind = Kind::null;
  bool boolean = false;
  std::uint64_t whole = 0;
  double number = 0;  ///< also of what is whole
  std::string text{};
};

/// A text that is no JSON, or none that is read here. what() is the end of a sentence: "is not JSON at byte 17".
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Lists and objects in one another, at most.
inline constexpr std::size_t kJsonDepth = 16;

/// Calls visit(path, value) for every value in the order of the text. The path has a key for each object around the
/// value, outermost first, and an empty one for each list. What visit() throws comes out. Memory is a small multiple of
/// the text's. Throws JsonError.
void read_json_values(std::string_view text,
                      const std::function<void(std::span<const std::string> path, JsonValue& value)>& visit);

/// 'text' for messages: on one line, with quotes, and cut where it is long.
std::string in_quotes(std::string_view text);

}  // namespace oomlab::nn
