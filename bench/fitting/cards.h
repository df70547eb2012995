#pragma once
// --cards: what --gpu takes, for people and for programs.

#include <optional>
#include <string>
#include <vector>

namespace oomlab::fit {

/// The answer to --cards, with --json as JSON: of each card its name, the bytes that CUDA reports, its title. Nothing where
/// the arguments do not ask for it. Throws UsageError for other options beside it.
std::optional<std::string> answer_cards(const std::vector<std::string>& arguments);

}  // namespace oomlab::fit
