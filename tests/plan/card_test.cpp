// Cards, and the least time that a step takes on one.

#include "plan/card.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "small_card.h"

namespace {

using namespace oomlab;
using oomlab::test::bytes_of;
using oomlab::test::kMiB;
using oomlab::test::kSmall;

TEST(Cards, HaveNamesOfTheirOwnAndPlausibleFigures) {
  std::set<std::string> names;
  for (const Card& card : cards()) {
    EXPECT_TRUE(names.insert(card.name).second) << card.name;
    EXPECT_EQ(find_card(card.name), &card) << card.name;
    EXPECT_EQ(find_card(card.title), &card) << card.title;
    EXPECT_NE(card_names().find(card.name), std::string::npos);
    // 8 to 200 operations a byte in FP32; tensor cores, since Volta, twice as fast at least.
    EXPECT_GT(card.fp32_tflops * 1e3 / card.gb_per_s, 8) << card.name;
    EXPECT_LT(card.fp32_tflops * 1e3 / card.gb_per_s, 200) << card.name;
    EXPECT_GE(card.fp16_tflops, (card.capability < 7 ? 1 : 1.99) * card.fp32_tflops) << card.name;
    EXPECT_LE(card.l2_mib * kMiB, 0.02 * card.memory_gb * 1e9) << card.name;
    EXPECT_EQ(card.has_bf16, card.capability >= 8) << card.name;
  }
}

// Less than is sold, by the driver's part and, of some cards, a sixteenth for error correction.
TEST(Cards, HaveTheMemoryThatCudaReports) {
  constexpr double kGiB = 1024.0 * kMiB;
  for (const Card& card : cards()) {
    EXPECT_LT(double(card.total_bytes()), card.memory_gb * kGiB) << card.name;
    EXPECT_GT(double(card.total_bytes()), 0.88 * card.memory_gb * kGiB) << card.name;
    if (card.smi_mib) {
      EXPECT_LT(double(card.total_bytes()), card.smi_mib * kMiB) << card.name;
    }
    EXPECT_GT(std::string(card.total_from).size(), 4u) << card.name;
  }
  EXPECT_NEAR(double(find_card("rtx-4090")->total_bytes()), 23.52 * kGiB, 1);
  EXPECT_NEAR(double(find_card("h100-pcie")->total_bytes()), 84'942'979'072.0, 0.01 * kGiB);
}

// What people type, and which card they mean. Where several cards share a name: the one with the least memory, and of
// these the fastest.
constexpr std::pair<const char*, const char*> kTyped[] = {
    {"4090", "rtx-4090"},
    {"rtx4090", "rtx-4090"},
    {"RTX 4090", "rtx-4090"},
    {"rtx-4090", "rtx-4090"},
    {"rtx_4090", "rtx-4090"},
    {"4090 24GB", "rtx-4090"},
    {"NVIDIA GeForce RTX 4090", "rtx-4090"},
    {"GeForce RTX 4090", "rtx-4090"},
    {"rtx3060", "rtx-3060"},
    {"RTX 3060 12GB", "rtx-3060"},
    {"3090", "rtx-3090"},
    {"4060", "rtx-4060"},
    {"RTX 4060 Ti", "rtx-4060-ti-8gb"},
    {"4060 ti 16gb", "rtx-4060-ti-16gb"},
    {"4060ti", "rtx-4060-ti-8gb"},
    {"rtx 3080", "rtx-3080"},
    {"3080-12gb", "rtx-3080-12gb"},
    {"3080 10 GB", "rtx-3080"},
    {"5070ti", "rtx-5070-ti"},
    {"5080", "rtx-5080"},
    {"5090", "rtx-5090"},
    {"2080", "rtx-2080"},
    {"2080ti", "rtx-2080-ti"},
    {"1080 Ti", "gtx-1080-ti"},
    {"GTX1660", "gtx-1660"},
    {"t4", "t4"},
    {"Tesla T4", "t4"},
    {"NVIDIA Tesla T4", "t4"},
    {"p100", "p100"},
    {"Tesla P100-PCIE-16GB", "p100"},
    {"v100", "v100-16gb"},
    {"v100-16", "v100-16gb"},
    {"V100 32GB", "v100-32gb"},
    {"Tesla V100-SXM2-32GB", "v100-32gb"},
    {"a10", "a10"},
    {"A10G", "a10g"},
    {"a100", "a100-40gb"},
    {"a100-40", "a100-40gb"},
    {"a100-80", "a100-80gb"},
    {"a100-80gb", "a100-80gb"},
    {"A100 80 GB", "a100-80gb"},
    {"a100-sxm-80gb", "a100-80gb"},
    {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
    {"a5000", "rtx-a5000"},
    {"A6000", "rtx-a6000"},
    {"RTX 6000 Ada", "rtx-6000-ada"},
    {"NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"},
    {"rtx pro 6000", "rtx-pro-6000"},
    {"pro6000", "rtx-pro-6000"},
    {"l4", "l4"},
    {"l40", "l40"},
    {"L40S", "l40s"},
    {"h20", "h20"},
    {"h100", "h100-sxm"},
    {"H100 80GB", "h100-sxm"},
    {"h100-80", "h100-sxm"},
    {"H100 SXM", "h100-sxm"},
    {"h100sxm", "h100-sxm"},
    {"NVIDIA H100 80GB HBM3", "h100-sxm"},
    {"h100 pcie", "h100-pcie"},
    {"h200", "h200"},
    {"H200 SXM", "h200"},
    {"B200", "b200"},
    {"b300", "b300"},
    {"gb10", "gb10"},
    {"DGX Spark", "gb10"},
};

TEST(Cards, AreFoundByWhatPeopleType) {
  for (const auto& [typed, name] : kTyped) {
    const Card* const card = find_card(typed);
    ASSERT_TRUE(card) << typed;
    EXPECT_EQ(card->name, std::string(name)) << typed;
  }
  for (const auto& [typed, others] : {std::pair("a100", "a100-80gb"),
                                      {"V100", "v100-32gb"},
                                      {"h100", "h100-pcie"},
                                      {"rtx 3080", "rtx-3080-12gb"},
                                      {"4060 Ti", "rtx-4060-ti-16gb"},
                                      {"a100-80", ""},
                                      {"h100-sxm", ""},
                                      {"rtx-4090", ""},
                                      {"nosuch", ""}})
    EXPECT_EQ(other_cards(typed), others) << typed;
}

TEST(Cards, OfOneNameAreInOrder) {
  for (const Card& card : cards())
    for (const Card& later : cards()) {
      if (&later <= &card) continue;
      for (const std::string typed : {card.device, later.device, "a100", "v100", "h100"}) {
        if (find_card(typed) != &card || other_cards(typed).find(later.name) == std::string::npos) continue;
        EXPECT_LE(card.total_gib, later.total_gib) << typed;
        if (card.total_gib == later.total_gib) {
          EXPECT_GT(card.fp16_tflops, later.fp16_tflops) << typed;
        }
      }
    }
}

// A part of a name is none, unless it is a name of its own.
TEST(Cards, AreNotFoundByPartsOfNames) {
  std::set<std::string> found;
  std::uint64_t parts = 0;
  for (const Card& card : cards()) {
    const std::string name = card.name;
    for (std::uint64_t length = 1; length < name.size(); ++length) {
      if (name[length - 1] == '-') continue;
      ++parts;
      const std::string part = name.substr(0, length);
      if (const Card* const other = find_card(part)) found.insert(part + " is " + other->name);
    }
  }
  const std::set<std::string> expected{"a10 is a10",
                                       "a100 is a100-40gb",
                                       "a100-40 is a100-40gb",
                                       "a100-80 is a100-80gb",
                                       "h100 is h100-sxm",
                                       "h20 is h20",
                                       "l4 is l4",
                                       "l40 is l40",
                                       "rtx-2080 is rtx-2080",
                                       "rtx-3080 is rtx-3080",
                                       "rtx-3080-12 is rtx-3080-12gb",
                                       "rtx-4060 is rtx-4060",
                                       "rtx-4060-ti is rtx-4060-ti-8gb",
                                       "rtx-4060-ti-16 is rtx-4060-ti-16gb",
                                       "rtx-4060-ti-8 is rtx-4060-ti-8gb",
                                       "v100 is v100-16gb",
                                       "v100-16 is v100-16gb",
                                       "v100-32 is v100-32gb"};
  EXPECT_EQ(found, expected);
  EXPECT_GT(parts, 200u);
  for (const char* part : {"", "rtx", "rtx 40", "a1", "a1000", "h2", "h10", "b", "4090 Laptop", "rtx 4090 mobile", "40",
                           "100", "24gb", "4090 12gb", "nvidia", "geforce"})
    EXPECT_FALSE(find_card(part)) << part;
}

TEST(Cards, ThatAreUnknownAreAnsweredWithTheNearest) {
  for (const auto& [typed, said] : {std::pair("rtx-4091", "'rtx-4091' is unknown; nearest: rtx-4090, "),
                                    {"4080 super", "rtx-4080"},
                                    {"h101", "h100-sxm, h100-pcie"},
                                    {"a100-90", "a100-80gb"},
                                    {"l40t", "l40s"},
                                    {"a\nb", "'a\\x0ab' is unknown; nearest: "},
                                    {"mi300x", "'mi300x' is AMD's"},
                                    {"Instinct MI250", "is AMD's"},
                                    {"RX 7900 XTX", "is AMD's"}}) {
    EXPECT_EQ(find_card(typed), nullptr) << typed;
    const std::string line = unknown_card(typed);
    EXPECT_NE(line.find(said), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
  // However much is typed.
  EXPECT_NE(unknown_card(std::string(1'000'000, 'x')).find("nearest: "), std::string::npos);
}

TEST(Cards, AreKnownByWhatCudaCallsThem) {
  const auto name_of = [](const char* device, std::uint64_t mib) {
    const Card* const card = card_of_device(device, mib * kMiB);
    return card ? std::string(card->name) : "unknown";
  };
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3", 81'079), "h100-sxm");
  EXPECT_EQ(name_of("NVIDIA H100 PCIe", 81'079), "h100-pcie");
  EXPECT_EQ(name_of("Tesla T4", 14'930), "t4");
  EXPECT_EQ(name_of("GeForce RTX 2080 Ti", 11'019), "rtx-2080-ti");  // of drivers before 2021
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 2080 Ti", 11'019), "rtx-2080-ti");
  EXPECT_EQ(name_of("Tesla V100-SXM2-32GB", 32'510), "v100-32gb");
  EXPECT_EQ(name_of("NVIDIA A10", 22'600), "a10");
  EXPECT_EQ(name_of("NVIDIA A10G", 22'731), "a10g");
  EXPECT_EQ(name_of("NVIDIA B200", 182'632), "b200");
  EXPECT_EQ(name_of("NVIDIA B300 SXM6 AC", 274'114), "b300");
  EXPECT_EQ(name_of("NVIDIA GB10", 124'610), "gb10");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 4060", 7'940), "rtx-4060");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 4060 Ti", 7'940), "rtx-4060-ti-8gb");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 4060 Ti", 15'956), "rtx-4060-ti-16gb");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 5070 Ti", 15'842), "rtx-5070-ti");
  EXPECT_EQ(name_of("NVIDIA RTX 6000 Ada Generation", 48'640), "rtx-6000-ada");  // without ECC
  EXPECT_EQ(name_of("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97'250), "rtx-pro-6000");
  EXPECT_EQ(name_of("Tesla P100-PCIE-16GB", 16'280), "p100");
  // Windows reports nearly all of it.
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 4090", 24'563), "rtx-4090");
  // Others of the same name, slices, and what nobody knows.
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080", 9'995), "rtx-3080");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080", 12'044), "rtx-3080-12gb");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3060", 8'000), "unknown");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080 Laptop GPU", 9'995), "unknown");
  EXPECT_EQ(name_of("NVIDIA GeForce RTX 3080 Ti", 12'044), "unknown");
  EXPECT_EQ(name_of("NVIDIA H100", 81'079), "unknown");
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9'856), "unknown");
  EXPECT_EQ(name_of("NVIDIA H100 80GB HBM3", 9'856), "unknown");
  EXPECT_EQ(name_of("NVIDIA RTX PRO 6000 Blackwell Server Edition|", 97'250), "unknown");
  EXPECT_EQ(name_of("", 97'250), "unknown");
  EXPECT_EQ(name_of("host", 16'384), "unknown");
}

TEST(LeastTimes, AreOperationsOverPeakOrBytesOverBandwidth) {
  // 60 + 140, 120 and 220 MiB wait, of which 20 may be in the cache each time: 180 + 100 + 200, written and read.
  const LeastTime least =
      least_time(kSmall, DType::fp32, 4e9, bytes_of(60 * kMiB, 120 * kMiB, 140 * kMiB, 220 * kMiB)).value();
  EXPECT_DOUBLE_EQ(least.computing_seconds, 2e-3);
  EXPECT_DOUBLE_EQ(least.moved_bytes, 960.0 * kMiB);
  EXPECT_DOUBLE_EQ(least.moving_seconds, 960.0 * kMiB / 1e11);
  EXPECT_DOUBLE_EQ(least.seconds(), 960.0 * kMiB / 1e11);
  const LeastTime computing = least_time(kSmall, DType::fp32, 4e12, bytes_of(0, 0, 0, 0)).value();
  EXPECT_DOUBLE_EQ(computing.seconds(), 2);
  EXPECT_DOUBLE_EQ(least_time(kSmall, DType::fp16, 4e12, {}).value().seconds(), 0.5);
  EXPECT_DOUBLE_EQ(least_time(kSmall, DType::bf16, 4e12, {}).value().seconds(), 0.5);
  Card old = kSmall;
  old.has_bf16 = false;
  EXPECT_FALSE(least_time(old, DType::bf16, 4e12, {}));
  EXPECT_TRUE(least_time(old, DType::fp16, 4e12, {}));
}

TEST(LeastTimes, WhatFitsIntoTheCacheNeedNotMove) {
  const std::uint64_t fits = 20 * kMiB;
  EXPECT_EQ(least_time(kSmall, DType::fp32, 0, bytes_of(fits, fits, 0, fits)).value().seconds(), 0);
  EXPECT_GT(least_time(kSmall, DType::fp32, 0, bytes_of(fits, fits, 512, fits)).value().seconds(), 0);
}

TEST(LeastTimes, HalveOnACardTwiceAsFast) {
  Card twice = kSmall;
  twice.gb_per_s *= 2, twice.fp32_tflops *= 2, twice.fp16_tflops *= 2;
  for (const double flops : {1e3, 1e9, 1e15})
    for (const std::uint64_t mib : {0, 1, 100, 100'000}) {
      const ByCategory bytes = bytes_of(mib * kMiB, mib * kMiB, 2 * mib * kMiB, mib * kMiB);
      for (const DType dtype : {DType::fp32, DType::fp16})
        EXPECT_DOUBLE_EQ(2 * least_time(twice, dtype, flops, bytes).value().seconds(),
                         least_time(kSmall, dtype, flops, bytes).value().seconds());
    }
}

TEST(LeastTimes, GrowWithTheWork) {
  for (const Card& card : cards()) {
    const ByCategory bytes{{kMiB, kMiB, kMiB, kMiB, kMiB, kMiB}};
    const LeastTime least = least_time(card, DType::fp32, 1e6, bytes).value();
    EXPECT_GT(least_time(card, DType::fp32, 2e6, bytes).value().computing_seconds, least.computing_seconds);
    for (const Category c : {Category::parameters, Category::gradients, Category::optimizer, Category::activations}) {
      ByCategory more = bytes;
      more[c] += 1000 * kMiB;
      EXPECT_GT(least_time(card, DType::fp32, 1e6, more).value().moving_seconds, least.moving_seconds) << card.name;
    }
    for (const Category c : {Category::workspace, Category::data}) {  // nobody says that they are read
      ByCategory more = bytes;
      more[c] += 1000 * kMiB;
      EXPECT_EQ(least_time(card, DType::fp32, 1e6, more).value().moving_seconds, least.moving_seconds);
    }
  }
}

}  // namespace
