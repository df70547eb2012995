// What is read from the user's files, and what may take their place; and text of theirs that is printed.

#include "memory/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "memory/text.h"
#include "plan/text.h"

namespace oomlab {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "oomlab_files_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::system_error(errno, std::generic_category(), name);
    folder_ = name;
  }
  ~Files() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& contents) const {
    std::ofstream(path(name), std::ios::binary) << contents;
    return path(name);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static std::string refusal(const std::string& path, std::size_t most = 100) {
    try {
      (void)read_file(path, most);
    } catch (const BadFile& error) {
      return error.what();
    }
    return "read";
  }

 private:
  fs::path folder_;
};

// ----------------------------------------------------------------------------------------------------------------
// input

TEST_F(Files, AreReadWholeUpToALimit) {
  EXPECT_EQ(read_file(write("empty", ""), 0), "");
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(read_file(write("large", large), large.size()), large);
  EXPECT_EQ(refusal(path("large"), large.size() - 1), "'" + path("large") + "' has more than 2999999 bytes");
  // One that says 0 and has more.
  EXPECT_EQ(refusal("/proc/self/smaps", 100), "'/proc/self/smaps' has more than 100 bytes");
}

TEST_F(Files, AnythingButAFileIsRefusedAndNothingIsWaitedFor) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", path("link"));
  EXPECT_EQ(refusal(path("pipe")), "'" + path("pipe") + "' is a pipe, not a file");
  EXPECT_EQ(refusal(path("link")), "'" + path("link") + "' is a pipe, not a file");
  EXPECT_EQ(refusal(path("")), "'" + path("") + "' is a folder, not a file");
  EXPECT_EQ(refusal("/dev/zero"), "'/dev/zero' is a device, not a file");
  EXPECT_EQ(refusal(path("missing")), "'" + path("missing") + "' cannot be read: No such file or directory");
}

TEST_F(Files, PiecesAreReadFromWhereTheyAre) {
  InputFile file(write("f", "0123456789"));
  char piece[4];
  EXPECT_EQ(file.bytes(), 10u);
  EXPECT_EQ(file.read(piece, 4), 4u);
  file.read_at(7, piece, 3);
  EXPECT_EQ(std::string(piece, 3), "789");
  EXPECT_EQ(file.read(piece, 4), 4u);
  EXPECT_EQ(std::string(piece, 4), "4567");
  EXPECT_EQ(file.read(piece, 4), 2u) << "the end";
  EXPECT_THROW(file.read_at(8, piece, 3), BadFile) << "beyond the end";
}

// ---------------------------------------------------------------------------------------------------------------
// output

TEST_F(Files, ATemporaryNameIsOnesOwn) {
  // Another process of this number, in another container, is writing the same file.
  const std::string theirs = write("f." + std::to_string(::getpid()) + ".tmp", "theirs");
  write_file(path("f"), "mine");
  EXPECT_EQ(read(path("f")), "mine");
  EXPECT_EQ(read(theirs), "theirs");
  {
    OutputFile unfinished(path("g"));
    unfinished.write("half");
  }
  EXPECT_EQ(files(), 2u);
}

TEST_F(Files, WhatIsReplacedKeepsItsPermissions) {
  ASSERT_EQ(::chmod(write("f", "old").c_str(), 0640), 0);
  write_file(path("f"), "new");
  struct stat status {};
  ASSERT_EQ(::stat(path("f").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(Files, AFileWithoutPermissionToWriteStaysAlsoForRoot) {
  ASSERT_EQ(::chmod(write("f", "old").c_str(), 0444), 0);
  EXPECT_EQ(why_not_writable(path("f")), "'" + path("f") + "' is write-protected");
  EXPECT_THROW(write_file(path("f"), "new"), std::system_error);
  EXPECT_EQ(read(path("f")), "old");
}

TEST_F(Files, WhatCannotBeWrittenIsKnownBefore) {
  EXPECT_EQ(why_not_writable(path("new")), "");
  EXPECT_EQ(why_not_writable(write("old", "")), "");
  EXPECT_EQ(why_not_writable("/dev/null"), "");
  EXPECT_EQ(why_not_writable(path("")), "'" + path("") + "' is a folder; name a file");
  EXPECT_EQ(why_not_writable(path("missing/f")), "there is no folder '" + path("missing") + "'");
  EXPECT_EQ(why_not_writable(path(std::string(231, 'n'))), "the file's name is too long");
  EXPECT_NE(why_not_writable(path(std::string(300, 'n'))), "");
  EXPECT_NE(why_not_writable("/proc/result.json"), "") << "root may write there, and still cannot";
  EXPECT_EQ(files(), 1u) << "looking leaves nothing";
}

TEST_F(Files, ALinkToWhatIsNotThereYetIsFollowed) {
  fs::create_symlink("later", path("link"));
  write_file(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read(path("later")), "new");
}

TEST_F(Files, AreTheSameByAnySpelling) {
  fs::create_directory(path("folder"));
  fs::create_symlink("folder", path("other"));
  fs::create_symlink("new", path("link"));
  write("old", "");
  fs::create_hard_link(path("old"), path("hard"));
  EXPECT_TRUE(same_file(path("new"), path("./new")));
  EXPECT_TRUE(same_file(path("new"), path("folder/../new")));
  EXPECT_TRUE(same_file(path("new"), path("link")));
  EXPECT_TRUE(same_file(path("folder/new"), path("other/new")));
  EXPECT_TRUE(same_file(path("old"), path("hard")));
  EXPECT_FALSE(same_file(path("new"), path("folder/new")));
  EXPECT_FALSE(same_file(path("new"), path("old")));
  EXPECT_FALSE(same_file("/dev/null", "/dev/null")) << "nothing there is overwritten";
}

// -----------------------------------------------------------------------------------------------------------------
// text

TEST(Text, WhatATerminalWouldObeyIsShown) {
  EXPECT_EQ(one_line("plain, Stra\xc3\x9f"
                     "e \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80"),
            "plain, Stra\xc3\x9f"
            "e \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80");
  EXPECT_EQ(one_line("\x1b]0;title\x07 \x1b[2J\r\n\t"), "\\x1b]0;title\\x07 \\x1b[2J\\x0d\\x0a\\x09");
  EXPECT_EQ(one_line(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(one_line("\xc2\x9b"
                     "31m"),
            "\\u009b31m")
      << "CSI in one character";
  EXPECT_EQ(one_line("\xe2\x80\xae"
                     "abc\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c"),
            "\\u202eabc\\u2066\\u200f\\u061c");
  EXPECT_EQ(one_line("\xe2\x80\xa8"), "\\u2028") << "a line's end in some programs";
  EXPECT_EQ(one_line("\xff\xe4\xb8"), "\\xff\\xe4\\xb8") << "no UTF-8";
}

TEST(Text, JsonHasNoneOfIt) {
  EXPECT_EQ(json_string("\x1b\x7f\"\\"), R"("\u001b\u007f\"\\")");
  EXPECT_EQ(json_string("\xc2\x9b\xe2\x80\xae\xe4\xb8\xad"), "\"\\u009b\\u202e\xe4\xb8\xad\"");
}

TEST(Text, PrintedTextKeepsItsLineFeeds) {
  testing::internal::CaptureStdout();
  put(stdout, "a\n\x1b[1mb\n");
  flush_output();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "a\n\\x1b[1mb\n");
}

TEST(Text, AComplaintIsOneLineOfABearableLength) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(complain("program", "is\nwrong", 64), 64);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "program: is\\x0awrong\n");
  for (std::size_t shift = 0; shift < 3; ++shift) {
    std::string value(shift, 'a');
    for (int i = 0; i < 40'000; ++i) value += "\xe4\xb8\xad";
    testing::internal::CaptureStderr();
    (void)complain("program", "--model '" + value + "' is unknown", 64);
    const std::string line = testing::internal::GetCapturedStderr();
    EXPECT_LT(line.size(), 2100u);
    EXPECT_TRUE(line.ends_with("' is unknown\n"));
    EXPECT_EQ(line.find('\\'), std::string::npos) << "no character is cut in two";
  }
}

}  // namespace
}  // namespace oomlab
