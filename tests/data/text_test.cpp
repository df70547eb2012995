#include "data/text.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "files.h"

namespace oomlab::data {
namespace {

Text letters(std::size_t count) {
  Text text{"letters", {}};
  for (std::size_t i = 0; i < count; ++i) text.bytes.push_back(static_cast<unsigned char>('a' + i % 26));
  return text;
}

// Every published loss depends on every byte of it.
TEST(Text, TheCoursesOwnIsFrozen) {
  const Text text = course_text();
  EXPECT_EQ(text.bytes.size(), 66'162u);
  EXPECT_EQ(crc32(0, text.bytes.data(), static_cast<uInt>(text.bytes.size())), 0x7a4ac696u);
}

TEST(Text, EntropyOfBytes) {
  EXPECT_NEAR(unigram_entropy(letters(26)), std::log(26.0), 1e-12);
  EXPECT_EQ(unigram_entropy({"one", {7, 7, 7}}), 0.0);
  EXPECT_EQ(unigram_entropy({"none", {}}), 0.0);
}

TEST(Text, NextTokenLabelsAreTheTokensThatFollow) {
  const TextSampler sampler(letters(100), {.seq = 20});
  const TokenSamples s = sampler.samples(0, 50);
  ASSERT_EQ(s.tokens.size(), 1000u);
  EXPECT_EQ(s.targets(), 1000u);
  std::set<int> starts;
  for (std::size_t i = 0; i < 50; ++i) {
    starts.insert(s.tokens[i * 20]);
    for (std::size_t t = 0; t < 20; ++t) {
      EXPECT_EQ(s.labels[i * 20 + t], 'a' + (s.tokens[i * 20 + t] - 'a' + 1) % 26);
      if (t) {
        EXPECT_EQ(s.tokens[i * 20 + t], s.labels[i * 20 + t - 1]);
      }
    }
  }
  EXPECT_GT(starts.size(), 10u);
  const TokenSamples later = sampler.samples(30, 20);  // a sample is its number, whatever is asked for with it
  EXPECT_TRUE(std::equal(later.tokens.begin(), later.tokens.end(), s.tokens.begin() + 600));
}

TEST(Text, MaskedTokensAreTheOnlyTargets) {
  const TextSampler sampler(letters(100), {.seq = 40, .task = TextTask::masked_token, .mask_token = 300});
  const TokenSamples s = sampler.samples(0, 100);
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    EXPECT_EQ(s.tokens[i] == 300, s.labels[i] >= 0);
    if (s.labels[i] >= 0) {
      EXPECT_LE(s.labels[i], int{'z'});
    }
  }
  EXPECT_NEAR(double(s.targets()) / 4000, 0.17, 0.03);
  const TextSampler short_ones(letters(2), {.seq = 1, .task = TextTask::masked_token, .mask_token = 300});
  EXPECT_EQ(short_ones.samples(0, 30).targets(), 30u);  // never a sample without a target
}

TEST(Text, RaggedSequencesEndEarly) {
  const TextSampler sampler(letters(100), {.seq = 32, .ragged = true});
  const TokenSamples s = sampler.samples(0, 200);
  std::set<std::size_t> lengths;
  for (std::size_t i = 0; i < 200; ++i) {
    std::size_t length = 0;
    while (length < 32 && s.labels[i * 32 + length] >= 0) ++length;
    for (std::size_t t = length; t < 32; ++t) {
      EXPECT_EQ(s.labels[i * 32 + t], -1);
      EXPECT_EQ(s.tokens[i * 32 + t], 0);
    }
    lengths.insert(length);
  }
  EXPECT_EQ(*lengths.begin(), 4u);
  EXPECT_EQ(*lengths.rbegin(), 32u);
  EXPECT_GT(lengths.size(), 20u);
}

// Sequences of lengths that are given: the tokens that they would have at full length, up to there; without padding one
// behind the other.
TEST(Text, LengthsCutSequencesOff) {
  const std::vector<std::uint64_t> lengths{3, 8, 1, 5};
  for (const TextTask task : {TextTask::next_token, TextTask::masked_token}) {
    const TextSampler sampler(letters(100), {.seq = 8, .task = task, .mask_token = 300});
    const TokenSamples s = sampler.samples(7, 4, lengths);
    EXPECT_EQ(s.lengths, lengths);
    const TokenSamples packed = without_padding(s, 1, 3);
    EXPECT_EQ(packed.lengths, (std::vector<std::uint64_t>{8, 1, 5}));
    ASSERT_EQ(packed.tokens.size(), 14u);
    ASSERT_EQ(packed.labels.size(), 14u);
    std::size_t at = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      std::size_t targets = 0;
      for (std::size_t t = 0; t < 8; ++t) {
        const int token = s.tokens[i * 8 + t], label = s.labels[i * 8 + t];
        targets += label >= 0;
        if (t >= lengths[i]) {
          EXPECT_EQ(token, 0);
          EXPECT_EQ(label, -1);
        } else if (i > 0) {
          EXPECT_EQ(packed.tokens[at], token);
          EXPECT_EQ(packed.labels[at++], label);
        }
      }
      EXPECT_GT(targets, 0u);
      if (task == TextTask::next_token) {
        EXPECT_EQ(targets, lengths[i]);
      }
    }
  }
}

TEST(Text, AParagraphEndsWithAnEmptyLine) {
  const auto of = [](std::string_view text, std::uint64_t seq) {
    return paragraph_lengths({"", {text.begin(), text.end()}}, seq);
  };
  using Lengths = std::vector<std::uint64_t>;
  EXPECT_EQ(of("ab\nc\n\nd\n\n\nefghijk", 100), (Lengths{6, 4, 7}));
  EXPECT_EQ(of("ab\nc\n\nd\n\n\nefghijk", 5), (Lengths{5, 4, 5}));
  EXPECT_EQ(of("a\n\n", 9), (Lengths{3}));
}

TEST(Text, RaggedLengthsAreDrawnUpToTheLongest) {
  const std::vector<std::uint64_t> lengths = ragged_lengths(64, 512);
  EXPECT_EQ(lengths.size(), 64u);
  EXPECT_EQ(lengths.front(), 512u);
  EXPECT_EQ(*std::ranges::max_element(lengths), 512u);
  EXPECT_GE(*std::ranges::min_element(lengths), 64u);
  EXPECT_NEAR(double(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t(0))) / 64, 288, 64);
  EXPECT_EQ(ragged_lengths(3, 1), (std::vector<std::uint64_t>{1, 1, 1}));
}

TEST(Text, TheShortestTextHasOneSequence) {
  const TokenSamples s = TextSampler(letters(9), {.seq = 8}).samples(0, 3);
  EXPECT_EQ(s.tokens[0], 'a');
  EXPECT_EQ(s.labels[23], 'i');
  EXPECT_THROW(TextSampler(letters(8), {.seq = 8}), DataError);
  EXPECT_THROW(TextSampler(letters(8), {.seq = 0}), DataError);
  EXPECT_THROW(TextSampler({"none", {}}, {.seq = 1}), DataError);
  EXPECT_THROW(TextSampler(letters(8), {.seq = SIZE_MAX}), DataError);
  EXPECT_NO_THROW(TextSampler(letters(8), {.seq = 8, .task = TextTask::masked_token}));
}

TEST(Text, OfAPlanGoesRound) {
  const TokenSamples s = TextSampler(letters(9), {.seq = 20, .goes_round = true}).samples(0, 3);
  ASSERT_EQ(s.targets(), 60u);
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(s.labels[i], 'a' + (s.tokens[i] - 'a' + 1) % 9);
    if (i % 20) {
      EXPECT_EQ(s.tokens[i], s.labels[i - 1]);
    }
  }
  EXPECT_THROW(TextSampler({"none", {}}, {.seq = 1, .goes_round = true}), DataError);
  // A text that is long enough is read as ever.
  for (const TextTask task : {TextTask::next_token, TextTask::masked_token}) {
    const TextSampler::Settings settings{.seq = 8, .task = task, .mask_token = 300};
    TextSampler::Settings plan = settings;
    plan.goes_round = true;
    const TokenSamples read = TextSampler(letters(30), settings).samples(0, 20);
    const TokenSamples planned = TextSampler(letters(30), plan).samples(0, 20);
    EXPECT_EQ(read.tokens, planned.tokens);
    EXPECT_EQ(read.labels, planned.labels);
  }
}

TEST(Text, FilesAreReadAsBytes) {
  const test::Folder folder;
  const std::string path = folder.write("bytes", {0xff, 0, 0x80, '\r', '\n'});
  EXPECT_EQ(read_text(path).bytes, (std::vector<unsigned char>{0xff, 0, 0x80, '\r', '\n'}));
  EXPECT_EQ(read_text(folder.write("long", test::Bytes(200'000, 1))).bytes.size(), 200'000u);
  for (const std::string& bad :
       {folder.write("empty", {}), path + ".missing", std::string("/"), std::string("/dev/zero")}) {
    try {
      (void)read_text(bad);
      ADD_FAILURE() << bad;
    } catch (const BadFile& error) {
      EXPECT_NE(std::string(error.what()).find("'" + bad + "'"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace oomlab::data
