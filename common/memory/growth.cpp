#include "memory/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <span>

#include "plan/language.h"

namespace oomlab {
namespace {

constexpr std::size_t kWarmUp = 2;       // rounds
constexpr std::size_t kLeastWindow = 8;  // rounds, where bytes have never fallen
constexpr std::size_t kLeastOfVarying = 32, kMostWindow = 128;
constexpr double kDeviations = 4.8;
constexpr std::size_t kTags = 5;

// Rising pairs less falling ones, in standard deviations of what chance makes of it.
double kendall(std::span<const std::size_t> values) {
  double s = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = i + 1; j < values.size(); ++j) s += (values[j] > values[i]) - (values[j] < values[i]);
  const auto n = static_cast<double>(values.size());
  return s / std::sqrt(n * (n - 1) * (2 * n + 5) / 18);
}

// Whether growth goes on to the end of the window (its size is a multiple of four).
bool goes_on(std::span<const std::size_t> values, bool vary) {
  std::size_t before = 0;
  for (std::size_t q = 0; q < 4; ++q) {
    const auto quarter = values.subspan(q * values.size() / 4, values.size() / 4);
    const std::size_t least = *std::ranges::min_element(quarter);
    if (q > 0 && least <= before) return false;
    before = least;
  }
  if (vary) return kendall(values) >= kDeviations;
  std::size_t last = 0, gap = 0;  // rises: where the last one was, and the longest way from one to the next
  for (std::size_t i = 1; i < values.size(); ++i)
    if (values[i] > values[i - 1]) {
      if (last > 0) gap = std::max(gap, i - last);
      last = i;
    }
  return values.size() - 1 - last < std::max(gap, std::size_t(1));
}

std::string signed_bytes(double bytes) { return format_bytes(static_cast<std::size_t>(std::llround(bytes))); }

}  // namespace

std::string describe(const Growth& g, std::size_t budget, bool chinese) {
  const Say say{chinese};
  const std::string more = signed_bytes(g.bytes_a_round);
  std::string text = say("{0} more after each {1}, since {1} {2} of {3}",
                         "从 {3} 轮里的第 {2} 轮（{1}）起，每轮之后多 {0}", more, g.loop, g.since, g.rounds);
  if (!g.phase.empty())
    text = say("{0} more at the end of {4} in each {1}, since {1} {2} of {3}, given back when the {1} ends",
               "从 {3} 轮里的第 {2} 轮（{1}）起，每轮到 {4} 结束时多 {0}，这一轮完了才归还", more, g.loop, g.since,
               g.rounds, g.phase);
  for (std::size_t i = 0; i < g.tags.size(); ++i)
    text += (i == 0 ? say(": ", "：") : say(", ", "，")) + say("{} +{} ({})", "{} +{}（{}）", g.tags[i].tag,
                                                               signed_bytes(g.tags[i].bytes_a_round),
                                                               words_of(g.tags[i].category, chinese));
  if (g.exceeds_in) {
    const bool already = *g.exceeds_in <= g.rounds;
    text += say("; {} {} {} the budget of {}", "；第 {1} 轮（{0}）{2}预算 {3}", g.loop, *g.exceeds_in,
                already ? say("exceeded", "已超出") : say("will exceed", "将超出"), format_bytes(budget));
  }
  return text;
}

void GrowthDetector::changed(const Ledger& ledger) noexcept {
  for (OpenLoop& loop : open_) loop.peak = std::max(loop.peak, ledger.live_bytes());
}

void GrowthDetector::loop_began(const Ledger& ledger, std::string_view name) {
  OpenLoop loop{.name = std::string(name), .peak = ledger.live_bytes()};
  loop.points.push_back({});
  note(ledger, loop.points.front(), 0);
  open_.push_back(std::move(loop));
}

// Enters what is live now as the point's of this round.
void GrowthDetector::note(const Ledger& ledger, Point& point, std::size_t round) {
  const std::size_t bytes = ledger.live_bytes();
  if (round > kWarmUp + 1 && !point.live.empty() && bytes < point.live.back().bytes) point.has_fallen = true;
  point.live.push_back({round, bytes});
  // Comparing tags takes time, and a program may have hundreds of phases in a step: only where bytes rise.
  if (point.tags_since == 0 && !point.phase.empty()) {
    const At* const earlier = point.live.size() < 4 ? nullptr : &point.live[point.live.size() - 4];
    if (!earlier || earlier->round <= kWarmUp || bytes <= earlier->bytes) return;
  }
  if (point.tags_since == 0) point.tags_since = std::max(round, std::size_t(1));
  for (auto& [key, of_tag] : point.tags)
    if (of_tag.back().bytes != 0) of_tag.push_back({round, 0});  // unless it is found below
  for (const LiveBlock& block : ledger.largest_live(std::size_t(-1))) {
    auto& of_tag = point.tags[{block.category, block.tag}];
    if (!of_tag.empty() && of_tag.back().round == round) of_tag.pop_back();
    if (of_tag.empty() || of_tag.back().bytes != block.bytes) of_tag.push_back({round, block.bytes});
  }
}

void GrowthDetector::phase_ended(const Ledger& ledger, std::string_view name) noexcept {
  if (open_.empty()) return;
  try {
    OpenLoop& loop = open_.back();
    const std::size_t visit = ++loop.visits[std::string(name)];
    auto point = std::ranges::find_if(loop.points, [&](const Point& p) { return p.visit == visit && p.phase == name; });
    if (point == loop.points.end()) {
      loop.points.push_back({.phase = std::string(name), .visit = visit});
      point = loop.points.end() - 1;
    }
    note(ledger, *point, loop.rounds + 1);
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
}

void GrowthDetector::round_ended(const Ledger& ledger) {
  if (lost_) throw std::bad_alloc();
  if (open_.empty()) return;
  OpenLoop& loop = open_.back();
  note(ledger, loop.points.front(), ++loop.rounds);
  loop.visits.clear();
  loop.peaks.push_back(loop.peak);
  loop.peak = ledger.live_bytes();
  if (!growth_of(loop, false))
    loop.found_in = 0;
  else if (loop.found_in == 0)
    loop.found_in = loop.rounds;
}

void GrowthDetector::loop_ended(const Ledger&, bool cut_short) noexcept {
  if (open_.empty()) return;
  try {
    if (auto growth = growth_of(open_.back(), cut_short)) ended_[open_.back().name] = std::move(*growth);
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
  open_.pop_back();
}

// They repeat the last round, so nothing grows in them: no point was noted in the round that is now the last.
void GrowthDetector::rounds_left_out(const Ledger&, std::size_t rounds) {
  if (!open_.empty()) open_.back().rounds += rounds, open_.back().found_in = 0;
}

// The length of the shortest window, up to the last round, in which the point grows; 0: none.
std::size_t GrowthDetector::growing_window(const Point& point, std::size_t rounds) {
  if (point.live.empty() || point.live.back().round != rounds) return 0;
  std::vector<std::size_t> values;
  for (std::size_t window = point.has_fallen ? kLeastOfVarying : kLeastWindow;
       window <= kMostWindow && window <= point.live.size(); window *= 2) {
    const std::span all(point.live);
    if (all[all.size() - window].round <= kWarmUp) break;
    values.clear();
    for (const At& at : all.last(window)) values.push_back(at.bytes);
    if (goes_on(values, point.has_fallen)) return window;
  }
  return 0;
}

std::optional<Growth> GrowthDetector::growth_of(const OpenLoop& loop, bool cut_short) const {
  std::optional<Growth> most;
  for (const Point& point : loop.points) {
    std::size_t window = growing_window(point, loop.rounds);
    if (window == 0 && cut_short && point.phase.empty() && point.live.size() > 3) {
      const At* const last = &point.live.back();  // round 0 is what was there before the first one
      if (last[0].bytes > last[-1].bytes && last[-1].bytes > last[-2].bytes) window = 3;
    }
    if (window == 0) continue;
    Growth growth = growth_at(loop, point, window);
    if (growth.phase.empty()) return growth;  // what is left at the end was there at the end of phases
    if (!most || growth.bytes_a_round > most->bytes_a_round) most = std::move(growth);
  }
  return most;
}

Growth GrowthDetector::growth_at(const OpenLoop& loop, const Point& point, std::size_t window) const {
  Growth growth{.loop = loop.name, .phase = point.phase, .rounds = loop.rounds, .found_in = loop.found_in};
  const std::size_t n = point.live.size(), first = n - window;
  const auto rounds_between = [](const At& a, const At& b) { return static_cast<double>(b.round - a.round); };
  // From the least of the first quarter to the least of the last one: what varies on top of it does not count.
  const auto least_of = [&](std::size_t from, std::size_t count) {
    return *std::ranges::min_element(std::span(point.live).subspan(from, count), {}, &At::bytes);
  };
  const std::size_t quarter = std::max(window / 4, std::size_t(1));
  const At low = least_of(first, quarter), high = least_of(n - quarter, quarter);
  growth.bytes_a_round = static_cast<double>(high.bytes - low.bytes) / std::max(1.0, rounds_between(low, high));

  // Back from the last round to where no rise lies further from the next one than rises do in the window. What counts
  // as one is a rise that lasts: of the least bytes from there on.
  std::vector<std::size_t> least(n);
  for (std::size_t i = n; i-- > 0;)
    least[i] = std::min(point.live[i].bytes, i + 1 < n ? least[i + 1] : point.live[i].bytes);
  std::size_t gap = 1, last = n;
  for (std::size_t i = first + 1; i < n; ++i)
    if (least[i] > least[i - 1]) {
      if (last != n) gap = std::max(gap, i - last);
      last = i;
    }
  for (std::size_t i = last; i >= 1 && last - i <= gap; --i)
    if (least[i] > least[i - 1]) last = i;
  growth.since = point.live[last].round;

  const auto bytes_at = [](const std::vector<At>& of_tag, std::size_t round) {
    std::size_t bytes = 0;
    for (const At& at : of_tag)
      if (at.round <= round) bytes = at.bytes;
    return bytes;
  };
  const std::size_t now = point.live.back().round, before = std::max(point.live[first].round, point.tags_since);
  if (point.tags_since != 0 && now > before)
    for (const auto& [key, of_tag] : point.tags) {
      const std::size_t was = bytes_at(of_tag, before), is = bytes_at(of_tag, now);
      if (is > was)
        growth.tags.push_back(
            {key.first, key.second, static_cast<double>(is - was) / static_cast<double>(now - before)});
    }
  std::ranges::stable_sort(growth.tags, [](const auto& a, const auto& b) { return a.bytes_a_round > b.bytes_a_round; });
  if (growth.tags.size() > kTags) growth.tags.resize(kTags);

  if (budget_ == kUnlimited || loop.peaks.empty()) return growth;
  const auto over = std::ranges::find_if(loop.peaks, [&](std::size_t peak) { return peak > budget_; });
  if (over != loop.peaks.end()) {
    growth.exceeds_in = static_cast<std::size_t>(over - loop.peaks.begin()) + 1;
  } else if (const std::size_t span = std::min(window, loop.peaks.size());
             span > 1 && loop.peaks.back() > loop.peaks[loop.peaks.size() - span]) {
    const double slope =
        static_cast<double>(loop.peaks.back() - loop.peaks[loop.peaks.size() - span]) / double(span - 1);
    growth.exceeds_in = loop.rounds + 1 + static_cast<std::size_t>(double(budget_ - loop.peaks.back()) / slope);
  }
  return growth;
}

std::vector<Growth> GrowthDetector::growths() const {
  if (lost_) throw std::bad_alloc();
  std::vector<Growth> all;
  for (const OpenLoop& loop : open_)
    if (auto growth = growth_of(loop, false)) all.push_back(std::move(*growth));
  for (const auto& [name, growth] : ended_) all.push_back(growth);
  return all;
}

}  // namespace oomlab
