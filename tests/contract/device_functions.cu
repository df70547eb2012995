// What CUDA has for kernels beside its language: names, types and results. Warps are in tests/puzzles/whole_blocks.cu.

#include <cmath>
#include <cstring>
#include <vector>

#include "contract.h"
#include "cuda/launch.h"

namespace {

using namespace oomlab;

// One thread writes what it computes, in order.
struct Writer {
  double* to;
  template <class T>
  __device__ void operator()(T x) {
    *to++ = static_cast<double>(x);
  }
};
// `two` is read by the read-only cache: nothing may write it while the kernel runs.
__global__ void arithmetic(double* to, const double* two) {
  if (threadIdx.x != 0) return;
  Writer put{to};
  put(max(-3, 2));
  put(min(-3, 2));
  put(max(3u, 4000000000u));
  put(min(5ull, 1ull << 40));
  put(max(1.5f, NAN));
  put(min(2.5, -2.5));
  put(rsqrtf(16.0f));
  put(__saturatef(1.5f));
  put(__saturatef(-1.5f));
  put(__fmaf_rn(2, 3, 4));
  put(__fdividef(1, 4));
  put(__float2int_rn(2.5f));
  put(__float2int_rn(3.5f));
  put(__float2int_rz(-2.9f));
  put(__int2float_rn(7));
  put(__float_as_int(1.0f));
  put(__float_as_uint(-1.0f));
  put(__int_as_float(0x40000000));
  put(__uint_as_float(0xbf800000u));
  put(__popc(0xf0u));
  put(__clz(1));
  put(__ffs(8));
  put(__ffs(0));
  put(__expf(1));
  put(__logf(8));
  put(__log2f(8));
  put(__powf(2, 10));
  put(__sinf(0.5f));
  put(__cosf(0.5f));
  const float4 four = make_float4(1, 2, 3, 4);
  put(four.x + four.w);
  put(make_int2(7, 8).y);
  put(make_uint4(1, 2, 3, 4).z);
  put(sizeof(float4));
  put(alignof(float2));
  put(__ldg(two));
}
// Each is done to a number of its own.
__global__ void atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  int* old = i + 9;
  *old++ = atomicAdd(i++, 5);
  *old++ = atomicSub(i++, 5);
  *old++ = atomicMax(i++, 15);
  *old++ = atomicMin(i++, -15);
  *old++ = atomicAnd(i++, 6);
  *old++ = atomicOr(i++, 6);
  *old++ = atomicXor(i++, 6);
  *old++ = atomicExch(i++, 6);
  *old++ = atomicCAS(i, 10, 20) + atomicCAS(i, 10, 30);
  atomicMax(u, 4000000000u);
  atomicMin(u + 1, 3u);
  atomicCAS(u + 2, 10u, 11u);
  atomicAdd(l, 1ull << 40);
  atomicMax(l + 1, 1ull << 41);
  atomicExch(f, 2.5f);
  atomicAdd(f + 1, 2.5f);
  atomicAdd(d, 0.25);
  __threadfence();
}
__global__ void largest(int* bits, unsigned* count, std::size_t n) {
  for (std::size_t k : grid_range(n)) {
    atomicMax(bits, __float_as_int(static_cast<float>(k * 7919 % n)));
    atomicSub(count, 1u);
  }
}

class DeviceFunctions : public Contract {};

TEST_F(DeviceFunctions, Arithmetic) {
  const std::vector<double> wanted = {2,
                                      -3,
                                      4000000000.0,
                                      5,
                                      1.5,
                                      -2.5,
                                      0.25,
                                      1,
                                      0,
                                      10,
                                      0.25,
                                      2,
                                      4,
                                      -2,
                                      7,
                                      0x3f800000,
                                      0xbf800000u,
                                      2,
                                      -1,
                                      4,
                                      31,
                                      4,
                                      0,
                                      std::exp(1.0),
                                      std::log(8.0),
                                      3,
                                      1024,
                                      std::sin(0.5),
                                      std::cos(0.5),
                                      5,
                                      8,
                                      3,
                                      16,
                                      8,
                                      2};
  Values<double> to(wanted.size());
  const Values<double> two(std::vector<double>{2});
  launch(arithmetic, {1, 1, 0}, nullptr, to.data(), two.data());
  const std::vector<double> got = to.get();
  for (std::size_t k = 0; k < wanted.size(); ++k)
    EXPECT_NEAR(got[k], wanted[k], 1e-5 * std::abs(wanted[k])) << "number " << k;
}

TEST_F(DeviceFunctions, AtomicsGiveWhatWasThereBefore) {
  Values<int> i(std::vector<int>(18, 10));
  Values<unsigned> u(std::vector<unsigned>(3, 10));
  Values<unsigned long long> l(std::vector<unsigned long long>(2, 10));
  Values<float> f(std::vector<float>(2, 10));
  Values<double> d(std::vector<double>(1, 10));
  launch(atomics, {1, 1, 0}, nullptr, i.data(), u.data(), l.data(), f.data(), d.data());
  EXPECT_EQ(i.get(), std::vector<int>({15, 5, 15, -15, 2, 14, 12, 6, 20, 10, 10, 10, 10, 10, 10, 10, 10, 30}));
  EXPECT_EQ(u.get(), std::vector<unsigned>({4000000000u, 3, 11}));
  EXPECT_EQ(l.get(), std::vector<unsigned long long>({(1ull << 40) + 10, 1ull << 41}));
  EXPECT_EQ(f.get(), std::vector<float>({2.5f, 12.5f}));
  EXPECT_EQ(d.get(), std::vector<double>({10.25}));
}

TEST_F(DeviceFunctions, AtomicsOfManyThreadsLoseNothing) {
  const std::size_t n = 5000;
  Values<int> bits(std::vector<int>(1, 0));
  Values<unsigned> count(std::vector<unsigned>(1, unsigned(n)));
  launch(largest, {8, 64, 0}, nullptr, bits.data(), count.data(), n);
  EXPECT_EQ(count.get()[0], 0u);
  float found = 0;
  const int seen = bits.get()[0];
  std::memcpy(&found, &seen, sizeof found);
  EXPECT_EQ(found, float(n - 1));
}

}  // namespace
