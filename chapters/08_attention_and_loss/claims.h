#pragma once
// Folk advice about attention and the loss, put to the test; how the peak grows with the sequence, and how long it may
// be.

#include <memory>

#include "forms.h"
#include "plan/flops.h"

namespace oomlab::attention_and_loss {

inline std::vector<Claim> claims_of(const std::shared_ptr<Observed>& observed, Precision precision) {
  const nn::TransformerSpec gpt2 = nn::parse_transformer("gpt2"), bert = nn::parse_transformer("bert-large");
  const nn::StepForm textbook, tiled{.attention = nn::AttentionForm::tiled};
  const std::string long_gpt2 = "gpt2 with as many positions, batch 1, bf16";
  const auto growth = [=](const nn::StepForm& form) {
    return [=] {
      const auto activations = [&](std::size_t seq) {
        return std::optional(double(bytes_of(gpt2, form, 1, seq, Precision::bf16)[Category::activations]));
      };
      return ratio(activations(65536), activations(32768));
    };
  };
  const auto saves = [](const nn::TransformerSpec& spec, std::size_t sequences, std::size_t seq,
                        const nn::StepForm& form, const nn::StepForm& without) {
    return [=] {
      const auto peak = [&](const nn::StepForm& f) {
        return std::optional(double(bytes_of(spec, f, sequences, seq, Precision::bf16).total()));
      };
      return saved(peak(form), peak(without));
    };
  };
  const std::string small = "another model, or another batch, is another mixture of scores, logits and the rest";
  return {
      {.text = "attention memory is quadratic in the sequence",
       .what = "activations of the textbook's step, 65,536 tokens / 32,768",
       .range = between(3.5, 4),
       .size = long_gpt2,
       .at_size = growth(textbook)},
      {.text = "without stored scores it is linear",
       .what = "activations of the lean step, 65,536 tokens / 32,768",
       .range = between(1.9, 2.1),
       .size = long_gpt2,
       .at_size = growth(nn::StepForm::min_memory())},
      {.text = "FlashAttention is an approximation",
       .about = About::numbers,
       .what = "distance of the gradient (relative L2), fused against textbook",
       .range = at_least(1e-4),
       .measure = [=](const Results& r) -> std::optional<double> {
         const auto found = observed->distance.find("fused");
         return precision == Precision::fp32 && r.find("fused") && found != observed->distance.end()
                    ? std::optional(found->second)
                    : std::nullopt;
       }},
      {.text = "it saves only at long sequences",
       .what = "share of the peak that attention without stored scores saves",
       .range = at_most(0.05),
       .size = "bert-large, batch 32 x 128, bf16",
       .at_size = saves(bert, 32, 128, tiled, textbook),
       .measure = [](const Results& r) { return r.saved("tiled", "textbook", figures::peak); },
       .here = small},
      {.text = "the loss is small change",
       .what = "share of the peak that the chunked loss saves",
       .range = at_most(0.05),
       .size = "gpt2, batch 8 x 1024, bf16, tiled attention",
       .at_size = saves(gpt2, 8, 1024, {nn::AttentionForm::tiled, nn::LossForm::chunked}, tiled),
       .measure = [](const Results& r) { return r.saved("tiled + chunked loss", "tiled", figures::peak); },
       .here = small},
      {.text = "fused attention is slower, because its backward pass computes the scores again",
       .about = About::time,
       .what = "samples/s, textbook / fused",
       .range = at_least(1.0),
       .measure = [](const Results& r) { return r.ratio("textbook", "fused", figures::speed); }},
  };
}

/// What each variant computes and saves; the operations counted must be the predicted ones.
inline void show_operations(const Results& results, Report& report, const nn::TransformerSpec& spec,
                            const std::vector<Way>& all,
                            const std::function<Schedule(const Way&, std::size_t)>& schedule_of, Observed& observed) {
  const Config& c = report.config();
  const auto textbook = results.value("textbook", figures::peak);
  Table table{"operations",
              "what a step of each row computes and saves, and how far its gradient is from the textbook's",
              {{"row"}, {"products", Unit::flops}, {"saved", Unit::bytes}, {"gradient off by", Unit::ratio}}};
  for (const Way& way : all) {
    const auto peak = results.value(way.name, figures::peak);
    if (!peak) continue;
    const std::uint64_t flops = nn::step_flops(spec, c.batch, c.options[kSeq], schedule_of(way, c.batch), way.form);
    const auto distance = observed.distance.find(way.name);
    const bool another = distance != observed.distance.end() && way.name != "textbook";
    table.rows.push_back({way.name, flops, textbook && *textbook >= *peak ? Cell(std::size_t(*textbook - *peak)) : Cell(),
                          another ? Cell(distance->second) : Cell()});
    report.check(planning() || observed.counted[way.name] == flops,
                 fmt::format("{}: {} operations counted, {} predicted", way.name, observed.counted[way.name], flops));
  }
  report.table(table);
}

/// The peak of a step with one sequence against its length, and the longest one that fits a card: in closed form, for
/// BF16 with master weights.
inline void show_lengths(Report& report) {
  const nn::StepForm forms[] = {{},
                                {.attention = nn::AttentionForm::tiled},
                                {nn::AttentionForm::tiled, nn::LossForm::chunked},
                                nn::StepForm::min_memory()};
  const auto columns = [](std::vector<Column> first, Unit unit) {
    for (const char* name : {"textbook", "tiled", "+ chunked loss", "lean"}) first.push_back({name, unit});
    return first;
  };
  Table lengths{"lengths", "one sequence of gpt2 in bf16, by its length (peak allocated; as many positions as tokens)",
                columns({{"tokens", Unit::count}}, Unit::bytes)};
  const nn::TransformerSpec gpt2 = nn::parse_transformer("gpt2");
  for (std::size_t seq = 128; seq <= 131072; seq *= 4) {
    std::vector<Cell>& row = lengths.rows.emplace_back(std::vector<Cell>{seq});
    for (const nn::StepForm& form : forms) row.emplace_back(bytes_of(gpt2, form, 1, seq, Precision::bf16).total());
  }
  report.table(lengths);
  Table longest{"longest", "the longest sequence that fits, in bf16, tokens",
                columns({{"model"}, {"memory", Unit::bytes}}, Unit::count)};
  for (const char* name : {"gpt2", "bert-large"})
    for (const std::size_t gib : {8, 16, 24, 80}) {
      std::vector<Cell>& row = longest.rows.emplace_back(std::vector<Cell>{name, gib << 30});
      for (const nn::StepForm& form : forms)
        row.emplace_back(longest_sequence(nn::parse_transformer(name), form, gib << 30, Precision::bf16));
    }
  report.table(longest);
}

}  // namespace oomlab::attention_and_loss
