#pragma once
// The allocators that are compared, by name.

#include <utility>

#include "best_fit.h"
#include "caching_allocator.h"
#include "planned.h"
#include "steps.h"

namespace oomlab::caching_allocator {

/// One resource under another, owned together.
template <class Top, class Bottom>
class Stack final : public MemoryResource {
 public:
  Stack(std::unique_ptr<Bottom> bottom, std::unique_ptr<Top> top) : bottom_(std::move(bottom)), top_(std::move(top)) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override { return top_->allocate(bytes, stream); }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    top_->deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return top_->reserved_bytes(); }
  std::size_t largest_free_block() const override { return top_->largest_free_block(); }
  bool releases_cache() const override { return top_->releases_cache(); }

 private:
  std::unique_ptr<Bottom> bottom_;
  std::unique_ptr<Top> top_;
};

/// Makes an allocator that holds at most `budget` bytes (the driver's own: that allocates at most so many), and says
/// what it wants to do before and after a step: valid as long as the allocator is.
using MakeAllocator = std::function<std::unique_ptr<MemoryResource>(std::size_t budget, StepHooks& hooks)>;

/// `below`, refusing what would bring its live bytes above the budget.
template <class Resource>
std::unique_ptr<MemoryResource> limited(std::unique_ptr<Resource> below, std::size_t budget) {
  auto limit = std::make_unique<LimitingResource>(*below, budget);
  return std::make_unique<Stack<LimitingResource, Resource>>(std::move(below), std::move(limit));
}

inline std::unique_ptr<MemoryResource> make_cuda_malloc(std::size_t budget, StepHooks&) {
  return limited(std::make_unique<CudaResource>(), budget);
}
/// cudaMallocAsync: the pool gives freed memory back at each synchronisation, or keeps it. What it holds beyond what is
/// allocated is the driver's choice, and shown, but not counted against the budget: whether a step fits would depend on
/// the driver.
inline std::unique_ptr<MemoryResource> make_async(std::size_t budget, StepHooks&) {
  return limited(std::make_unique<AsyncResource>(0), budget);
}
inline std::unique_ptr<MemoryResource> make_async_kept(std::size_t budget, StepHooks&) {
  return limited(std::make_unique<AsyncResource>(UINT64_MAX), budget);
}
inline std::unique_ptr<MemoryResource> make_best_fit(std::size_t budget, StepHooks&) {
  return std::make_unique<BestFitAllocator>(budget);
}
/// The same over managed memory, whose pages move between host and device.
inline std::unique_ptr<MemoryResource> make_best_fit_managed(std::size_t budget, StepHooks&) {
  auto managed = std::make_unique<ManagedResource>();
  auto best_fit = std::make_unique<BestFitAllocator>(budget, managed.get());
  return std::make_unique<Stack<BestFitAllocator, ManagedResource>>(std::move(managed), std::move(best_fit));
}
/// Best fit with empty_cache() after each step.
inline std::unique_ptr<MemoryResource> make_best_fit_emptied(std::size_t budget, StepHooks& hooks) {
  auto best_fit = std::make_unique<BestFitAllocator>(budget);
  hooks.end = [memory = best_fit.get()] { memory->empty_cache(); };
  return best_fit;
}
inline std::unique_ptr<MemoryResource> make_ours(std::size_t budget, StepHooks&) {
  return std::make_unique<CachingAllocator>(CachingAllocator::Options{budget});
}
inline std::unique_ptr<MemoryResource> make_planned(std::size_t budget, StepHooks& hooks) {
  auto pages = std::make_unique<CachingAllocator>(CachingAllocator::Options{budget});
  auto plan = std::make_unique<PlannedResource>(*pages);
  hooks.begin = [memory = plan.get()] { memory->begin_step(); };
  hooks.end = [memory = plan.get()] { memory->end_step(); };
  return std::make_unique<Stack<PlannedResource, CachingAllocator>>(std::move(pages), std::move(plan));
}

}  // namespace oomlab::caching_allocator
