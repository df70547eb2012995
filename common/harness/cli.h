#pragma once
// The command line that every chapter has.

#include <string>
#include <vector>

#include "harness/chapter.h"

namespace oomlab {

struct CommandLine {
  Config config;
  bool quit = false;  ///< --help or --version: `text` is all that is wanted
  std::string text;   ///< for --help and --version
  bool device_auto = false;
  std::vector<std::string> benchmark_flags;  ///< --benchmark_…, for Google Benchmark, values checked
  std::string benchmark_filter;              ///< the value of --benchmark_filter
};

/// Throws UsageError (one line) for anything that is not understood or not allowed.
CommandLine parse_command_line(int argc, char** argv, const std::string& program, const Defaults& full,
                               const Defaults& quick);

}  // namespace oomlab
