#pragma once
// Folk advice, put to the test.
//
// A claim about memory is judged at the size at which people say it, a named model and batch, in closed form: exact,
// and the same verdict in every run. What this run measured stands beside it. A claim about time is judged on a GPU
// only: on the host runtime the figure is shown, and not judged. A claim about numbers (operations, bytes sent,
// gradients) is judged by this run, or where a closed form exists, at its size too.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "harness/variant.h"

namespace oomlab {

/// A figure of a variant, for example its peak; nothing when it was not measured.
using Figure = std::function<std::optional<double>(const VariantResult&)>;
namespace figures {
/// Peak allocated bytes.
std::optional<double> peak(const VariantResult& result);
/// Peak reserved bytes.
std::optional<double> reserved(const VariantResult& result);
/// Median samples per second.
std::optional<double> speed(const VariantResult& result);
/// Bytes of one category at the peak.
Figure bytes(Category category);
/// Bytes of parameters, gradients and optimizer state at the peak.
std::optional<double> model_state(const VariantResult& result);
}  // namespace figures

/// Bytes of parameters, gradients and optimizer state.
inline double model_state(const ByCategory& bytes) {
  return double(bytes[Category::parameters] + bytes[Category::gradients] + bytes[Category::optimizer]);
}
/// a / b, or nothing where one of them is missing or b is zero.
std::optional<double> ratio(std::optional<double> a, std::optional<double> b);
/// 1 - a / b: the share of b that a saves.
std::optional<double> saved(std::optional<double> a, std::optional<double> b);

/// What the variants of a run gave, looked up by name. A variant that a filter left out, or that was skipped, has no
/// figures.
class Results {
 public:
  explicit Results(std::span<const VariantResult> all) : all_(all) {}
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }
  /// The variant of this name, if it was measured; nullptr otherwise.
  const VariantResult* find(const std::string& name) const;
  std::optional<double> value(const std::string& name, const Figure& figure) const;
  /// A figure of variant a over the same figure of variant b.
  std::optional<double> ratio(const std::string& a, const std::string& b, const Figure& figure) const;
  /// 1 - ratio(a, b): the share of b's figure that a saves.
  std::optional<double> saved(const std::string& a, const std::string& b, const Figure& figure) const;

 private:
  std::span<const VariantResult> all_;
};

/// The figures for which a claim is true, ends included.
struct Range {
  std::optional<double> low, high;
  bool has(double figure) const { return (!low || figure >= *low) && (!high || figure <= *high); }
};
/// Ranges, as a claim says them.
inline Range at_least(double low) { return {low, std::nullopt}; }
inline Range at_most(double high) { return {std::nullopt, high}; }
inline Range between(double low, double high) { return {low, high}; }
inline Range exactly(double figure) { return {figure, figure}; }
/// "at least 1.2", "at most 0.5", "0.5 to 0.75", "1"; or in Chinese.
std::string describe(const Range& range, bool chinese = false);

/// The smallest size, from 1 on, at which something holds that then goes on to hold: for Claim::from_batch. Nothing
/// when it does not hold at 2^40 either.
std::optional<std::size_t> holds_from(const std::function<bool(std::size_t)>& holds);

/// What is judged, and by which figure.
enum class About {
  memory,   ///< at_size(), or where there is none because the size does not matter, measure()
  time,     ///< measure(), on a GPU
  numbers,  ///< at_size() where there is one, or else measure()
};

struct Claim {
  std::string text;  ///< as it is commonly given
  About about = About::memory;
  std::string what;  ///< what is measured, with its unit
  Range range;       ///< where the claim is true
  /// Where a claim about memory or numbers is judged: "bert-large, batch 8 x 512", and its figure there, in closed
  /// form.
  std::string size = {};
  std::function<std::optional<double>()> at_size = {};
  /// The figure of this run; nothing when the run does not have what it takes (a filter, an OOM, plan mode).
  std::function<std::optional<double>(const Results&)> measure = {};
  /// Why this run's figure is another one than at_size(), for the reader: "a model this small is mostly rounding".
  std::string here = {};
  /// For a claim that is true for some sizes only: which. It is then printed instead of "does not hold", so it is a
  /// whole verdict: "holds where somebody enforces it".
  std::function<std::string()> holds_where = {};
  /// The same for one that is true from a batch on; nothing where it is not.
  std::function<std::optional<std::size_t>()> from_batch = {};
  std::string each = {};  ///< behind that batch, in words: " x 512", tokens of a sample
};

/// A claim with what became of it.
struct ClaimResult {
  Claim claim;
  std::optional<double> at_size, measured;
  bool times_are_judged = true;                      ///< false on the host runtime
  std::optional<std::size_t> holds_from_batch = {};  ///< Claim::from_batch's, asked once where the range is missed

  /// The figure that the verdict is about; nothing when there is none.
  std::optional<double> judged() const;
  /// "holds", "holds for some sizes", "does not hold", "not judged" (a time, on the host) or "not measured".
  const char* verdict() const;
  /// The verdict for people: of "holds for some sizes" for which, "host: not judged" for a time.
  std::string verdict_text() const;
  /// Of "holds for some sizes": from which batch on; nothing where no batch decides.
  std::optional<std::size_t> from_batch() const;
};

/// Judges all claims by the results of this run.
std::vector<ClaimResult> judge(const std::vector<Claim>& claims, const Results& results);

class JsonWriter;
/// As an element of "claims" in result.schema.json.
void write_claim(JsonWriter& json, const ClaimResult& result);

}  // namespace oomlab
