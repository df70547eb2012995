// Weights of fewer bits: their bytes by closed form.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan/quantised/decoder.h"

namespace {

using namespace oomlab;
using namespace oomlab::quantised;

std::string words(const Format& format) {
  return name_of(format.scheme) + std::string(", groups of ") + std::to_string(format.group);
}

TEST(QuantisedFormat, HasTheBytesOfItsClosedForm) {
  for (const auto& [rows, width] :
       {std::pair<std::uint64_t, std::uint64_t>{1, 1}, {3, 64}, {64, 172}, {344, 64}, {257, 129}}) {
    const std::uint64_t n = rows * width, pairs = (n + 63) / 64, blocks = (n + 63) / 64, scales = (blocks + 255) / 256;
    const auto check = [&](const Format& format, const std::vector<std::uint64_t>& parts) {
      SCOPED_TRACE(words(format) + ", " + std::to_string(rows) + " x " + std::to_string(width));
      std::uint64_t stored = 0, allocated = 0;
      for (const std::uint64_t bytes : parts) stored += bytes, allocated += (bytes + 511) / 512 * 512;
      const MatrixBytes bytes = matrix_bytes(format, rows, width, 4);
      EXPECT_EQ(bytes.stored, stored);
      EXPECT_EQ(bytes.allocated, allocated);
      if (format.scheme == Scheme::as_is) return;
      const std::uint64_t of_row = format.scheme == Scheme::int8_row ? width : 0;
      const std::uint64_t group = format.scheme == Scheme::int4 ? format.group : of_row;
      EXPECT_EQ(stored - parts[kCodes], scale_bytes(code_dtype(format.scheme), n, group));
    };
    check({}, {4 * n});
    check({.scheme = Scheme::int8_tensor}, {n, 4});
    check({.scheme = Scheme::int8_row}, {n, 4 * rows});
    check({.scheme = Scheme::nf4}, {32 * pairs, blocks, 4 * scales, 4});
    for (const std::uint64_t group : {1, 4, 64, 128, 172})
      if (n % group == 0)
        check({.scheme = Scheme::int4, .group = group}, {32 * pairs, 2 * n / group, (n / group + 1) / 2});
  }
  // As they are quoted: bits of a weight in a large matrix.
  const auto bits = [](const Format& format) {
    return 8 * double(matrix_bytes(format, 4096, 4096, 4).stored) / (4096.0 * 4096);
  };
  EXPECT_NEAR(bits({.scheme = Scheme::int8_row}), 8.008, 0.001);
  EXPECT_NEAR(bits({.scheme = Scheme::int4}), 4.156, 0.001);
  EXPECT_NEAR(bits({.scheme = Scheme::nf4}), 4.127, 0.001);
}

TEST(QuantisedFormat, RefusesGroupsThatDoNotDivide) {
  for (const std::uint64_t group : {std::uint64_t(0), std::uint64_t(3), std::uint64_t(48), std::uint64_t(1) << 40}) {
    try {
      (void)parts_of({.scheme = Scheme::int4, .group = group}, 64, 64 * 64);
      ADD_FAILURE() << group;
    } catch (const std::invalid_argument& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos);
      EXPECT_NE(what.find(std::to_string(group)), std::string::npos) << what;
    }
  }
}

// A piece on its way is a small part of the matrix.
TEST(QuantisedFormat, IsMadeFromPieces) {
  for (const Format& format : {Format{.scheme = Scheme::int8_tensor}, Format{.scheme = Scheme::int8_row},
                               Format{.scheme = Scheme::int4, .group = 128}, Format{.scheme = Scheme::int4, .group = 4},
                               Format{.scheme = Scheme::int4, .group = 172}, Format{.scheme = Scheme::nf4}}) {
    const std::uint64_t n = 4096 * 1376;
    const LoadingBytes bytes = loading_bytes(format, 4096, 1376);
    EXPECT_LE(bytes.piece, n * 4 / 8 + 512) << words(format);
    EXPECT_LE(bytes.total(), n * 4 / 7) << words(format);
    EXPECT_LE(loading_bytes(format, 1 << 16, 11008).piece, std::uint64_t(16) << 20) << words(format);
  }
}

}  // namespace
