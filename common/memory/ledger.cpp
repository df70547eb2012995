#include "memory/ledger.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string_view>
#include <tuple>
#include <utility>

namespace oomlab {
namespace {

[[noreturn]] void programming_error(const char* what, const void* address) noexcept {
  std::fprintf(stderr, "oomlab: %s (%p)\n", what, address);
  std::terminate();
}

// reserve() alone grows to exactly what is asked for, which makes a sequence of appends quadratic.
template <class T>
void make_room(std::vector<T>& vector, std::size_t extra) {
  const std::size_t needed = vector.size() + extra;
  if (needed > vector.capacity()) vector.reserve(std::max(needed, 2 * vector.capacity()));
}

std::int64_t steady_us() noexcept {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Ledger::Ledger() : start_us_(steady_us()) {}

std::int64_t Ledger::now_us() const noexcept { return steady_us() - start_us_; }

// Whatever is live or open will end one day, in a call that may not fail: its event has a place from the
// start. So at all times capacity - size >= live blocks + open phases; `extra` are the events about to be
// added to that.
void Ledger::make_room_for_events(std::size_t extra) {
  make_room(timeline_, live_.size() + phase_stack_.size() + extra);
}

std::string_view Ledger::interned(std::string_view label) {
  const auto found = labels_.find(label);
  return found != labels_.end() ? *found : *labels_.emplace(label).first;
}

void Ledger::record(TimelineEvent event) noexcept {
  event.time_us = now_us();
  event.reserved_after = reserved_;
  timeline_.push_back(event);
}

void Ledger::note_peaks() noexcept {
  if (live_bytes_ > peak_bytes_) {
    peak_bytes_ = live_bytes_;
    peak_by_category_ = live_by_category_;
  }
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  peak_device_used_ = std::max(peak_device_used_, device_used_);
  for (const OpenPhase& open : phase_stack_) {
    PhasePeak& phase = phases_[open.index];
    if (live_bytes_ > phase.peak_allocated) {
      phase.peak_allocated = live_bytes_;
      phase.at_peak = live_by_category_;
    }
    phase.peak_reserved = std::max(phase.peak_reserved, reserved_);
    phase.peak_device_used = std::max(phase.peak_device_used, device_used_);
  }
  if (observer_) observer_->changed(*this);
}

void Ledger::charge(const void* address, std::size_t requested, std::size_t bytes, Category category,
                    std::string_view tag) {
  std::string_view label;
  if (recording_) {
    make_room_for_events(2);  // this one, and its release
    label = interned(tag);
  }
  LiveTags& tags = tags_[static_cast<std::size_t>(category)];
  const auto known_tag = tags.find(tag);
  LiveTag& together = known_tag != tags.end() ? known_tag->second : tags[std::string(tag)];
  LiveBlock block{address, requested, bytes, category, std::string(tag), &together};
  if (!live_.try_emplace(address, std::move(block)).second)
    programming_error("a block was charged at an address that is live", address);
  live_bytes_ += bytes, live_requested_ += requested;
  live_by_category_[category] += bytes;
  ++together.blocks, together.requested += requested, together.bytes += bytes;
  remember(known(address)), remember(bytes * kCategoryCount + static_cast<std::size_t>(category));
  highest_ = std::max(highest_, reinterpret_cast<std::uintptr_t>(address));
  note_peaks();
  if (recording_)
    record({.kind = TimelineEvent::Kind::alloc,
            .address = address,
            .requested = requested,
            .bytes = bytes,
            .category = category,
            .label = label,
            .allocated_after = live_bytes_});
}

void Ledger::release(const void* address) noexcept {
  const auto found = live_.find(address);
  if (found == live_.end()) programming_error("a block was released that is not live", address);
  const LiveBlock& block = found->second;
  remember(~known(address)), remember(block.bytes);
  live_bytes_ -= block.bytes, live_requested_ -= block.requested;
  live_by_category_[block.category] -= block.bytes;
  LiveTag& together = *block.together;
  --together.blocks, together.requested -= block.requested, together.bytes -= block.bytes;
  if (observer_) observer_->changed(*this);
  if (recording_)
    record({.kind = TimelineEvent::Kind::free,
            .address = address,
            .requested = block.requested,
            .bytes = block.bytes,
            .category = block.category,
            .label = *labels_.find(block.tag),  // interned with the event of its allocation
            .allocated_after = live_bytes_});
  live_.erase(found);
}

void Ledger::note_out_of_memory(std::size_t requested, std::size_t bytes, Category category, std::string_view tag,
                                std::size_t device_free) {
  remember(~requested);
  if (!recording_) return;
  make_room_for_events(1);
  record({.kind = TimelineEvent::Kind::out_of_memory,
          .requested = requested,
          .bytes = bytes,
          .category = category,
          .label = interned(tag),
          .allocated_after = live_bytes_,
          .device_free = device_free});
}

void Ledger::reset_peak() noexcept {
  peak_bytes_ = live_bytes_;
  peak_by_category_ = live_by_category_;
  peak_reserved_ = reserved_;
  peak_device_used_ = device_used_;
}

void Ledger::note_reserved(std::size_t reserved_bytes, std::size_t device_used_bytes) noexcept {
  reserved_ = reserved_bytes;
  device_used_ = device_used_bytes;
  remember(reserved_), remember(device_used_);
  note_peaks();
}

std::vector<LiveBlock> Ledger::largest_live(std::size_t count) const {
  struct Of {
    Category category;
    const std::string* tag;
    const LiveTag* together;
  };
  std::vector<Of> all;
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    for (const auto& [tag, together] : tags_[c])
      if (together.blocks > 0) all.push_back({static_cast<Category>(c), &tag, &together});
  const std::size_t returned = std::min(count, all.size());
  std::partial_sort(
      all.begin(), all.begin() + static_cast<std::ptrdiff_t>(returned), all.end(), [](const Of& a, const Of& b) {
        return std::tie(b.together->bytes, *a.tag, a.category) < std::tie(a.together->bytes, *b.tag, b.category);
      });
  std::vector<LiveBlock> result;
  for (std::size_t i = 0; i < returned; ++i)
    result.push_back({.requested = all[i].together->requested,
                      .bytes = all[i].together->bytes,
                      .category = all[i].category,
                      .tag = *all[i].tag});
  return result;
}

void Ledger::begin_phase(std::string_view name) {
  std::string_view label;
  if (recording_) {
    make_room_for_events(2);  // this one, and its end
    label = interned(name);
  }
  make_room(phase_stack_, 1);
  std::size_t index = 0;
  while (index < phases_.size() && phases_[index].name != name) ++index;
  if (index == phases_.size()) {
    PhasePeak phase;
    phase.name = name;
    phases_.push_back(std::move(phase));
  }
  ++phases_[index].visits;
  remember(index);
  phase_stack_.push_back({index, device_work()});
  NamedRange::begin(phases_[index].name.c_str());
  if (observer_) observer_->phase_began(*this, name);
  note_peaks();  // what is live already counts for the phase
  if (recording_) record({.kind = TimelineEvent::Kind::phase_begin, .label = label, .allocated_after = live_bytes_});
}

void Ledger::end_phase() noexcept {
  if (phase_stack_.empty()) programming_error("a phase was ended, but none is open", nullptr);
  const OpenPhase& open = phase_stack_.back();
  PhasePeak& phase = phases_[open.index];
  remember(~open.index);
  phase.end_allocated = live_bytes_;
  NamedRange::end();
  if (const auto now = device_work(); now && open.before) {
    if (!phase.work) phase.work.emplace();
    *phase.work += *now - *open.before;
  }
  phase_stack_.pop_back();
  if (recording_)
    record(
        {.kind = TimelineEvent::Kind::phase_end, .label = *labels_.find(phase.name), .allocated_after = live_bytes_});
  if (observer_) observer_->phase_ended(*this, phase.name);
}

std::vector<PhasePeak> Ledger::phases() const { return phases_; }

std::vector<std::size_t> Ledger::visits() const {
  std::vector<std::size_t> counts;
  for (const PhasePeak& phase : phases_) counts.push_back(phase.visits);
  return counts;
}

void Ledger::count_rounds(const std::vector<std::size_t>& before, std::size_t rounds) noexcept {
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    const std::size_t in_a_round = phases_[i].visits - (i < before.size() ? before[i] : 0);
    phases_[i].visits += in_a_round * rounds;
  }
}

void Ledger::note_processor_work(std::string_view name, std::int64_t begin_us, std::int64_t end_us) {
  if (!recording_) return;
  make_room_for_events(1);
  record({.kind = TimelineEvent::Kind::processor_work, .label = interned(name), .allocated_after = live_bytes_});
  timeline_.back().time_us = begin_us, timeline_.back().duration_us = end_us - begin_us;
}

void Ledger::record_timeline(bool on) {
  if (!on || recording_) {
    recording_ = on;
    return;
  }
  // The labels of an earlier timeline stay: events of it may have been copied by the caller.
  for (const OpenPhase& open : phase_stack_) (void)interned(phases_[open.index].name);
  for (const auto& [address, block] : live_) (void)interned(block.tag);
  std::vector<TimelineEvent> fresh;
  fresh.reserve(2 * (live_.size() + phase_stack_.size()));
  timeline_ = std::move(fresh);
  recording_ = true;
  std::size_t allocated = 0;
  for (const OpenPhase& open : phase_stack_)
    record({.kind = TimelineEvent::Kind::phase_begin, .label = *labels_.find(phases_[open.index].name)});
  for (const auto& [address, block] : live_)
    record({.kind = TimelineEvent::Kind::alloc,
            .address = address,
            .requested = block.requested,
            .bytes = block.bytes,
            .category = block.category,
            .label = *labels_.find(block.tag),
            .allocated_after = allocated += block.bytes});
}

}  // namespace oomlab
