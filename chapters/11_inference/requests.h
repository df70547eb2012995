#pragma once
// What is asked of a server: requests with prompts and answers of many lengths; and what serving them came to.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace oomlab::inference {

struct Request {
  std::vector<int> prompt;  ///< at least one token
  std::size_t answer = 1;   ///< tokens to be generated, at least one
  /// Requests of the same group, which is not 0, begin with the same `shared` tokens, fewer than any of their prompts.
  std::size_t group = 0, shared = 0;
  /// Tokens whose keys and values it needs at the end: nobody reads those of the last one.
  std::size_t length() const noexcept { return prompt.size() + answer - 1; }
};

/// The longest request there may be, and the seed of the published stream: the year in which paged attention was
/// published, chosen before anything was measured with it.
inline constexpr std::size_t kLongest = 2048;
inline constexpr std::uint64_t kRequestSeed = 2023;

/// Uniform in 0…2^32 − 1, of a seed and a number (Steele, Lea and Flood, "SplitMix", 2014).
inline std::uint64_t hashed(std::uint64_t seed, std::uint64_t number) noexcept {
  std::uint64_t x = seed * 0xd1342543de82ef95ull + (number + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) >> 32;
}

/// `count` requests of up to `longest` tokens, at least 30; their mean length is 30 % of that. A length is longest · (1
/// + 14 u) / 15, u the least of three uniform numbers, whose mean is 1/4: most are short, a few are long. Between a
/// quarter and three quarters of it is the prompt. In whole numbers, so that the stream is the same everywhere. With
/// `group` > 1, so many after one another begin with the same tokens: half of the shortest one's prompt.
inline std::vector<Request> make_requests(std::size_t count, std::size_t longest, std::size_t vocabulary,
                                          std::uint64_t seed = kRequestSeed, std::size_t group = 1) {
  if (longest < 30) throw std::invalid_argument("requests are of up to 30 tokens, or more");
  std::vector<Request> requests(count);
  std::uint64_t number = 0;
  const auto next = [&] { return hashed(seed, number++); };
  for (Request& request : requests) {
    const std::uint64_t u = std::min({next(), next(), next()});
    const std::uint64_t length = longest / 15 + ((longest - longest / 15) * (u + 1) >> 32);
    const std::uint64_t prompt = length / 4 + ((length / 2) * next() >> 32);
    request.prompt.resize(std::max<std::uint64_t>(1, prompt));
    request.answer = length + 1 - request.prompt.size();
    for (int& token : request.prompt) token = static_cast<int>(next() % vocabulary);
  }
  for (std::size_t first = 0; group > 1 && first < count; first += group) {
    const std::size_t end = std::min(count, first + group);
    std::size_t shared = SIZE_MAX;
    for (std::size_t r = first; r < end; ++r) shared = std::min(shared, requests[r].prompt.size() / 2);
    for (std::size_t r = first; shared && r < end; ++r) {
      requests[r].group = first + 1, requests[r].shared = shared;
      std::copy_n(requests[first].prompt.begin(), shared, requests[r].prompt.begin());
    }
  }
  return requests;
}

/// Figures of a whole stream. A place is room for one token's keys and values.
struct ServingCounts {
  std::size_t steps = 0;
  std::size_t rows = 0;         ///< tokens that went through the model, some of them again after a preemption
  std::size_t answered = 0;     ///< tokens of answers
  std::size_t preemptions = 0;  ///< requests that gave their blocks back, and begin again
  std::size_t most_requests = 0;
  std::size_t requests = 0;                         ///< at a time, added up over the steps
  std::size_t reserved = 0;                         ///< places in used blocks, added up over the steps
  std::size_t used = 0;                             ///< those of them that hold a token, after the step
  std::size_t most_reserved = 0, used_at_most = 0;  ///< the same in the step that first had the most reserved
  friend bool operator==(const ServingCounts&, const ServingCounts&) = default;

  /// A step with so many requests, and places.
  void add_step(std::size_t at_a_time, std::size_t reserved_now, std::size_t used_now) noexcept {
    ++steps, requests += at_a_time, reserved += reserved_now, used += used_now;
    most_requests = std::max(most_requests, at_a_time);
    if (reserved_now > most_reserved) most_reserved = reserved_now, used_at_most = used_now;
  }
  double mean_requests() const noexcept { return steps ? double(requests) / double(steps) : 0.0; }
  /// Reserved places that hold nothing, percent: on the average, and at the fullest moment.
  double waste() const noexcept { return reserved ? 100.0 * double(reserved - used) / double(reserved) : 0.0; }
  double waste_at_most() const noexcept {
    return most_reserved ? 100.0 * double(most_reserved - used_at_most) / double(most_reserved) : 0.0;
  }
};

}  // namespace oomlab::inference
