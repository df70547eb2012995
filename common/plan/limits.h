#pragma once
// How far plans and results go. A plan of any size is an answer within seconds; what would take longer, or more host
// memory than a laptop has, is refused with one line that names the limit, before the work begins. docs/command-line.md
// has them as a table.

#include <cstdint>

namespace oomlab {

/// Bytes of the text that models train on here, which is frozen.
inline constexpr std::uint64_t kCourseTextBytes = 66'162;
/// Layers of a model. Published language models have up to 126; schedules for a budget take time that grows with their
/// square.
inline constexpr std::uint64_t kMostLayers = 256;
/// Samples of a step: more than anybody has, and few enough to be multiplied.
inline constexpr std::uint64_t kMostBatch = std::uint64_t(1) << 50;
/// Ranks of a grid.
inline constexpr std::uint64_t kMostRanks = 1'000'000;
/// Forward passes that a plan holds at once: GPipe's micro-batches, or losses that wait for one backward pass.
inline constexpr std::uint64_t kMostHeld = 1'000;
/// Tokens of a stream of requests, were each as long as the longest one may be (chapter 11).
inline constexpr std::uint64_t kMostServedTokens = std::uint64_t(1) << 22;
/// Sequences that are read at a time, each with a cache of its own (chapter 12).
inline constexpr std::uint64_t kMostCaches = 100'000;
/// Steps whose memory a plan counts where they do not repeat each other; otherwise any number of them.
inline constexpr std::uint64_t kMostPlannedSteps = 10'000;
/// Steps of which a result file has what each held (--series).
inline constexpr std::uint64_t kMostSteps = 10'000;

}  // namespace oomlab
