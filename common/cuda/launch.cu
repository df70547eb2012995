#include "cuda/launch.h"

#include <fmt/format.h>

#include <stdexcept>

namespace oomlab {
namespace {
unsigned threads_per_block = 256;
}

unsigned block_threads() noexcept { return threads_per_block; }

void set_block_threads(unsigned threads) {
  if (threads < 1 || threads > kMostBlockThreads)
    throw std::invalid_argument(fmt::format("threads a block must be 1 to {}, not {}", kMostBlockThreads, threads));
  threads_per_block = threads;
}

}  // namespace oomlab
