#include "plan/serve/requests.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace oomlab::serve {

std::uint64_t draw(std::uint64_t seed, std::uint64_t number) noexcept {
  std::uint64_t x = seed * 0xd1342543de82ef95ull + (number + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) >> 32;
}

std::vector<RequestLengths> request_lengths(std::uint64_t count, std::uint64_t longest, std::uint64_t group,
                                            std::uint64_t seed) {
  if (longest < kShortestLimit)
    throw std::invalid_argument("requests are of up to " + std::to_string(kShortestLimit) + " tokens, or more");
  std::vector<RequestLengths> requests(static_cast<std::size_t>(count));
  std::uint64_t number = 0;
  for (RequestLengths& request : requests) {
    const std::uint64_t u = std::min({draw(seed, number), draw(seed, number + 1), draw(seed, number + 2)});
    const std::uint64_t length = longest / 15 + ((longest - longest / 15) * (u + 1) >> 32);
    const std::uint64_t prompt = length / 4 + ((length / 2) * draw(seed, number + 3) >> 32);
    request.prompt = std::max<std::uint64_t>(1, prompt);
    request.answer = length + 1 - request.prompt;
    number += kDrawsOfLengths + request.prompt;
  }
  if (group < 2) return requests;
  for (std::size_t first = 0; first < requests.size();) {
    const std::size_t alike = static_cast<std::size_t>(std::min<std::uint64_t>(group, requests.size() - first));
    const std::span<RequestLengths> members(requests.data() + first, alike);
    const std::uint64_t shared = std::ranges::min(members, {}, &RequestLengths::prompt).prompt / 2;
    for (RequestLengths& request : members) {
      request.group = shared ? first + 1 : 0;
      request.shared = shared;
    }
    first += alike;
  }
  return requests;
}

}  // namespace oomlab::serve
