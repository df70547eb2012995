#pragma once
// What the chapters on text have in common: the text, the model, and batches of them on the device.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backend.h"
#include "cuda/check.h"
#include "data/text.h"
#include "harness/chapter.h"
#include "harness/progress.h"
#include "memory/context.h"
#include "nn/models/model_config.h"
#include "nn/models/transformer.h"
#include "nn/optimizer/optimizer.h"
#include "plan/flops.h"
#include "plan/lever/list.h"
#include "plan/plan.h"
#include "plan/step.h"
#include "plan/text.h"
#include "train/options.h"

namespace oomlab::train {

inline constexpr std::uint64_t kTextSeed = 1;

/// The model of --model, or of --config. A quantization_config is left out, and that is said once. Throws UsageError
/// when --seq is longer than its positions, std::invalid_argument for a name that is unknown, or a file that is no such
/// model.
inline nn::TransformerSpec transformer_of(const Config& config) {
  const auto file = config.options.find(kModelConfig);
  nn::TransformerSpec spec = file ? nn::read_model_config(*file) : nn::parse_transformer(config.model);
  static bool said = false;
  if (!spec.stored_as.empty() && !std::exchange(said, true))
    Progress{config.quiet}(
        fmt::format("{}: quantization_config ({}) is left out: weights are as --precision and the rows say", spec.name,
                    spec.stored_as));
  if (const auto positions = config.options.find(kPositions)) {
    if (!spec.llama())
      throw UsageError(fmt::format("--positions: model '{}' has a table of {} of them", spec.name, spec.positions));
    spec.positions = *positions;
  }
  if (const std::size_t seq = config.options[kSeq]; seq > spec.positions)
    throw UsageError(
        fmt::format("--seq {} is longer than the {} positions of model '{}'", seq, spec.positions, spec.name));
  return spec;
}

/// The lengths that --lengths says, which sequences of a step have in turn: a list or the text's paragraphs, whose
/// longest is --seq, or 64 that are drawn. Empty where it is not given. Throws UsageError, and data::DataError for --text.
inline std::vector<std::uint64_t> lengths_of(const Config& config) {
  const auto words = config.options.find(kLengths);
  const std::size_t seq = config.options[kSeq];
  if (!words) return {};
  if (*words == "ragged") return data::ragged_lengths(64, seq);
  std::vector<std::uint64_t> lengths;
  if (*words == "paragraphs") {
    const auto file = config.options.find(kText);
    lengths = data::paragraph_lengths(file ? data::read_text(*file) : data::course_text(), seq);
  } else {
    for (const std::string& word : split(*words, ',')) lengths.push_back(parse_number("--lengths", word, 1, seq));
  }
  if (std::ranges::count(lengths, seq) == 0)
    throw UsageError(fmt::format("--lengths: none is as long as --seq {}, to which others are padded", seq));
  return lengths;
}

/// The form that --attention, --loss and --lean ask for; what a chapter does not have, or nobody asks for, is the
/// textbook's. Throws UsageError for heads that the fused kernel does not take.
inline nn::StepForm form_of(const Config& config) {
  const plan::Levers levers = plan::levers_of(config.options).value_or(plan::Levers{});
  const plan::Work work{transformer_of(config), config.batch, config.options[kSeq]};
  for (const plan::Lever* lever : plan::all_levers())
    if (lever->changes == plan::Lever::Changes::activations)
      if (const std::string why = lever->refuses(work, levers); !why.empty()) throw UsageError(why);
  return plan::form_of(work, levers);
}

/// A file, or the course's own text, cut into sequences of `seq` tokens for this model: next tokens for gpt, masked
/// tokens for bert. `ragged` sequences have unequal numbers of targets. For a plan, any length of text is long enough.
/// Throws data::DataError.
inline data::TextSampler text_for(const nn::TransformerSpec& spec, std::size_t seq, bool ragged,
                                  const std::optional<std::string>& file = std::nullopt, bool plan = false) {
  return data::TextSampler(file ? data::read_text(*file) : data::course_text(),
                           {.seq = seq,
                            .task = spec.bert() ? data::TextTask::masked_token : data::TextTask::next_token,
                            .mask_token = static_cast<int>(spec.vocabulary) - 1,
                            .ragged = ragged,
                            .seed = kTextSeed,
                            .goes_round = plan});
}

/// The same of --text and --plan, in sequences of `seq` tokens.
inline data::TextSampler text_for(const Config& config, const nn::TransformerSpec& spec, bool ragged, std::size_t seq) {
  return text_for(spec, seq, ragged, config.options.find(kText), config.plan);
}
/// And of as many as --seq says.
inline data::TextSampler text_for(const Config& config, const nn::TransformerSpec& spec, bool ragged) {
  return text_for(config, spec, ragged, config.options[kSeq]);
}

/// Samples first … first + count − 1 of `samples` on the device (phase "batch"): of each the tokens of this share.
inline nn::TokenBatch upload(Context& context, const data::TokenSamples& samples, std::size_t first, std::size_t count,
                             const nn::TokenShare& share) {
  const Phase phase(context.ledger(), "batch");
  if (planning()) return nn::plan_token_batch(context, count, share.seq);
  std::vector<int> tokens;
  std::vector<int> labels;
  for (std::size_t sample = first; sample < first + count; ++sample)
    for (std::size_t q = 0; q < share.seq; ++q) {
      const std::size_t at = sample * samples.seq + share.position(q);
      tokens.push_back(samples.tokens[at]);
      labels.push_back(samples.labels[at]);
    }
  return nn::make_token_batch(context, tokens, labels, count, share.seq, share.seq < samples.seq);
}
/// The same of all their tokens.
inline nn::TokenBatch upload(Context& context, const data::TokenSamples& samples, std::size_t first,
                             std::size_t count) {
  return upload(context, samples, first, count, {.seq = samples.seq});
}

/// The same, of samples with lengths, packed.
inline nn::TokenBatch upload_packed(Context& context, const data::TokenSamples& samples, std::size_t first,
                                    std::size_t count) {
  const Phase phase(context.ledger(), "batch");
  const data::TokenSamples packed = data::without_padding(samples, first, count);
  if (planning()) return nn::plan_packed_batch(context, packed.lengths);
  return nn::make_packed_batch(context, packed.tokens, packed.labels, packed.lengths);
}

/// All gradients of a model, one tensor after the other, as floats (waits for the stream). For checks: not part of a
/// step.
template <class T>
std::vector<float> gradients_of(Context& context, nn::Transformer<T>& model) {
  std::vector<float> all;
  for (const auto& p : model.parameters()) {
    std::vector<T> values(p.count);
    CUDA_CHECK(
        cudaMemcpyAsync(values.data(), p.gradient, p.count * sizeof(T), cudaMemcpyDeviceToHost, context.stream()));
    context.synchronize();
    for (const T& v : values) all.push_back(static_cast<float>(v));
  }
  return all;
}

/// nn::step_flops() of any number of sequences: each needs the same, and the product is a double, exact up to 2^53. For
/// Variant::flops; nothing where the figure is beyond 64 bits, nor for fused attention, whose kernels are no matrix
/// products that cuBLAS is asked for. Tiles of attention depend on all sequences of a batch.
inline std::optional<double> flops_of_step(const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                                           const nn::Schedule& schedule = {}, const nn::StepForm& form = {},
                                           nn::Trained trained = nn::Trained::all, std::uint64_t head_shares = 1) {
  const auto figure = [](std::size_t n) { return static_cast<double>(n); };
  const double per_token = figure(spec.parameters()) + 2 * figure(spec.layers) * figure(seq) * figure(spec.width);
  const bool tiled = form.attention == nn::AttentionForm::tiled;
  const std::size_t at_once = tiled ? sequences : 1;
  if (form.attention == nn::AttentionForm::fused || 8 * per_token * figure(seq) * figure(at_once) > 0x1p63)
    return std::nullopt;
  return figure(sequences / at_once) *
         static_cast<double>(nn::step_flops(spec, at_once, seq, schedule, form, trained, head_shares));
}

/// What stays allocated, beside the cuBLAS workspace, while a model with elements of `element_bytes` is trained with an
/// optimizer that keeps `optimizer_copies` FP32 numbers per parameter.
inline ByCategory resident_for_training(const nn::TransformerSpec& spec, std::size_t element_bytes,
                                        std::size_t optimizer_copies) {
  ByCategory resident;
  resident[Category::workspace] = round_to_granule(sizeof(float));  // the loss
  resident[Category::parameters] = resident[Category::gradients] = nn::tensor_bytes(spec, element_bytes);
  resident[Category::optimizer] = checked_product(nn::tensor_bytes(spec, sizeof(float)), optimizer_copies);
  return resident;
}

}  // namespace oomlab::train
