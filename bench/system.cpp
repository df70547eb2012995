// oomlab_system: the machine that results come from. Prints system.json, or with --slug the name of its results folder.

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "harness/system.h"

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--slug") != 0)) {
    std::fprintf(stderr, "oomlab_system: the only option is --slug\n");
    return 64;
  }
  try {
    const oomlab::SystemInfo info = oomlab::system_info(0);
    fmt::print("{}", argc == 2 ? info.slug + "\n" : oomlab::system_json(info));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oomlab_system: %s\n", error.what());
    return 2;
  }
}
