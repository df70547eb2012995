#include "memory/repetition.h"

#include "cuda/backend.h"

namespace oomlab {

Repetition::Repetition(Context& context, std::size_t count)
    : context_(context), count_(count), plans_(planning()), outer_history_(context.ledger().history()) {}

// For a loop around this one, all rounds of this one are one event.
Repetition::~Repetition() {
  if (plans_) context_.ledger().restart_history((outer_history_ * 31 + all_) ^ context_.ledger().history());
}

bool Repetition::next() {
  if (left_out_ > 0 || (plans_ && done_ > 0 && repeats())) return false;
  if (done_ == count_) return false;
  ++done_;
  if (!plans_) return true;
  flops_ = context_.flops();
  visits_ = context_.ledger().visits();
  context_.ledger().restart_history(0);
  return true;
}

// After a round: whether it was as the one before. Then what is left is counted.
bool Repetition::repeats() {
  Ledger& ledger = context_.ledger();
  const std::uint64_t now = ledger.history() ^ ledger.live_bytes();
  const bool alike = done_ > 1 && now == last_;
  last_ = now;
  all_ = all_ * 31 + now;
  if (!alike || done_ == count_) return false;
  if (ledger.observer() && ledger.observer()->follows_all()) return false;
  if (ledger.recording() && ledger.timeline().size() < kEventsToldInFull) return false;
  left_out_ = count_ - done_;
  ledger.count_rounds(visits_, left_out_);
  context_.count_flops((context_.flops() - flops_) * left_out_);
  return true;
}

}  // namespace oomlab
