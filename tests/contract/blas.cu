// The cuBLAS subset, against a reference in double on this machine.

#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "contract.h"
#include "cuda/backend.h"
#include "cuda/launch.h"
#include "cuda/raii.h"

namespace {

template <class T>
constexpr cudaDataType type_of = std::is_same_v<T, float>           ? CUDA_R_32F
                                 : std::is_same_v<T, __half>        ? CUDA_R_16F
                                 : std::is_same_v<T, __nv_bfloat16> ? CUDA_R_16BF
                                 : std::is_same_v<T, std::int8_t>   ? CUDA_R_8I
                                                                    : CUDA_R_32I;
bool on_a_gpu() { return std::string(oomlab::backend_name()) == "cuda"; }
template <class T>
T from_double(double value) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(value);
  else
    return T(static_cast<float>(value));
}
template <class T>
double to_double(T value) {
  if constexpr (std::is_integral_v<T>)
    return value;
  else
    return static_cast<float>(value);
}

/// One call's shape. Leading dimensions are the smallest plus `padding`; matrices of a batch follow each
/// other.
struct Shape {
  int m, n, k, padding = 0, batch = 1;
  bool ta = false, tb = false;
  int lda() const { return (ta ? k : m) + padding; }
  int ldb() const { return (tb ? n : k) + padding; }
  int ldc() const { return m + padding; }
  long long stride_a() const { return static_cast<long long>(lda()) * (ta ? m : k); }
  long long stride_b() const { return static_cast<long long>(ldb()) * (tb ? k : n); }
  long long stride_c() const { return static_cast<long long>(ldc()) * n; }
  cublasOperation_t op_a() const { return ta ? CUBLAS_OP_T : CUBLAS_OP_N; }
  cublasOperation_t op_b() const { return tb ? CUBLAS_OP_T : CUBLAS_OP_N; }
  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (ta ? " T" : " N") +
           (tb ? "T" : "N") + " batch " + std::to_string(batch);
  }
};

template <class In, class Out,
          cublasComputeType_t Compute = std::is_integral_v<Out> ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F>
struct Pair {
  using A = In;
  using C = Out;
  using Scalar = std::conditional_t<std::is_integral_v<Out>, std::int32_t, float>;
  static constexpr cublasComputeType_t compute = Compute;
  /// By how much an operand may be changed before it is multiplied, relative: TF32 keeps 10 bits of mantissa, and
  /// whoever cuts the others off is off by one of its units.
  static constexpr double operand_error = Compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 0x1p-10 : 0;
};

template <class P>
class Gemm : public testing::Test {
 protected:
  using A = typename P::A;
  using C = typename P::C;
  using Scalar = typename P::Scalar;

  Gemm() {
    // Otherwise a GPU may add partial sums in the type of C.
    CUBLAS_CHECK(cublasSetMathMode(blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  }

  template <class T, class Draw>
  std::vector<T> fill(long long n, Draw draw) {
    std::vector<T> values(n);
    for (T& value : values) value = from_double<T>(draw(random));
    return values;
  }

  cublasStatus_t call(const Shape& s, Scalar alpha, const A* a, const A* b, Scalar beta, C* c) {
    if (s.batch == 1)
      return cublasGemmEx(blas, s.op_a(), s.op_b(), s.m, s.n, s.k, &alpha, a, type_of<A>, s.lda(), b, type_of<A>,
                          s.ldb(), &beta, c, type_of<C>, s.ldc(), P::compute, CUBLAS_GEMM_DEFAULT);
    return cublasGemmStridedBatchedEx(blas, s.op_a(), s.op_b(), s.m, s.n, s.k, &alpha, a, type_of<A>, s.lda(),
                                      s.stride_a(), b, type_of<A>, s.ldb(), s.stride_b(), &beta, c, type_of<C>, s.ldc(),
                                      s.stride_c(), s.batch, P::compute, CUBLAS_GEMM_DEFAULT);
  }

  /// Runs the GEMM on values drawn by `draw` and compares every element of C, padding included. `exact`: to
  /// the bit, else within the rounding of k FP32 additions and one conversion.
  template <class Draw>
  void check(const Shape& s, Scalar alpha, Scalar beta, Draw draw, bool exact) {
    SCOPED_TRACE(s.name());
    const auto a = fill<A>(s.stride_a() * s.batch, draw), b = fill<A>(s.stride_b() * s.batch, draw);
    const auto c = fill<C>(s.stride_c() * s.batch, draw);
    const Values<A> device_a(a), device_b(b);
    const Values<C> device_c(c);
    const cublasStatus_t status = call(s, alpha, device_a.data(), device_b.data(), beta, device_c.data());
    // INT8: cuBLAS 13.0 on an H100 refuses some shapes, as 36 x 4 x 4. What it takes must be right.
    if (std::is_integral_v<A> && status == CUBLAS_STATUS_NOT_SUPPORTED && on_a_gpu()) return;
    CUBLAS_CHECK(status);
    const std::vector<C> got = device_c.get();

    for (int batch = 0; batch < s.batch; ++batch)
      for (int j = 0; j < s.n; ++j)
        for (int i = 0; i < s.ldc(); ++i) {
          const std::size_t at = batch * s.stride_c() + static_cast<long long>(j) * s.ldc() + i;
          if (i >= s.m) {
            ASSERT_EQ(to_double(got[at]), to_double(c[at])) << "padding at " << i << ", " << j;
            continue;
          }
          double sum = 0, magnitude = 0;
          for (int p = 0; p < s.k; ++p) {
            const double x =
                to_double(a[batch * s.stride_a() + (s.ta ? p + 1ll * i * s.lda() : i + 1ll * p * s.lda())]);
            const double y =
                to_double(b[batch * s.stride_b() + (s.tb ? j + 1ll * p * s.ldb() : p + 1ll * j * s.ldb())]);
            sum += x * y;
            magnitude += std::abs(x * y);
          }
          const double expected = alpha * sum + beta * to_double(c[at]);
          if (exact) {
            ASSERT_EQ(to_double(got[at]), to_double(from_double<C>(expected))) << "at " << i << ", " << j;
          } else {
            const double bound = std::abs(alpha) * magnitude + std::abs(beta * to_double(c[at]));
            const double unit = sizeof(C) == 4 ? 0x1p-24 : std::is_same_v<C, __half> ? 0x1p-11 : 0x1p-8;
            const double operands = 2.01 * P::operand_error * std::abs(alpha) * magnitude;
            ASSERT_NEAR(to_double(got[at]), expected,
                        0x1p-24 * (s.k + 3) * bound + unit * std::abs(expected) + operands + 1e-7)
                << "at " << i << ", " << j;
          }
        }
  }

  /// int8 GEMM wants multiples of 4; the other types take any size.
  static int size(int wanted) { return std::is_integral_v<A> ? (wanted + 3) / 4 * 4 : wanted; }

  oomlab::Stream stream;
  oomlab::CublasHandle blas{stream};
  std::mt19937 random{42};
};

using Pairs = testing::Types<Pair<float, float>, Pair<float, float, CUBLAS_COMPUTE_32F_FAST_TF32>, Pair<__half, __half>,
                             Pair<__half, float>, Pair<__nv_bfloat16, __nv_bfloat16>, Pair<__nv_bfloat16, float>,
                             Pair<std::int8_t, std::int32_t>>;
TYPED_TEST_SUITE(Gemm, Pairs);

double small_integer(std::mt19937& random) { return std::uniform_int_distribution(-2, 2)(random); }

TYPED_TEST(Gemm, SmallIntegersAreExact) {
  const auto fit = [](int wanted) { return TestFixture::size(wanted); };
  for (const int m : {1, 5, 33})
    for (const int n : {1, 7, 32})
      for (const int k : {1, 6, 65})
        for (const bool ta : {false, true})
          for (const bool tb : {false, true})
            for (const int padding : {0, 4}) {
              const Shape shape{fit(m), fit(n), fit(k), padding, 1, ta, tb};
              this->check(shape, 1, 0, small_integer, true);
              this->check(shape, 2, -1, small_integer, true);
              if (testing::Test::HasFatalFailure()) return;
            }
}

// Long and wide enough that an implementation which works in tiles has borders in every direction.
TYPED_TEST(Gemm, TileBordersAreExact) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const Shape& shape : {Shape{1028, 4, 8, 0, 1, ta, tb}, Shape{8, 1028, 4, 4, 1, ta, tb},
                                 Shape{4, 8, 2060, 0, 1, ta, tb}, Shape{516, 520, 12, 0, 1, ta, tb},
                                 Shape{520, 12, 1032, 4, 1, ta, tb}, Shape{12, 516, 1036, 0, 1, ta, tb}}) {
        this->check(shape, 1, 1, small_integer, true);
        if (testing::Test::HasFatalFailure()) return;
      }
}

TYPED_TEST(Gemm, ErrorStaysWithinRounding) {
  if constexpr (std::is_integral_v<typename TypeParam::A>) {
    const auto any = [](std::mt19937& random) { return std::uniform_int_distribution(-128, 127)(random); };
    this->check({36, 20, 2200, 0, 1, true, false}, 1, 0, any, true);
    this->check({36, 20, 2200, 0, 1, false, true}, -3, 2, any, true);
    const auto lowest = [](std::mt19937&) { return -128; };
    this->check({4, 4, 4096}, 1, 0, lowest, true);
  } else {
    const auto real = [](std::mt19937& random) { return std::uniform_real_distribution(-1.0, 1.0)(random); };
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        this->check({67, 45, 130, 3, 1, ta, tb}, 1, 0, real, false);
        this->check({129, 31, 1100, 0, 1, ta, tb}, 0.5f, -1.5f, real, false);
      }
  }
}

TYPED_TEST(Gemm, BatchesKeepTheirStrides) {
  for (const int batch : {2, 3, 17})
    for (const bool tb : {false, true}) {
      this->check({8, 12, 16, 4, batch, false, tb}, 1, 0, small_integer, true);
      this->check({40, 36, 64, 0, batch, true, tb}, 2, 1, small_integer, true);
    }
}

TYPED_TEST(Gemm, BetaZeroDoesNotReadC) {
  using C = typename TypeParam::C;
  using A = typename TypeParam::A;
  for (const int k : {0, 8, 600})
    for (const int batch : {1, 5}) {
      const Shape shape{8, 12, k, 0, batch};
      const Values<A> a(std::vector<A>(shape.stride_a() * batch, from_double<A>(1)));
      const Values<A> b(std::vector<A>(shape.stride_b() * batch, from_double<A>(1)));
      std::vector<C> nan(shape.stride_c() * batch);
      if constexpr (std::is_integral_v<C>)
        std::fill(nan.begin(), nan.end(), std::numeric_limits<C>::min());
      else
        std::fill(nan.begin(), nan.end(), C(std::numeric_limits<float>::quiet_NaN()));
      const Values<C> c(nan);
      if (k == 0) {  // leading dimensions must still be positive
        const typename TypeParam::Scalar one = 1, zero = 0;
        CUBLAS_CHECK(cublasGemmEx(this->blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 12, 0, &one, a.data(), type_of<A>, 8,
                                  b.data(), type_of<A>, 4, &zero, c.data(), type_of<C>, 8, TypeParam::compute,
                                  CUBLAS_GEMM_DEFAULT));
      } else {
        CUBLAS_CHECK(this->call(shape, 1, a.data(), b.data(), 0, c.data()));
      }
      const std::vector<C> got = c.get();
      for (int i = 0; i < (k == 0 ? 8 * 12 : static_cast<int>(got.size())); ++i) ASSERT_EQ(to_double(got[i]), k) << i;
    }
}

TYPED_TEST(Gemm, AlphaZeroScalesC) {
  this->check({8, 12, 16}, 0, 3, small_integer, true);
  this->check({8, 12, 16}, 0, 0, small_integer, true);
  this->check({8, 12, 16}, 0, 1, small_integer, true);
}

TYPED_TEST(Gemm, SameCallSameBits) {
  using C = typename TypeParam::C;
  using A = typename TypeParam::A;
  const auto real = [](std::mt19937& random) { return std::uniform_real_distribution(-3.0, 3.0)(random); };
  const Shape shape{260, 132, 700, 0, 3};
  const Values<A> a(this->template fill<A>(shape.stride_a() * 3, real));
  const Values<A> b(this->template fill<A>(shape.stride_b() * 3, real));
  const Values<C> c(std::vector<C>(shape.stride_c() * 3));
  std::vector<C> first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    CUBLAS_CHECK(this->call(shape, 1, a.data(), b.data(), 0, c.data()));
    const std::vector<C> got = c.get();
    if (repeat == 0) first = got;
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(to_double(got[i]), to_double(first[i])) << i;
  }
}

// Rows of B further apart, as SwiGLU's output lies where gate and up lay, or side by side: the same bits. No manual
// says so; what chapters 04 and 11 call bit-equal for llamas is so only where it holds.
TYPED_TEST(Gemm, DistancesOfRowsDoNotChangeBits) {
  using C = typename TypeParam::C;
  using A = typename TypeParam::A;
  const auto real = [](std::mt19937& random) { return std::uniform_real_distribution(-3.0, 3.0)(random); };
  for (const auto& [m, n, k] : {std::array{64, 128, 172}, {128, 33, 344}, {256, 96, 1376}}) {
    const auto b = this->template fill<A>(1ll * k * n, real);
    auto apart = this->template fill<A>(2ll * k * n, real);
    for (int row = 0; row < n; ++row) std::copy_n(b.begin() + 1ll * row * k, k, apart.begin() + 2ll * row * k);
    const Values<A> weight(this->template fill<A>(1ll * k * m, real));
    const auto product = [&, m = m, n = n, k = k](const std::vector<A>& rows, int distance) {
      const Values<A> x(rows);
      const Values<C> y(std::vector<C>(1ll * m * n));
      const typename TypeParam::Scalar one = 1, zero = 0;
      CUBLAS_CHECK(cublasGemmStridedBatchedEx(this->blas, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, weight.data(),
                                              type_of<A>, k, 0, x.data(), type_of<A>, distance, 0, &zero, y.data(),
                                              type_of<C>, m, 0, 1, TypeParam::compute, CUBLAS_GEMM_DEFAULT));
      return y.get();
    };
    const std::vector<C> side_by_side = product(b, k), further = product(apart, 2 * k);
    for (std::size_t i = 0; i < further.size(); ++i)
      ASSERT_EQ(to_double(further[i]), to_double(side_by_side[i])) << i << " of " << m << " x " << n << " x " << k;
  }
}

// One matrix for the whole batch, and matrices of a batch that lie side by side, as attention heads do.
TYPED_TEST(Gemm, BroadcastAndInterleavedBatches) {
  using C = typename TypeParam::C;
  using A = typename TypeParam::A;
  using Scalar = typename TypeParam::Scalar;
  constexpr int heads = 6, width = 8, model = heads * width, tokens = 12;
  const auto a = this->template fill<A>(width * width, small_integer);
  const auto b = this->template fill<A>(model * tokens, small_integer);
  const Values<A> device_a(a), device_b(b);
  const Values<C> device_c(std::vector<C>(model * tokens));
  const Scalar one = 1, zero = 0;
  CUBLAS_CHECK(cublasGemmStridedBatchedEx(this->blas, CUBLAS_OP_N, CUBLAS_OP_N, width, tokens, width, &one,
                                          device_a.data(), type_of<A>, width, 0, device_b.data(), type_of<A>, model,
                                          width, &zero, device_c.data(), type_of<C>, model, width, heads,
                                          TypeParam::compute, CUBLAS_GEMM_DEFAULT));
  const std::vector<C> got = device_c.get();
  for (int token = 0; token < tokens; ++token)
    for (int at = 0; at < model; ++at) {
      double sum = 0;
      for (int p = 0; p < width; ++p)
        sum += to_double(a[p * width + at % width]) * to_double(b[token * model + at / width * width + p]);
      ASSERT_EQ(to_double(got[token * model + at]), sum) << at << " of token " << token;
    }
}

__global__ void fill_kernel(float* values, std::size_t n, float value) {
  for (const std::size_t i : oomlab::grid_range(n)) values[i] = value;
}

class Blas : public testing::Test {
 protected:
  cublasStatus_t sgemm(int m, int n, int k, int lda, int ldb, int ldc) {
    return cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, a.data(), lda, b.data(), ldb, &zero, c.data(),
                       ldc);
  }
  cublasStatus_t gemm_ex(cudaDataType ta, cudaDataType tb, cudaDataType tc, cublasComputeType_t compute, int lda = 8) {
    return cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, a.data(), ta, lda, b.data(), tb, 8, &zero,
                        c.data(), tc, 8, compute, CUBLAS_GEMM_DEFAULT);
  }
  // Of A and B with 8 rows each, `stride` elements from one matrix to the next.
  cublasStatus_t batched(cublasOperation_t transa, int m, int n, int k, long long stride, const float* beta, int ldc,
                         long long stride_c, int count) {
    return cublasGemmStridedBatchedEx(blas, transa, CUBLAS_OP_N, m, n, k, &one, a.data(), CUDA_R_32F, 8, stride,
                                      b.data(), CUDA_R_32F, 8, stride, beta, c.data(), CUDA_R_32F, ldc, stride_c, count,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  }
  oomlab::Stream stream;
  oomlab::CublasHandle blas{stream};
  const float one = 1, zero = 0;
  Values<float> a{std::vector<float>(256, 1.0f)}, b{std::vector<float>(256, 2.0f)}, c{std::vector<float>(256)};
};

TEST_F(Blas, SgemmAndABatch) {
  CUBLAS_CHECK(sgemm(4, 5, 3, 4, 3, 4));
  EXPECT_EQ(c.get()[19], 6.0f);
  EXPECT_EQ(c.get()[20], 0.0f);
  CUBLAS_CHECK(batched(CUBLAS_OP_T, 2, 2, 8, 16, &one, 2, 4, 6));
  const std::vector<float> got = c.get();
  EXPECT_EQ(got[0], 22.0f);
  EXPECT_EQ(got[19], 22.0f);
  EXPECT_EQ(got[20], 16.0f);
  EXPECT_EQ(got[24], 0.0f);
}

TEST_F(Blas, WorksInStreamOrder) {
  for (int i = 0; i < 3; ++i) {
    oomlab::launch(fill_kernel, oomlab::shape_for_items(256), stream, a.data(), std::size_t{256}, 1.0f + i);
    CUBLAS_CHECK(sgemm(16, 16, 16, 16, 16, 16));
    oomlab::launch(fill_kernel, oomlab::shape_for_items(256), stream, a.data(), std::size_t{256}, -1.0f);
    EXPECT_EQ(c.get()[255], 32.0f * (1 + i));
  }
}

TEST_F(Blas, ScalarsAreReadAtTheCall) {
  float alpha = 3;
  CUBLAS_CHECK(
      cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &alpha, a.data(), 8, b.data(), 8, &zero, c.data(), 8));
  alpha = 100;
  EXPECT_EQ(c.get()[63], 48.0f);
}

TEST_F(Blas, EmptyIsSuccess) {
  EXPECT_EQ(sgemm(0, 8, 8, 1, 8, 1), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(sgemm(8, 0, 8, 8, 8, 8), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(batched(CUBLAS_OP_N, 8, 8, 8, 0, &zero, 8, 0, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(c.get(), std::vector<float>(256));
}

TEST_F(Blas, BadArgumentsAreRefused) {
  EXPECT_EQ(sgemm(-1, 8, 8, 8, 8, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(sgemm(8, -1, 8, 8, 8, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(sgemm(8, 8, -1, 8, 8, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(sgemm(8, 8, 8, 7, 8, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(sgemm(8, 8, 8, 8, 7, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(sgemm(8, 8, 8, 8, 8, 7), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, nullptr, a.data(), 8, b.data(), 8, &zero, c.data(), 8),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, a.data(), 8, b.data(), 8, &zero, c.data(), 8),
            CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasSgemm(blas, static_cast<cublasOperation_t>(9), CUBLAS_OP_N, 8, 8, 8, &one, a.data(), 8, b.data(), 8,
                        &zero, c.data(), 8),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_NE(batched(CUBLAS_OP_N, 8, 8, 8, 0, &zero, 8, 0, -1), CUBLAS_STATUS_SUCCESS);  // 13.0: EXECUTION_FAILED
  EXPECT_EQ(c.get(), std::vector<float>(256));
}

TEST_F(Blas, UnknownCombinationsAreRefused) {
  EXPECT_EQ(gemm_ex(CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(gemm_ex(CUDA_R_16F, CUDA_R_16F, CUDA_R_16BF, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(gemm_ex(CUDA_R_32F, CUDA_R_32F, CUDA_R_16F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(gemm_ex(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32I), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(gemm_ex(CUDA_R_8I, CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, 9), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(gemm_ex(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32), CUBLAS_STATUS_SUCCESS);
}

TEST_F(Blas, Settings) {
  EXPECT_EQ(cublasSetStream(blas, nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasSetStream(nullptr, nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(Blas, WorkspaceIsGivenAndGivenBack) {
  const Values<char> workspace(std::vector<char>(4 << 20));
  EXPECT_EQ(cublasSetWorkspace(blas, workspace.data(), workspace.size()), CUBLAS_STATUS_SUCCESS);
  CUBLAS_CHECK(sgemm(8, 8, 8, 8, 8, 8));
  EXPECT_EQ(c.get()[63], 16.0f);
  // By the documents it must be aligned to 256 bytes. The host runtime insists; cuBLAS 13.0 takes any address.
  const cublasStatus_t odd = cublasSetWorkspace(blas, workspace.data() + 16, workspace.size() - 16);
  EXPECT_TRUE(odd == CUBLAS_STATUS_INVALID_VALUE || odd == CUBLAS_STATUS_SUCCESS) << odd;
  EXPECT_EQ(cublasSetStream(blas, stream), CUBLAS_STATUS_SUCCESS);  // gives the workspace back
}

TEST(BlasNames, Statuses) {
  EXPECT_STREQ(cublasGetStatusName(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
  EXPECT_STREQ(cublasGetStatusName(CUBLAS_STATUS_ALLOC_FAILED), "CUBLAS_STATUS_ALLOC_FAILED");
  EXPECT_STREQ(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_STRNE(cublasGetStatusString(CUBLAS_STATUS_EXECUTION_FAILED), "");
  EXPECT_EQ(int{CUDA_R_16F}, 2);
  EXPECT_EQ(int{CUDA_R_16BF}, 14);
}

}  // namespace
