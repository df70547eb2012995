// oomlab_system: the machine that results come from. Prints system.json, or with --slug the name of its results folder.

#include <cstdio>
#include <cstring>
#include <exception>

#include "harness/system.h"
#include "memory/text.h"

int main(int argc, char** argv) {
  using namespace oomlab;
  open_standard_descriptors();
  constexpr const char* kProgram = "oomlab_system";
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--slug") != 0)) {
    return complain(kProgram, "the only option is --slug", 64);
  }
  try {
    const oomlab::SystemInfo info = oomlab::system_info(0);
    put(stdout, argc == 2 ? info.slug + "\n" : oomlab::system_json(info));
  } catch (const std::exception& error) {
    return complain(kProgram, error.what(), 2);
  }
  try {
    flush_output();
  } catch (const std::exception& error) {
    return complain(kProgram, error.what(), 1);
  }
}
