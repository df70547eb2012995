#pragma once
// What `fit` finds out.

#include <optional>
#include <string>
#include <vector>

#include "generating.h"
#include "images.h"
#include "pipelines.h"
#include "plan/elsewhere.h"
#include "plan/pytorch/peak.h"
#include "progress.h"
#include "question.h"
#include "reader.h"
#include "serving.h"

namespace oomlab::fit {

/// What a printed command begins with. bench/run builds the chapter where needed, for the GPU if there is one.
inline constexpr const char* kRun = "bench/run ";

/// A combination of levers, or a way to answer: what it needs, what it costs, and what does it here.
struct Row {
  std::string what;               ///< what has changed since the row before; "" for the step as it is
  std::string options;            ///< of the program
  std::string command{};          ///< the whole line that plans it, from the root of the repository; "": there is none
  std::uint64_t changes = 0;      ///< levers that are not as they are in the first row
  std::uint64_t cards = 1;        ///< that it uses
  std::uint64_t left = 0;         ///< bytes that it may take of each of them
  ByCategory peak;                ///< of the rank that needs most, without cuBLAS's workspace
  std::optional<double> seconds;  ///< no step takes less; of inference, no token. Nothing: the card does not compute so
  std::uint64_t host_bytes = 0;   ///< of host memory
  std::string numbers;            ///< how they compare with the first row's
  bool fits = false;
};

/// The most that fits with one combination.
struct Most {
  std::uint64_t batch_at_once = 0;  ///< samples of one forward and backward pass, on all cards
  std::uint64_t micro_batch = 0;    ///< 0: the batch is one; else any multiple of `unit` fits
  std::uint64_t unit = 1;
  std::uint64_t seq = 0;  ///< tokens of a sequence, at the batch that was asked for
};

struct Answer {
  Row as_is;
  /// From the step as it is to what fits with the fewest changes, one after the other. Empty when it fits as it is, or
  /// nothing does.
  std::vector<Row> ladder;
  std::optional<Row> cheapest;  ///< of all that fit, by the bound
  std::optional<Row> closest;   ///< where nothing fits, what needs least
  /// Where nothing fits, and would beside more host memory than there is: what would with the least of it.
  std::optional<Row> with_host_memory{};
  std::optional<Most> most;  ///< of the cheapest
  /// With --largest seq: the longest sequence for which any combination fits, and the cheapest of these. 0, and nothing: it
  /// was not asked for, or none fits.
  std::uint64_t longest_seq = 0;
  std::optional<Row> longest{};
  /// Where a step as it is does not fit, of a decoder: what its adapters need on one card, beside a base as it is and one
  /// of 4 bits (chapter 14).
  std::vector<Row> adapters;
  plan::Elsewhere elsewhere;  ///< the cheapest, as PyTorch, Trainer and DeepSpeed have it; of training
  /// What PyTorch needs for the step as it is, and for the cheapest, by its own closed form. Nothing: no form covers
  /// it.
  std::optional<PyTorchPeak> torch_as_is, torch_cheapest;
  std::uint64_t combinations = 0;  ///< that were compared: those that make sense and are allowed
  std::uint64_t planned = 0;       ///< of these: the others cannot be better, by bounds
  // Of the reader's own program, where that was asked: of training, or of generate().
  std::optional<ReaderAnswer> reader{};
  std::optional<GenerationAnswer> generation{};
  std::optional<ServingAnswer> serving{};    ///< of vLLM or llama.cpp
  std::optional<ImagesAnswer> images{};      ///< of a network of images
  std::optional<PipelineAnswer> pipeline{};  ///< of what makes images
  bool fits() const { return cheapest.has_value(); }
};

/// PyTorch's peak for one device's step with these levers: eager, scaled_dot_product_attention, torch.optim.AdamW or
/// bitsandbytes' 8-bit one, 16 bits by autocast, every layer checkpointed or none. Nothing for other steps.
std::optional<PyTorchPeak> torch_peak(const plan::Work& work, const plan::Levers& levers);
/// All combinations that chapter 16 runs. Throws UsageError where the step as it is makes no sense.
Answer answer_training(const Question& question, SearchProgress* progress = nullptr);
/// All ways of chapters 11 and 12. Throws std::invalid_argument for a model that is no decoder of theirs.
Answer answer_inference(const Question& question);
/// What this course's programs need. Throws UsageError for a model that they do not know.
Answer answer(const Question& question, SearchProgress* progress = nullptr);
/// Whether this course's programs answer, too: they know the model, there is a card, or to train several, and no server
/// was asked for.
inline bool course_answers(const Question& question) {
  const bool one_card = question.training || question.gpus == 1;
  return question.course && question.memory_named && one_card && !is_server(question.engine) && !question.of_images() &&
         !question.pipeline;
}

/// What the first line says: it fits, as it is or with changes.
bool fits(const Answer& answer);
/// It fits as it is.
bool fits_as_it_is(const Answer& answer);
/// The first lines of the answer about the reader's program, and the very first behind the memory that it is about.
std::string first_words(const Question& question, const Answer& answer);
std::string line_of(const Question& question, const Answer& answer);

/// For people, and for programs: the whole answer about this course's programs.
std::string words_of(const Question& question, const Answer& answer);
/// The same as JSON.
std::string json_of(const Question& question, const Answer& answer);
/// A line for each of several memories. Both lists are equally long.
std::string table_of(const std::vector<Question>& questions, const std::vector<Answer>& answers);
std::string json_of(const std::vector<Question>& questions, const std::vector<Answer>& answers);

}  // namespace oomlab::fit
