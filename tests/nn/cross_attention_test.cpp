// Attention whose Q, K and V lie apart, in its three forms, forward and backward, against double precision: other numbers of
// keys than of queries, heads that share keys, every storage type; and bit by bit against one buffer where there are as many.

#include "nn/ops/cross_attention.h"

#include "cuda/block_threads.h"
#include "device.h"
#include "memory/resource.h"
#include "transformer_reference.h"
#include "typed.h"

namespace oomlab::test {
namespace {

using nn::AttentionForm;
using nn::AttentionShape;

constexpr AttentionForm kForms[] = {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused};

// Q, K and V and the gradient of what they attend to; or the gradients of them and what they attend to.
template <class V>
struct Rows {
  V q, k, v, attended;
};
using References = Rows<Vector>;

References attention(const AttentionShape& s, const References& in) {
  const std::size_t depth = s.depth(), width = s.width, key_width = s.keys() * depth, keys = s.key_length();
  const double scale = 1 / std::sqrt(double(depth));
  References r{Vector(in.q.size()), Vector(in.k.size()), Vector(in.v.size()), Vector(in.q.size())};
  for (std::size_t b = 0; b < s.sequences; ++b)
    for (std::size_t h = 0; h < s.heads; ++h)
      for (std::size_t row = 0; row < s.seq; ++row) {
        const std::size_t q = (b * s.seq + row) * width + h * depth;
        const auto key = [&](std::size_t k) { return (b * keys + k) * key_width + h / s.sharers() * depth; };
        const std::size_t seen = s.causal ? row + 1 : keys;
        Vector p(seen), dp(seen);
        double largest = -INFINITY, sum = 0, common = 0;
        for (std::size_t k = 0; k < seen; ++k) {
          for (std::size_t i = 0; i < depth; ++i) p[k] += scale * in.q[q + i] * in.k[key(k) + i];
          largest = std::max(largest, p[k]);
        }
        for (double& v : p) sum += v = std::exp(v - largest);
        for (std::size_t k = 0; k < seen; ++k) {
          p[k] /= sum;
          for (std::size_t i = 0; i < depth; ++i) {
            r.attended[q + i] += p[k] * in.v[key(k) + i];
            r.v[key(k) + i] += p[k] * in.attended[q + i];
            dp[k] += in.attended[q + i] * in.v[key(k) + i];
          }
          common += p[k] * dp[k];
        }
        for (std::size_t k = 0; k < seen; ++k)
          for (std::size_t i = 0; i < depth; ++i) {
            r.q[q + i] += p[k] * (dp[k] - common) * scale * in.k[key(k) + i];
            r.k[key(k) + i] += p[k] * (dp[k] - common) * scale * in.q[q + i];
          }
      }
  return r;
}

template <class T>
Rows<std::vector<T>> random_rows(const AttentionShape& s) {
  const std::size_t queries = s.sequences * s.seq * s.width;
  const std::size_t keys = s.sequences * s.key_length() * s.keys() * s.depth();
  return {random<T>(queries, 1), random<T>(keys, 2), random<T>(keys, 3), random<T>(queries, 4)};
}

TEST(CrossAttentionReference, ItsGradientsAreThoseOfCentralDifferences) {
  for (const AttentionShape& s : {AttentionShape{2, 3, 2, 6, false, 0, nullptr, 4},
                                  AttentionShape{1, 4, 2, 4, false, 1, nullptr, 2}, AttentionShape{2, 4, 2, 6, true}}) {
    const Rows<std::vector<float>> floats = random_rows<float>(s);
    const References in{doubles(floats.q), doubles(floats.k), doubles(floats.v), doubles(floats.attended)};
    const References found = attention(s, in);
    for (Vector References::*const part : {&References::q, &References::k, &References::v})
      expect_close(found.*part,
                   central_differences(in.*part,
                                       [&](const Vector& x) {
                                         References moved = in;
                                         moved.*part = x;
                                         return dot(attention(s, moved).attended, in.attended);
                                       }),
                   1e-6, "gradient");
  }
}

template <class T>
struct OnDevice {
  explicit OnDevice(Device& device, const Rows<std::vector<T>>& rows)
      : q(device.upload(rows.q)), k(device.upload(rows.k)), v(device.upload(rows.v)), d(device.upload(rows.attended)) {}
  nn::SeparateQkv<const T> in() const { return {q.data(), k.data(), v.data()}; }
  DeviceBuffer<T> q, k, v, d;
};

// With `keep` false as in inference: of the fused form nothing but what is attended to.
template <class T>
void forward(Context& context, AttentionForm form, const AttentionShape& s, const OnDevice<T>& rows, T* attended,
             DeviceBuffer<T>& p, float* lse) {
  switch (form) {
    case AttentionForm::textbook:
      p = nn::cross_attention_probabilities<T>(context, s, rows.q.data(), rows.k.data());
      return nn::cross_attention_forward<T>(context, s, p.data(), rows.v.data(), attended);
    case AttentionForm::tiled: return nn::cross_attention_forward_tiled(context, s, rows.in(), attended);
    case AttentionForm::fused: return nn::cross_attention_forward_fused(context, s, rows.in(), attended, lse);
  }
}

template <class T>
Rows<std::vector<T>> run(Device& device, AttentionForm form, const AttentionShape& s,
                         const Rows<std::vector<T>>& rows) {
  Context& context = device.context;
  const OnDevice<T> in(device, rows);
  const auto garbage = [&](std::size_t count) { return device.upload(std::vector<T>(count, static_cast<T>(NAN))); };
  auto attended = garbage(rows.q.size()), dq = garbage(rows.q.size()), dk = garbage(rows.k.size()),
       dv = garbage(rows.v.size());
  const std::size_t row_values = s.matrices() * s.seq;
  auto lse = context.buffer<float>(row_values, Category::activations, "lse");
  auto dots = context.buffer<float>(row_values, Category::activations, "dots");
  DeviceBuffer<T> p;
  forward<T>(context, form, s, in, attended.data(), p, lse.data());
  const nn::SeparateQkv<T> gradients{dq.data(), dk.data(), dv.data()};
  switch (form) {
    case AttentionForm::textbook:
      nn::cross_attention_backward(context, s, in.in(), p.data(), in.d.data(), gradients);
      break;
    case AttentionForm::tiled: nn::cross_attention_backward_tiled(context, s, in.in(), in.d.data(), gradients); break;
    case AttentionForm::fused:
      nn::attention_row_dots(context, s, attended.data(), in.d.data(), dots.data());
      nn::cross_attention_backward_fused(context, s, in.in(), lse.data(), dots.data(), in.d.data(), gradients);
      break;
  }
  return {device.download(dq), device.download(dk), device.download(dv), device.download(attended)};
}

std::string text(const AttentionShape& s, AttentionForm form) {
  return std::string(name_of(form)) + (s.causal ? " causal " : " ") + std::to_string(s.sequences) + " x " +
         std::to_string(s.seq) + " queries, " + std::to_string(s.key_length()) + " keys, " + std::to_string(s.heads) +
         " heads over " + std::to_string(s.keys()) + " of " + std::to_string(s.depth());
}

class CrossAttention : public TypedOps {};
INSTANTIATE_TEST_SUITE_P(BlockThreads, CrossAttention, ::testing::ValuesIn(kDistinctBlockThreads));

// One key; more keys than queries, and fewer; one more than a tile, and one less; more sequences than heads; heads that share
// keys; heads of an odd number of values.
const AttentionShape kShapes[] = {{2, 5, 3, 9, false, 0, nullptr, 1},     {1, 1, 2, 4, false, 0, nullptr, 9},
                                  {2, 64, 4, 32, false, 0, nullptr, 8},   {3, 16, 2, 14, false, 0, nullptr, 33},
                                  {1, 33, 2, 66, false, 0, nullptr, 65},  {5, 12, 6, 30, false, 2, nullptr, 7},
                                  {2, 70, 4, 12, false, 1, nullptr, 129}, {1, 300, 4, 32, false, 2, nullptr, 77},
                                  {1, 19, 1, 256, false, 0, nullptr, 20}, {2, 31, 3, 24, true, 0, nullptr, 0}};

TEST_P(CrossAttention, EveryFormIsAsTheReferenceSays) {
  for_each_type([&]<class T>(T) {
    for (const AttentionShape& s : kShapes) {
      if (OOMLAB_ROUNDS < 10 && s.seq > 100) continue;
      const Rows<std::vector<T>> rows = random_rows<T>(s);
      const References expected = attention(s, {wide(rows.q), wide(rows.k), wide(rows.v), wide(rows.attended)});
      for (const AttentionForm form : kForms) {
        const double tolerance = 2 * kTolerance<T>;  // probabilities are rounded as well
        const Rows<std::vector<T>> found = run<T>(device, form, s, rows);
        expect_close(wide(found.attended), expected.attended, tolerance, text(s, form));
        if (s.key_length() > 1) {  // one key's probability is 1, whatever the query
          expect_close(wide(found.q), expected.q, tolerance, "gradient of Q, " + text(s, form));
          expect_close(wide(found.k), expected.k, tolerance, "gradient of K, " + text(s, form));
        }
        expect_close(wide(found.v), expected.v, tolerance, "gradient of V, " + text(s, form));
      }
    }
  });
}

TEST_P(CrossAttention, InThreeBuffersItHasTheBitsOfOne) {
  for_each_type([&]<class T>(T) {
    for (const AttentionShape& s : {AttentionShape{2, 33, 4, 28, false, 2}, AttentionShape{1, 70, 3, 24, true}}) {
      const Rows<std::vector<T>> rows = random_rows<T>(s);
      const std::size_t count = s.rows(), width = s.width, key_width = s.keys() * s.depth();
      const auto join = [&](const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v) {
        Vector all;
        for (std::size_t r = 0; r < count; ++r) {
          for (std::size_t i = 0; i < width; ++i) all.push_back(static_cast<float>(q[r * width + i]));
          for (const auto& of : {k, v})
            for (std::size_t i = 0; i < key_width; ++i) all.push_back(static_cast<float>(of[r * key_width + i]));
        }
        return all;
      };
      const Vector joined = join(rows.q, rows.k, rows.v);
      for (const AttentionForm form : kForms) {
        Context& context = device.context;
        auto qkv = device.upload(stored<T>({joined.begin(), joined.end()})), d = device.upload(rows.attended);
        auto attended = garbage<T>(rows.q.size());
        auto lse = garbage<float>(s.matrices() * s.seq), dots = garbage<float>(s.matrices() * s.seq);
        DeviceBuffer<T> p, d_qkv;
        if (form == AttentionForm::textbook) {
          p = nn::attention_probabilities<T>(context, s, qkv.data());
          nn::attention_forward<T>(context, s, qkv.data(), p.data(), attended.data());
          d_qkv = nn::attention_backward<T>(context, s, qkv, p, std::move(d));
        } else if (form == AttentionForm::tiled) {
          nn::attention_forward_tiled<T>(context, s, qkv.data(), attended.data());
          d_qkv = nn::attention_backward_tiled<T>(context, s, qkv, std::move(d));
        } else {
          nn::attention_forward_fused<T>(context, s, qkv.data(), attended.data(), lse.data());
          nn::attention_row_dots<T>(context, s, attended.data(), d.data(), dots.data());
          d_qkv = nn::attention_backward_fused<T>(context, s, qkv, lse, dots, std::move(d));
        }
        const Rows<std::vector<T>> found = run<T>(device, form, s, rows);
        EXPECT_EQ(wide(found.attended), wide(device.download(attended))) << text(s, form);
        EXPECT_EQ(join(found.q, found.k, found.v), wide(device.download(d_qkv))) << text(s, form);
      }
    }
  });
}

TEST(CrossAttentionForms, InferenceKeepsNoSums) {
  Device device;
  const AttentionShape s{2, 21, 2, 12, false, 0, nullptr, 9};
  const Rows<std::vector<float>> rows = random_rows<float>(s);
  const OnDevice<float> in(device, rows);
  auto attended = device.upload(std::vector<float>(rows.q.size(), NAN));
  nn::cross_attention_forward_fused(device.context, s, in.in(), attended.data(), nullptr);
  EXPECT_EQ(device.download(attended), run<float>(device, AttentionForm::fused, s, rows).attended);
}

// However many keys there are: a tile's scores take no more elements than the output, and with few keys no fewer rows.
TEST(CrossAttentionForms, TilesAreAsLargeAsTheOutput) {
  const nn::AttentionTile many = nn::attention_tile({1, 256, 1, 1024, false, 0, nullptr, 4096});
  EXPECT_EQ(many.rows * many.matrices * 4096, 256u * 1024);
  const nn::AttentionTile few = nn::attention_tile({2, 256, 2, 64, false, 0, nullptr, 8});
  EXPECT_EQ(few.rows * few.matrices, 256u * 2) << "all of them";
}

// What a call allocates is what it says, and where that is not there, a retry has the same bits.
TEST(CrossAttentionForms, ARetryAfterOutOfMemoryHasTheSameBits) {
  Device device;
  const AttentionShape s{1, 96, 2, 16, false, 0, nullptr, 40};
  const nn::AttentionTile tile = nn::attention_tile(s);
  EXPECT_LT(tile.rows * tile.matrices, s.seq * s.heads) << "there are several tiles";
  const Rows<std::vector<float>> rows = random_rows<float>(s);
  for (const AttentionForm form : kForms) {
    std::size_t needed = 0;
    if (form == AttentionForm::textbook) needed = round_to_granule(s.scores() * sizeof(float));
    if (form == AttentionForm::tiled) needed = round_to_granule(tile.rows * tile.matrices * 40 * sizeof(float));
    const std::vector<float> expected = run<float>(device, form, s, rows).attended;
    const OnDevice<float> in(device, rows);
    auto attended = device.upload(std::vector<float>(rows.q.size(), NAN));
    CudaResource resource;
    LimitingResource limited(resource, kBlasWorkspaceBytes + needed);
    Ledger ledger;
    Context context(limited, ledger);
    const auto once = [&] {
      DeviceBuffer<float> p;
      forward<float>(context, form, s, in, attended.data(), p, nullptr);
      context.synchronize();
    };
    if (needed > 0) {
      const auto other = context.buffer<std::byte>(1, Category::data, "other");
      EXPECT_THROW(once(), OutOfMemory) << name_of(form);
      EXPECT_TRUE(std::isnan(device.download(attended)[0])) << "something was queued";
    }
    EXPECT_EQ(ledger.live_bytes(), kBlasWorkspaceBytes);
    once();
    EXPECT_EQ(ledger.peak_bytes(), kBlasWorkspaceBytes + needed) << name_of(form);
    EXPECT_EQ(device.download(attended), expected) << name_of(form);
  }
}

TEST(CrossAttentionForms, WhatTheyCannotDoIsRefusedInOneLine) {
  Device device;
  Context& context = device.context;
  const AttentionShape causal{1, 4, 1, 4, true, 0, nullptr, 3};
  const nn::SequenceOffsets offsets = nn::offsets_of(std::vector<std::uint64_t>{2, 2});
  const AttentionShape packed{2, 2, 1, 4, false, 0, &offsets}, deep{1, 2, 1, 257, false, 0, nullptr, 3};
  auto x = device.upload(std::vector<float>(3 * 257)), y = device.upload(std::vector<float>(3 * 257));
  const nn::SeparateQkv<const float> in{x.data(), x.data(), x.data()};
  for (const AttentionShape& s : {causal, packed}) {
    const std::string what = s.causal ? "causal, to others" : "packed";
    expect_refused_in_one_line([&] { return nn::cross_attention_probabilities(context, s, in.q, in.k).size(); }, what);
    expect_refused_in_one_line([&] { nn::cross_attention_forward_tiled(context, s, in, y.data()); }, what);
    expect_refused_in_one_line([&] { nn::cross_attention_forward_fused(context, s, in, y.data(), nullptr); }, what);
  }
  expect_refused_in_one_line([&] { nn::cross_attention_forward_fused(context, deep, in, y.data(), nullptr); }, "deep");
}

}  // namespace
}  // namespace oomlab::test
