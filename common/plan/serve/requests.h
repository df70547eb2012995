#pragma once
// What is asked of a server, as far as a schedule depends on it: requests with prompts and answers of many lengths.

#include <cstdint>
#include <vector>

namespace oomlab::serve {

/// Tokens of a request.
struct RequestLengths {
  std::uint64_t prompt = 1;  ///< at least one
  std::uint64_t answer = 1;  ///< to be generated, at least one
  std::uint64_t group = 0;   ///< requests of one group, which is not 0, begin alike
  std::uint64_t shared = 0;  ///< with so many tokens, fewer than any of their prompts
  /// Tokens whose keys and values it needs at the end: nobody reads those of the last one.
  std::uint64_t length() const noexcept { return prompt + answer - 1; }
};

/// What the longest request of a stream may have at least.
inline constexpr std::uint64_t kShortestLimit = 30;
/// The seed of the published stream: the year in which paged attention was published, chosen before anything was
/// measured with it.
inline constexpr std::uint64_t kRequestSeed = 2023;
/// Draws that the lengths of a request take. Those of its prompt's tokens follow, one each.
inline constexpr std::uint64_t kDrawsOfLengths = 4;

/// Draw `number` of a seed, uniform in 0…2^32 − 1 (Steele, Lea and Flood, "SplitMix", 2014).
std::uint64_t draw(std::uint64_t seed, std::uint64_t number) noexcept;

/// `count` requests of up to `longest` tokens, whose mean length is 30 % of that. A length is longest · (1 + 14 u) / 15,
/// u the least of three uniform numbers, whose mean is 1/4: most are short, a few are long. Between a quarter and three
/// quarters of it is the prompt. In whole numbers, so that the stream is the same everywhere. With `group` > 1, so many
/// after one another begin with the same tokens: half of the shortest one's prompt. The group's number is that of its
/// first request, from 1. Throws std::invalid_argument where `longest` is less than kShortestLimit.
std::vector<RequestLengths> request_lengths(std::uint64_t count, std::uint64_t longest, std::uint64_t group = 1,
                                            std::uint64_t seed = kRequestSeed);

}  // namespace oomlab::serve
