#include "plan/serve/schedule.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace oomlab::serve {

void ServingCounts::add_step(std::uint64_t requests_now, std::uint64_t reserved_now, std::uint64_t used_now) noexcept {
  ++steps;
  max_requests = std::max(max_requests, requests_now);
  requests += requests_now;
  reserved += reserved_now;
  used += used_now;
}

namespace {

class ServingSimulation {
 public:
  ServingSimulation(std::span<const RequestLengths> requests, std::uint64_t block_tokens, std::uint64_t blocks,
                    std::uint64_t max_rows)
      : requests_(requests),
        block_tokens_(block_tokens),
        blocks_(blocks),
        max_rows_(max_rows),
        answered_(requests.size(), 0) {
    for (std::size_t i = requests.size(); i-- > 0;) queue_.push_back(i);
  }

  ServingSchedule run() {
    while (schedule_.possible && !(running_.empty() && queue_.empty())) step();
    return schedule_;
  }

 private:
  struct Running {
    std::size_t number;    // of the request
    std::uint64_t known;   // tokens of prompt and answer so far
    std::uint64_t placed;  // tokens that have a place in a block
    std::uint64_t cached;  // tokens whose keys and values are there
    std::uint64_t rows;    // in this step
  };

  const RequestLengths& lengths(const Running& running) const { return requests_[running.number]; }
  std::uint64_t blocks_for(std::uint64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  // Whole blocks that a request shares with all others of its group that run: they are there once.
  std::uint64_t shared_blocks(const RequestLengths& request) const { return request.shared / block_tokens_; }
  std::vector<Running>::iterator first_of_group(const RequestLengths& request) {
    return std::find_if(running_.begin(), running_.end(), [&](const Running& other) {
      return request.group != 0 && lengths(other).group == request.group;
    });
  }

  // False, and nothing taken, where there are not so many blocks.
  bool take(std::uint64_t more) {
    const bool there = more <= blocks_ - blocks_in_use_;
    if (there) blocks_in_use_ += more;
    schedule_.max_blocks =
        std::max(schedule_.max_blocks, there ? blocks_in_use_ : blocks_);  // an attempt takes what there is
    return there;
  }
  void leave(std::size_t i) {
    const Running gone = running_[i];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    const bool others = first_of_group(lengths(gone)) != running_.end();
    blocks_in_use_ -= blocks_for(gone.placed) - (others ? shared_blocks(lengths(gone)) : 0);
  }
  void preempt_youngest() {
    queue_.push_back(running_.back().number);
    leave(running_.size() - 1);
    ++schedule_.counts.preemptions;
  }
  void add_rows(Running& running) {
    running.rows = std::min(running.known - running.cached, max_rows_ - rows_);
    rows_ += running.rows;
  }

  void step() {
    const std::uint64_t preempted_before = schedule_.counts.preemptions;
    rows_ = 0;
    continue_running();
    if (schedule_.counts.preemptions == preempted_before) admit_waiting();
    if (!schedule_.possible) return;
    finish_step();
  }
  void continue_running() {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      running_[i].rows = 0;
      if (rows_ == max_rows_) continue;
      while (i < running_.size() && !take(blocks_for(running_[i].known) - blocks_for(running_[i].placed))) {
        if (running_.size() == 1) {
          schedule_.possible = false;
          return;
        }
        preempt_youngest();
      }
      if (i == running_.size()) return;
      running_[i].placed = running_[i].known;
      add_rows(running_[i]);
    }
  }
  void admit_waiting() {
    while (schedule_.possible && !queue_.empty() && rows_ < max_rows_) {
      const std::size_t number = queue_.back();
      const RequestLengths& request = requests_[number];
      const auto like = first_of_group(request);
      const bool shares = like != running_.end();
      if (shares && like->cached < request.shared) return;  // its prefix will soon be there
      const std::uint64_t known = request.prompt + answered_[number];
      if (!take(blocks_for(known) - (shares ? shared_blocks(request) : 0))) {
        schedule_.possible = !running_.empty();
        return;
      }
      queue_.pop_back();
      running_.push_back({number, known, known, shares ? request.shared : 0, 0});
      add_rows(running_.back());
    }
  }
  void finish_step() {
    ServingCounts& counts = schedule_.counts;
    std::uint64_t used = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Running& running = running_[i];
      running.cached += running.rows;
      used += running.cached;
      const auto first = first_of_group(lengths(running));
      const bool counted_before = first != running_.end() && first->number != running.number;
      if (counted_before) used -= shared_blocks(lengths(running)) * block_tokens_;
    }
    counts.rows += rows_;
    counts.add_step(running_.size(), blocks_in_use_ * block_tokens_, used);
    for (std::size_t i = running_.size(); i-- > 0;) {
      Running& running = running_[i];
      if (running.rows == 0 || running.cached < running.known) continue;
      ++running.known;
      ++counts.answered;
      if (++answered_[running.number] == lengths(running).answer) leave(i);
    }
  }

  std::span<const RequestLengths> requests_;
  std::uint64_t block_tokens_;
  std::uint64_t blocks_;
  std::uint64_t max_rows_;
  std::vector<std::uint64_t> answered_;  // tokens of each request
  std::vector<std::size_t> queue_;       // numbers of requests, the next one last
  std::vector<Running> running_;         // the youngest last
  std::uint64_t blocks_in_use_ = 0;
  std::uint64_t rows_ = 0;  // of this step
  ServingSchedule schedule_;
};

}  // namespace

ServingSchedule simulate_serving(std::span<const RequestLengths> requests, std::uint64_t block_tokens,
                                 std::uint64_t blocks, std::uint64_t max_rows) {
  return ServingSimulation(requests, block_tokens, blocks, max_rows).run();
}

}  // namespace oomlab::serve
