#pragma once
// Serving a stream of requests. In each step every running request gets a row for its next token, or rows for its
// prompt, as far as `most_rows` go (continuous batching); a request that has its answer makes room for the next one.
//
// Who waits is admitted in order, when there are blocks for all tokens that it has so far; what is answered later takes
// block by block. When a block cannot be had, the youngest request is preempted: its blocks are freed, and it goes back
// to the front of the queue. Nothing is lost: when its turn comes, prompt and what it had answered are computed again,
// as one prompt (the recomputation of Kwon et al., 2023).

#include <algorithm>
#include <deque>
#include <span>
#include <vector>

#include "generation.h"
#include "requests.h"

namespace oomlab::inference {

template <class T>
class Serving {
 public:
  using Logits = std::vector<std::vector<float>>;

  /// For requests in order of arrival, all of which have arrived; they must live as long. A step has up to `most_rows`
  /// rows, no more than `generation` has buffers for. `logits`, where not null, gets for each request those of each
  /// token of its answer. What has not ended when this goes stays open in the cache.
  Serving(Context& context, Generation<T>& generation, KvCache& cache, std::span<const Request> requests,
          std::size_t most_rows, std::vector<Logits>* logits = nullptr)
      : context_(context),
        generation_(generation),
        cache_(cache),
        requests_(requests),
        most_rows_(most_rows),
        logits_(logits),
        answers_(requests.size()) {
    for (std::size_t i = 0; i < requests.size(); ++i) waiting_.push_back(i);
    if (logits) logits->assign(requests.size(), {});
  }

  /// One step; false when all had been answered before. Throws OutOfMemory when a request finds no room and no other
  /// one runs: then nothing is lost, and the next call tries again.
  bool step() {
    if (running_.empty() && waiting_.empty()) return false;
    rows_.clear();
    bool preempted = false;
    for (std::size_t r = 0; r < running_.size(); ++r) {
      running_[r].rows = 0;
      if (rows_.size() == most_rows_) continue;
      while (r < running_.size() && !find_room(running_[r]))
        send_back_youngest(), preempted = true, ++counts_.preemptions;
      if (r < running_.size()) add_rows(running_[r]);
    }
    while (!preempted && rows_.size() < most_rows_ && admit()) add_rows(running_.back());

    Logits logits;
    const std::vector<int> next = generation_.step(context_, cache_, rows_, logits_ ? &logits : nullptr);
    finish_step(next, logits);
    return true;
  }
  /// All steps that are left.
  void run() {
    while (step()) {
    }
  }

  const ServingCounts& counts() const noexcept { return counts_; }
  /// False when a block was refused that the budget had room for: then the schedule is not the planned one.
  bool refused_by_budget_alone() const noexcept { return refused_by_budget_alone_; }
  /// Of each request, its tokens so far.
  const std::vector<std::vector<int>>& answers() const noexcept { return answers_; }

 private:
  struct Running {
    std::size_t request;  // its number
    KvCache::Id id;
    std::size_t rows = 0;  // in this step
  };

  // The tokens of a request that are known: its prompt, and what was answered.
  std::size_t known(std::size_t request) const { return requests_[request].prompt.size() + answers_[request].size(); }
  int token(std::size_t request, std::size_t at) const {
    const std::vector<int>& prompt = requests_[request].prompt;
    return at < prompt.size() ? prompt[at] : answers_[request][at - prompt.size()];
  }

  // Room for all of these; false when it cannot be had before another request makes some.
  bool find_room(const Running& r) {
    try {
      cache_.reserve(r.id, known(r.request));
      return true;
    } catch (const OutOfMemory& error) {
      refused_by_budget_alone_ &= error.report().by_limit;
      if (running_.size() == 1) throw;
      return false;
    }
  }
  void send_back_youngest() {
    waiting_.push_front(running_.back().request);
    close(running_.back());
    running_.pop_back();
  }
  void close(const Running& r) {
    cache_.close(r.id);
    short_of_blocks_ = false;
  }
  // The first one in the queue begins to run; false when it has to wait.
  bool admit() {
    if (waiting_.empty() || short_of_blocks_) return false;
    const Request& request = requests_[waiting_.front()];
    running_.reserve(running_.size() + 1);
    const auto like = std::find_if(running_.begin(), running_.end(), [&](const Running& r) {
      return request.group != 0 && requests_[r.request].group == request.group;
    });
    const bool shares = like != running_.end();
    if (shares && cache_.tokens(like->id) < request.shared) return false;  // its prefix will soon be there
    running_.push_back({waiting_.front(), shares ? cache_.fork(like->id, request.shared) : cache_.open()});
    waiting_.pop_front();
    if (find_room(running_.back())) return true;
    send_back_youngest();
    short_of_blocks_ = true;
    return false;
  }
  void add_rows(Running& r) {
    const std::size_t first = cache_.tokens(r.id), all = known(r.request);
    r.rows = std::min(all - first, most_rows_ - rows_.size());
    for (std::size_t at = first; at < first + r.rows; ++at)
      rows_.push_back({token(r.request, at), r.id, at, at + 1 == all});
  }
  void finish_step(const std::vector<int>& next, Logits& logits) {
    std::size_t answer = 0;
    for (const Running& r : running_) {
      cache_.advance(r.id, r.rows);
      if (r.rows == 0 || cache_.tokens(r.id) < known(r.request)) continue;
      if (logits_) (*logits_)[r.request].push_back(std::move(logits[answer]));
      answers_[r.request].push_back(next[answer++]);
    }
    counts_.rows += rows_.size();
    counts_.answered += answer;
    counts_.add_step(running_.size(), cache_.used_blocks() * cache_.shape().block_tokens, cache_.used_places());
    std::erase_if(running_, [&](const Running& r) {
      const bool ends = answers_[r.request].size() == requests_[r.request].answer;
      if (ends) close(r);
      return ends;
    });
  }

  Context& context_;
  Generation<T>& generation_;
  KvCache& cache_;
  std::span<const Request> requests_;
  std::size_t most_rows_;
  std::vector<Logits>* logits_;
  std::vector<std::vector<int>> answers_;
  std::deque<std::size_t> waiting_;  // numbers of requests, the next one in front
  std::vector<Running> running_;     // the youngest last
  std::vector<Row> rows_;
  bool short_of_blocks_ = false;  // and nothing has been freed since
  bool refused_by_budget_alone_ = true;
  ServingCounts counts_;
};

}  // namespace oomlab::inference
