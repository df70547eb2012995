// In builds under a sanitizer, and in check mode: there every block is to be as long as it was asked for.

#include "watch.h"

std::size_t oomlab::puzzle::guarded_size(std::size_t bytes) { return bytes; }
void oomlab::puzzle::guard(const std::map<std::uintptr_t, Block>&, bool) {}
void oomlab::puzzle::begin_guarding(std::uintptr_t, const Block&) {}
void oomlab::puzzle::end_guarding(std::uintptr_t, const Block&) {}
bool oomlab::puzzle::overrun(std::uintptr_t, const Block&) { return false; }
void oomlab::puzzle::start_guarding() {}
