#include "memory/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

namespace oomlab {
namespace {

namespace fs = std::filesystem;

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

bool is_descriptor(int descriptor, const struct stat& file) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && status.st_dev == file.st_dev && status.st_ino == file.st_ino;
}

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), "cannot write '" + path + "'");
}

// The file that is written when `path` is: behind links, also when they lead to what is not there yet.
fs::path target_of(fs::path path) {
  std::error_code ignored;
  for (int hops = 0; hops < 40 && fs::is_symlink(path, ignored); ++hops) {
    const fs::path link = fs::read_symlink(path, ignored);
    path = link.is_absolute() ? link : path.parent_path() / link;
  }
  const fs::path folder = fs::weakly_canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), ignored);
  return folder / path.filename();
}

fs::path folder_of(const fs::path& target) { return target.has_parent_path() ? target.parent_path() : fs::path("."); }

// Opens a new file beside `target` and says its name; -1, and errno, when there can be none.
int open_temporary(const fs::path& target, std::string& name) {
  for (unsigned tries = 0;; ++tries) {
    name = fmt::format("{}.{}{}.tmp", target.string(), ::getpid(), tries ? fmt::format("-{}", tries) : "");
    constexpr mode_t kAsUmaskSays = 0666;
    const int descriptor = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kAsUmaskSays);
    if (descriptor >= 0 || errno != EEXIST || tries == 1000) return descriptor;  // EEXIST: somebody else's
  }
}

// Whoever owns a file may take away his own right to write it; the system would let root.
bool is_write_protected(const std::string& path, mode_t mode) {
  return (mode & 0222) == 0 || ::access(path.c_str(), W_OK) != 0;
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path.empty()) cannot_write(path, ENOENT);
  const auto found = status_of(path);
  if (found && is_descriptor(STDOUT_FILENO, *found)) {
    // /dev/stdout, wherever it leads: what was printed before stays, and what is printed later follows.
    if (std::fflush(stdout) != 0) cannot_write(path, errno);
    descriptor_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  } else if (found && !S_ISREG(found->st_mode)) {
    // A pipe, a device: nothing to rename onto. Nobody is waited for who might read a pipe one day.
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor_ >= 0) (void)::fcntl(descriptor_, F_SETFL, 0);
  } else {
    if (found && is_write_protected(path, found->st_mode)) cannot_write(path, EACCES);
    target_ = target_of(path).string();
    std::string name;
    descriptor_ = open_temporary(target_, name);
    if (descriptor_ >= 0) {
      temporary_ = std::move(name);
      if (found) (void)::fchmod(descriptor_, found->st_mode & 0777);
    }
  }
  if (descriptor_ < 0) cannot_write(path, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) cannot_write(path_, errno);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void OutputFile::finish() {
  // Some file systems tell only when it is closed that they are full.
  if (::close(std::exchange(descriptor_, -1)) != 0) cannot_write(path_, errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) cannot_write(path_, errno);
  temporary_.clear();
}

void write_file(const std::string& path, const std::string& contents) {
  OutputFile file(path);
  file.write(contents);
  file.finish();
}

std::string why_not_writable(const std::string& path) {
  const auto cannot = [&](int error) { return fmt::format("'{}' cannot be written: {}", path, std::strerror(error)); };
  const auto found = status_of(path);
  if (found && S_ISDIR(found->st_mode)) return fmt::format("'{}' is a folder; name a file", path);
  if (found && S_ISSOCK(found->st_mode)) return fmt::format("'{}' is a socket; name a file", path);
  if (found && !S_ISREG(found->st_mode)) return ::access(path.c_str(), W_OK) == 0 ? "" : cannot(errno);
  if (found && is_descriptor(STDOUT_FILENO, *found)) return "";
  if (found && is_descriptor(STDERR_FILENO, *found))
    return fmt::format("'{}' is where messages go; name another file", path);
  if (found && is_write_protected(path, found->st_mode)) return fmt::format("'{}' is write-protected", path);
  const fs::path target = target_of(path), folder = folder_of(target);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return fmt::format("there is no folder '{}'", folder_of(path).string());
  if (target.filename().string().size() > 230) return "the file's name is too long";  // a temporary one is longer
  // A file without a name tells whether there can be one; where the file system has none, one with a name does.
  int trial = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (trial < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name;
    trial = open_temporary(target, name);
    if (trial >= 0) ::unlink(name.c_str());
  }
  if (trial < 0) return cannot(errno);
  ::close(trial);
  return "";
}

bool same_file(const std::string& a, const std::string& b) {
  const auto first = status_of(a), second = status_of(b);
  if ((first && !S_ISREG(first->st_mode)) || (second && !S_ISREG(second->st_mode))) return false;
  if (first && second) return first->st_dev == second->st_dev && first->st_ino == second->st_ino;
  return target_of(a) == target_of(b);
}

}  // namespace oomlab
