#pragma once
// Which levers go together: every value of one with every value of another, asked of the levers themselves.

#include <string>
#include <vector>

#include "plan/lever/list.h"

namespace oomlab::plan {

/// One value of one lever.
struct Value {
  const Lever* lever;
  Levers levers;  ///< this lever's value; all others as textbooks have it
};

/// A lever that is pulled.
struct Pulled {
  Value value;
  std::vector<Value> needs;  ///< any of these, where the value is refused alone; empty: nothing
};

/// The step that pairs are asked about: a small model whose numbers many grids divide, 16 sequences.
Work work_of_pairs();

/// Every value of every lever that is not the textbook's, on a grid of at most `cards` ranks. What a value needs is found
/// by trying. Throws std::logic_error for a value that is refused with any other one: nobody could use it.
std::vector<Pulled> pulled_levers(const Work& work, std::uint64_t cards);

/// Two levers at once.
struct Pair {
  const Value *first, *second;
  Levers levers;    ///< both, and what they need
  std::string law;  ///< why they cannot be together; empty: they can
};

/// All values of two different levers, each two of them once. `pulled` must outlive what is returned.
std::vector<Pair> pairs_of(const Work& work, const std::vector<Pulled>& pulled);

}  // namespace oomlab::plan
