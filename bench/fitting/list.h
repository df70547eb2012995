#pragma once
// What fit knows, for those who ask before they type: the models, the cards, and the words of its options.

#include <optional>
#include <string>
#include <vector>

namespace oomlab::fit {

/// The answer to --list, or to --cards (the cards alone: names, titles, the bytes that CUDA reports), or nothing where `arguments` ask
/// for neither: for people, or with --json for programs, such as the page of site/fit. Throws UsageError where another option stands
/// beside these.
std::optional<std::string> list_of(const std::vector<std::string>& arguments);

}  // namespace oomlab::fit
