#pragma once
// Names of enumerators, as the command line has them.

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oomlab::nn {

/// The one of `all` whose name_of() is `name`. Throws std::invalid_argument, which says which `what` there are.
template <class Kind>
Kind parse_named(const char* what, std::string_view name, std::span<const Kind> all) {
  std::string known;
  for (const Kind kind : all) {
    if (name == name_of(kind)) return kind;
    known += (known.empty() ? "" : ", ") + std::string(name_of(kind));
  }
  throw std::invalid_argument(std::string(what) + " '" + std::string(name) + "' is unknown; known: " + known);
}
template <class Kind, std::size_t Count>
Kind parse_named(const char* what, std::string_view name, const Kind (&all)[Count]) {
  return parse_named<Kind>(what, name, std::span<const Kind>(all));
}

}  // namespace oomlab::nn
