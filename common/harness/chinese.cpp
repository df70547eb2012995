#include "harness/chinese.h"

#include <fmt/args.h>
#include <fmt/format.h>
#include <re2/re2.h>

#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plan/language.h"

namespace oomlab::data::embedded {
extern const std::span<const unsigned char> claims_zh_toml, findings_zh_toml, verdicts_zh_toml;
}  // namespace oomlab::data::embedded

namespace oomlab {

namespace {

// A line of these files: "English" = "Chinese", or "English" = ["text", "what"].
struct Entry {
  std::string section, english, chinese, more;
};
std::string unescaped(std::string text) {
  RE2::GlobalReplace(&text, R"(\\(["\\]))", R"(\1)");
  return text;
}
std::vector<Entry> entries(std::span<const unsigned char> file) {
  static const RE2 kSection(R"(\[(\w+)\])");
  static const RE2 kEntry(R"re("((?:[^"\\]|\\.)*)" = \[?"((?:[^"\\]|\\.)*)"(?:, "((?:[^"\\]|\\.)*)"\])?)re");
  std::vector<Entry> all;
  std::string_view rest(reinterpret_cast<const char*>(file.data()), file.size());
  std::string section;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    RE2::FullMatch(line, kSection, &section);
    Entry entry{.section = section};
    if (!RE2::FullMatch(line, kEntry, &entry.english, &entry.chinese, &entry.more)) continue;
    for (std::string* const text : {&entry.english, &entry.chinese, &entry.more}) *text = unescaped(*text);
    all.push_back(std::move(entry));
  }
  return all;
}

// A phrase with the figures that a run fills in.
class Phrase {
 public:
  /// `value`: the expression that a field stands for.
  Phrase(const Entry& entry, const char* value) : chinese_(entry.chinese) {
    std::string pattern = "(?s)";
    std::string_view rest = entry.english;
    for (std::size_t field = rest.find("{}"); field != rest.npos; field = rest.find("{}")) {
      pattern += RE2::QuoteMeta(rest.substr(0, field)) + value;
      rest.remove_prefix(field + 2);
    }
    expression_ = std::make_unique<RE2>(pattern + RE2::QuoteMeta(rest));
  }
  /// The Chinese of a text that is this phrase; nothing where it is another.
  std::optional<std::string> of(const std::string& text) const {
    std::vector<std::string> values(std::size_t(expression_->NumberOfCapturingGroups()));
    std::vector<RE2::Arg> fields;
    for (std::string& value : values) fields.emplace_back(&value);
    std::vector<const RE2::Arg*> pointers;
    for (const RE2::Arg& field : fields) pointers.push_back(&field);
    if (!RE2::FullMatchN(text, *expression_, pointers.data(), int(pointers.size()))) return std::nullopt;
    std::string said;
    std::size_t next = 0;
    std::string_view rest = chinese_;
    static const RE2 kField(R"(\{(\d*|million|billion)\})");
    std::string name;
    for (std::string_view before = rest; RE2::PartialMatch(rest, kField, &name); before = rest) {
      const std::size_t at = before.find('{' + name + '}');
      said += before.substr(0, at);
      rest.remove_prefix(at + name.size() + 2);
      const bool numbered = !name.empty() && name[0] >= '0' && name[0] <= '9';
      said += value(values.at(numbered ? std::size_t(std::stoul(name)) : next++), name);
    }
    return said.append(rest);
  }

 private:
  // What a run filled in: millions and billions as Chinese counts them, other words in Chinese.
  static std::string value(std::string text, const std::string& name) {
    if (name != "million" && name != "billion") {
      RE2::GlobalReplace(&text, R"((\d), )", R"(\1、)");  // a list of figures
      return in_chinese(text);
    }
    RE2::GlobalReplace(&text, ",", "");
    double count = 0;
    std::from_chars(text.data(), text.data() + text.size(), count);
    count *= name == "million" ? 1e6 : 1e9;
    return count >= 1e8 ? fmt::format("{:.10g} 亿", count / 1e8) : fmt::format("{:.10g} 万", count / 1e4);
  }
  std::string chinese_;
  std::unique_ptr<RE2> expression_;
};

const std::vector<Phrase>& phrases() {
  static const std::vector<Phrase> all = [] {
    std::vector<Phrase> read;
    for (const Entry& entry : entries(data::embedded::findings_zh_toml)) read.emplace_back(entry, "(.+?)");
    for (const Entry& entry : entries(data::embedded::verdicts_zh_toml))
      if (entry.section == "phrases") read.emplace_back(entry, R"((\d[\d.,:x -]*(?:bytes|[KMGT]i?B)?))");
    return read;
  }();
  return all;
}

}  // namespace

std::string in_chinese(const std::string& english) {
  for (const Phrase& phrase : phrases())
    if (const auto chinese = phrase.of(english)) return *chinese;
  return in_chinese_units(english);
}

ClaimWords claim_in_chinese(const std::string& text, const std::string& what) {
  static const std::vector<Entry> kClaims = entries(data::embedded::claims_zh_toml);
  for (const Entry& entry : kClaims)
    if (entry.english == text) return {entry.chinese, entry.more};
  return {in_chinese(text), in_chinese(what)};
}

}  // namespace oomlab
