#pragma once
// What generate() of transformers' modules needs in PyTorch: the bytes are plan/pytorch/generation.h's.

#include <optional>
#include <string>

#include "plan/pytorch/generation.h"
#include "reader.h"

namespace oomlab::fit {

struct Answer;

/// One way to generate, and what it needs.
struct Generation : Need {
  HfGeneration asked{};
};

struct GenerationAnswer {
  Generation as_is;
  std::optional<Generation> fewer{};    ///< where it does not fit, as many sequences at a time as do
  std::optional<Generation> largest{};  ///< of --largest, where one fits
};

/// Of `batch` sequences whose last token is the `seq`-th, most of them in the prompt. Throws std::invalid_argument for a
/// model that does not generate.
GenerationAnswer answer_generation(const Question& question);

/// At most kMostLines lines of at most kMostColumns columns. `course`: what this course's programs need, where they
/// know the model.
std::string first_words(const Question& question, const GenerationAnswer& answer, const Answer* course);
std::string first_line(const Question& question, const GenerationAnswer& answer, const Answer* course);

}  // namespace oomlab::fit
