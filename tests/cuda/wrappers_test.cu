// The owners of CUDA objects, and the checks of return codes.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "../device.h"
#include "cuda/backend.h"
#include "cuda/launch.h"
#include "cuda/raii.h"

namespace oomlab {
namespace {

class Wrappers : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_DEVICE(); }
};

TEST_F(Wrappers, AFailedCallIsNamedAndLeavesNoErrorBehind) {
  try {
    CUDA_CHECK(cudaSetDevice(-1));
    ADD_FAILURE() << "not refused";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), cudaErrorInvalidDevice);
    const std::string what = error.what();
    for (const char* word : {"cudaErrorInvalidDevice", "cudaSetDevice(-1)", "wrappers_test.cu:"})
      EXPECT_NE(what.find(word), std::string::npos) << what;
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(CUBLAS_CHECK(cublasSetStream(nullptr, nullptr)), CublasError);
  (void)cudaSetDevice(-1);
  testing::internal::CaptureStderr();
  report_if_failed(cudaErrorUnknown, "aCall");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("aCall"), std::string::npos);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

__global__ void empty_kernel() {}

// A step of many kernels ends between two of them.
TEST_F(Wrappers, NothingIsLaunchedOnceSomebodyWantsToEnd) {
  const Stream stream;
  launch(empty_kernel, {}, stream);
  const auto before = device_work();
  interrupt_wanted = true;
  EXPECT_THROW(launch(empty_kernel, {}, stream), Interrupted);
  interrupt_wanted = false;
  if (before) {
    EXPECT_EQ(device_work()->launches, before->launches);
  }
  // On its way out an exception is not replaced by another.
  struct AtTheEnd {
    const Stream& stream;
    ~AtTheEnd() { launch(empty_kernel, {}, stream); }
  };
  try {
    const AtTheEnd at_the_end{stream};
    interrupt_wanted = true;
    throw std::runtime_error("first");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  interrupt_wanted = false;
  stream.synchronize();
}

TEST_F(Wrappers, OwnersMoveAndAreNotCopied) {
  static_assert(!std::is_copy_constructible_v<Stream> && !std::is_copy_constructible_v<Event>);
  static_assert(!std::is_copy_constructible_v<CublasHandle>);
  Stream a;
  const cudaStream_t one = a;
  Stream b = std::move(a);
  EXPECT_EQ(cudaStream_t(b), one);
  a = Stream();
  b = std::move(a);
  EXPECT_NE(cudaStream_t(b), one);
  b.synchronize();
}

TEST_F(Wrappers, ThreadsABlockAreWithinWhatCudaAllows) {
  const unsigned threads = block_threads();
  for (const unsigned wrong : {0u, 1025u}) EXPECT_THROW(set_block_threads(wrong), std::invalid_argument);
  EXPECT_EQ(block_threads(), threads);
  set_block_threads(1024);
  EXPECT_EQ(shape_for_items(1).block.x, 1024u);
  set_block_threads(threads);
}

}  // namespace
}  // namespace oomlab
