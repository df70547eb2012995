// Chapter 07, several GPUs: what each way of splitting the work leaves on each of them.
//
// The problem   The model's state alone is larger than a GPU. More GPUs of the same size do not help by themselves.
// The idea      Share out the samples (data parallel), the state (ZeRO), the inside of each layer (tensor parallel), or
//               the layers (pipeline parallel). Or all of it.
// The bytes     data parallel: all state on each GPU, activations of its samples. ZeRO-1/2/3 over N: optimizer, then
//               gradients, then parameters become 1/N. Tensor parallel: 1/N of the layers' state, and of all
//               activations but the residual's. Pipeline: 1/N of the layers; 1F1B holds N − stage micro-batches.
// Run it        build/host/bin/07_multi_gpu           (no GPU: eight simulated devices, for memory only)
//               build/host/bin/07_multi_gpu --plan --model gpt3-175b --tp 8 --pp 16 --dp 8 --zero 1
//               (the memory of 1,024 GPUs, on this machine)

#include "claims.h"

namespace oomlab::multi_gpu {

template <class T>
static Chapter multi_gpu_of(const Config& config) {
  const auto n = static_cast<std::size_t>(config.devices);
  const std::size_t micro_batch = config.options[kMicroBatch], seq = config.options[kSeq];
  const nn::TransformerSpec spec = transformer_of(config);
  const nn::StepForm form = form_of(config);
  const plan::Levers levers = levers_of(config);
  const plan::Work work = work_of(config, spec);
  const auto text = std::make_shared<data::TextSampler>(text_for(config, spec, /*ragged=*/false));
  const auto sent = std::make_shared<Sent>();

  Chapter chapter{.title = "several GPUs", .variants = {}, .claims = claims_of(n), .after = {}};
  const auto add = [&](const NamedLayout& row) {
    const auto [name, layout, data_parallel, refused] = row;
    const auto job = [=](std::size_t batch) {
      const std::size_t unit = layout.dp * micro_batch;
      batch = checked_sum(batch, unit - 1) / unit * unit;  // when the largest batch that fits is looked for
      Job job{spec, text, layout, batch, micro_batch, seq, form};
      job.checkpoints_on_host = levers.checkpoints_on_host;
      plan::Levers on_ranks = levers;
      on_ranks.ranks = layout;
      plan::Work of_batch = work;
      of_batch.batch = batch;
      job.schedule = [=](const RankCoordinates& place) { return plan::schedule_of(of_batch, on_ranks, place); };
      return job;
    };
    Variant variant{.name = name, .batch = config.batch, .predicted = {}, .agreement = {}, .make = {}};
    variant.agreement.kind = Agreement::Kind::within_tolerance;
    variant.agreement.tolerance = kDTypeOf<T> == DType::fp32 ? 1e-6 : 1e-3;
    variant.ranks = static_cast<int>(layout.ranks());
    variant.dtype = kDTypeOf<T>;
    (*sent)[name] = [=, job = job(config.batch)](int rank) {
      return data_parallel ? sent_by_data_parallel<T>(job, rank) : sent_a_step<T>(job, coordinates_of(layout, rank));
    };
    if (data_parallel) {
      variant.predicted = [=](std::size_t batch) { return predict_data_parallel<T>(job(batch), 0); };
      variant.team = [=](std::size_t batch) { return std::make_unique<DataParallelTeam<T>>(job(batch)); };
    } else {
      variant.predicted = [=](std::size_t batch) { return predict_largest<T>(job(batch)); };
      variant.predicted_on_host = [=](std::size_t batch) { return predict_largest_on_host<T>(job(batch)); };
      if (layout.ranks() > 1) {
        variant.team = [=](std::size_t batch) { return std::make_unique<Cluster<T>>(job(batch)); };
      } else {
        variant.flops = [=](std::size_t batch) { return flops_a_step(job(batch), {0, 0, 0}); };
        variant.make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          static const std::atomic<bool> never{false};
          return std::make_unique<Trainer<T>>(context, job(batch), Groups::Ids(layout), 0, never);
        };
      }
    }
    chapter.variants.push_back(std::move(variant));
  };
  if (grid_of(config, spec)) chapter.ranks_asked_with = "--tp x --pp x --dp";
  for (const NamedLayout& row : rows_of(config, spec))
    row.refused.empty() ? add(row) : chapter.variants.push_back(left_out(row, config.batch));
  chapter.after = [=](const Results& results, Report& report) {
    show_ranks(results, report, *sent);
    zero_table(report);
    card_table(report);
  };
  return chapter;
}

static Chapter multi_gpu(const Config& config) {
  const DType dtype = parse_dtype(config.options[kPrecision]);
  if (dtype == DType::fp16) throw UsageError("--precision fp16 is not offered here; fp32 and bf16 are (no loss scale)");
  return with_type_of<float, __nv_bfloat16>(dtype, [&]<class T>(T) { return multi_gpu_of<T>(config); });
}

}  // namespace oomlab::multi_gpu

int main(int argc, char** argv) {
  using namespace oomlab::multi_gpu;
  using oomlab::Defaults, oomlab::DType;
  const auto gib = [](std::size_t n) { return n << 30; };
  Defaults huge{.batch = 128, .steps = 6, .budget = gib(80), .devices = 8};
  huge.options = {{kMicroBatch, 1}, {kSeq, 2048}, {kPrecision, name_of(DType::bf16)}};
  Defaults large{.batch = 64, .steps = 6, .budget = gib(12), .devices = 4, .options = {{kMicroBatch, 8}, {kSeq, 512}}};
  large.published_models = kLargeTextModels, large.published = &huge;
  Defaults full{.model = "gpt:8-8-128", .batch = 16, .steps = 6, .budget = std::size_t(14) << 20, .devices = 8};
  full.options =
      oomlab::plan::with_levers({{kMicroBatch, 1}, {kSeq, 32}, {kPrecision, name_of(DType::fp32)}, kText, kModelConfig},
                                {"07_multi_gpu", "04_checkpointing", "08_attention_and_loss"});
  full.models = kTextModels, full.published_models = kGpt2AndBertModels, full.published = &large;
  Defaults quick = full;
  quick.model = "gpt:8-8-32", quick.steps = 3, quick.budget = std::size_t(1280) << 10, quick.options = {{kSeq, 16}};
  return oomlab::run_chapter(argc, argv, full, quick, oomlab::multi_gpu::multi_gpu);
}
