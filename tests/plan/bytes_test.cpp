#include "plan/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace oomlab {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;

TEST(RoundToGranule, RoundsUpAndKeepsZero) {
  EXPECT_EQ(round_to_granule(0), 0u);
  EXPECT_EQ(round_to_granule(1), 512u);
  EXPECT_EQ(round_to_granule(511), 512u);
  EXPECT_EQ(round_to_granule(512), 512u);
  EXPECT_EQ(round_to_granule(513), 1024u);
  EXPECT_EQ(round_to_granule(UINT64_MAX - 511), UINT64_MAX - 511);
}

TEST(RoundToGranule, RefusesWhatDoesNotFit) {
  EXPECT_THROW(round_to_granule(UINT64_MAX), std::length_error);
  EXPECT_THROW(round_to_granule(UINT64_MAX - 510), std::length_error);
}

TEST(CheckedProduct, RefusesWhatDoesNotFit) {
  EXPECT_EQ(checked_product(0, 4), 0u);
  EXPECT_EQ(checked_product(4, 0), 0u);
  EXPECT_EQ(checked_product(3, 4), 12u);
  EXPECT_EQ(checked_product(UINT64_MAX / 4, 4), UINT64_MAX / 4 * 4);
  EXPECT_THROW(checked_product(UINT64_MAX / 4 + 1, 4), std::length_error);
  EXPECT_THROW(checked_product(UINT64_MAX, 2), std::length_error);
}

TEST(ParseBytes, ReadsEveryUnit) {
  EXPECT_EQ(parse_bytes("1"), 1u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("7B"), 7u);
  EXPECT_EQ(parse_bytes("3KiB"), 3072u);
  EXPECT_EQ(parse_bytes("512MiB"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("2GiB"), 2 * kGiB);
  EXPECT_EQ(parse_bytes("1TiB"), 1024 * kGiB);
  EXPECT_EQ(parse_bytes("3KB"), 3000u);
  EXPECT_EQ(parse_bytes("3MB"), 3'000'000u);
  EXPECT_EQ(parse_bytes("3GB"), 3'000'000'000u);
  EXPECT_EQ(parse_bytes("3TB"), 3'000'000'000'000u);
  EXPECT_EQ(parse_bytes("24 GB"), 24'000'000'000u) << "a blank before the unit";
  EXPECT_EQ(parse_bytes("1.5 GiB"), kGiB / 2 * 3);
  EXPECT_EQ(parse_bytes("512mib"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("512MIB"), 512 * kMiB);
}

TEST(ParseBytes, ReadsFractions) {
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536u);
  EXPECT_EQ(parse_bytes("0.5GiB"), kGiB / 2);
  EXPECT_EQ(parse_bytes("1.0009765625KiB"), 1025u);
  EXPECT_EQ(parse_bytes("1.00000000000000000000000000000000001GiB"), kGiB);
  EXPECT_EQ(parse_bytes("1.9"), 1u) << "a part of a byte is dropped";
  EXPECT_EQ(parse_bytes("0.999999999999999999TiB"), 1024 * kGiB - 1);
  EXPECT_EQ(parse_bytes("0.000000000001TiB"), 1u);
}

TEST(ParseBytes, ReadsTheLargest) {
  EXPECT_EQ(parse_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_THROW(parse_bytes("18446744073709551616"), std::invalid_argument);
  EXPECT_THROW(parse_bytes("16777216TiB"), std::invalid_argument);
  EXPECT_THROW(parse_bytes("9999999999999999999999999999999999999999999999999999"), std::invalid_argument);
}

TEST(ParseBytes, RefusesInOneLineThatSaysWhatIsAllowed) {
  for (const char* text :
       {"",       " ",     "12parsecs", "-1",     "-1MiB",          "+1",     "0",     "0MiB",  "0.1B", "MiB",
        ".5GiB",  "1.GiB", "1..5",      "1e9",    "0x10",           "5  MiB", " 5MiB", "5MiB ", "5Mi",  "5M",
        "1,5GiB", "nan",   "inf",       "5\nMiB", "99999999999TiB", "5 ",     "5\tMiB"}) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const std::invalid_argument& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_NE(message.find("512MiB or 2GiB"), std::string::npos) << message;
    }
  }
}

TEST(ParseBytes, NamesTheText) {
  try {
    parse_bytes("12parsecs");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(
        std::string(error.what()).rfind("size '12parsecs' is not understood; write for example 512MiB or 2GiB", 0), 0u)
        << error.what();
  }
}

TEST(FormatBytes, HasTwoDecimals) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(512), "512 bytes");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(512 * kMiB), "512.00 MiB");
  EXPECT_EQ(format_bytes(2 * kGiB), "2.00 GiB");
  EXPECT_EQ(format_bytes(1024 * kGiB), "1.00 TiB");
  EXPECT_EQ(format_bytes(1024 * 1024 * kGiB), "1.00 PiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16384.00 PiB");
}

TEST(FormatBytes, NeverWrites1024OfAUnit) {
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(kGiB - 1), "1.00 GiB");
}

}  // namespace
}  // namespace oomlab
