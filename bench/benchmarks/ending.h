#pragma once
// How a benchmark's main() ends.

#include <exception>

#include "harness/chapter.h"
#include "memory/text.h"

namespace oomlab::bench {

/// What main() returns of a `body` that returns an exit code: 64 for bad usage, 2 for an error, each with one line.
template <class Body>
int ending_of(const char* program, Body body) {
  try {
    const int code = body();
    flush_output();
    return code;
  } catch (const UsageError& error) {
    return complain(program, error.what(), 64);
  } catch (const std::exception& error) {
    return complain(program, error.what(), 2);
  }
}

}  // namespace oomlab::bench
