// Training: chapter 16's combinations.

#include <fmt/format.h>

#include <algorithm>

#include "answer.h"
#include "harness/chapter.h"
#include "levers_search.h"

namespace oomlab::fit {
namespace {

// As chapter 16's numbers_of() has it (a test compares them).
std::string numbers_words(const Work& work, const Levers& levers) {
  if (levers.precision != DType::fp32) return "weights of 16 bits";
  if (levers.optimizer.rule == UpdateRule::adamw8) return "moments of 8 bits";
  if (levers.optimizer.rule != UpdateRule::adamw) return "another rule";
  const bool same_sums = levers.attention == AttentionForm::textbook && levers.loss == LossForm::full && !levers.lean &&
                         micro_batches_of(work, levers) == 1 && levers.ranks.ranks() == 1;
  return same_sums ? "bit-equal" : "the same within rounding";
}

std::string command_of(const Question& question, const Work& work, const Levers& levers) {
  std::string words = capstone::command_of(question.model, work, levers);
  if (!levers.solved) {
    const std::string filter = " --filter chosen";
    words.insert(words.find(filter), fmt::format(" --budget {}", work.budget));
  }
  return kRun + words;
}

// One lever after the other from one combination to another.
struct Change {
  std::string words;
  void (*make)(const Levers& target, Levers& levers);
};

std::vector<Change> changes_to(const Levers& base, const Levers& target) {
  std::vector<Change> all;
  const auto add = [&](bool differs, std::string words, void (*make)(const Levers&, Levers&)) {
    if (differs) all.push_back({std::move(words), make});
  };
  const auto& ranks = target.ranks;
  add(base.precision != target.precision, fmt::format("--precision {}", name_of(target.precision)),
      [](const Levers& t, Levers& l) {
        l.precision = t.precision, l.optimizer.weights = capstone::usual_weights(t.precision);
      });
  add(base.micro_batch != target.micro_batch, fmt::format("--micro-batch {}", target.micro_batch),
      [](const Levers& t, Levers& l) { l.micro_batch = t.micro_batch; });
  add(base.attention != target.attention, fmt::format("--attention {}", nn::name_of(target.attention)),
      [](const Levers& t, Levers& l) { l.attention = t.attention; });
  add(base.loss != target.loss, fmt::format("--loss {}", nn::name_of(target.loss)),
      [](const Levers& t, Levers& l) { l.loss = t.loss; });
  add(base.lean != target.lean, "--lean", [](const Levers& t, Levers& l) { l.lean = t.lean; });
  add(base.recompute != target.recompute || base.solved != target.solved,
      target.solved ? "--checkpoint solved" : fmt::format("--checkpoint {}", target.recompute),
      [](const Levers& t, Levers& l) { l.recompute = t.recompute, l.solved = t.solved; });
  add(base.optimizer.rule != target.optimizer.rule, fmt::format("--optimizer {}", nn::name_of(target.optimizer.rule)),
      [](const Levers& t, Levers& l) { l.optimizer.rule = t.optimizer.rule; });
  add(base.precision == target.precision ? base.optimizer.weights != target.optimizer.weights
                                         : target.optimizer.weights != capstone::usual_weights(target.precision),
      fmt::format("--weights {}", nn::name_of(target.optimizer.weights)),
      [](const Levers& t, Levers& l) { l.optimizer.weights = t.optimizer.weights; });
  add(base.optimizer.wide_embeddings != target.optimizer.wide_embeddings, "--wide-embeddings",
      [](const Levers& t, Levers& l) { l.optimizer.wide_embeddings = t.optimizer.wide_embeddings; });
  add(base.gradients != target.gradients,
      target.gradients == GradientLife::sent_to_host ? "--offload" : "--in-backward",
      [](const Levers& t, Levers& l) { l.gradients = t.gradients; });
  add(base.ranks.tp != ranks.tp || base.ranks.pp != ranks.pp || base.ranks.dp != ranks.dp,
      fmt::format("--tp {} --pp {} --dp {}", ranks.tp, ranks.pp, ranks.dp), [](const Levers& t, Levers& l) {
        const int zero = l.ranks.zero;
        l.ranks = t.ranks, l.ranks.zero = t.ranks.dp == 1 ? 0 : std::min(zero, t.ranks.zero);
      });
  add(base.ranks.zero != ranks.zero, fmt::format("--zero {}", ranks.zero),
      [](const Levers& t, Levers& l) { l.ranks.zero = t.ranks.zero; });
  return all;
}

}  // namespace

std::optional<PyTorchPeak> torch_peak(const Work& work, const Levers& levers) {
  const bool adamw = levers.optimizer.rule == UpdateRule::adamw, eight = levers.optimizer.rule == UpdateRule::adamw8;
  const bool autocast = levers.precision != DType::fp32 && levers.optimizer.weights == WeightForm::master;
  if (levers.ranks.ranks() > 1 || levers.gradients != GradientLife::always || micro_batches_of(work, levers) > 1 ||
      levers.solved || levers.recompute > 1 || !(adamw || eight) || !(autocast || levers.precision == DType::fp32))
    return std::nullopt;
  if (work.spec.bert() && !work.spec.tied) return std::nullopt;
  return pytorch_peak(work.spec, {.batch = work.batch,
                                  .seq = work.seq,
                                  .precision = levers.precision,
                                  .checkpoint = levers.recompute == 1,
                                  .optimizer = eight ? TorchOptimizer::adamw_8bit : TorchOptimizer::adamw_foreach});
}

namespace {

class Training {
 public:
  explicit Training(const Question& question)
      : question_(question),
        one_(work_for(question, 1)),
        several_(work_for(question, 2)),
        base_(step_as_it_is(question)) {
    if (const std::string why = refused(work_of(base_), base_); !why.empty()) throw UsageError(why);
  }

  Answer answer(SearchProgress* progress) {
    Answer answer;
    answer.as_is = row_of(base_, "");
    answer.torch_as_is = torch_peak(one_, base_);
    LeversSearch search(question_, progress);
    answer.combinations = search.count();
    const auto cheapest = search.cheapest();
    if (!cheapest) {
      if (const auto closest = search.closest())
        answer.closest = row_of(closest->levers, capstone::options_of(closest->levers));
      answer.planned = search.planned();
      return answer;
    }
    if (!answer.as_is.fits)
      if (const auto fewest = search.fewest()) answer.ladder = ladder_to(fewest->levers);
    answer.planned = search.planned();
    answer.cheapest = row_of(cheapest->levers, capstone::options_of(cheapest->levers));
    answer.most = most_of(cheapest->levers);
    answer.elsewhere = other_words(one_, cheapest->levers);
    answer.torch_cheapest = torch_peak(one_, cheapest->levers);
    return answer;
  }

 private:
  const Work& work_of(const Levers& levers) const { return levers.ranks.ranks() > 1 ? several_ : one_; }

  Row row_of(const Levers& levers, std::string what) const {
    const Work& work = work_of(levers);
    const Plan plan = plan_of(work, levers);
    Row row{.what = std::move(what),
            .options = capstone::options_of(levers),
            .command = command_of(question_, work, levers),
            .changes = changes_between(base_, levers),
            .cards = levers.ranks.ranks(),
            .left = work.room(),
            .peak = plan.peak,
            .seconds = capstone::least_seconds(*question_.card, levers, plan, question_.host_gb_per_s),
            .host_bytes = plan.price.pinned_bytes,
            .numbers = levers == base_ ? "as asked for" : numbers_words(work, levers)};
    row.fits = row.peak.total() <= row.left && row.host_bytes <= question_.room.host && row.seconds;
    return row;
  }

  // First what saves most. What makes no sense alone waits until another change has made sense of it; where nothing
  // does alone, several are one step. So are a change that saves nothing by itself, as one card in place of several,
  // and what it is made for.
  std::vector<Row> ladder_to(const Levers& target) const {
    std::vector<Change> left = changes_to(base_, target);
    std::vector<Row> rows;
    Levers now = base_;
    std::string words;  // of changes that are no row yet
    std::size_t before = plan_of(work_of(now), now).peak.total();
    const auto say = [&](const std::string& more) { words += (words.empty() ? "" : " ") + more; };
    while (!left.empty()) {
      std::size_t best = left.size(), least = SIZE_MAX;
      for (std::size_t i = 0; i < left.size(); ++i) {
        Levers next = now;
        left[i].make(target, next);
        if (next == now || !refused(work_of(next), next).empty()) continue;
        const std::size_t peak = plan_of(work_of(next), next).peak.total();
        if (best == left.size() || peak < least) best = i, least = peak;
      }
      if (best == left.size()) {
        for (const Change& change : left) say(change.words);
        left.clear();
        rows.push_back(row_of(target, words));
        return rows;
      }
      left[best].make(target, now);
      say(left[best].words);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
      if (least >= before && !left.empty()) continue;
      rows.push_back(row_of(now, words));
      words.clear(), before = least;
    }
    return rows;
  }

  bool fits(const Work& work, const Levers& levers) const {
    try {
      return refused(work, levers).empty() && plan_of(work, levers).peak.total() <= work.room();
    } catch (const std::length_error&) {
      return false;
    }
  }
  // The largest n in 1…most of which fits(n), which is assumed to hold for all below; 0 when it does not for 1.
  template <class Fits>
  static std::size_t largest(std::size_t most, Fits fits) {
    std::size_t good = 0, step = 1;
    while (good + step <= most && fits(good + step)) good += step, step *= 2;
    for (; step > 0; step /= 2)
      if (good + step <= most && fits(good + step)) good += step;
    return good;
  }
  Most most_of(const Levers& levers) const {
    const std::size_t dp = levers.ranks.dp;
    const Work& asked = work_of(levers);
    Most most{.micro_batch = levers.micro_batch, .unit = dp * std::max<std::size_t>(1, levers.micro_batch)};
    // At once: each micro-batch as large as it can be.
    most.batch_at_once = dp * largest(std::size_t(1) << 24, [&](std::size_t micro) {
                           Work work = asked;
                           Levers whole = levers;
                           const std::size_t micros = levers.micro_batch ? micro_batches_of(asked, levers) : 1;
                           work.batch = dp * micro * micros;
                           whole.micro_batch = levers.micro_batch ? micro : 0;
                           return fits(work, whole);
                         });
    most.seq = largest(asked.spec.positions, [&](std::size_t seq) {
      Work work = asked;
      work.seq = seq;
      return fits(work, levers);
    });
    return most;
  }

  const Question& question_;
  Work one_, several_;
  Levers base_;
};

}  // namespace

Answer answer_training(const Question& question, SearchProgress* progress) {
  return Training(question).answer(progress);
}

}  // namespace oomlab::fit
