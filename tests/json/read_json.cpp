#include "read_json.h"

#include <istream>
#include <iterator>
#include <string>

namespace oomlab::test {

nlohmann::json read_json(std::string_view text) { return nlohmann::json::parse(text); }
nlohmann::json read_json(std::istream& text) {
  return read_json(std::string(std::istreambuf_iterator<char>(text), std::istreambuf_iterator<char>()));
}

}  // namespace oomlab::test
