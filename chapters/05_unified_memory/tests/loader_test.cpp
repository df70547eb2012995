// The loaders, several batches ahead of the device: on the host runtime, streams put work off as long as CUDA allows.

#include "loader.h"
#include "../../../tests/device.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace oomlab::unified_memory {
namespace {

// Before the first call into the runtime, which reads it.
[[maybe_unused]] const int deferred = setenv("OOMLAB_HOST_STREAMS", "deferred:3", 1);

TEST(Loaders, GiveTheNextBatchWithoutWaitingForTheLast) {
  SKIP_WITHOUT_DEVICE();
  const data::Dataset dataset = data::digits();
  constexpr std::size_t kBatch = 3, kWidth = 64, kBatches = 6, kCount = kBatch * kWidth;
  for (const Loading loading : {Loading::pageable, Loading::pinned, Loading::pinned_ahead, Loading::queued}) {
    Ledger ledger;
    with_context(Config{}, kUnlimited, ledger, [&](Context& context) {
      HostSource source(context, dataset, kBatch, kWidth, loading);
      auto seen = context.buffer<float>(kBatches * kCount, Category::activations, "what a step would read");
      for (std::size_t i = 0; i < kBatches; ++i)
        CUDA_CHECK(cudaMemcpyAsync(seen.data() + i * kCount, source.next().input, kCount * sizeof(float),
                                   cudaMemcpyDeviceToDevice, context.stream()));
      context.synchronize();
      std::vector<float> pixels(seen.size());
      CUDA_CHECK(cudaMemcpy(pixels.data(), seen.data(), seen.bytes(), cudaMemcpyDeviceToHost));
      for (std::size_t i = 0; i < pixels.size(); ++i)
        ASSERT_EQ(pixels[i], float(dataset.images[i]) / float(dataset.white))
            << "pixel " << i << ", loader " << int(loading);
    });
  }
}

}  // namespace
}  // namespace oomlab::unified_memory
