// Where the device's memory needs no guard: on a GPU the host cannot touch it anyway, and sanitizers want every block as long as it is.

#include "watch.h"

std::size_t oomlab::puzzle::guarded_size(std::size_t bytes) { return bytes; }
void oomlab::puzzle::guard(const std::map<std::uintptr_t, Block>&, bool) {}
void oomlab::puzzle::start_guarding() {}
