#pragma once
// What is asked of a server: requests with prompts and answers of many lengths.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/serve/requests.h"

namespace oomlab::inference {

using namespace serve;

struct Request {
  std::vector<int> prompt;            ///< at least one token
  std::size_t answer = 1;             ///< tokens to be generated, at least one
  std::size_t group = 0, shared = 0;  ///< as RequestLengths has them
  RequestLengths lengths() const noexcept { return {prompt.size(), answer, group, shared}; }
};
inline std::vector<RequestLengths> lengths_of(const std::vector<Request>& requests) {
  std::vector<RequestLengths> lengths;
  for (const Request& request : requests) lengths.push_back(request.lengths());
  return lengths;
}

/// The longest request there may be in the published stream.
inline constexpr std::size_t kLongest = 2048;

/// Requests of request_lengths(), and their tokens.
inline std::vector<Request> make_requests(std::size_t count, std::size_t longest, std::size_t vocabulary,
                                          std::uint64_t seed = kRequestSeed, std::size_t group = 1) {
  std::vector<Request> requests;
  std::uint64_t number = 0;
  for (const RequestLengths& lengths : request_lengths(count, longest, group, seed)) {
    requests.push_back({std::vector<int>(lengths.prompt), lengths.answer, lengths.group, lengths.shared});
    Request& request = requests.back();
    number += kDrawsOfLengths;
    for (int& token : request.prompt) token = static_cast<int>(draw(seed, number++) % vocabulary);
    if (lengths.group == 0 || lengths.group == requests.size()) continue;  // the first of its group
    const std::vector<int>& alike = requests[lengths.group - 1].prompt;
    std::copy_n(alike.begin(), lengths.shared, request.prompt.begin());
  }
  return requests;
}

}  // namespace oomlab::inference
