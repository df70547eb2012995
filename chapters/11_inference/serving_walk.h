#pragma once
// The schedule of serving.h on paper: lengths instead of tokens, numbers of blocks instead of blocks. It says before
// anything is computed how many requests run at a time, how many places are wasted, and how many bytes are needed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decoder.h"
#include "generation.h"
#include "memory/ledger.h"
#include "requests.h"

namespace oomlab::inference {

struct ServingPlan {
  bool possible = true;  ///< false: a request needs more blocks than there are; then the figures end there
  std::size_t most_blocks = 0;
  ServingCounts counts;
};

/// With up to `blocks` blocks of `block_tokens` tokens, and `most_rows` rows a step.
inline ServingPlan plan_serving(std::span<const Request> requests, std::size_t block_tokens, std::size_t blocks,
                                std::size_t most_rows) {
  struct Running {
    const Request* request;
    std::size_t known, places, cached, rows;  // tokens: known; that have a place; whose keys and values are there
  };
  const auto blocks_of = [&](std::size_t tokens) { return (tokens + block_tokens - 1) / block_tokens; };
  std::vector<std::size_t> answered(requests.size(), 0), queue;  // the next one last
  for (std::size_t i = requests.size(); i-- > 0;) queue.push_back(i);
  std::vector<Running> running;
  ServingPlan plan;
  std::size_t in_use = 0;

  const auto number = [&](const Running& r) { return static_cast<std::size_t>(r.request - requests.data()); };
  // Whole blocks that a request of this group shares with all others that run: they are there once.
  const auto shared_blocks = [&](const Request& r) { return r.shared / block_tokens; };
  const auto of_group = [&](const Request& r) {
    return r.group == 0 ? 0 : std::count_if(running.begin(), running.end(), [&](const Running& other) {
      return other.request->group == r.group;
    });
  };
  const auto take = [&](std::size_t more) {
    const bool there = more <= blocks - in_use;
    in_use += there ? more : 0;
    plan.most_blocks = std::max(plan.most_blocks, there ? in_use : blocks);  // an attempt takes what there is
    return there;
  };
  const auto leave = [&](std::size_t i) {
    const Running r = running[i];
    in_use -= blocks_of(r.places) - (of_group(*r.request) > 1 ? shared_blocks(*r.request) : 0);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
  };

  while (!running.empty() || !queue.empty()) {
    std::size_t rows = 0;
    bool preempted = false;
    const auto add_rows = [&](Running& r) {
      r.rows = std::min(r.known - r.cached, most_rows - rows);
      rows += r.rows;
    };
    for (std::size_t i = 0; i < running.size(); ++i) {
      running[i].rows = 0;
      if (rows == most_rows) continue;
      while (i < running.size() && !take(blocks_of(running[i].known) - blocks_of(running[i].places))) {
        if (running.size() == 1) return plan.possible = false, plan;
        queue.push_back(number(running.back()));
        leave(running.size() - 1);
        ++plan.counts.preemptions, preempted = true;
      }
      if (i == running.size()) break;
      running[i].places = running[i].known;
      add_rows(running[i]);
    }
    while (!preempted && !queue.empty() && rows < most_rows) {
      const Request& request = requests[queue.back()];
      const auto like = std::find_if(running.begin(), running.end(), [&](const Running& r) {
        return request.group && r.request->group == request.group;
      });
      const bool shares = like != running.end();
      if (shares && like->cached < request.shared) break;
      const std::size_t known = request.prompt.size() + answered[queue.back()];
      if (!take(blocks_of(known) - (shares ? shared_blocks(request) : 0))) {
        if (running.empty()) return plan.possible = false, plan;
        break;
      }
      queue.pop_back();
      running.push_back({&request, known, known, shares ? request.shared : 0, 0});
      add_rows(running.back());
    }

    std::size_t used = 0;
    for (std::size_t i = 0; i < running.size(); ++i) {
      Running& r = running[i];
      r.cached += r.rows;
      used += r.cached;
      for (std::size_t j = 0; j < i; ++j)
        if (r.request->group && running[j].request->group == r.request->group) {
          used -= shared_blocks(*r.request) * block_tokens;
          break;
        }
    }
    plan.counts.rows += rows;
    plan.counts.add_step(running.size(), in_use * block_tokens, used);
    for (std::size_t i = running.size(); i-- > 0;) {
      Running& r = running[i];
      if (r.rows == 0 || r.cached < r.known) continue;
      ++r.known, ++plan.counts.answered;
      if (++answered[number(r)] == r.request->answer) leave(i);
    }
  }
  return plan;
}

/// Bytes of a server by category, without what the context itself has: weights (all but those of the last
/// shape.processor_layers layers), buffers of a step, and `blocks` blocks.
template <class T>
ByCategory serving_bytes(const nn::TransformerSpec& spec, const CacheShape& shape, std::size_t most_rows,
                         std::size_t longest, std::size_t blocks) {
  ByCategory bytes = Generation<T>::scratch_bytes(spec, shape, most_rows, longest);
  bytes[Category::parameters] = PlacedWeights<T>::bytes(spec, shape.processor_layers).device;
  bytes[Category::activations] =
      checked_sum(bytes[Category::activations], checked_product(blocks, shape.counted_block_bytes()));
  return bytes;
}
/// Host memory that the last shape.processor_layers layers take: their weights, and their part of `blocks` blocks.
struct HostBytes {
  std::size_t weights = 0, cache = 0;
  std::size_t total() const { return checked_sum(weights, cache); }
};
template <class T>
HostBytes host_bytes(const nn::TransformerSpec& spec, const CacheShape& shape, std::size_t blocks) {
  return {PlacedWeights<T>::bytes(spec, shape.processor_layers).host, checked_product(blocks, shape.processor_bytes())};
}
/// Blocks that fit below a budget beside all that; `others`: bytes that the context and the program have, too. With all
/// layers on the processor a block has no bytes on the device: any number fits.
template <class T>
std::size_t blocks_within(std::size_t budget, const nn::TransformerSpec& spec, const CacheShape& shape,
                          std::size_t most_rows, std::size_t longest, std::size_t others = 0) {
  const std::size_t taken = checked_sum(serving_bytes<T>(spec, shape, most_rows, longest, 0).total(), others);
  if (budget <= taken) return 0;
  return shape.counted_block_bytes() ? (budget - taken) / shape.counted_block_bytes() : SIZE_MAX;
}

}  // namespace oomlab::inference
