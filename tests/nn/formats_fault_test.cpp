// The readers of others' files against files that are wrong in any way: they accept or complain in one line, take no
// more memory than a small multiple of the text, and leave none behind, also where there is none left.
// (operator_new.cpp is linked in.)

#include <gtest/gtest.h>
#include <oomlab_host.h>

#include <cstdlib>
#include <iterator>
#include <new>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../faults/operator_new.h"
#include "folder.h"
#include "model_configs.h"
#include "nn/files/safetensors.h"
#include "nn/models/model_config.h"

namespace oomlab::test {
namespace {

using namespace nn;

constexpr std::uint64_t kDataBytes = 1054;
constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},"model.norm.weight":{"dtype":"BF16","shape":[16],"data_offsets":[1022,1054]},)"
    R"("model.embed_tokens.weight":{"dtype":"F32","shape":[8,16],"data_offsets":[0,512]},"e":{"dtype":"I64","shape":[0],)"
    R"("data_offsets":[512,512]},"model.layers.0.mlp.up_proj.weight":{"dtype":"F16","shape":[3,5,17],"data_offsets":)"
    R"([512,1022]}}      )";

const std::string_view kPieces[] = {"[",
                                    "]",
                                    "{",
                                    "}",
                                    ",",
                                    ":",
                                    "\"",
                                    "null",
                                    "true",
                                    "[]",
                                    "{}",
                                    "\"a\":",
                                    "-1",
                                    "0",
                                    "1e99",
                                    "0.5",
                                    "4294967296",
                                    "\\u0000",
                                    "\0",
                                    "\xff",
                                    "\"dtype\":",
                                    "\"U8\"",
                                    "\"shape\":",
                                    "\"data_offsets\":",
                                    "9223372036854775807",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "1000000000000000000",
                                    "\"hidden_size\":",
                                    "\"rope_scaling\":{",
                                    "\"type\":\"linear\",\"factor\":2"};

std::string mutated(std::string_view good, std::mt19937_64& random) {
  std::string text(good);
  for (std::size_t change = random() % 5; change > 0; --change) {
    const std::size_t at = random() % (text.size() + 1);
    switch (random() % 7) {
      case 0: text.resize(at); break;
      case 1: text.insert(at, kPieces[random() % std::size(kPieces)]); break;
      case 2: text.erase(at, random() % 8); break;
      case 3: text.insert(at, text.substr(random() % (text.size() + 1), random() % 128)); break;
      case 4: text.insert(at, std::string(random() % 64, "[{"[random() % 2])); break;
      case 5: {  // another number
        const std::size_t first = text.find_first_of("0123456789", at);
        if (first == std::string::npos) break;
        const std::size_t last = text.find_first_not_of("0123456789", first);
        const std::string_view other[] = {"0", "1", "2", "7", "16", "512", "1024", "1000001", "4294967295"};
        text.replace(first, last - first, other[random() % std::size(other)]);
        break;
      }
      default:
        if (at < text.size()) text[at] = static_cast<char>(random());
    }
  }
  return text;
}

// read(text) may throw Error, in one line. Gives how many of the inputs were accepted.
template <class Error, class Read>
std::size_t fuzz(std::span<const std::string_view> good, unsigned seed, std::size_t inputs, Read read) {
  std::mt19937_64 random(seed);
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < inputs; ++i) {
    const std::string text = mutated(good[random() % good.size()], random);
    const long long before = host_heap_bytes();
    (void)take_host_heap_peak();
    try {
      read(text);
      ++accepted;
    } catch (const Error& error) {
      const std::string_view line = error.what();
      EXPECT_FALSE(line.empty());
      EXPECT_LT(line.size(), 1000u);
      EXPECT_EQ(line.find('\n'), std::string_view::npos) << line;
    }
    EXPECT_LE(take_host_heap_peak() - before, 32 * 1024 + 32 * static_cast<long long>(text.size())) << text;
    EXPECT_EQ(host_heap_bytes(), before) << text;
    if (::testing::Test::HasFailure()) break;
  }
  return accepted;
}

// A million inputs with OOMLAB_FUZZ_INPUTS=1000000.
std::size_t fuzz_inputs() {
  const char* wanted = std::getenv("OOMLAB_FUZZ_INPUTS");
  return wanted ? std::strtoull(wanted, nullptr, 10) : OOMLAB_INPUTS;
}

TEST(FormatsFuzz, Headers) {
  const std::string_view good[] = {kHeader};
  const std::size_t accepted = fuzz<StateFileError>(good, 1, fuzz_inputs(), [](const std::string& text) {
    std::uint64_t bytes = 0;
    for (const SafetensorsEntry& e : parse_safetensors_header(text, kDataBytes, "x")) {
      ASSERT_LE(e.begin, kDataBytes);
      ASSERT_LE(e.bytes, kDataBytes - e.begin);
      bytes += e.bytes;
    }
    ASSERT_EQ(bytes, kDataBytes);
  });
  EXPECT_GT(accepted, fuzz_inputs() / 20);
  EXPECT_LT(accepted, fuzz_inputs() / 2);
}

TEST(FormatsFuzz, Configs) {
  const std::string_view good[] = {kLlama31_8B, kLlama32_1B, kQwen25_7B, kMistral7B};
  const std::size_t accepted = fuzz<std::invalid_argument>(good, 2, fuzz_inputs(), [](const std::string& text) {
    const TransformerSpec spec = parse_model_config(text, "x");
    ASSERT_TRUE(spec.llama());
    ASSERT_EQ(spec.width % spec.heads, 0u);
    ASSERT_EQ(spec.heads % spec.keys(), 0u);
    ASSERT_GT(spec.qkv_width(), 0u);
    ASSERT_GT(spec.positions, 0u);
  });
  EXPECT_GT(accepted, fuzz_inputs() / 20);
  EXPECT_LT(accepted, fuzz_inputs());
}

// Files as small as they come, for what they make of it: many empty tensors, many extents, deep nesting, long names.
TEST(FormatsFault, MemoryIsASmallMultipleOfTheHeader) {
  std::string tensors = "{", extents = R"({"a":{"dtype":"U8","data_offsets":[0,0],"shape":[0)", keys = R"({"a":{"":0)";
  for (int i = 0; i < 20'000; ++i)
    tensors += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  for (int i = 0; i < 500'000; ++i) extents += ",0";
  for (int i = 0; i < 100'000; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  const std::string drafts = R"({"a":{},"b":{}})", name = "{\"" + std::string(1'000'000, 'n') + "\":1}";
  for (const std::string& json : {tensors + "}", extents + "]}}", keys + "}}", drafts, name}) {
    const long long before = host_heap_bytes();
    (void)take_host_heap_peak();
    try {
      (void)parse_safetensors_header(json, 0, "x");
    } catch (const StateFileError&) {
    }
    EXPECT_LE(take_host_heap_peak() - before, 32 * 1024 + 20 * static_cast<long long>(json.size()))
        << json.substr(0, 60);
    EXPECT_EQ(host_heap_bytes(), before);
  }
}

// Every allocation fails once.
template <class Work>
void without_memory(Work work) {
  work();
  host::arm_fault(0, false);
  work();
  const std::uint64_t calls = host::fault_calls();
  host::disarm_fault();
  ASSERT_GT(calls, 0u);
  for (std::uint64_t k = 1; k <= calls; ++k) {
    const long long before = host_heap_bytes();
    bool failed = false;
    host::arm_fault(k, false);
    try {
      work();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    host::disarm_fault();
    ASSERT_TRUE(failed) << "call " << k << " of " << calls;
    ASSERT_EQ(host_heap_bytes(), before) << "call " << k << " of " << calls;
  }
}

TEST(FormatsFault, NothingIsLeftBehindWithoutMemory) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(kHeader.size() >> (8 * i) & 0xff);
  const Folder folder;
  const std::string path = folder.write("f", bytes + std::string(kHeader) + std::string(kDataBytes, '\0'));
  without_memory([&] { EXPECT_EQ(SafetensorsFile(path).entries().size(), 4u); });
  const std::string config = folder.write("config.json", kLlama31_8B);
  without_memory([&] { EXPECT_EQ(read_model_config(config).layers, 32u); });
}

}  // namespace
}  // namespace oomlab::test
