#include "harness/claim.h"

#include <fmt/format.h>

#include <cstring>

#include "cuda/backend.h"
#include "harness/chapter.h"
#include "plan/json_writer.h"
#include "plan/language.h"

namespace oomlab {

namespace figures {
std::optional<double> peak(const VariantResult& r) { return double(r.peak_allocated); }
std::optional<double> reserved(const VariantResult& r) { return double(r.peak_reserved); }
std::optional<double> speed(const VariantResult& r) {
  return r.samples_per_second.empty() ? std::nullopt : std::optional(median(r.samples_per_second));
}
Figure bytes(Category category) {
  return [category](const VariantResult& r) { return double(r.at_peak[category]); };
}
std::optional<double> model_state(const VariantResult& r) { return oomlab::model_state(r.at_peak); }
}  // namespace figures

std::optional<double> ratio(std::optional<double> a, std::optional<double> b) {
  return a && b && *b != 0 ? std::optional(*a / *b) : std::nullopt;
}
std::optional<double> saved(std::optional<double> a, std::optional<double> b) {
  const auto kept = ratio(a, b);
  return kept ? std::optional(1 - *kept) : std::nullopt;
}

const VariantResult* Results::find(const std::string& name) const {
  for (const VariantResult& r : all_)
    if (r.name == name && r.measured) return &r;
  return nullptr;
}
std::optional<double> Results::value(const std::string& name, const Figure& figure) const {
  const VariantResult* const found = find(name);
  return found ? figure(*found) : std::nullopt;
}
std::optional<double> Results::ratio(const std::string& a, const std::string& b, const Figure& figure) const {
  return oomlab::ratio(value(a, figure), value(b, figure));
}
std::optional<double> Results::saved(const std::string& a, const std::string& b, const Figure& figure) const {
  return oomlab::saved(value(a, figure), value(b, figure));
}

std::string describe(const Range& range, bool chinese) {
  const Say say{chinese};
  if (!range.low) return say("at most {:g}", "至多 {:g}", range.high.value());
  if (!range.high) return say("at least {:g}", "至少 {:g}", *range.low);
  return *range.low == *range.high ? fmt::format("{:g}", *range.low)
                                   : say("{:g} to {:g}", "{:g} 到 {:g}", *range.low, *range.high);
}

std::optional<std::size_t> holds_from(const std::function<bool(std::size_t)>& holds) {
  constexpr std::size_t kMost = std::size_t(1) << 40;
  std::size_t fails = 0, good = 1;
  while (!holds(good)) {
    if (good == kMost) return std::nullopt;
    fails = good;
    good *= 2;
  }
  while (good - fails > 1) {
    const std::size_t middle = fails + (good - fails) / 2;
    (holds(middle) ? good : fails) = middle;
  }
  return good;
}

std::optional<double> ClaimResult::judged() const {
  return claim.about != About::time && claim.at_size ? at_size : measured;
}

const char* ClaimResult::verdict() const {
  if (!judged()) return "not measured";
  if (claim.about == About::time && !times_are_judged) return "not judged";
  if (claim.range.has(*judged())) return "holds";
  return claim.holds_where || holds_from_batch ? "holds for some sizes" : "does not hold";
}

std::optional<std::size_t> ClaimResult::from_batch() const {
  return verdict() == std::string("holds for some sizes") ? holds_from_batch : std::nullopt;
}

std::string ClaimResult::verdict_text() const {
  const std::string verdict = this->verdict();
  if (const auto batch = from_batch()) return fmt::format("holds from batch {}{} on", *batch, claim.each);
  if (verdict == "holds for some sizes") return claim.holds_where();
  return verdict == "not judged" ? "host: not judged" : verdict;
}

std::vector<ClaimResult> judge(const std::vector<Claim>& claims, const Results& results) {
  const bool host = std::strcmp(backend_name(), "host") == 0;
  std::vector<ClaimResult> judged;
  for (const Claim& claim : claims) {
    ClaimResult result{claim, claim.at_size ? claim.at_size() : std::nullopt,
                       claim.measure ? claim.measure(results) : std::nullopt, !host};
    const auto figure = result.judged();
    const bool is_judged = claim.about != About::time || result.times_are_judged;
    if (claim.from_batch && is_judged && figure && !claim.range.has(*figure))
      result.holds_from_batch = claim.from_batch();
    judged.push_back(std::move(result));
  }
  return judged;
}

void write_claim(JsonWriter& json, const ClaimResult& result) {
  constexpr const char* kAbout[] = {"memory", "time", "numbers"};
  const Claim& claim = result.claim;
  json.begin_object().member("claim", claim.text).member("about", kAbout[static_cast<int>(claim.about)]);
  json.member("what", claim.what).member("low", claim.range.low).member("high", claim.range.high).key("size");
  claim.at_size ? json.value(claim.size) : json.null();
  json.member("at_size", result.at_size).member("measured", result.measured).member("verdict", result.verdict());
  json.member("verdict_text", result.verdict_text());
  if (const auto batch = result.from_batch()) json.member("from_batch", *batch);
  json.end_object();
}

}  // namespace oomlab
