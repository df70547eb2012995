// Training: chapter 16's combinations.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "answer.h"
#include "plan/adapter_state.h"
#include "plan/attention.h"
#include "plan/lever/list.h"
#include "plan/schedule.h"
#include "plan/search/search.h"

namespace oomlab::fit {

using nn::GradientLife, nn::UpdateRule, nn::WeightForm;
using plan::Lever, plan::changes_between, plan::options_of;
using plan::Levers, plan::LeversSearch, plan::Plan, plan::Work;

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
      : question_(question), task_(search_task(question)), base_(step_as_it_is(task_)) {
    if (const std::string why = refused(task_.work_of(base_), base_); !why.empty()) throw UsageError(why);
  }

  Answer answer(SearchProgress* progress) {
    Answer answer;
    answer.as_is = row_of(base_, "");
    answer.torch_as_is = torch_peak(task_.one, base_);
    if (!answer.as_is.fits && !question_.spec.bert()) answer.adapters = {adapters(false), adapters(true)};
    if (progress) task_.progress = [=](std::uint64_t known, std::uint64_t planned) { progress->at(known, planned); };
    LeversSearch search(task_);
    answer.combinations = search.count();
    const auto cheapest = search.cheapest();
    if (!cheapest) {
      if (const auto closest = search.closest())
        answer.closest = row_of(closest->levers, plan::options_of(closest->levers));
      answer.planned = search.planned();
      answer.with_host_memory = beside_more_host_memory(answer.planned);
      if (wants_longest()) find_longest(answer, 0, question_.seq);
      return answer;
    }
    if (!answer.as_is.fits)
      if (const auto fewest = search.fewest()) answer.ladder = ladder_to(fewest->levers);
    answer.planned = search.planned();
    answer.cheapest = row_of(cheapest->levers, plan::options_of(cheapest->levers));
    answer.most = most_of(cheapest->levers);
    answer.elsewhere = plan::elsewhere(task_.one, cheapest->levers);
    answer.torch_cheapest = torch_peak(task_.one, cheapest->levers);
    if (wants_longest()) find_longest(answer, answer.most->seq, question_.spec.positions + 1);
    return answer;
  }

 private:
  const Work& work_of(const Levers& levers) const { return task_.work_of(levers); }

  Row row_of(const Levers& levers, std::string what) const {
    const Work& work = work_of(levers);
    const Plan plan = plan_of(work, levers);
    Row row{.what = std::move(what),
            .options = plan::options_of(levers),
            .command = kRun + plan::command_of(question_.model, work, levers, true),
            .changes = changes_between(base_, levers),
            .cards = levers.ranks.ranks(),
            .left = work.room(),
            .peak = plan.peak,
            .seconds = plan::least_seconds(*question_.card, levers, plan, question_.host_gb_per_s),
            .host_bytes = plan.price.host_bytes,
            .numbers = levers == base_ ? "as asked for" : words_of(numbers_of(work, levers))};
    const bool host_suffices = row.host_bytes <= question_.room.host;
    if (!host_suffices) row.command += fmt::format(" --host-memory {}", question_.room.host);
    row.fits = row.peak.total() <= row.left && host_suffices && row.seconds;
    return row;
  }

  // Of another search, when so many combinations were planned before it.
  std::function<void(std::uint64_t, std::uint64_t)> progress_after(std::uint64_t before) const {
    if (!task_.progress) return {};
    return [this, before](std::uint64_t known, std::uint64_t planned) { task_.progress(known, before + planned); };
  }
  // What fits beside the least host memory, where there is more. Adds what it had to plan.
  std::optional<Row> beside_more_host_memory(std::uint64_t& planned) const {
    if (question_.room.host >= kHostMemory) return std::nullopt;
    Question roomy = question_;
    roomy.room.host = kHostMemory;
    Training there(roomy);
    there.task_.progress = progress_after(planned);
    LeversSearch search(there.task_);
    const auto found = search.least_on_host();
    planned += search.planned();
    return found ? std::optional(there.row_of(found->levers, plan::options_of(found->levers))) : std::nullopt;
  }

  // Chapter 14's row, on one card: adapters of all matrices, every layer recomputed, no scores, logits by chunks.
  Row adapters(bool four_bits) const {
    const nn::TransformerSpec& spec = question_.spec;
    const bool fused = spec.depth() <= nn::kFusedDepth;
    nn::FineTuning tuning{.trained = nn::Trained::adapters, .optimizer = {.weights = WeightForm::master}};
    tuning.dtype = peak_tflops(*question_.card, DType::bf16) ? DType::bf16 : DType::fp16;
    if (four_bits) tuning.base.scheme = quantised::Scheme::nf4;
    const nn::StepLevers step{
        .sequences = question_.batch,
        .seq = question_.seq,
        .form = {fused ? nn::AttentionForm::fused : nn::AttentionForm::tiled, nn::LossForm::chunked},
        .schedule = nn::recompute_segments(spec.layers, 1)};
    Row row;
    row.what = four_bits ? "QLoRA" : "LoRA";
    const Levers asked{.precision = tuning.dtype, .optimizer = {.weights = WeightForm::master}};
    row.options =
        fmt::format("{} --rank {} --alpha {}", plan::options_of(asked), tuning.adapters.rank, tuning.adapters.alpha);
    row.left = question_.room.left(1);
    row.peak = nn::fine_tuning_peak(spec, tuning, step).at_peak;
    row.numbers = "fine-tuning of adapters";
    row.command =
        fmt::format("{}14_adapters --plan {} --batch {} --seq {} --budget none {} --filter '^{}, checkpoints$'", kRun,
                    question_.model, question_.batch, question_.seq, row.options, four_bits ? "qlora" : "lora");
    row.fits = row.peak.total() <= row.left;
    return row;
  }

  // First what saves most. What makes no sense alone waits until another change has made sense of it; where nothing
  // does alone, several are one step. So are a change that saves nothing by itself, as one card in place of several,
  // and what it is made for.
  std::vector<Row> ladder_to(const Levers& target) const {
    std::vector<const Lever*> left;
    for (const Lever* lever : plan::all_levers())
      if (lever->differs(base_, target)) left.push_back(lever);
    std::vector<Row> rows;
    Levers now = base_;
    std::string words;  // of changes that are no row yet
    std::uint64_t before = plan_of(work_of(now), now).peak.total();
    const auto say = [&](const std::string& more) { words += (words.empty() ? "" : " ") + more; };
    while (!left.empty()) {
      std::size_t best = left.size();
      std::uint64_t least = UINT64_MAX;
      for (std::size_t i = 0; i < left.size(); ++i) {
        Levers next = now;
        left[i]->take(target, next);
        if (next == now || !refused(work_of(next), next).empty()) continue;
        const std::uint64_t peak = plan_of(work_of(next), next).peak.total();
        if (best == left.size() || peak < least) best = i, least = peak;
      }
      if (best == left.size()) {
        for (const Lever* lever : left) say(words_for(lever, target));
        left.clear();
        rows.push_back(row_of(target, words));
        return rows;
      }
      left[best]->take(target, now);
      say(words_for(left[best], target));
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
      if (least >= before && !left.empty()) continue;
      rows.push_back(row_of(now, words));
      words.clear(), before = least;
    }
    return rows;
  }
  // A change back to what goes without saying: "one rank".
  static std::string words_for(const Lever* lever, const Levers& target) {
    const std::string options = lever->options_of(target);
    return options.empty() ? std::string("without ") + lever->name : options;
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
  static std::uint64_t largest(std::uint64_t most, Fits fits) {
    std::uint64_t good = 0, step = 1;
    while (good + step <= most && fits(good + step)) good += step, step *= 2;
    for (; step > 0; step /= 2)
      if (good + step <= most && fits(good + step)) good += step;
    return good;
  }
  // The least number with which a step is not refused, and all multiples of it are not: ranks that share out rows need as
  // many each, and in a zig-zag two chunks of tokens each.
  template <class Sized>
  std::uint64_t unit_of(const Levers& levers, Sized sized) const {
    for (std::uint64_t n = 1; n <= levers.ranks.tp * 2 * levers.ranks.cp; ++n) {
      const auto [work, of_size] = sized(n);
      if (refused(work, of_size).empty()) return n;
    }
    return 1;
  }
  Most most_of(const Levers& levers) const {
    const std::uint64_t dp = levers.ranks.dp;
    const Work& asked = work_of(levers);
    Most most{.micro_batch = levers.micro_batch, .unit = dp * std::max<std::uint64_t>(1, levers.micro_batch)};
    const auto of_samples = [&](std::uint64_t micro) {  // at once: each micro-batch as large as it can be
      Work work = asked;
      Levers whole = levers;
      const std::uint64_t micros = levers.micro_batch ? micro_batches_of(asked, levers) : 1;
      work.batch = dp * micro * micros;
      whole.micro_batch = levers.micro_batch ? micro : 0;
      return std::pair(work, whole);
    };
    const auto of_tokens = [&](std::uint64_t seq) {
      Work work = asked;
      work.seq = seq;
      return std::pair(work, levers);
    };
    const auto most_of_size = [&](std::uint64_t limit, auto sized) {
      const std::uint64_t unit = unit_of(levers, sized);
      return unit * largest(limit / unit, [&](std::uint64_t n) {
               const auto [work, of_size] = sized(n * unit);
               return fits(work, of_size);
             });
    };
    most.batch_at_once = dp * most_of_size(std::uint64_t(1) << 24, of_samples);
    most.seq = most_of_size(asked.spec.positions, of_tokens);
    return most;
  }

  // A search is asked for each length that is tried.
  bool wants_longest() const {
    return question_.engine == Engine::oomlab && question_.largest && *question_.largest == Largest::seq;
  }
  // Something is known to fit up to `good`, 0 where nothing is known, and nothing is taken to fit from `bad` on. What
  // several ranks share out goes by multiples of a length that most grids divide.
  void find_longest(Answer& answer, std::uint64_t good, std::uint64_t bad) {
    constexpr std::uint64_t kUnitOfSeveral = 128;
    const std::uint64_t unit = question_.gpus > 1 ? kUnitOfSeveral : 1;
    good /= unit, bad = (bad - 1) / unit + 1;
    const auto tried = [&](std::uint64_t units) {
      Question sized = question_;
      sized.seq = units * unit;
      try {
        Training there(sized);
        there.task_.progress = progress_after(answer.planned);
        LeversSearch search(there.task_);
        const auto found = search.cheapest();
        answer.planned += search.planned();
        if (!found) return false;
        answer.longest = there.row_of(found->levers, plan::options_of(found->levers));
        answer.longest_seq = sized.seq;
        return true;
      } catch (const std::length_error&) {
        return false;
      }
    };
    if (good > 0 && !tried(good)) return;
    while (bad - good > 1) {
      const std::uint64_t middle = good + (bad - good) / 2;
      (tried(middle) ? good : bad) = middle;
    }
  }

  const Question& question_;
  plan::SearchTask task_;
  Levers base_;
};

}  // namespace

Answer answer(const Question& question, SearchProgress* progress) {
  if (!question.course)
    throw UsageError(fmt::format("this course's programs do not know model '{}'; leave --engine oomlab and --task out",
                                 question.spec.name));
  return question.training ? answer_training(question, progress) : answer_inference(question);
}

Answer answer_training(const Question& question, SearchProgress* progress) {
  return Training(question).answer(progress);
}

}  // namespace oomlab::fit
