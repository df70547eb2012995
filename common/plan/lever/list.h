#pragma once
// All levers. Options and their order, --help, refusals, what fit searches and says, and random tests come from here.

#include <span>

#include "plan/lever/lever.h"

namespace oomlab::plan {

/// In the order in which commands name them, and in which a ladder breaks ties.
std::span<const Lever* const> all_levers();

}  // namespace oomlab::plan
