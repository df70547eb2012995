#include "memory/text.h"

#include <fcntl.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <functional>
#include <initializer_list>
#include <stdexcept>

#include "plan/text.h"

namespace oomlab {

void put(std::FILE* file, std::string_view text) noexcept {
  visit_shown(text, true, [&](std::string_view piece) { (void)std::fwrite(piece.data(), 1, piece.size(), file); });
}

int complain(std::string_view program, std::string_view what, int exit_code) noexcept {
  (void)std::fflush(stdout);
  const std::function<void(std::string_view)> emit = [](std::string_view piece) {
    (void)std::fwrite(piece.data(), 1, piece.size(), stderr);
  };
  // A line that somebody may want to read: of a value of megabytes the beginning will do, and the end says what is
  // allowed.
  constexpr std::size_t kFirst = 1200, kLast = 800;
  const bool cut = what.size() > kFirst + kLast;
  std::size_t end = cut ? kFirst : what.size(), again = cut ? what.size() - kLast : what.size();
  const auto inside = [&](std::size_t i) {
    return i < what.size() && (static_cast<unsigned char>(what[i]) & 0xC0) == 0x80;
  };
  for (int i = 0; i < 3 && cut && inside(end); ++i) --end;
  for (int i = 0; i < 3 && cut && inside(again); ++i) ++again;
  visit_shown(program, false, emit);
  emit(": ");
  visit_shown(what.substr(0, end), false, emit);
  if (cut) emit(" [...] ");
  visit_shown(what.substr(again), false, emit);
  emit("\n");
  return exit_code;
}

void flush_output() {
  const bool failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed) return;
  __fpurge(stdout);  // or exit() would try once more
  std::clearerr(stdout);
  throw std::runtime_error("the output could not be written");
}

void open_standard_descriptors() noexcept {
  // Each is the lowest that is free when its turn comes. One that may only be read, or only be written, makes the other
  // fail, as a closed one does; messages, which nobody wants, may go.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0) (void)::open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

}  // namespace oomlab
