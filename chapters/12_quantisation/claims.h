#pragma once
// This chapter's options and variants, folk advice about quantisation put to the test, and what the runs show.

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/chapter.h"
#include "harness/finding_key.h"
#include "harness/outputs.h"
#include "plan/limits.h"
#include "reading.h"

namespace oomlab::quantisation {

using namespace train;
using inference::kWeights;
using Bf16 = __nv_bfloat16;

inline constexpr Option<std::size_t> kBatches{"batches", "Batches of sequences that are read", 1, 4096};
inline constexpr Option<std::size_t> kGroup{"group", "Weights of INT4 that share a scale and a zero", 1, 1 << 20};
inline constexpr NameList kRestWords = names_of(kRestDTypes, " ", " ");
inline constexpr Option<std::string> kRest{
    "rest", "fp32 or bf16: norms, embedding, head and activations of a quantised model", kRestWords.text};
inline constexpr Option<std::string> kSave{
    "save", "Beginning of the names of files to write the quantised models to: this and int4.safetensors"};
inline constexpr Option<std::string> kQuantised{
    "quantised", "A file of --save: the variants of its format are read from there, not quantised again"};

/// Of what is not quantised.
inline DType rest_of(const Config& config) { return parse_dtype(config.options[kRest]); }
inline std::vector<ModelFormat> model_formats(const Config& config) {
  return quantised::model_formats(config.options[kGroup], rest_of(config));
}
/// The file of --save that a variant writes; empty where it writes none.
inline std::string file_to_save(const Config& config, const ModelFormat& model) {
  const auto save = config.options.find(kSave);
  if (!save || model.linear.scheme == Scheme::as_is || model.linear.dynamic) return "";
  return *save + name_of(model.linear.scheme) + ".safetensors";
}
/// Throws UsageError when one of them could not be written.
inline void check_files_to_save(const Config& config) {
  NamedPaths files;
  for (const ModelFormat& model : model_formats(config)) files.emplace_back("--save", file_to_save(config, model));
  check_outputs(config, files);
}
inline Read read_of(const Config& config, std::size_t batch) {
  return {batch, config.options[kSeq], config.options[kBatches]};
}

/// Throws as Reading().
inline std::unique_ptr<Workload> make_reading(Context& context, const Source& source, const ModelFormat& model,
                                              const QuantisedFile* file, const data::TextSampler& text, const Read& of,
                                              const std::shared_ptr<AllRead>& all, const std::string& save) {
  return with_type_of<float, Bf16>(model.rest, [&]<class T>(T) -> std::unique_ptr<Workload> {
    return std::make_unique<Reading<T>>(context, source, model.linear, file, text, of, model.name, all, save);
  });
}

/// Throws UsageError, or std::invalid_argument, for a model that cannot do what is asked.
inline nn::TransformerSpec decoder_of(const Config& config) {
  const nn::TransformerSpec spec = inference::decoder_of_text(config);
  if (config.batch > kMostCaches)
    throw UsageError(fmt::format("--batch {}: each sequence has a cache of its own, and up to {} are allowed",
                                 config.batch, kMostCaches));
  try {
    (void)model_bytes(spec, {.scheme = Scheme::int4, .group = config.options[kGroup]}, DType::fp32);
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("--group {}: {} of model '{}'", config.options[kGroup], error.what(), spec.name));
  }
  return spec;
}
/// The file of --quantised, or null. Throws UsageError where no variant is like it, and BadFile.
inline std::shared_ptr<const QuantisedFile> quantised_file(const Config& config, const nn::TransformerSpec& spec) {
  const auto path = config.options.find(kQuantised);
  if (!path) return nullptr;
  auto file = std::make_shared<const QuantisedFile>(*path);
  file->require_model(spec);
  if (file->format().scheme == Scheme::int4 && file->format().group != config.options[kGroup])
    throw UsageError(fmt::format("--quantised: '{}' has groups of {}; --group is {}", *path, file->format().group,
                                 config.options[kGroup]));
  return file;
}

inline std::vector<Claim> claims_of(const std::shared_ptr<AllRead>& all) {
  const nn::TransformerSpec llama = nn::parse_transformer("llama-3.1-8b");
  const auto stored = [=](const char* name, std::size_t group = kInt4Group) {
    for (const ModelFormat& model : quantised::model_formats(group, DType::bf16))
      if (name == std::string(model.name)) return double(model_bytes(llama, model.linear, model.rest).all.stored);
    return 0.0;
  };
  const auto saves = [=](const char* name, const char* of) { return [=] { return saved(stored(name), stored(of)); }; };
  const auto saved_here = [](const char* name, const char* of) {
    return [=](const Results& r) { return r.saved(name, of, figures::bytes(Category::parameters)); };
  };
  const std::string size = "llama-3.1-8b; norms, embedding and head in bf16";
  const std::string small = "another share of the model is embedding, and each buffer is rounded up to 512 bytes";
  return {
      {.text = "INT8 saves 75 %",
       .what = "share of the bytes of all weights, INT8 per row against FP32",
       .range = between(0.745, 0.755),
       .size = size,
       .at_size = saves(kInt8, kFp32),
       .measure = saved_here(kInt8, kFp32),
       .here = small},
      {.text = "INT8 saves 75 % of a model in BF16",
       .what = "the same, against BF16, in which models are published",
       .range = between(0.745, 0.755),
       .size = size,
       .at_size = saves(kInt8, kBf16),
       .measure = saved_here(kInt8, kBf16),
       .here = small},
      {.text = "4 bits save 87 %",
       .what = "share of the bytes of all weights, INT4 in groups of 128 against FP32",
       .range = between(0.865, 0.88),
       .size = size,
       .at_size = saves(kInt4, kFp32),
       .measure = saved_here(kInt4, kFp32),
       .here = small},
      {.text = "8 billion parameters in 4 bits take 4 GB",
       .what = "GB at the peak, INT4 in groups of 128, a sequence of 8,192 tokens",
       .range = at_most(4.5),
       .size = size,
       .at_size =
           [=] {
             const ModelFormat model{kInt4, {.scheme = Scheme::int4}, DType::bf16};
             return std::optional(double(reading_bytes(llama, model.linear, model.rest, {1, 8192, 1}).total()) / 1e9);
           }},
      {.text = "the smaller the group, the better",
       .what = "bytes of all weights, INT4 in groups of 16 / of 128",
       .range = at_most(1.05),
       .size = size,
       .at_size = [=] { return ratio(stored(kInt4, 16), stored(kInt4, 128)); }},
      {.text = "quantisation makes it faster",
       .about = About::time,
       .what = "samples/s (tokens) of one sequence, INT4 in groups / BF16",
       .range = at_least(1.1),
       .measure = [](const Results& r) { return r.ratio(kInt4, kBf16, figures::speed); }},
      {.text = "8 bits lose nothing",
       .about = About::numbers,
       .what = "tokens of 1,000 after which another one is most likely, INT8 dynamic and FP32",
       .range = at_most(0),
       .measure = [all](const Results& r) -> std::optional<double> {
         if (!r.find(kDynamic) || !all->contains(kFp32)) return std::nullopt;
         const std::vector<int>&a = (*all)[kFp32].top, &b = (*all)[kDynamic].top;
         if (a.empty() || a.size() != b.size()) return std::nullopt;
         double other = 0;
         for (std::size_t i = 0; i < a.size(); ++i) other += a[i] != b[i];
         return 1000 * other / double(a.size());
       }},
  };
}

/// Tokens of two readings after which the same one is most likely, in percent.
inline double agreement(const ReadResult& a, const ReadResult& b) {
  double same = 0;
  for (std::size_t i = 0; i < a.top.size(); ++i) same += a.top[i] == b.top[i];
  return a.top.empty() ? 0 : 100 * same / double(a.top.size());
}

/// Bytes of the file and of the running model, what the model is still worth, and what a token moves.
inline void show_formats(const Results& results, Report& report, const nn::TransformerSpec& spec, AllRead& all) {
  const Config& config = report.config();
  report.line(fmt::format("{:<16} {:>11} {:>7} {:>12} {:>11} {:>9} {:>8}  {:>11} {:>11} {:>6}", "", "file", "bits",
                          "running", "perplexity", "of fp32", "top-1", "moved/token", "floor", "ratio"));
  for (const ModelFormat& model : model_formats(config)) {
    const VariantResult* const r = results.find(model.name);
    if (!r || !all.contains(model.name)) continue;
    const ReadResult& read = all[model.name];
    const ModelBytes bytes = model_bytes(spec, model.linear, model.rest);
    const std::size_t quantised = [&] {
      std::size_t count = 0;
      for (const nn::TensorShape& shape : nn::tensors_of(spec)) count += is_quantised(shape) ? shape.count() : 0;
      return count;
    }();
    const double batch = double(config.batch);
    std::string worth = fmt::format("{:>11} {:>9} {:>8}", "-", "-", "-");
    if (!read.top.empty() && all.contains(kFp32) && !all[kFp32].top.empty())
      worth = fmt::format("{:>11.4f} {:>7.2f} % {:>6.1f} %", std::exp(read.loss),
                          100 * std::exp(read.loss - all[kFp32].loss), agreement(all[kFp32], read));
    report.line(fmt::format("{:<16} {:>11} {:>7.3f} {:>12} {}  {:>11} {:>11} {:>6.2f}", model.name,
                            format_bytes(bytes.all.stored), 8 * double(bytes.quantised.stored) / double(quantised),
                            format_bytes(r->peak_allocated), worth, format_bytes(std::size_t(read.moved / batch)),
                            format_bytes(std::size_t(read.floor / batch)), read.moved / read.floor));
    const std::string key = finding_key(model.name);
    report.figure("file_bytes_" + key, double(bytes.all.stored));
    report.figure("moved_bytes_" + key, read.moved / batch);
    if (!read.top.empty()) report.figure("perplexity_" + key, std::exp(read.loss));
    report.check(read.moved >= read.floor, fmt::format("{}: a token moves less than its floor", model.name));
  }
  const ModelFormat kept{kInt8, {.scheme = Scheme::int8_row}, rest_of(config)};
  const ModelBytes bytes = model_bytes(spec, kept.linear, kept.rest);
  report.line(
      fmt::format("(file: tensors without the header. bits: of a weight of the linear layers. Norms, embedding "
                  "and head stay in {}: {}.",
                  config.options[kRest], format_bytes(bytes.all.stored - bytes.quantised.stored)));
  report.line(
      " floor: weights and cache, each read once. Batch 1 needs them for every token; a larger one shares the "
      "weights.)");
  report.line("");
}

/// What a round trip through a format does to a matrix: root mean square of the error / of the weights, in percent.
inline double round_trip_error(const Config& config, const Source& source, std::size_t tensor, const Format& format) {
  const nn::TensorShape& shape = source.shapes()[tensor];
  double error = 0, all = 0;
  Ledger ledger;
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    Matrix<float> matrix(context, format, shape.name, shape.rows, shape.columns);
    Loading loading(context, loading_bytes(format, shape.rows, shape.columns));
    const auto fill = [&](Context& c, std::size_t first, std::size_t count, float* to) {
      source.piece(c, tensor, first, count, to);
    };
    matrix.encode(context, loading, fill);
    const std::size_t piece = piece_of(format, matrix.count(), shape.columns);
    auto back = context.buffer<float>(piece, Category::workspace, "weights again");
    std::vector<float> was(piece), is(piece);
    for (std::size_t first = 0; first < matrix.count(); first += piece) {
      const std::size_t here = std::min(piece, matrix.count() - first);
      fill(context, first, here, loading.piece.data());
      matrix.decode(context, first, here, back.data());
      for (const auto& [to, from] : {std::pair{&was, loading.piece.data()}, {&is, back.data()}})
        CUDA_CHECK(cudaMemcpyAsync(to->data(), from, here * sizeof(float), cudaMemcpyDeviceToHost, context.stream()));
      context.synchronize();
      for (std::size_t i = 0; i < here; ++i)
        error += (double(is[i]) - was[i]) * (double(is[i]) - was[i]), all += double(was[i]) * was[i];
    }
  });
  return 100 * std::sqrt(error / all);
}
/// Bits and error of a layer's largest matrix: INT4 in groups of several sizes, beside the other formats.
inline void show_groups(Report& report, const Source& source) {
  std::size_t tensor = 0;
  for (std::size_t i = source.shapes().size(); i-- > 0;)
    if (is_quantised(source.shapes()[i]) &&
        source.shapes()[i].count() >= source.shapes()[tensor].count() * (tensor > 0))
      tensor = i;
  const nn::TensorShape& shape = source.shapes()[tensor];
  const double count = double(shape.count());
  Table table{
      "formats",
      fmt::format("{}, {} x {}: error of a round trip, of the root mean square", shape.name, shape.rows, shape.columns),
      {{"format"}, {"a weight", Unit::bits}, {"error", Unit::percent}}};
  const auto show = [&](const std::string& name, const Format& format) {
    const double bits = 8 * double(matrix_bytes(format, shape.rows, shape.columns, 4).stored) / count;
    std::optional<double> error;
    if (!planning()) error = round_trip_error(report.config(), source, tensor, format);
    table.rows.push_back({name, bits, error});
  };
  show("int8 per tensor", {.scheme = Scheme::int8_tensor});
  show("int8 per row", {.scheme = Scheme::int8_row});
  for (const std::size_t group : {16, 32, 64, 128, 256, 1024})
    if (shape.count() % group == 0)
      show(fmt::format("int4, groups of {}", group), {.scheme = Scheme::int4, .group = group});
  show("nf4, blocks of 64", {.scheme = Scheme::nf4});
  report.table(table);
}

/// Which cards hold the peak, of those that compute in the variant's precision; a twentieth of what CUDA reports of a
/// card is left for the context and libraries.
inline void show_cards(const Results& results, Report& report) {
  Table table{"cards",
              fmt::format("held by which of {} cards (a twentieth of their memory left for context and libraries; in "
                          "bf16, those that compute in it)",
                          cards().size()),
              {{"weights"}, {"peak", Unit::bytes}, {"cards", Unit::count}, {"smallest, GB", Unit::count}, {"which"}}};
  bool all_hold = true;
  for (const VariantResult& result : results) {
    std::map<double, std::string> of_size;  // cards that hold it, by GB
    std::size_t holding = 0;
    for (const Card& card : cards()) {
      if (!peak_tflops(card, result.dtype)) continue;
      if (double(result.predicted_peak()) > 0.95 * double(card.total_bytes())) {
        all_hold = false;
        continue;
      }
      std::string& names = of_size[card.memory_gb];
      names += (names.empty() ? "" : ", ") + std::string(card.title);
      ++holding;
    }
    std::vector<Cell>& row = table.rows.emplace_back(std::vector<Cell>{result.name, result.predicted_peak(), holding});
    row.emplace_back(holding ? Cell(of_size.begin()->first) : Cell());
    row.emplace_back(holding ? of_size.begin()->second : "no card");
  }
  if (!all_hold) report.table(table);
}

}  // namespace oomlab::quantisation
