#pragma once
// Files of the user's: what is read from them, and what takes their place.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oomlab {

/// A file of the user's that cannot be read, or holds something else than it should. what() is one line that names it.
/// Exit code 64, whichever option named it.
class BadFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A regular file, open for reading. A pipe could keep a program waiting for ever, and a device has no end.
class InputFile {
 public:
  /// Throws BadFile for what is no regular file, or cannot be opened.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Bytes, as the system says; files of /proc say 0.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Reads from where the last call ended. Fewer bytes than asked for mean the end. Throws BadFile.
  std::size_t read(void* to, std::size_t bytes);
  /// Reads from byte `first` on. Throws BadFile, also when the file ends early.
  void read_at(std::size_t first, void* to, std::size_t bytes) const;
  /// The descriptor, which is the caller's from here on.
  int release() noexcept;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::size_t bytes_ = 0;
};

/// A whole file. Throws BadFile, also when it has more than `most` bytes.
std::string read_file(const std::string& path, std::size_t most);

/// The same file's path from whichever folder: a path that does not begin with a slash is put behind the one that the
/// program runs in. Nothing is looked up. Throws std::system_error where that folder is gone.
std::string absolute_path(const std::string& path);

/// A file that is whole or not there: it is written beside the place it will have, under a temporary name of its own,
/// and finish() renames it. What was there before stays until then; links are followed, and permissions kept. What is
/// no regular file (a pipe, a device, standard output) is written into. All throw std::system_error with one line.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  /// Removes what was not finished.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  void finish();

 private:
  std::string path_, target_, temporary_;  // temporary_: empty when there is none
  int descriptor_ = -1;
};

/// An OutputFile of `contents`.
void write_file(const std::string& path, const std::string& contents);

/// Why OutputFile would fail for `path`, in a few words that name it; empty when it would not, as far as can be known
/// before. Leaves nothing behind.
std::string why_not_writable(const std::string& path);

/// Whether two paths name one regular file, or would when both were written: by other spellings or through links.
bool same_file(const std::string& a, const std::string& b);

}  // namespace oomlab
