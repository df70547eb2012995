// The three forms of attention, forward and backward, against double precision: heads of 1 to 256 values, sequences
// that no tile divides, every storage type. The reference's gradient is held against central differences first.

#include "nn/ops/attention.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <map>

#include "cuda/block_threads.h"
#include "device.h"
#include "transformer_reference.h"

namespace oomlab::test {
namespace {

using nn::AttentionForm;
using nn::AttentionShape;

struct Reference {
  Vector attended, d_qkv;
};
// From qkv [B·S, H + 2 Hk, D] and the gradient of attended [B·S, H, D].
Reference attention(const AttentionShape& shape, const Vector& qkv, const Vector& d) {
  const std::size_t seq = shape.seq, width = shape.width, depth = width / shape.heads;
  const std::size_t row_width = shape.qkv_width(), sharers = shape.sharers(), keys = shape.keys();
  const double scale = 1 / std::sqrt(double(depth));
  Reference r{Vector(d.size()), Vector(qkv.size())};
  for (std::size_t b = 0; b < shape.sequences; ++b)
    for (std::size_t h = 0; h < shape.heads; ++h) {
      // Where a head's row of queries (0), keys (1) or values (2) begins.
      const auto in = [&](std::size_t which, std::size_t row) {
        const std::size_t head = which == 0 ? h : shape.heads + (which - 1) * keys + h / sharers;
        return (b * seq + row) * row_width + head * depth;
      };
      for (std::size_t q = 0; q < seq; ++q) {
        const std::size_t seen = shape.causal ? q + 1 : seq, out = (b * seq + q) * width + h * depth;
        const double *query = &qkv[in(0, q)], *upstream = &d[out];
        Vector p(seen), dp(seen);
        double largest = -INFINITY, sum = 0, common = 0;
        for (std::size_t k = 0; k < seen; ++k) {
          const double* key = &qkv[in(1, k)];
          for (std::size_t i = 0; i < depth; ++i) p[k] += scale * query[i] * key[i];
          largest = std::max(largest, p[k]);
        }
        for (double& v : p) sum += v = std::exp(v - largest);
        for (std::size_t k = 0; k < seen; ++k) {
          const double* value = &qkv[in(2, k)];
          double* d_value = &r.d_qkv[in(2, k)];
          p[k] /= sum;
          for (std::size_t i = 0; i < depth; ++i) {
            r.attended[out + i] += p[k] * value[i];
            dp[k] += upstream[i] * value[i];
            d_value[i] += p[k] * upstream[i];
          }
          common += p[k] * dp[k];
        }
        for (std::size_t k = 0; k < seen; ++k) {
          const double* key = &qkv[in(1, k)];
          double *d_query = &r.d_qkv[in(0, q)], *d_key = &r.d_qkv[in(1, k)];
          const double ds = p[k] * (dp[k] - common) * scale;
          for (std::size_t i = 0; i < depth; ++i) {
            d_query[i] += ds * key[i];
            d_key[i] += ds * query[i];
          }
        }
      }
    }
  return r;
}

TEST(AttentionReference, ItsGradientIsThatOfCentralDifferences) {
  for (const AttentionShape& shape : {AttentionShape{2, 4, 2, 6, false}, AttentionShape{2, 4, 2, 6, true, 1}}) {
    const Vector qkv = doubles(random_floats(8 * shape.qkv_width(), 1)), d = doubles(random_floats(8 * 6, 2));
    const Vector expected =
        central_differences(qkv, [&](const Vector& x) { return dot(attention(shape, x, d).attended, d); });
    expect_close(attention(shape, qkv, d).d_qkv, expected, 1e-6, "gradient of qkv");
  }
}

template <class T>
constexpr double kAttentionTolerance = 0;
template <>
constexpr double kAttentionTolerance<float> = 1e-5;
template <>
constexpr double kAttentionTolerance<__half> = 4e-3;
template <>
constexpr double kAttentionTolerance<__nv_bfloat16> = 3e-2;

double distance(const std::vector<float>& found, const Vector& expected) {
  double square = 0, all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    square += (found[i] - expected[i]) * (found[i] - expected[i]);
    all += expected[i] * expected[i];
  }
  return std::sqrt(square / (all > 0 ? all : 1));
}

template <class T>
struct Found {
  std::vector<T> attended, d_qkv;
};
template <class T>
std::vector<float> floats(const std::vector<T>& values) {
  std::vector<float> all;
  for (const T& v : values) all.push_back(static_cast<float>(v));
  return all;
}

template <class T>
Found<T> run(Device& device, AttentionForm form, const AttentionShape& shape, const std::vector<T>& qkv,
             const std::vector<T>& d) {
  Context& context = device.context;
  auto in = device.upload(qkv);
  auto d_out = device.upload(d), out = device.upload(std::vector<T>(d.size(), static_cast<T>(NAN)));
  const std::size_t rows = shape.rows() * shape.heads;
  auto lse = context.buffer<float>(rows, Category::activations, "lse");
  auto dots = context.buffer<float>(rows, Category::activations, "dots");
  DeviceBuffer<T> p, d_in;
  switch (form) {
    case AttentionForm::textbook:
      p = nn::attention_probabilities<T>(context, shape, in.data());
      nn::attention_forward<T>(context, shape, in.data(), p.data(), out.data());
      d_in = nn::attention_backward<T>(context, shape, in, p, std::move(d_out));
      break;
    case AttentionForm::tiled:
      nn::attention_forward_tiled<T>(context, shape, in.data(), out.data());
      d_in = nn::attention_backward_tiled<T>(context, shape, in, std::move(d_out));
      break;
    case AttentionForm::fused:
      nn::attention_forward_fused<T>(context, shape, in.data(), out.data(), lse.data());
      nn::attention_row_dots<T>(context, shape, out.data(), d_out.data(), dots.data());
      d_in = nn::attention_backward_fused<T>(context, shape, in, lse, dots, std::move(d_out));
      break;
  }
  return {device.download(out), device.download(d_in)};
}

struct Case {
  std::size_t sequences, seq, heads, depth, kv_heads = 0;
};
// Heads of 1 to 256 values; rows that fill no tile, one more than a tile, and one less; more sequences than heads;
// heads that share keys, by two, three and four.
constexpr Case kCases[] = {{1, 1, 1, 1},     {2, 5, 3, 1},     {1, 31, 3, 2},    {3, 33, 2, 7},    {2, 64, 3, 8},
                           {1, 65, 3, 16},   {5, 12, 3, 5},    {1, 63, 1, 33},   {2, 129, 3, 32},  {1, 257, 3, 64},
                           {1, 40, 1, 96},   {1, 70, 2, 128},  {1, 19, 1, 256},  {2, 33, 3, 7, 1}, {1, 71, 4, 16, 2},
                           {5, 12, 6, 5, 2}, {3, 72, 4, 3, 1}, {1, 300, 4, 8, 2}};

class Attention : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { set_block_threads(GetParam()); }
  void TearDown() override { set_block_threads(256); }
  Device device;
};
INSTANTIATE_TEST_SUITE_P(BlockThreads, Attention, ::testing::ValuesIn(kDistinctBlockThreads));

template <class T>
void expect_all_forms(Device& device, const Case& c, bool causal) {
  const AttentionShape shape{c.sequences, c.seq, c.heads, c.heads * c.depth, causal, c.kv_heads};
  const std::size_t rows = c.sequences * c.seq;
  std::vector<T> qkv, d;
  for (const float v : random_floats(rows * shape.qkv_width(), 1)) qkv.push_back(static_cast<T>(v));
  for (const float v : random_floats(rows * shape.width, 2)) d.push_back(static_cast<T>(v));
  const Reference expected = attention(shape, doubles(floats(qkv)), doubles(floats(d)));
  for (const AttentionForm form : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused}) {
    const Found<T> found = run<T>(device, form, shape, qkv, d);
    const std::string what = std::string(name_of(form)) + (causal ? " causal " : " ") + std::to_string(c.sequences) +
                             " x " + std::to_string(c.seq) + ", " + std::to_string(c.heads) + " heads over " +
                             std::to_string(shape.keys()) + " of " + std::to_string(c.depth);
    const double forward = distance(floats(found.attended), expected.attended);
    const double backward = distance(floats(found.d_qkv), expected.d_qkv);
    EXPECT_LE(forward, kAttentionTolerance<T>) << what << ", forward";
    EXPECT_LE(backward, kAttentionTolerance<T>) << what << ", backward";
    const Found<T> again = run<T>(device, form, shape, qkv, d);
    EXPECT_EQ(floats(found.attended), floats(again.attended)) << what << ": other bits the second time";
    EXPECT_EQ(floats(found.d_qkv), floats(again.d_qkv)) << what << ": other bits the second time";
  }
}

TEST_P(Attention, EveryFormIsAsTheReferenceSays) {
  for (const Case& c : kCases)
    for (const bool causal : {false, true}) {
      if (OOMLAB_ROUNDS < 10 && (c.seq > 70 || c.depth > 100)) continue;
      expect_all_forms<float>(device, c, causal);
      expect_all_forms<__half>(device, c, causal);
      expect_all_forms<__nv_bfloat16>(device, c, causal);
    }
}

// Sequences of unequal lengths side by side get the bits that each gets alone, forward and backward: none sees a row of
// another, whatever its neighbours are. Each alone is what the reference is held against.
constexpr std::uint64_t kLengths[] = {5, 1, 33, 12, 70, 8};

template <class T>
void expect_packed_as_alone(Device& device, const Case& c, bool causal) {
  nn::SequenceOffsets offsets = nn::offsets_of(kLengths);
  const auto there = device.upload(std::vector<int>(offsets.first.begin(), offsets.first.end()));
  offsets.on_device = there.data();
  const AttentionShape shape{std::size(kLengths), 70, c.heads, c.heads * c.depth, causal, c.kv_heads, &offsets};
  std::vector<T> qkv, d;
  for (const float v : random_floats(offsets.rows() * shape.qkv_width(), 1)) qkv.push_back(static_cast<T>(v));
  for (const float v : random_floats(offsets.rows() * shape.width, 2)) d.push_back(static_cast<T>(v));
  for (const AttentionForm form : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused}) {
    const Found<T> packed = run<T>(device, form, shape, qkv, d);
    for (std::size_t s = 0; s < std::size(kLengths); ++s) {
      const AttentionShape alone{1, kLengths[s], c.heads, c.heads * c.depth, causal, c.kv_heads};
      const auto of_sequence = [&](const std::vector<T>& rows, std::size_t width) {
        const auto begin = rows.begin() + std::ptrdiff_t(offsets.first[s] * width);
        return std::vector<T>(begin, begin + std::ptrdiff_t(kLengths[s] * width));
      };
      const Found<T> expected =
          run<T>(device, form, alone, of_sequence(qkv, shape.qkv_width()), of_sequence(d, shape.width));
      const std::string what = std::string(name_of(form)) + (causal ? " causal, " : ", ") + std::to_string(c.heads) +
                               " heads over " + std::to_string(shape.keys()) + " of " + std::to_string(c.depth) +
                               ", sequence " + std::to_string(s);
      EXPECT_EQ(floats(of_sequence(packed.attended, shape.width)), floats(expected.attended)) << what << ", forward";
      EXPECT_EQ(floats(of_sequence(packed.d_qkv, shape.qkv_width())), floats(expected.d_qkv)) << what << ", backward";
    }
  }
}

TEST_P(Attention, PackedSequencesGetTheBitsThatEachGetsAlone) {
  for (const Case& c : {Case{0, 0, 3, 7}, Case{0, 0, 4, 16, 2}})
    for (const bool causal : {false, true}) {
      expect_packed_as_alone<float>(device, c, causal);
      if (causal) expect_packed_as_alone<__nv_bfloat16>(device, c, causal);
    }
}

TEST(AttentionForms, ScoresOfPackedSequencesAreBlocksOnTheDiagonal) {
  Device device;
  const nn::SequenceOffsets offsets = nn::offsets_of(kLengths);
  EXPECT_EQ(offsets.first, (std::vector<std::uint64_t>{0, 5, 6, 39, 51, 121, 129}));
  const AttentionShape shape{std::size(kLengths), 70, 2, 6, true, 0, &offsets};
  EXPECT_EQ(shape.rows(), 129u);
  EXPECT_EQ(shape.scores(), 2u * (5 * 5 + 1 + 33 * 33 + 12 * 12 + 70 * 70 + 8 * 8));
  const auto qkv = device.upload(random_floats(129 * shape.qkv_width(), 1));
  EXPECT_EQ(nn::attention_probabilities<float>(device.context, shape, qkv.data()).size(), shape.scores());
}

// In 16 bits no form is further from double precision than the textbook: the mean over twenty draws.
template <class T>
void expect_no_larger_errors(Device& device) {
  const AttentionShape shape{2, 129, 2, 64, true};
  const std::size_t rows = shape.sequences * shape.seq;
  std::map<AttentionForm, double> forward, backward;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::vector<T> qkv, d;
    for (const float v : random_floats(rows * 3 * shape.width, seed)) qkv.push_back(static_cast<T>(v));
    for (const float v : random_floats(rows * shape.width, 100 + seed)) d.push_back(static_cast<T>(v));
    const Reference expected = attention(shape, doubles(floats(qkv)), doubles(floats(d)));
    for (const AttentionForm form : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused}) {
      const Found<T> found = run<T>(device, form, shape, qkv, d);
      forward[form] += distance(floats(found.attended), expected.attended);
      backward[form] += distance(floats(found.d_qkv), expected.d_qkv);
    }
  }
  for (const AttentionForm form : {AttentionForm::tiled, AttentionForm::fused}) {
    EXPECT_LE(forward[form], 1.1 * forward[AttentionForm::textbook]) << name_of(form);
    EXPECT_LE(backward[form], 1.1 * backward[AttentionForm::textbook]) << name_of(form);
  }
}
TEST(AttentionForms, ErrorsOf16BitsAreNoLargerThanTheTextbooks) {
  if (OOMLAB_SANITIZED) GTEST_SKIP() << "errors of arithmetic are the same in every build";
  Device device;
  expect_no_larger_errors<__half>(device);
  expect_no_larger_errors<__nv_bfloat16>(device);
}

// Scores as large as they get: the running maximum rises late, or at once.
TEST_P(Attention, LargeScoresDoNotOverflow) {
  const AttentionShape shape{1, 70, 1, 4, false};
  for (const bool rising : {false, true}) {
    std::vector<float> qkv = random_floats(70 * 12, 3), d = random_floats(70 * 4, 4);
    for (std::size_t row = 0; row < 70; ++row)
      for (std::size_t i = 0; i < 4; ++i) {
        qkv[row * 12 + i] = 12.0f;                                                  // q
        qkv[row * 12 + 4 + i] = float(rising ? row : 69 - row) * (i == 0 ? 1 : 0);  // k: scores up to 414
      }
    const Reference expected = attention(shape, doubles(qkv), doubles(d));
    for (const AttentionForm form : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused}) {
      const Found<float> found = run<float>(device, form, shape, qkv, d);
      EXPECT_LE(distance(found.attended, expected.attended), 1e-4) << name_of(form);
      EXPECT_LE(distance(found.d_qkv, expected.d_qkv), 1e-4) << name_of(form);
    }
  }
}

// Rows of a tensor [sequences, all, columns] that a rank has, or back.
template <class T>
void copy_own_rows(const nn::TokenShare& share, std::size_t sequences, std::size_t all, std::size_t columns,
                   std::vector<T>& whole, std::vector<T>& own, bool back) {
  for (std::size_t s = 0; s < sequences; ++s)
    for (std::size_t q = 0; q < share.seq; ++q)
      for (std::size_t c = 0; c < columns; ++c) {
        T& of_whole = whole[(s * all + share.position(q)) * columns + c];
        T& of_own = own[(s * share.seq + q) * columns + c];
        back ? of_whole = of_own : of_own = of_whole;
      }
}

// Blocks of keys, one after the other, as ranks get them that share out tokens: each rank begins with its own.
template <class T>
void expect_blocks(Device& device, const Case& c, bool causal, std::size_t ranks) {
  Context& context = device.context;
  const AttentionShape whole{c.sequences, c.seq, c.heads, c.heads * c.depth, causal, c.kv_heads};
  const std::size_t all_rows = c.sequences * c.seq, rows = all_rows / ranks, width = whole.width;
  AttentionShape own = whole;
  own.seq /= ranks;
  std::vector<T> qkv, d;
  for (const float v : random_floats(all_rows * whole.qkv_width(), 1)) qkv.push_back(static_cast<T>(v));
  for (const float v : random_floats(all_rows * width, 2)) d.push_back(static_cast<T>(v));
  const Reference expected = attention(whole, doubles(floats(qkv)), doubles(floats(d)));
  std::vector<nn::TokenShare> shares;
  for (std::size_t rank = 0; rank < ranks; ++rank) shares.push_back(nn::token_share(c.seq, ranks, rank, causal));
  const std::size_t kv_width = whole.kv_width();
  std::vector<std::vector<T>> own_qkv(ranks, std::vector<T>(rows * whole.qkv_width())),
      own_d(ranks, std::vector<T>(rows * width));
  std::vector<DeviceBuffer<T>> kv;
  std::vector<DeviceBuffer<float>> d_kv;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    copy_own_rows(shares[rank], c.sequences, c.seq, whole.qkv_width(), qkv, own_qkv[rank], false);
    copy_own_rows(shares[rank], c.sequences, c.seq, width, d, own_d[rank], false);
    std::vector<T> keys;
    for (std::size_t r = 0; r < rows; ++r) {
      const auto row = own_qkv[rank].begin() + static_cast<std::ptrdiff_t>(r * whole.qkv_width());
      keys.insert(keys.end(), row + static_cast<std::ptrdiff_t>(width),
                  row + static_cast<std::ptrdiff_t>(whole.qkv_width()));
    }
    kv.push_back(device.upload(keys));
    d_kv.push_back(device.upload(std::vector<float>(rows * kv_width, 0.0f)));
  }
  std::vector<float> attended(all_rows * width), d_qkv(all_rows * whole.qkv_width());
  std::vector<std::vector<float>> d_q(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto q = device.upload(own_qkv[rank]), d_own = device.upload(own_d[rank]);
    auto sums = device.upload(std::vector<float>(rows * width, NAN));
    auto lse = device.upload(std::vector<float>(rows * c.heads, NAN)),
         dots = device.upload(std::vector<float>(rows * c.heads, NAN));
    auto gradient = device.upload(std::vector<float>(rows * width, 0.0f));
    const auto block_from = [&](std::size_t step) { return (rank + ranks - step) % ranks; };
    for (std::size_t step = 0; step < ranks; ++step)
      nn::attention_block_forward<T>(context, own, {shares[rank], shares[block_from(step)]}, q.data(),
                                     kv[block_from(step)].data(), sums.data(), lse.data(), step > 0);
    std::vector<float> found = device.download(sums);
    copy_own_rows(shares[rank], c.sequences, c.seq, width, attended, found, true);
    std::vector<T> rounded;
    for (const float v : found) rounded.push_back(static_cast<T>(v));
    const auto out = device.upload(rounded);
    nn::attention_row_dots<T>(context, own, out.data(), d_own.data(), dots.data());
    for (std::size_t step = 0; step < ranks; ++step)
      nn::attention_block_backward<T>(context, own, {shares[rank], shares[block_from(step)]}, q.data(),
                                      kv[block_from(step)].data(), d_own.data(), lse.data(), dots.data(),
                                      gradient.data(), d_kv[block_from(step)].data());
    d_q[rank] = device.download(gradient);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<float> of_keys = device.download(d_kv[rank]);
    std::vector<float> joined;
    for (std::size_t r = 0; r < rows; ++r) {
      joined.insert(joined.end(), &d_q[rank][r * width], &d_q[rank][r * width] + width);
      joined.insert(joined.end(), &of_keys[r * kv_width], &of_keys[r * kv_width] + kv_width);
    }
    copy_own_rows(shares[rank], c.sequences, c.seq, whole.qkv_width(), d_qkv, joined, true);
  }
  const std::string what = std::to_string(ranks) + (causal ? " ranks, causal " : " ranks, ") +
                           std::to_string(c.sequences) + " x " + std::to_string(c.seq) + ", " +
                           std::to_string(c.heads) + " heads over " + std::to_string(whole.keys()) + " of " +
                           std::to_string(c.depth);
  EXPECT_LE(distance(attended, expected.attended), kAttentionTolerance<T>) << what << ", forward";
  EXPECT_LE(distance(d_qkv, expected.d_qkv), kAttentionTolerance<T>) << what << ", backward";
}

TEST_P(Attention, KeysMayComeBlockByBlock) {
  for (const Case& c : {Case{2, 24, 3, 7}, Case{1, 136, 4, 16, 2}, Case{3, 8, 2, 5, 1}})
    for (const std::size_t ranks : {1, 2, 4})
      for (const bool causal : {false, true}) {
        if (OOMLAB_ROUNDS < 10 && c.seq > 70) continue;
        expect_blocks<float>(device, c, causal, ranks);
        expect_blocks<__half>(device, c, causal, ranks);
        expect_blocks<__nv_bfloat16>(device, c, causal, ranks);
      }
}

TEST(TokenShares, EachTokenIsOneRanksAndTheFirstOnesAreThoseUpToAPosition) {
  for (const bool zig_zag : {false, true})
    for (const std::size_t ranks : {1, 2, 3, 4})
      for (const std::size_t all : {2 * ranks, 6 * ranks}) {
        std::vector<int> owners(all);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          const nn::TokenShare share = nn::token_share(all, ranks, rank, zig_zag);
          std::size_t triangle = 0;
          for (std::size_t q = 0; q < share.seq; ++q) {
            ++owners.at(share.position(q));
            triangle += share.position(q) + 1;
          }
          if (zig_zag) {
            EXPECT_EQ(triangle * ranks, all * (all + 1) / 2) << "as many scores on each rank";
          }
          for (std::size_t position = 0; position < all; ++position) {
            std::size_t before = 0;
            while (before < share.seq && share.position(before) <= position) ++before;
            EXPECT_EQ(share.up_to(position), before) << ranks << " ranks, " << all << " tokens, " << position;
          }
        }
        EXPECT_EQ(owners, std::vector<int>(all, 1));
      }
}

TEST(AttentionForms, HeadsThatDoNotFitSharedMemoryAreRefused) {
  Device device;
  const AttentionShape shape{1, 2, 1, 257, true};
  const auto qkv = device.upload(std::vector<float>(2 * 3 * 257));
  auto out = device.upload(std::vector<float>(2 * 257)), lse = device.upload(std::vector<float>(2));
  EXPECT_THROW(nn::attention_forward_fused<float>(device.context, shape, qkv.data(), out.data(), lse.data()),
               std::invalid_argument);
}

TEST(AttentionForms, NamesAreRead) {
  for (const AttentionForm form : {AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused})
    EXPECT_EQ(nn::parse_attention(name_of(form)), form);
  try {
    (void)nn::parse_attention("flash");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "attention 'flash' is unknown; known: textbook, tiled, fused");
  }
}

}  // namespace
}  // namespace oomlab::test
