#include "harness/watch.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "memory/text.h"
#include "plan/bytes.h"
#include "plan/text.h"

namespace oomlab {
namespace {

constexpr long long kLeastPause = 50'000;  // microseconds between two lines on a terminal

long long now_us() noexcept {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

WatchLine::WatchLine() : columns_(columns_of(STDERR_FILENO)) {}

std::size_t WatchLine::columns_of(int descriptor) noexcept {
  if (!isatty(descriptor)) return 0;
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string WatchLine::cut(std::string_view text, std::size_t columns) {
  const std::string clean = one_line(text);
  std::size_t characters = 0, end = 0;
  for (; end < clean.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(clean[end]) & 0xC0) != 0x80;
    if (begins && characters++ == columns) break;
  }
  return clean.substr(0, end);
}

void WatchLine::write(const std::string& text, bool important) noexcept {
  try {
    if (columns_ == 0) {
      put(stderr, text + "\n");
      return;
    }
    const long long now = now_us();
    if (!important && now - last_us_ < kLeastPause) return;
    last_us_ = now;
    // The last column stays free: a full line would begin the next one. What the window is now may be asked each time.
    columns_ = std::max(columns_of(STDERR_FILENO), std::size_t(2));
    const std::string line = "\r" + cut(text, columns_ - 1) + "\x1b[K";
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
    shown_ = true;
  } catch (const std::exception&) {  // a line less
  }
}

void WatchLine::clear() noexcept {
  if (!std::exchange(shown_, false)) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  last_us_ = 0;
}

MemoryWatch::MemoryWatch(Ledger& ledger, std::string name, std::size_t steps, std::size_t budget, WatchLine* line)
    : ledger_(ledger), name_(std::move(name)), planned_steps_(steps), budget_(budget), line_(line), detector_(budget) {
  ledger_.set_observer(this);
}

MemoryWatch::~MemoryWatch() {
  ledger_.set_observer(nullptr);
  if (line_) line_->clear();
}

void MemoryWatch::say(const Ledger& ledger, std::string_view what, std::size_t peak, bool important) noexcept {
  if (!line_) return;
  try {
    const std::size_t step = series_.size() + 1;
    line_->write(
        fmt::format("  {}{}{}: {} live, peak {}", name_,
                    loops_ == 0 ? "" : fmt::format(", step {} of {}", std::min(step, planned_steps_), planned_steps_),
                    what, format_bytes(ledger.live_bytes()), format_bytes(peak)),
        important);
  } catch (const std::exception&) {  // a line less
  }
}

void MemoryWatch::changed(const Ledger& ledger) noexcept {
  const std::size_t live = ledger.live_bytes();
  for (std::size_t& peak : phase_peaks_) peak = std::max(peak, live);
  if (live > step_.peak_allocated) {
    step_.peak_allocated = live;
    step_.at_peak = ledger.live_by_category();
  }
  detector_.changed(ledger);
}

void MemoryWatch::phase_began(const Ledger& ledger, std::string_view) noexcept {
  try {
    phase_peaks_.push_back(ledger.live_bytes());
  } catch (const std::bad_alloc&) {  // the phase that ends next has a peak less
  }
}

void MemoryWatch::phase_ended(const Ledger& ledger, std::string_view name) noexcept {
  detector_.phase_ended(ledger, name);
  if (phase_peaks_.empty()) return;
  try {
    if (line_) say(ledger, fmt::format(", {}", name), phase_peaks_.back(), false);
  } catch (const std::exception&) {
  }
  phase_peaks_.pop_back();
}

void MemoryWatch::loop_began(const Ledger& ledger, std::string_view name) {
  detector_.loop_began(ledger, name);
  if (loops_++ == 0) start_step(ledger);
}

void MemoryWatch::round_ended(const Ledger& ledger) {
  detector_.round_ended(ledger);
  if (loops_ > 1) return;  // a loop inside of a step
  step_.allocated = ledger.live_bytes();
  step_.reserved = ledger.reserved_bytes();
  step_.device_used = ledger.device_used_bytes();
  say(ledger, "", step_.peak_allocated, series_.size() + 1 == planned_steps_);
  series_.push_back(step_);
  if (!line_ || told_growth_) return start_step(ledger);
  for (const Growth& growth : detector_.growths()) {
    if (std::exchange(told_growth_, true)) break;
    line_->clear();
    put(stderr, fmt::format("  {}: {}\n", name_, describe(growth, budget_)));
  }
  start_step(ledger);
}

void MemoryWatch::start_step(const Ledger& ledger) noexcept {
  step_ = {.peak_allocated = ledger.live_bytes(), .at_peak = ledger.live_by_category()};
}

void MemoryWatch::rounds_left_out(const Ledger& ledger, std::size_t rounds) {
  detector_.rounds_left_out(ledger, rounds);
  if (loops_ == 1) left_out_ += rounds;
}

void MemoryWatch::loop_ended(const Ledger& ledger, bool cut_short) noexcept {
  --loops_;
  detector_.loop_ended(ledger, cut_short);
}

}  // namespace oomlab
