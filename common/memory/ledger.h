#pragma once
// The ledger: whose bytes they are. Every tracked allocation is entered with a category and a tag; the ledger
// knows live and peak bytes, their split by category, the phase of the step, and keeps the timeline.
//
// Bytes in a ledger are requested bytes rounded to the granule (plan/bytes.h): "allocated". They do not depend on
// the allocator below, so they are the same number in plan mode, on the host runtime and on a GPU.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cuda/backend.h"
#include "plan/bytes.h"
#include "plan/category.h"

namespace oomlab {

/// All live blocks of one tag and category together.
struct LiveTag {
  std::size_t blocks = 0, requested = 0, bytes = 0;
};

/// A live allocation.
struct LiveBlock {
  const void* address = nullptr;
  std::size_t requested = 0;  ///< bytes asked for
  std::size_t bytes = 0;      ///< bytes counted: requested, rounded to the granule
  Category category{};
  std::string tag;              ///< what it is, for example "layer 3 weight"
  LiveTag* together = nullptr;  ///< the ledger's own
};

/// One entry of the timeline.
struct TimelineEvent {
  enum class Kind { alloc, free, phase_begin, phase_end, out_of_memory, processor_work };
  Kind kind{};
  std::int64_t time_us = 0;       ///< microseconds since the ledger was made (steady clock)
  std::int64_t duration_us = 0;   ///< processor_work only: it began at time_us
  const void* address = nullptr;  ///< alloc, free
  std::size_t requested = 0;      ///< bytes asked for (alloc, free, out_of_memory)
  std::size_t bytes = 0;          ///< bytes counted (alloc, free, out_of_memory)
  Category category{};
  std::string_view label;           ///< tag of the block, or name of the phase; the text belongs to the ledger
  std::size_t allocated_after = 0;  ///< live bytes after this event
  std::size_t reserved_after = 0;   ///< bytes the allocator held after this event; 0 when nobody told
  std::size_t device_free = 0;      ///< out_of_memory only: free bytes of the device
};

/// What one phase saw: figures of all its visits together (the largest), in order of first visit.
struct PhasePeak {
  std::string name;
  std::size_t peak_allocated = 0;    ///< largest live bytes while in the phase
  std::size_t end_allocated = 0;     ///< live bytes when last left
  std::size_t peak_reserved = 0;     ///< largest reserved bytes known while in the phase
  std::size_t peak_device_used = 0;  ///< largest device-used bytes known while in the phase (driver's figure)
  ByCategory at_peak;                ///< live bytes by category at peak_allocated
  std::size_t visits = 0;
  std::optional<DeviceWork> work;  ///< of the visits that have ended, together; nothing where the backend cannot tell
};

class Ledger;

/// Somebody who looks on: is told at each moment at which memory can be compared with what it was before. What it
/// learns it asks the ledger. Called on the ledger's thread.
class LedgerObserver {
 public:
  virtual ~LedgerObserver() = default;
  /// Live, reserved or device-used bytes are others than before.
  virtual void changed(const Ledger&) noexcept {}
  virtual void phase_began(const Ledger&, std::string_view /*name*/) noexcept {}
  virtual void phase_ended(const Ledger&, std::string_view /*name*/) noexcept {}
  /// A loop begins: its rounds should all end with the same bytes.
  virtual void loop_began(const Ledger&, std::string_view /*name*/) {}
  /// A round of the innermost loop has ended.
  virtual void round_ended(const Ledger&) {}
  /// `cut_short`: by an exception.
  virtual void loop_ended(const Ledger&, bool /*cut_short*/) noexcept {}
  /// So many rounds of the innermost loop were left out, because they would have repeated the last one.
  virtual void rounds_left_out(const Ledger&, std::size_t /*rounds*/) {}
  /// Wants to be told of every round as it runs: then none is left out.
  virtual bool follows_all() const noexcept { return false; }
};

/// Not thread-safe: one ledger belongs to one host thread.
class Ledger {
 public:
  Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Charges a block. Strong guarantee: when it throws (std::bad_alloc) nothing has changed. An address that
  /// is live already is a programming error: std::terminate with one line.
  void charge(const void* address, std::size_t requested, std::size_t bytes, Category category, std::string_view tag);
  /// Removes a block; an address that is not live is a programming error: std::terminate with one line.
  void release(const void* address) noexcept;
  /// Notes a failed allocation in the timeline. Throws std::bad_alloc: then it is not noted.
  void note_out_of_memory(std::size_t requested, std::size_t bytes, Category category, std::string_view tag,
                          std::size_t device_free);

  std::size_t live_bytes() const noexcept { return live_bytes_; }
  /// Largest live_bytes() since construction or reset_peak().
  std::size_t peak_bytes() const noexcept { return peak_bytes_; }
  const ByCategory& live_by_category() const noexcept { return live_by_category_; }
  /// The split at the moment of the (first) peak; its total() is peak_bytes().
  const ByCategory& peak_by_category() const noexcept { return peak_by_category_; }
  /// Every peak of the ledger starts again from what holds now; the figures of phases stay.
  void reset_peak() noexcept;

  /// The budget this run has, for diagnosis and charts; enforcing it is LimitingResource's work. Default
  /// kUnlimited.
  std::size_t limit_bytes() const noexcept { return limit_bytes_; }
  void set_limit_bytes(std::size_t bytes) noexcept { limit_bytes_ = bytes; }

  /// The allocator tells what it holds, and what the driver says is used, whenever it looks (bytes).
  void note_reserved(std::size_t reserved_bytes, std::size_t device_used_bytes) noexcept;
  std::size_t peak_reserved_bytes() const noexcept { return peak_reserved_; }
  std::size_t peak_device_used_bytes() const noexcept { return peak_device_used_; }
  /// What it was told last.
  std::size_t reserved_bytes() const noexcept { return reserved_; }
  std::size_t device_used_bytes() const noexcept { return device_used_; }

  /// Live blocks by address.
  const std::map<const void*, LiveBlock>& live_blocks() const noexcept { return live_; }
  /// The same added up, bytes as they were asked for.
  std::size_t live_requested() const noexcept { return live_requested_; }
  /// The `count` largest live tags, largest first; blocks of the same tag and category are added up. Takes time with
  /// the number of tags, not of blocks: a cache in pages reports often, over thousands of blocks.
  std::vector<LiveBlock> largest_live(std::size_t count) const;

  /// Phases nest; a figure counts for every phase that is open. Throws std::bad_alloc: then nothing has
  /// changed.
  void begin_phase(std::string_view name);
  /// Ends the innermost phase; with none open it is a programming error: std::terminate with one line.
  void end_phase() noexcept;
  std::vector<PhasePeak> phases() const;

  /// Who is told of phases, rounds and changes; null, the default: nobody, which costs nothing. It must outlive the
  /// ledger, or be taken off again.
  void set_observer(LedgerObserver* observer) noexcept { observer_ = observer; }
  LedgerObserver* observer() const noexcept { return observer_; }
  /// Microseconds since the ledger was made (steady clock). For any thread.
  std::int64_t now_us() const noexcept;
  bool recording() const noexcept { return recording_; }

  /// For whoever wants to know whether one round of a loop repeats another (repetition.h): a hash of every event since
  /// restart_history(), with its bytes, what was reserved, and its address. Addresses above all that were there at that
  /// moment count as new, whatever they are: a plan never has one twice.
  std::uint64_t history() const noexcept { return history_; }
  /// Goes on from `history`.
  void restart_history(std::uint64_t history) noexcept { history_ = history, new_above_ = highest_; }
  /// How often each phase was visited, in order of first visit.
  std::vector<std::size_t> visits() const;
  /// Counts so many rounds that were not run: in each as many visits of phases as since `before`, which was visits().
  void count_rounds(const std::vector<std::size_t>& before, std::size_t rounds) noexcept;
  /// Notes in the timeline what other threads of the processor did from `begin_us` to `end_us`, beside what the device
  /// was asked for. Called by the ledger's own thread. Throws std::bad_alloc: then it is not noted.
  void note_processor_work(std::string_view name, std::int64_t begin_us, std::int64_t end_us);

  /// Recording of the timeline; off by default, since a timing run must not pay for it. Turning it on starts
  /// a new timeline, in which open phases begin now and live blocks are allocated now, so that it can be
  /// replayed by itself. Throws std::bad_alloc: then nothing has changed.
  void record_timeline(bool on);
  const std::vector<TimelineEvent>& timeline() const noexcept { return timeline_; }

 private:
  void note_peaks() noexcept;
  void make_room_for_events(std::size_t extra);
  std::string_view interned(std::string_view label);
  void record(TimelineEvent event) noexcept;
  void remember(std::uint64_t event) noexcept {
    history_ = (history_ ^ event) * 0xd1342543de82ef95ull, history_ ^= history_ >> 32;
  }
  std::uint64_t known(const void* address) const noexcept {
    const auto number = reinterpret_cast<std::uintptr_t>(address);
    return number > new_above_ ? 1 : number;
  }

  struct HashOfText {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
  };
  using LiveTags = std::unordered_map<std::string, LiveTag, HashOfText, std::equal_to<>>;

  std::map<const void*, LiveBlock> live_;
  std::array<LiveTags, kCategoryCount> tags_;  // all that there ever were
  std::size_t live_bytes_ = 0, live_requested_ = 0, peak_bytes_ = 0, limit_bytes_ = kUnlimited;
  std::size_t reserved_ = 0, peak_reserved_ = 0, device_used_ = 0, peak_device_used_ = 0;
  ByCategory live_by_category_, peak_by_category_;
  std::vector<PhasePeak> phases_;
  struct OpenPhase {
    std::size_t index;  // into phases_
    std::optional<DeviceWork> before;
  };
  std::vector<OpenPhase> phase_stack_;
  LedgerObserver* observer_ = nullptr;
  bool recording_ = false;
  std::vector<TimelineEvent> timeline_;
  std::set<std::string, std::less<>> labels_;  // what the labels of the timeline point to
  std::int64_t start_us_ = 0;
  std::uint64_t history_ = 0;
  std::uintptr_t highest_ = 0, new_above_ = 0;  // addresses
};

/// begin_phase / end_phase for a scope.
class Phase {
 public:
  Phase(Ledger& ledger, std::string_view name) : ledger_(ledger) { ledger_.begin_phase(name); }
  ~Phase() { ledger_.end_phase(); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  Ledger& ledger_;
};

/// A loop whose rounds should leave the same bytes behind: the steps of a training, the batches of an evaluation. Says
/// so to the ledger's observer, if it has one. Loops nest.
class Loop {
 public:
  /// Throws what the observer throws.
  Loop(Ledger& ledger, std::string_view name) : ledger_(ledger), exceptions_(std::uncaught_exceptions()) {
    if (ledger_.observer()) ledger_.observer()->loop_began(ledger_, name);
  }
  ~Loop() {
    if (ledger_.observer()) ledger_.observer()->loop_ended(ledger_, std::uncaught_exceptions() > exceptions_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  /// A round has ended; what it has allocated for itself is released. Throws what the observer throws.
  void end_round() {
    if (ledger_.observer()) ledger_.observer()->round_ended(ledger_);
  }
  /// So many more were left out (repetition.h). Throws what the observer throws.
  void leave_out(std::size_t rounds) {
    if (rounds > 0 && ledger_.observer()) ledger_.observer()->rounds_left_out(ledger_, rounds);
  }

 private:
  Ledger& ledger_;
  int exceptions_;
};

}  // namespace oomlab
