#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace oomlab {

/// One line to stderr, at once: a run may take minutes, and its table comes at the end.
class Progress {
 public:
  explicit Progress(bool quiet) : quiet_(quiet) {}
  void operator()(const std::string& text) const {
    if (!quiet_) fmt::print(stderr, "  {}\n", text);
  }

 private:
  bool quiet_;
};

}  // namespace oomlab
