#pragma once
// A stream of requests as a variant of this chapter: how their cache lies in memory, and what serving them came to.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/dtype_of.h"
#include "nn/ops/values.h"
#include "plan/serve/server.h"
#include "serving.h"
#include "weights.h"

namespace oomlab::inference {

/// What serving a stream came to, by the name of its ServingConfig.
struct Served {
  ServingCounts counts;
  std::vector<std::vector<int>> answers;
  std::size_t token_bytes = 0;  ///< of a token in the cache, on the device
  std::size_t host_cache = 0;   ///< bytes of the cache in host memory, at most
  bool as_planned = true;       ///< in no step was a block refused but by the budget
};
using AllServed = std::map<std::string, Served>;

/// The stream: the same tokens for every config.
inline std::vector<Request> requests_of(std::size_t count, std::size_t longest, std::size_t vocabulary,
                                        const ServingConfig& config) {
  std::vector<Request> requests = make_requests(count, longest, vocabulary, kRequestSeed, kPrefixGroup);
  for (Request& request : requests)
    if (!config.shares_prefixes) request.group = request.shared = 0;
  return requests;
}

/// Serves the stream once in a step. The cache begins empty, and is given back at the end.
template <class T>
class ServingWork final : public Workload {
 public:
  ServingWork(Context& context, const Weights& weights, const ServingConfig& config, std::vector<Request> requests,
              std::size_t longest, std::shared_ptr<AllServed> all)
      : context_(context),
        name_(config.name),
        requests_(std::move(requests)),
        shape_(cache_shape(kDTypeOf<T>, weights.spec(), config)),
        placed_(context, weights.spec(), config.cpu_layers,
                [&](Context& c, std::size_t i, T* to, std::size_t) { weights.fill(c, i, to); }),
        generation_(context, weights.spec(), placed_.weights(), shape_, kMaxRows, longest),
        all_(std::move(all)) {}

  void step() override {
    const Phase phase(context_.ledger(), "forward");
    KvCache cache(context_, shape_);
    Serving<T> serving(context_, generation_, cache, requests_, kMaxRows);
    serving.run();
    cache.check_books();
    Served& mine = (*all_)[name_];
    mine.counts = serving.counts(), mine.answers = serving.answers();
    mine.token_bytes = shape_.block_bytes() / shape_.block_tokens;
    mine.host_cache = cache.most_blocks() * shape_.cpu_block_bytes();
    mine.as_planned &= serving.refused_by_budget_alone();
  }
  std::size_t samples_per_step() const override { return requests_.size(); }
  /// The mean of the answers' tokens.
  double figure() override {
    if (planning()) return 0;
    double sum = 0, count = 0;
    for (const std::vector<int>& answer : (*all_)[name_].answers)
      for (const int token : answer) sum += token, ++count;
    return sum / count;
  }
  std::uint64_t fingerprint() override {
    std::uint64_t hash = nn::kFingerprintStart;
    if (planning()) return 0;
    for (const std::vector<int>& answer : (*all_)[name_].answers)
      for (const int token : answer) hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x100000001b3ull;
    return hash;
  }

 private:
  Context& context_;
  std::string name_;
  std::vector<Request> requests_;
  CacheShape shape_;
  PlacedWeights<T> placed_;
  Generation<T> generation_;
  std::shared_ptr<AllServed> all_;
};

}  // namespace oomlab::inference
