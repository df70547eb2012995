// What is read: by the calls that every POSIX system has, WASI among them. What is written: files.cpp.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "memory/files.h"

namespace oomlab {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISFIFO(mode)) return "pipe";
  if (S_ISSOCK(mode)) return "socket";
  return "device";
}

[[noreturn]] void cannot_read(const std::string& path, int error) {
  throw BadFile(fmt::format("'{}' cannot be read: {}", path, std::strerror(error)));
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  const auto refuse_kind = [&](mode_t mode) {
    if (!S_ISREG(mode)) throw BadFile(fmt::format("'{}' is a {}, not a file", path, kind_of(mode)));
  };
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) cannot_read(path, errno);
  refuse_kind(found.st_mode);
  // Without O_NONBLOCK, opening what has become a pipe meanwhile would wait for somebody who writes to it.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) cannot_read(path, errno);
  struct stat status {};
  try {
    if (::fstat(descriptor_, &status) != 0) cannot_read(path, errno);
    refuse_kind(status.st_mode);
  } catch (...) {
    ::close(release());
    throw;
  }
  bytes_ = static_cast<std::size_t>(status.st_size);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int InputFile::release() noexcept { return std::exchange(descriptor_, -1); }

std::size_t InputFile::read(void* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(descriptor_, static_cast<char*>(to) + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path_, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void InputFile::read_at(std::size_t first, void* to, std::size_t bytes) const {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(descriptor_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(first + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path_, errno);
    if (got == 0) throw BadFile(fmt::format("'{}' ends early", path_));
    done += static_cast<std::size_t>(got);
  }
}

std::string read_file(const std::string& path, std::size_t most) {
  InputFile file(path);
  const auto too_large = [&] { throw BadFile(fmt::format("'{}' has more than {} bytes", path, most)); };
  if (file.bytes() > most) too_large();
  std::string contents;
  // What the system says is not believed: memory grows with what is really there.
  for (constexpr std::size_t kPiece = std::size_t(1) << 20;;) {
    const std::size_t before = contents.size();
    contents.resize(before + kPiece);
    const std::size_t got = file.read(contents.data() + before, kPiece);
    contents.resize(before + got);
    if (contents.size() > most) too_large();
    if (got < kPiece) return contents;
  }
}

std::string absolute_path(const std::string& path) {
  if (path.starts_with('/')) return path;
  std::string folder(256, '\0');
  while (!::getcwd(folder.data(), folder.size())) {
    if (errno != ERANGE) throw std::system_error(errno, std::generic_category(), "the folder that this runs in");
    folder.resize(2 * folder.size());
  }
  folder.resize(std::strlen(folder.c_str()));
  return folder + (folder.ends_with('/') ? "" : "/") + path;
}

}  // namespace oomlab
