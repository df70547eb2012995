#pragma once
// A stream of requests as a variant of this chapter: how their cache lies in memory, and what serving them came to.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving.h"
#include "serving_walk.h"
#include "train/precision.h"
#include "weights.h"

namespace oomlab::inference {

inline constexpr std::size_t kPage = 16;       ///< tokens of a block, paged
inline constexpr std::size_t kMostRows = 256;  ///< of a step
inline constexpr std::size_t kAlike = 4;       ///< requests after one another that begin with the same tokens

/// How requests are served.
struct Way {
  std::string name = {};
  std::size_t block_tokens = kPage;  ///< as many as the longest request: contiguous
  CacheForm form = CacheForm::as_computed;
  bool shares = false;               ///< what requests begin with in common is there once
  bool grouped = true;               ///< false: a head of K and V for each head of Q
  std::size_t processor_layers = 0;  ///< the last ones run on the processor
};

/// What serving a stream came to, by the name of the way.
struct Served {
  ServingCounts counts;
  std::vector<std::vector<int>> answers;
  std::size_t token_bytes = 0;  ///< of a token in the cache, on the device
  std::size_t host_cache = 0;   ///< bytes of the cache in host memory, at most
  bool as_planned = true;       ///< in no step was a block refused but by the budget
};
using AllServed = std::map<std::string, Served>;

inline nn::TransformerSpec spec_of(nn::TransformerSpec spec, const Way& way) {
  if (!way.grouped) spec.kv_heads = spec.heads, spec.name += ", not grouped";
  return spec;
}
template <class T>
CacheShape shape_of(const nn::TransformerSpec& of, const Way& way) {
  const nn::TransformerSpec spec = spec_of(of, way);
  CacheShape shape =
      cache_shape<T>(spec.layers - way.processor_layers, spec.keys(), spec.depth(), way.block_tokens, way.form);
  shape.processor_layers = way.processor_layers;
  return shape;
}
/// The stream: the same tokens for every way.
inline std::vector<Request> requests_of(std::size_t count, std::size_t longest, std::size_t vocabulary,
                                        const Way& way) {
  std::vector<Request> requests = make_requests(count, longest, vocabulary, kRequestSeed, kAlike);
  for (Request& request : requests)
    if (!way.shares) request.group = request.shared = 0;
  return requests;
}

/// Serves the stream once in a step. The cache begins empty, and is given back at the end.
template <class T>
class ServingWork final : public Workload {
 public:
  ServingWork(Context& context, const Weights& weights, const Way& way, std::vector<Request> requests,
              std::size_t longest, std::shared_ptr<AllServed> all)
      : context_(context),
        name_(way.name),
        requests_(std::move(requests)),
        shape_(shape_of<T>(weights.spec(), way)),
        placed_(context, weights.spec(), way.processor_layers,
                [&](Context& c, std::size_t i, T* to, std::size_t) { weights.fill(c, i, to); }),
        generation_(context, weights.spec(), placed_.weights(), shape_, kMostRows, longest),
        all_(std::move(all)) {}

  void step() override {
    const Phase phase(context_.ledger(), "forward");
    KvCache cache(context_, shape_);
    Serving<T> serving(context_, generation_, cache, requests_, kMostRows);
    serving.run();
    cache.check_books();
    Served& mine = (*all_)[name_];
    mine.counts = serving.counts(), mine.answers = serving.answers();
    mine.token_bytes = shape_.block_bytes() / shape_.block_tokens;
    mine.host_cache = cache.most_blocks() * shape_.processor_bytes();
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

/// The schedule under a budget of which the cuBLAS workspace takes `workspace`; without a budget where it is too small.
template <class T>
ServingPlan plan_of(const nn::TransformerSpec& of, const Way& way, std::span<const Request> requests,
                    std::size_t longest, std::size_t budget, std::size_t workspace) {
  const nn::TransformerSpec spec = spec_of(of, way);
  const CacheShape shape = shape_of<T>(of, way);
  const std::size_t blocks = blocks_within<T>(budget, spec, shape, kMostRows, longest, workspace);
  ServingPlan plan = plan_serving(requests, way.block_tokens, blocks, kMostRows);
  if (!plan.possible) plan = plan_serving(requests, way.block_tokens, SIZE_MAX, kMostRows);
  return plan;
}

}  // namespace oomlab::inference
