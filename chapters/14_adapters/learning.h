#pragma once
// Whether adapters learn as well: bytes-llama, or another model, is fine-tuned on a text in full and with adapters of
// several ranks, the same number of steps, and is asked about a part of that text on which it was not trained.

#include <algorithm>
#include <array>
#include <numbers>
#include <optional>
#include <vector>

#include "claims.h"

namespace oomlab::adapters {

inline constexpr Option<std::size_t> kLearn{
    "learn",
    "After the table, fine-tune in full and with adapters of rank 1, 4 and 16 so many steps, and show the losses", 4,
    100000};

/// Each way takes the one of these rates with which it ends lowest: adapters want larger ones than whole models.
inline constexpr std::array kRates{1e-3f, 3e-3f, 1e-2f, 3e-2f};
/// Losses are shown before the first step and after each quarter.
inline constexpr std::size_t kQuarters = 4, kHeldSamples = 64;

/// A text without its last tenth, and that tenth.
struct TwoTexts {
  data::Text trained, held;
};
inline TwoTexts split(data::Text text) {
  const auto end = text.bytes.end() - std::ptrdiff_t(text.bytes.size() / 10);
  TwoTexts two{{text.name, {}}, {text.name, {end, text.bytes.end()}}};
  text.bytes.erase(end, text.bytes.end());
  two.trained.bytes = std::move(text.bytes);
  return two;
}

/// What a way of fine-tuning leads to.
struct Learned {
  float rate = 0;
  ByCategory peak;             ///< of two steps, without cuBLAS's workspace
  std::vector<double> losses;  ///< of the part that is held back: before the first step, and after each quarter
};

template <class Body>
void with_training(const Config& config, const Task& task, const Recipe& recipe, Ledger& ledger, Body body) {
  with_context(config, kUnlimited, ledger, [&](Context& context) {
    with_element_of(precision_of(recipe.tuning.dtype), [&]<class T>(T) {
      Tuning<T> training(context, task, recipe);
      body(training);
    });
  });
}
inline Learned learn(const Config& config, Task task, const Recipe& recipe, const data::TokenSamples& held,
                     std::size_t steps, float rate) {
  task.lr = rate;
  Learned learned{rate, {}, {}};
  Ledger of_two_steps;
  with_training(config, task, recipe, of_two_steps, [](auto& training) {
    training.step();
    training.step();
  });
  learned.peak = without_workspace(of_two_steps.peak_by_category(), config.workspace);
  Ledger ledger;
  with_training(config, task, recipe, ledger, [&](auto& training) {
    std::size_t done = 0;
    for (std::size_t quarter = 0; quarter <= kQuarters; ++quarter) {
      for (; done < steps * quarter / kQuarters; ++done) {
        check_interrupt();
        training.step();
      }
      learned.losses.push_back(training.loss_of(held, kHeldSamples));
    }
    (void)training.fingerprint();  // which throws where a weight of a frozen base has changed
  });
  return learned;
}

/// In full, with adapters of all matrices, and of a base in NF4; all with checkpoints, so that activations hide little.
inline std::vector<Recipe> ways_to_learn(DType dtype) {
  std::vector<Recipe> ways{recipe_of(recipes(dtype, {}), kFull)};
  const auto add = [&](const char* row, std::uint64_t rank) {
    const std::vector<Recipe> all = recipes(dtype, plan::lever::adapters_of_rank(rank));
    ways.push_back(recipe_of(all, row));
    ways.back().name = fmt::format("{}, rank {}", row, rank);
  };
  for (const std::uint64_t rank : {1, 4, 16}) add(kLora, rank);
  add(kQlora, 16);
  for (Recipe& way : ways) way.checkpoints = true;
  return ways;
}

/// A table of the losses of all ways, and the bytes that each takes. They learn --text. Throws as data::read_text(), and
/// data::DataError where its last tenth is shorter than a sequence.
inline Table losses_of_ways(const Config& config, Task task, DType dtype, std::size_t steps) {
  const auto file = config.options.find(kText);
  const TwoTexts two = split(file ? data::read_text(*file) : data::course_text());
  const auto sampler = [&](const data::Text& of, std::uint64_t seed) {
    return std::make_shared<const data::TextSampler>(of, data::TextSampler::Settings{.seq = task.seq, .seed = seed});
  };
  task.text = sampler(two.trained, kTextSeed);
  const data::TokenSamples held = sampler(two.held, kTextSeed + 1)->samples(0, kHeldSamples);

  std::vector<Column> columns{
      {"fine-tuned", Unit::text}, {"trained", Unit::count}, {"peak", Unit::bytes}, {"learning rate", Unit::ratio}};
  columns.push_back({"loss before", Unit::bits});
  for (std::size_t quarter = 1; quarter <= kQuarters; ++quarter)
    columns.push_back({fmt::format("after {}", steps * quarter / kQuarters), Unit::bits});
  Table table{"losses",
              fmt::format("loss for a byte of the last tenth of {}, on which nothing was trained", two.held.name),
              std::move(columns)};
  for (const Recipe& recipe : ways_to_learn(dtype)) {
    std::optional<Learned> best;
    for (const float rate : kRates) {
      Learned learned = learn(config, task, recipe, held, steps, rate);
      if (!best || learned.losses.back() < best->losses.back()) best = std::move(learned);
    }
    std::vector<Cell> row{recipe.name, trained_parameters(task, recipe), best->peak.total(), double(best->rate)};
    for (const double nats : best->losses) row.emplace_back(nats / std::numbers::ln2);
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace oomlab::adapters
