// The allocators of chapter 06 keep the contract of all resources (tests/memory/resource_contract.h).

#include "../../chapters/06_caching_allocator/best_fit.h"
#include "../../chapters/06_caching_allocator/caching_allocator.h"
#include "../../chapters/06_caching_allocator/planned.h"
#include "../memory/resource_contract.h"

namespace oomlab {

/// In the middle of a planned step: some requests get the place that was planned for them, others do not.
template <>
struct Stack<caching_allocator::PlannedResource> {
  explicit Stack(cudaStream_t stream) : top(bottom) {
    top.begin_step();
    std::vector<void*> blocks;
    for (const std::size_t bytes : kRecorded) blocks.push_back(top.allocate(bytes, stream));
    for (std::size_t i = 0; i < blocks.size(); ++i) top.deallocate(blocks[i], kRecorded[i], stream);
    top.end_step();
    top.begin_step();
  }
  static constexpr std::size_t kRecorded[] = {4096, 10'000, 10'000};
  caching_allocator::CachingAllocator bottom;
  caching_allocator::PlannedResource top;
};

using Allocators = ::testing::Types<caching_allocator::BestFitAllocator, caching_allocator::CachingAllocator,
                                    caching_allocator::PlannedResource>;
INSTANTIATE_TYPED_TEST_SUITE_P(Chapter06, ResourceContract, Allocators);

}  // namespace oomlab
