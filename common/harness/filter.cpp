#include "harness/filter.h"

#include <fmt/format.h>
#include <regex.h>

#include <new>

#include "harness/chapter.h"

namespace oomlab {
namespace {

class Pattern {
 public:
  explicit Pattern(const std::string& text) : error_(regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB)) {
    if (error_ == REG_ESPACE) throw std::bad_alloc();
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() {
    if (good()) regfree(&compiled_);
  }
  bool good() const { return error_ == 0; }
  bool matches(const std::string& name) const {
    return good() && regexec(&compiled_, name.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t compiled_;
  int error_;
};

}  // namespace

void check_filter(const std::string& option, const std::string& pattern) {
  if (!Pattern(pattern).good()) throw UsageError(fmt::format("{} '{}' is not a regular expression", option, pattern));
}

bool matches_filter(const std::string& pattern, const std::string& name) { return Pattern(pattern).matches(name); }

}  // namespace oomlab
