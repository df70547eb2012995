// The reader of safetensors files: what the format allows, and every way in which a file can lie.

#include "nn/files/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "folder.h"

namespace oomlab::test {
namespace {

using namespace nn;

// A tensor of a header.
std::string tensor_json(const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string refused_header(const std::string& json, std::uint64_t data_bytes) {
  try {
    (void)parse_safetensors_header(json, data_bytes, "x");
  } catch (const StateFileError& error) {
    return error.what();
  }
  return "accepted";
}
// Of one tensor 'a' in 8 bytes.
std::string refused_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return refused_header("{" + tensor_json("a", dtype, shape, offsets) + "}", 8);
}

std::string file_bytes(const std::string& json, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return bytes + json + data;
}

TEST(Safetensors, TensorsOfAHeader) {
  const std::string json =
      R"({"__metadata__":{"format":"pt","a":"b"},)" + tensor_json("z", "\"F32\"", "[2,3]", "[0,24]") + "," +
      tensor_json("scalar", "\"BF16\"", "[]", "[24,26]") + "," + tensor_json("none", "\"I64\"", "[0,5]", "[26,26]") +
      "," + tensor_json("b", "\"U8\"", "[1]", "[26,27]") + "}   ";
  const std::vector<SafetensorsEntry> all = parse_safetensors_header(json, 27, "x");
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].name, "b");
  EXPECT_EQ(all[0].begin, 26u);
  EXPECT_EQ(all[1].name, "none");
  EXPECT_EQ(all[1].bytes, 0u);
  EXPECT_EQ(all[1].dtype, DType::int64);
  EXPECT_EQ(all[2].name, "scalar");
  EXPECT_EQ(all[2].dtype, DType::bf16);
  EXPECT_TRUE(all[2].shape.empty());
  EXPECT_EQ(all[2].bytes, 2u);
  EXPECT_EQ(all[3].name, "z");
  EXPECT_EQ(all[3].shape, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(all[3].bytes, 24u);
  EXPECT_TRUE(parse_safetensors_header("{}", 0, "x").empty());
  EXPECT_EQ(refused_header(R"({"a":{"later":[{"x":1}],"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1), "accepted");
}

TEST(Safetensors, AllTypes) {
  const std::pair<const char*, std::size_t> types[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  for (const auto& [name, bytes] : types) {
    const std::string size = std::to_string(3 * bytes);
    const std::string json = "{" + tensor_json("a", "\"" + std::string(name) + "\"", "[3]", "[0," + size + "]") + "}";
    const SafetensorsEntry entry = parse_safetensors_header(json, 3 * bytes, "x").at(0);
    EXPECT_STREQ(safetensors_word(entry.dtype), name);
    EXPECT_EQ(element_bytes(entry.dtype), bytes);
  }
}

TEST(Safetensors, RefusedTexts) {
  EXPECT_EQ(refused_header("", 0), "'x' has a header that is no JSON object");
  EXPECT_EQ(refused_header(" {}", 0), "'x' has a header that is no JSON object");
  EXPECT_EQ(refused_header("[]", 0), "'x' has a header that is no JSON object");
  EXPECT_EQ(refused_header("\xef\xbb\xbf{}", 0), "'x' has a header that is no JSON object");
  EXPECT_EQ(refused_header("{", 0), "'x' has a header that is not JSON at byte 2");
  EXPECT_EQ(refused_header("{}x", 0), "'x' has a header that is not JSON at byte 3");
  EXPECT_EQ(refused_header(std::string("{}\0\0", 4), 0), "'x' has a header that is not JSON at byte 3");
  EXPECT_EQ(refused_header("{\"a\xff\":1}", 0), "'x' has a header that is not JSON at byte 4");
  EXPECT_EQ(refused_header("{\"a\":" + std::string(1'000'000, '['), 0), "'x' has a tensor 'a' that is no JSON object");
  EXPECT_EQ(refused_header(R"({"a":{"x":)" + std::string(1'000'000, '['), 0),
            "'x' has a header that is nested deeper than 16 levels");
  const std::string a = tensor_json("a", "\"U8\"", "[4]", "[0,4]"), again = tensor_json("a", "\"U8\"", "[4]", "[4,8]");
  EXPECT_EQ(refused_header("{" + a + "," + again + "}", 8), "'x' has a header that has the key 'a' twice");
  const std::string escaped = tensor_json("\\u0061", "\"U8\"", "[4]", "[4,8]");
  EXPECT_EQ(refused_header("{" + a + "," + escaped + "}", 8), "'x' has a header that has the key 'a' twice");
  EXPECT_EQ(refused_header(R"({"a":{"dtype":"U8","dtype":"I8","shape":[],"data_offsets":[0,1]}})", 1),
            "'x' has a header that has the key 'dtype' twice");
  const std::string metadata = "'x' has a __metadata__ that is not an object of texts";
  for (const char* value : {"1", "null", "[]", "\"pt\"", R"({"format":1})", R"({"format":{}})", R"({"format":["pt"]})"})
    EXPECT_EQ(refused_header(std::string(R"({"__metadata__":)") + value + "}", 0), metadata) << value;
}

TEST(Safetensors, RefusedTensors) {
  const std::string a = "'x' has a tensor 'a' ";
  EXPECT_EQ(refused_tensor("\"U8\"", "[8]", "[0,8]"), "accepted");
  for (const char* value : {"1", "null", "\"F32\"", "[]"})
    EXPECT_EQ(refused_header(std::string("{\"a\":") + value + "}", 0), a + "that is no JSON object");
  EXPECT_EQ(refused_header(R"({"a":{}})", 0), a + "without dtype");
  EXPECT_EQ(refused_header(R"({"a":{"dtype":"U8"}})", 0), a + "without shape");
  EXPECT_EQ(refused_header(R"({"a":{"dtype":"U8","shape":[0]}})", 0),
            a + "whose data_offsets are not two whole numbers");
  EXPECT_EQ(refused_header(R"({"a":{"dtype":"U8"},"b":{}})", 0), a + "without shape");
  EXPECT_EQ(refused_header(R"({"a":{"dtype":"U8"},"__metadata__":{}})", 0), a + "without shape");
  EXPECT_EQ(refused_tensor("\"F99\"", "[8]", "[0,8]"), a + "whose dtype 'F99' is unknown");
  EXPECT_EQ(refused_tensor("\"f32\"", "[2]", "[0,8]"), a + "whose dtype 'f32' is unknown");
  EXPECT_EQ(refused_tensor("4", "[8]", "[0,8]"), a + "whose dtype is not a text");
  EXPECT_EQ(refused_tensor("{\"U8\":1}", "[8]", "[0,8]"), a + "whose dtype is not a text");
  for (const char* shape : {"8", "null", "{}", "\"8\"", "[-8]", "[8.0]", "[0.5]", "[8e0]", "[\"8\"]", "[[8]]", "[null]",
                            "[18446744073709551616]", "[1e300]"})
    EXPECT_EQ(refused_tensor("\"U8\"", shape, "[0,8]"), a + "whose shape is not a list of whole numbers") << shape;
  for (const char* offsets :
       {"8", "null", "[]", "[0]", "[0,4,8]", "[-1,8]", "[0,8.0]", "[[0],[8]]", "{\"0\":8}", "[0,18446744073709551616]"})
    EXPECT_EQ(refused_tensor("\"U8\"", "[8]", offsets), a + "whose data_offsets are not two whole numbers") << offsets;
  const std::string overflow = a + "whose shape takes more bytes than 64 bits can count";
  EXPECT_EQ(refused_tensor("\"U8\"", "[4294967296,4294967296]", "[0,8]"), overflow);
  EXPECT_EQ(refused_tensor("\"F32\"", "[4611686018427387904]", "[0,8]"), overflow);
  EXPECT_EQ(refused_tensor("\"U8\"", "[18446744073709551615,2]", "[0,8]"), overflow);
  EXPECT_EQ(refused_tensor("\"U8\"", "[1000000000,1000000000]", "[0,8]"),
            a + "whose shape takes 1000000000000000000 bytes; it has 8");
  EXPECT_EQ(refused_tensor("\"F32\"", "[3]", "[0,8]"), a + "whose shape takes 12 bytes; it has 8");
  EXPECT_EQ(refused_tensor("\"F32\"", "[]", "[0,8]"), a + "whose shape takes 4 bytes; it has 8");
  EXPECT_EQ(refused_tensor("\"U8\"", "[8]", "[8,0]"), a + "that ends before it begins");
  EXPECT_EQ(refused_tensor("\"U8\"", "[9]", "[0,9]"), a + "that ends at byte 9 of 8");
  EXPECT_EQ(refused_tensor("\"U8\"", "[8]", "[18446744073709551607,18446744073709551615]"),
            a + "that ends at byte 18446744073709551615 of 8");
}

TEST(Safetensors, RefusedPlaces) {
  const auto two = [](const std::string& first, const std::string& second, const char* shape) {
    return refused_header(
        "{" + tensor_json("a", "\"U8\"", "[4]", first) + "," + tensor_json("b", "\"U8\"", shape, second) + "}", 8);
  };
  EXPECT_EQ(two("[4,8]", "[0,4]", "[4]"), "accepted");
  EXPECT_EQ(two("[0,4]", "[3,8]", "[5]"), "'x' has a tensor 'b' that begins at byte 3, inside another one");
  EXPECT_EQ(two("[0,4]", "[0,4]", "[4]"), "'x' has a tensor 'b' that begins at byte 0, inside another one");
  EXPECT_EQ(two("[0,4]", "[2,3]", "[1]"), "'x' has a tensor 'b' that begins at byte 2, inside another one");
  EXPECT_EQ(two("[0,4]", "[2,2]", "[0]"), "'x' has a tensor 'b' that begins at byte 2, inside another one");
  EXPECT_EQ(two("[0,4]", "[5,8]", "[3]"), "'x' has a tensor 'b' that begins at byte 5; no tensor has the bytes from 4");
  EXPECT_EQ(two("[4,8]", "[1,4]", "[3]"), "'x' has a tensor 'b' that begins at byte 1; no tensor has the bytes from 0");
  EXPECT_EQ(two("[0,4]", "[4,7]", "[3]"), "'x' has 1 bytes behind its last tensor");
  EXPECT_EQ(refused_header("{}", 8), "'x' has 8 bytes behind its last tensor");
  // Of several that are empty and begin at one byte, the error names the first by name, whatever their order in the
  // file.
  for (const auto& [first, second] : {std::pair("a", "b"), std::pair("b", "a")})
    EXPECT_EQ(refused_header("{" + tensor_json(first, "\"U8\"", "[0]", "[4,4]") + "," +
                                 tensor_json(second, "\"U8\"", "[0]", "[4,4]") + "}",
                             8),
              "'x' has a tensor 'a' that begins at byte 4; no tensor has the bytes from 0");
  const std::string long_name(200, 'n');
  EXPECT_EQ(refused_header("{" + tensor_json(long_name, "\"?\"", "[]", "[]") + "}", 0),
            "'x' has a tensor '" + std::string(80, 'n') + "...' whose dtype '?' is unknown");
}

std::string refused_path(const std::string& path) {
  try {
    const SafetensorsFile file(path);
  } catch (const BadFile& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Safetensors, RefusedFiles) {
  const Folder folder;
  const auto refused = [&](const std::string& bytes) { return refused_path(folder.write("f", bytes)); };
  const std::string name = "'" + folder.path() + "/f' ";
  EXPECT_EQ(refused(""), name + "has 0 bytes, too few for a safetensors file");
  EXPECT_EQ(refused("1234567"), name + "has 7 bytes, too few for a safetensors file");
  EXPECT_EQ(refused(file_bytes("", "")), name + "has a header that is no JSON object");
  EXPECT_EQ(refused(file_bytes("{}", "").substr(0, 9)), name + "has a header of 2 bytes in a file of 9");
  EXPECT_EQ(refused(std::string(8, '\xff')),
            name + "has a header of 18446744073709551615 bytes; the format allows 100000000");
  std::string length(8, '\0');
  const std::uint64_t more = 100'000'001;
  std::memcpy(length.data(), &more, sizeof more);
  EXPECT_EQ(refused(length), name + "has a header of 100000001 bytes; the format allows 100000000");
  EXPECT_EQ(refused(file_bytes("{}", "1234")), name + "has 4 bytes behind its last tensor");
  EXPECT_EQ(refused(file_bytes("{}", "")), "accepted");
  const std::string missing = folder.path() + "/missing";
  EXPECT_EQ(refused_path(missing), "'" + missing + "' cannot be read: No such file or directory");
  EXPECT_EQ(refused_path(folder.path()), "'" + folder.path() + "' is a folder, not a file");
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refused_path(pipe), "'" + pipe + "' is a pipe, not a file");
}

TEST(Safetensors, BytesOfTensors) {
  const Folder folder;
  const std::string json =
      "{" + tensor_json("b", "\"U8\"", "[4]", "[3,7]") + "," + tensor_json("a", "\"I8\"", "[3]", "[0,3]") + "}";
  const std::string path = folder.write("f", file_bytes(json, "abcdefg"));
  const SafetensorsFile file(path);
  EXPECT_EQ(file.path(), path);
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
  const SafetensorsEntry* const b = file.find("b");
  ASSERT_NE(b, nullptr);
  const auto read = [&](const SafetensorsEntry& entry, std::uint64_t first, std::size_t bytes) {
    std::string text(bytes, '?');
    file.read(entry, first, std::as_writable_bytes(std::span(text)));
    return text;
  };
  EXPECT_EQ(read(*b, 0, 4), "defg");
  EXPECT_EQ(read(*b, 1, 2), "ef");
  EXPECT_EQ(read(*b, 4, 0), "");
  EXPECT_EQ(read(*file.find("a"), 0, 3), "abc");
  EXPECT_THROW(read(*b, 0, 5), std::out_of_range);
  EXPECT_THROW(read(*b, 5, 0), std::out_of_range);
  EXPECT_THROW(read(*b, UINT64_MAX, 2), std::out_of_range);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);  // while it is open
  try {
    (void)read(*b, 0, 4);
    ADD_FAILURE();
  } catch (const BadFile& error) {
    EXPECT_EQ(error.what(), "'" + path + "' ends early");
  }
}

}  // namespace
}  // namespace oomlab::test
