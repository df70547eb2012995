#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "memory/text.h"

namespace oomlab {

/// One line to stderr, at once: a run may take minutes, and its table comes at the end.
class Progress {
 public:
  explicit Progress(bool quiet) : quiet_(quiet) {}
  void operator()(const std::string& text) const {
    if (!quiet_) put(stderr, fmt::format("  {}\n", text));
  }

 private:
  bool quiet_;
};

}  // namespace oomlab
