// Levers in combinations that no chapter has: what the one simulation of a step (plan/step.h) says is what plan mode
// counts, to the byte and by category, and what a run allocates.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "../../chapters/04_checkpointing/training.h"
#include "../../chapters/07_multi_gpu/data_parallel.h"
#include "../../chapters/13_optimizer_memory/training.h"
#include "../planning.h"
#include "drawn.h"
#include "two_steps.h"

namespace oomlab {
namespace {

using namespace train;
using checkpointing::Schedule;
using multi_gpu::Layout;

// Draws numbers.
class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::size_t from(std::size_t least, std::size_t most) { return least + engine_() % (most - least + 1); }
  bool coin() { return from(0, 1) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[from(0, all.size() - 1)];
  }

 private:
  std::mt19937 engine_;
};

nn::TransformerSpec any_model(Random& random) {
  nn::TransformerSpec spec = nn::parse_transformer(random.one_of({"gpt:1-1-1", "bert:1-1-1", "llama:1-1-1-2-1"}));
  spec.layers = random.from(1, 6);
  spec.heads = random.one_of<std::size_t>({1, 2, 3, 4, 6});
  spec.width = spec.heads * random.from(1, 12);
  if (spec.llama()) {
    spec.width *= 2;  // heads of an even number of values
    do spec.kv_heads = random.from(1, spec.heads);
    while (spec.heads % spec.kv_heads != 0);
    spec.mlp = 6 * random.from(1, 20);  // which 2 and 3 parts divide
    spec.tied = random.coin(), spec.qkv_bias = random.coin();
  }
  spec.vocabulary = random.coin() ? random.from(258, 400) : random.from(258, 3000);  // 256 bytes and a mask at least
  spec.positions = random.from(16, 64);
  return spec;
}
nn::Keep any_keep(Random& random) {
  return {random.coin(), random.coin(), random.coin(), random.coin(), random.coin()};
}
nn::StepForm any_form(Random& random) {
  using nn::AttentionForm, nn::LossForm;
  return {random.one_of({AttentionForm::textbook, AttentionForm::tiled, AttentionForm::fused}),
          random.one_of({LossForm::full, LossForm::chunked}), any_keep(random), random.coin(),
          random.coin() ? 1 : random.from(2, 9)};
}
Schedule any_schedule(Random& random, std::size_t layers) {
  Schedule schedule;
  while (layers > 0) {
    const std::size_t length = random.from(1, layers);
    schedule.push_back({length, random.coin(), any_keep(random)});
    layers -= length;
  }
  return schedule;
}
std::shared_ptr<const data::TextSampler> text_of(const nn::TransformerSpec& spec, std::size_t seq) {
  return std::make_shared<data::TextSampler>(text_for(spec, seq, /*ragged=*/false));
}

// A ledger's peak over two steps of a workload, without the cuBLAS workspace.
template <class Make>
ByCategory peak_of(int device, Make make) {
  return test::after_two_steps(
      device, make, [](const Ledger& ledger, const Context&) { return without_workspace(ledger.peak_by_category()); });
}

void expect_planned(const ByCategory& predicted, const ByCategory& peak, const std::string& what) {
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    EXPECT_EQ(predicted.bytes[c], peak.bytes[c]) << what << ": " << name_of(Category(c));
}

std::string words(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq) {
  return fmt::format("{} of {} layers, {} heads over {}, width {}, MLP {}, vocabulary {}{}, {} x {}",
                     spec.bert()    ? "bert"
                     : spec.llama() ? "llama"
                                    : "gpt",
                     spec.layers, spec.heads, spec.keys(), spec.width, spec.hidden(), spec.vocabulary,
                     spec.tied ? "" : ", head of its own", sequences, seq);
}

// One device: precision and schedule.
void one_device(Random& random) {
  const nn::TransformerSpec spec = any_model(random);
  const Precision precision = random.one_of({Precision::fp32, Precision::fp16, Precision::bf16, Precision::pure_fp16});
  const std::size_t batch = random.from(1, 6), seq = random.from(1, 16);
  const Schedule schedule = any_schedule(random, spec.layers);
  const nn::StepForm form = any_form(random);
  const auto text = text_of(spec, seq);
  const nn::StepLevers step =
      checkpointing::step_of(element_bytes(precision), batch, seq, schedule, form, /*on_host=*/random.coin());
  std::uint64_t counted = 0;
  const ByCategory peak = with_element_of(precision, [&]<class T>(T) {
    return peak_of(0, [&](Context& context) {
      return std::make_unique<checkpointing::Checkpointed<T>>(context, spec, *text, precision, step, counted);
    });
  });
  expect_planned(nn::simulate_step(spec, step, resident_with(spec, precision)).at_peak, peak,
                 fmt::format("{} {}, {}{}, attention {}, loss {}", words(spec, batch, seq), name_of(precision),
                             checkpointing::describe(schedule), step.checkpoints_on_host ? " on the host" : "",
                             nn::name_of(form.attention), nn::name_of(form.loss)));
}

// One device: what the optimizer keeps, and where, when gradients are there, micro-batches, clipping.
void one_optimizer(Random& random) {
  using optimizer_memory::Task, optimizer_memory::Recipe, nn::GradientLife, nn::UpdateRule;
  const nn::TransformerSpec spec = any_model(random);
  const std::size_t micro_batch = random.from(1, 4), micro_batches = random.coin() ? 1 : random.from(2, 3);
  Recipe recipe{"", random.coin() ? DType::bf16 : DType::fp32, {}, GradientLife::always};
  using enum nn::WeightForm;
  recipe.form = {random.one_of({UpdateRule::adamw, UpdateRule::adamw8, UpdateRule::adafactor, UpdateRule::sgd}),
                 recipe.dtype == DType::bf16 ? random.one_of({stored, master, stochastic}) : stored, random.coin()};
  Task task{spec, nullptr, micro_batch * micro_batches, random.from(1, 16)};
  task.text = text_of(spec, task.seq);
  task.request = {.micro_batches = micro_batches, .clip = random.coin() ? 1.0f : 0.0f};
  if (task.request.clip == 0 && recipe.form.rule != UpdateRule::adafactor) recipe.gradients = GradientLife::offloaded;
  if (task.request.clip == 0 && micro_batches == 1 && random.coin())
    recipe.gradients = GradientLife::optimizer_in_backward;
  Job job = optimizer_memory::job_of(task, recipe);
  job.form = any_form(random);
  const Schedule schedule = any_schedule(random, spec.layers);
  job.schedule = [=](const plan::RankCoordinates&) { return schedule; };
  const train::Groups::Ids ids(job.layout);
  const std::atomic<bool> failed{false};
  const ByCategory peak = optimizer_memory::with_type_of(recipe, [&]<class T>(T) {
    return peak_of(0, [&](Context& context) { return std::make_unique<Trainer<T>>(context, job, ids, 0, failed); });
  });
  expect_planned(optimizer_memory::predicted(job, recipe), peak,
                 fmt::format("{} {}, {} and {}{}, gradients {}, {} micro-batches, {}, attention {}, loss {}",
                             words(spec, micro_batch, task.seq), name_of(recipe.dtype), nn::name_of(recipe.form.rule),
                             nn::name_of(recipe.form.weights), recipe.form.wide_embeddings ? ", wide embeddings" : "",
                             int(recipe.gradients), micro_batches, checkpointing::describe(schedule),
                             nn::name_of(job.form.attention), nn::name_of(job.form.loss)));
}

// Several devices: parts, replicas, stages, ZeRO, micro-batches, what is kept.
Layout any_layout(Random& random, const nn::TransformerSpec& spec) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  Layout layout;
  do {
    layout = {.tp = random.one_of<std::size_t>({1, 2, 3}),
              .dp = random.one_of<std::size_t>({1, 2, 3, 4}),
              .pp = random.one_of<std::size_t>({1, 1, 2, 3}),
              .zero = int(random.from(0, 3)),
              .one_forward_one_backward = random.coin()};
  } while (layout.ranks() > std::size_t(devices) || spec.keys() % layout.tp != 0 || layout.pp > spec.layers ||
           (layout.zero >= 2 && layout.pp > 1));
  return layout;
}

// Now and then ranks share out the tokens of every sequence, of which there are then enough.
void share_tokens(Random& random, const nn::TransformerSpec& spec, Layout& layout, std::size_t& seq,
                  nn::StepForm& form) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  const std::size_t cp = random.from(2, 3);
  const auto context = random.one_of({nn::ContextForm::ring, nn::ContextForm::ulysses});
  const bool ring = context == nn::ContextForm::ring;
  const std::size_t longer = seq * (ring ? 2 * cp : cp);
  if (random.coin() || cp * layout.ranks() > std::size_t(devices) || longer > spec.positions) return;
  if (!ring && spec.keys() % (layout.tp * cp) != 0) return;
  layout.cp = cp;
  layout.context = context;
  seq = longer;
  if (ring) form.attention = nn::AttentionForm::fused;
}

template <class T>
void several_devices(Random& random) {
  const nn::TransformerSpec spec = any_model(random);
  const bool data_parallel = random.from(0, 4) == 0;
  Layout layout = data_parallel ? Layout{.dp = random.from(2, 4)} : any_layout(random, spec);
  const std::size_t micro_batch = random.from(1, 3), micro_batches = data_parallel ? 1 : random.from(1, 4);
  std::size_t seq = random.from(1, 12);
  nn::StepForm form = any_form(random);
  if (!data_parallel) share_tokens(random, spec, layout, seq, form);
  Job job{spec, text_of(spec, seq), layout, micro_batch * micro_batches * layout.dp, micro_batch, seq, form};
  if (!data_parallel && !spec.bert() && random.coin()) {
    job.trained = nn::Trained::adapters;
    job.adapters = {
        .rank = random.from(1, 5), .targets = random.coin() ? "all" : "qv", .dropout = random.coin() ? 0.25f : 0.0f};
  }
  if (!data_parallel && layout.pp == 1 && layout.cp == 1 && layout.one_forward_one_backward && random.coin()) {
    job.pack = true;
    for (std::size_t i = 0; i < job.batch; ++i) job.lengths.push_back(random.from(1, seq));
  }
  bool rows_divide = layout.tp > 1;
  for (std::size_t first = 0; first < job.batch; first += micro_batch)
    rows_divide = rows_divide && job.rows(first, micro_batch) / layout.cp % layout.tp == 0;
  if (rows_divide) job.sequence_parallel = random.coin();
  const std::string what = fmt::format(
      "{}{}, {} micro-batches of {}, tp {}{} dp {} pp {}{} cp {} {} ZeRO-{}{}", words(spec, job.batch, seq),
      job.pack ? fmt::format(" packed to {}", job.rows(0, job.batch)) : "", micro_batches, name_of(kDTypeOf<T>),
      layout.tp, job.sequence_parallel ? " rows shared out" : "", layout.dp, layout.pp,
      layout.one_forward_one_backward ? "" : " GPipe", layout.cp, name_of(layout.context), layout.zero,
      data_parallel  ? " DataParallel"
      : job.frozen() ? fmt::format(" adapters of {}, dropout {}", job.adapters.targets, job.adapters.dropout)
                     : "");
  const train::Groups::Ids ids(layout);
  std::atomic<bool> failed{false};
  const auto try_rank = [&](int rank) {
    if (data_parallel) {
      const ByCategory peak = peak_of(rank, [&](Context& context) {
        return std::make_unique<multi_gpu::DataParallel<T>>(context, job, ids, rank, failed);
      });
      expect_planned(multi_gpu::predict_data_parallel<T>(job, rank), peak, fmt::format("{}, rank {}", what, rank));
    } else {
      const ByCategory peak = peak_of(
          rank, [&](Context& context) { return std::make_unique<train::Trainer<T>>(context, job, ids, rank, failed); });
      expect_planned(train::predict_rank<T>(job, plan::coordinates_of(layout, rank)), peak,
                     fmt::format("{}, rank {}", what, rank));
    }
  };
  if (planning()) {
    for (int rank = 0; rank < int(layout.ranks()); ++rank) try_rank(rank);
    return;
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < int(layout.ranks()); ++rank)
    threads.emplace_back([&, rank] {
      try {
        share_processor(64);
        try_rank(rank);
      } catch (const std::exception& error) {
        failed = true;
        ADD_FAILURE() << what << ", rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

void try_combinations(std::size_t count, unsigned seed) {
  Random random(seed);
  for (std::size_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    const std::size_t kind = random.from(0, 5);
    kind < 2    ? one_device(random)
    : kind < 4  ? one_optimizer(random)
    : kind == 4 ? several_devices<float>(random)
                : several_devices<__nv_bfloat16>(random);
  }
}

TEST(Levers, CombinationsArePlannedAsPredicted) {
  const test::Planning planning;
  try_combinations(test::drawn(OOMLAB_COMBINATIONS), 1);
}

TEST(Levers, CombinationsRunAsPredicted) { try_combinations(test::drawn(OOMLAB_COMBINATIONS) / 10, 2); }

}  // namespace
}  // namespace oomlab
