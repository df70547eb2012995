#pragma once
// What a server of requests needs, in bytes, and how many of them it can serve at a time below a budget.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dtype.h"
#include "plan/category.h"
#include "plan/model/transformer.h"
#include "plan/serve/cache.h"
#include "plan/serve/schedule.h"

namespace oomlab::serve {

inline constexpr std::uint64_t kPageTokens = 16;  ///< of a block, paged
inline constexpr std::uint64_t kMaxRows = 256;    ///< tokens of a step
inline constexpr std::uint64_t kLogitRows = 16;   ///< logits exist for so many rows at a time
inline constexpr std::uint64_t kPrefixGroup = 4;  ///< requests after one another that begin with the same tokens

/// How requests are served.
struct ServingConfig {
  std::string name = {};
  std::uint64_t block_tokens = kPageTokens;  ///< as many as the longest request: contiguous
  std::optional<DType> cache_dtype = {};     ///< of keys and values; nothing: as the model computes
  bool shares_prefixes = false;              ///< what requests begin with in common is there once
  bool grouped_queries = true;               ///< false: a head of K and V for each head of Q
  std::uint64_t cpu_layers = 0;              ///< the last ones run on the CPU, from host memory
};
/// Their names, as chapter 11 has them.
inline constexpr const char* kContiguous = "cache, contiguous";
inline constexpr const char* kPaged = "cache, paged";
inline constexpr const char* kShared = "cache, paged, shared";
inline constexpr const char* kEightBits = "cache, 8 bits";
inline constexpr const char* kOwnHeads = "cache, not grouped";
inline constexpr const char* kOnCpu = "layers on processor";

/// The model as it is served: with as many heads of K and V as of Q where queries are not grouped.
nn::TransformerSpec served_model(nn::TransformerSpec spec, const ServingConfig& config);
/// Of that model. `dtype`: in which it computes.
CacheShape cache_shape(DType dtype, const nn::TransformerSpec& spec, const ServingConfig& config);

/// Bytes of a decoder's tensors in `dtype`, those of its last layers in host memory.
struct WeightBytes {
  std::uint64_t device = 0;      ///< each tensor a buffer of its own
  std::uint64_t in_transit = 0;  ///< before these are there: the largest tensor on its way to host memory
  std::uint64_t host = 0;
};
/// With the last `cpu_layers` layers in host memory.
WeightBytes weight_bytes(DType dtype, const nn::TransformerSpec& spec, std::uint64_t cpu_layers);

/// Buffers of `rows` rows on their way through a decoder, and of the logits of `logit_rows` rows.
std::uint64_t row_bytes(DType dtype, const nn::TransformerSpec& spec, std::uint64_t rows, std::uint64_t logit_rows);

/// Bytes of a server by category, without what the context itself has: the weights but for those of the last
/// cache.cpu_layers layers, the buffers of a step of up to `max_rows` rows, and `blocks` blocks of the cache.
/// `longest`: tokens of the longest request. Throws std::length_error.
ByCategory server_bytes(DType dtype, const nn::TransformerSpec& spec, const CacheShape& cache, std::uint64_t max_rows,
                        std::uint64_t longest, std::uint64_t blocks);
/// Host memory that the last cache.cpu_layers layers take: their weights, and their part of `blocks` blocks.
struct HostBytes {
  std::uint64_t weights = 0;
  std::uint64_t cache = 0;
  std::uint64_t total() const { return checked_sum(weights, cache); }
};
/// Of a cache of so many blocks. Throws std::length_error.
HostBytes host_bytes(DType dtype, const nn::TransformerSpec& spec, const CacheShape& cache, std::uint64_t blocks);

/// Blocks that fit below a budget beside all that; `others`: bytes that the context and the program have, too. With all
/// layers on the CPU a block has no bytes on the device: any number fits.
std::uint64_t blocks_within(std::uint64_t budget, DType dtype, const nn::TransformerSpec& spec, const CacheShape& cache,
                            std::uint64_t max_rows, std::uint64_t longest, std::uint64_t others = 0);

/// The fewest of the last layers that have to be on the CPU, so that a server with room for `requests` requests of
/// `longest` tokens is within the budget; spec.layers + 1 where none are few enough.
std::uint64_t fewest_cpu_layers(std::uint64_t budget, DType dtype, const nn::TransformerSpec& spec,
                                std::uint64_t max_rows, std::uint64_t longest, std::uint64_t requests);

/// The schedule of kMaxRows rows a step under a budget of which the context takes `others`; without a budget where it
/// is too small. `spec`: before served_model().
ServingSchedule schedule_within(std::uint64_t budget, DType dtype, const nn::TransformerSpec& spec,
                                const ServingConfig& config, std::span<const RequestLengths> requests,
                                std::uint64_t longest, std::uint64_t others);

}  // namespace oomlab::serve
