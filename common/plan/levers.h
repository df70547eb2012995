#pragma once
// A combination of levers: every way to save memory that a training step can be given, in one struct. What is known
// about each lever stands in its own file, lever/NAME.h; what follows from all of them is made from the list of these
// files (lever/list.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtype.h"
#include "plan/bytes.h"
#include "plan/lengths.h"
#include "plan/optimizer_state.h"
#include "plan/option.h"
#include "plan/ranks.h"

namespace oomlab::plan {

/// What is trained, and for schedules that are solved, under which budget.
struct Work {
  nn::TransformerSpec spec;
  std::uint64_t batch = 1;            ///< sequences of a step, on all ranks
  std::uint64_t seq = 1;              ///< tokens of a sequence
  std::uint64_t budget = kUnlimited;  ///< bytes
  std::uint64_t workspace = 0;        ///< of it, bytes for cuBLAS
  /// Tokens of the sequences of a step, in turn; empty: each has seq, and otherwise the longest. Where they are not packed,
  /// the others are padded to seq.
  std::vector<std::uint64_t> lengths = {};
  /// Bytes that the step may take.
  std::uint64_t room() const { return budget == kUnlimited ? budget : budget - std::min(budget, workspace); }
  /// Tokens of a sequence of the step, without padding.
  std::uint64_t length(std::uint64_t sequence) const {
    return lengths.empty() ? seq : lengths[sequence % lengths.size()];
  }
  /// The same of all of them.
  nn::LengthsInTurn lengths_in_turn() const { return {lengths.empty() ? std::vector<std::uint64_t>{seq} : lengths, 0}; }
};

/// What is trained: all of a model, or adapters beside a frozen base, which may be stored in NF4.
enum class Method { full, lora, qlora };
/// "full", "lora", "qlora".
const char* name_of(Method method) noexcept;
/// Throws std::invalid_argument with one line that says what is allowed.
Method parse_method(std::string_view name);

/// How a step goes about it. By default as textbooks have it: FP32, AdamW, everything kept.
struct Levers {
  DType precision = DType::fp32;  ///< of weights, gradients and activations: one of kModelDTypes
  std::uint64_t micro_batch = 0;  ///< samples of one forward and backward pass; 0: all that a rank has
  nn::AttentionForm attention = nn::AttentionForm::textbook;
  nn::LossForm loss = nn::LossForm::full;
  std::uint64_t mlp_tiles = 1;       ///< pieces of the rows that go through the MLP one after the other; 1: all at once
  bool selective_recompute = false;  ///< and MLPs recompute by quarters of the rows
  std::uint64_t recompute = 0;       ///< segments of so many layers are recomputed from their input; 0: none
  bool solved = false;               ///< instead: the solver's schedule (plan/schedule.h), for the budget
  bool checkpoints_on_host = false;  ///< the inputs of what is recomputed wait in host memory
  nn::OptimizerForm optimizer{};     ///< weights: stored in FP32, stored, stochastic or master in BF16, master in FP16
  nn::GradientLife gradients = nn::GradientLife::always;
  bool streamed = false;  ///< weights are in host memory
  Method method = Method::full;
  nn::AdapterForm adapters{};  ///< of another method than full
  Layout ranks{};
  bool sequence_parallel = false;  ///< the ranks of ranks.tp share out the rows of norms and residuals
  bool pack = false;               ///< sequences of a micro-batch side by side, without padding
  friend bool operator==(const Levers&, const Levers&) = default;
};

/// How 16-bit weights are updated where nothing is said of it.
constexpr nn::WeightForm usual_weights(DType precision) {
  return precision == DType::fp32 ? nn::WeightForm::stored : nn::WeightForm::master;
}

/// Samples of a step that a rank has.
inline std::uint64_t share_of(const Work& work, const Levers& levers) { return work.batch / levers.ranks.dp; }
/// Samples of a forward and backward pass, and how many passes a step has.
inline std::uint64_t micro_batch_of(const Work& work, const Levers& levers) {
  return levers.micro_batch ? levers.micro_batch : share_of(work, levers);
}
inline std::uint64_t micro_batches_of(const Work& work, const Levers& levers) {
  const std::uint64_t micro_batch = micro_batch_of(work, levers);
  return micro_batch ? share_of(work, levers) / micro_batch : 0;
}
/// Tokens of the sequences of the rank at `replica`, in the order of its micro-batches; without padding.
inline nn::LengthsInTurn lengths_of_rank(const Work& work, const Levers& levers, std::uint64_t replica) {
  return work.lengths_in_turn().from(replica * share_of(work, levers));
}
inline std::uint64_t element_bytes(const Levers& levers) { return element_bytes(levers.precision); }

/// How far a combination changes what is learned, next to AdamW in FP32.
struct Numbers {
  enum class Change {
    none,        ///< the same bits
    rounding,    ///< the same within rounding: sums in another order
    fewer_bits,  ///< AdamW, some of it in 16 or 8 bits; no update vanishes in rounding
    other,       ///< another rule, or weights in 16 bits that nothing makes up for
    adapters,    ///< the model is not changed at all: no search goes so far
  };
  Change change = Change::none;
  const char* why = "";  ///< for people: "moments of 8 bits"
};

/// Why this combination cannot be, in one line that says what to change; empty when it can.
std::string refused(const Work& work, const Levers& levers);
/// What all levers together do to the numbers. The reason is that of adapters, or else the first lever's that does more
/// than rounding.
Numbers numbers_of(const Work& work, const Levers& levers);
/// For people: "bit-equal", "the same within rounding", or the reason.
std::string words_of(const Numbers& numbers);
/// The options that make a chapter do just this: "--precision bf16 --lean --checkpoint 1".
std::string options_of(const Levers& levers);
/// The levers that the options name; nothing when they name none. Throws UsageError or std::invalid_argument, in one line, for a value
/// that is not allowed.
std::optional<Levers> levers_of(const OptionValues& options);
/// Options as options_of() writes them, as levers. Throws UsageError for a word that is no option of a lever, or a value
/// that is not allowed.
Levers parse_levers(std::string_view options);
/// A chapter's options: its own, and those of the levers that these chapters teach; of none, those of all levers.
ChapterOptions with_levers(ChapterOptions own, std::initializer_list<const char*> chapters = {});
/// Levers that are not as in `base`.
std::uint64_t changes_between(const Levers& base, const Levers& levers);

}  // namespace oomlab::plan
