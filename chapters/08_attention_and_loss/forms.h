#pragma once
// The ways of a step that this chapter compares, and their bytes in closed form. What each form computes, and how, is
// in nn/attention.h and nn/transformer.h: the chapters before this one can choose it, too.

#include <string>
#include <vector>

#include "../04_checkpointing/training.h"

namespace oomlab::attention_and_loss {

using namespace train;
using checkpointing::Schedule;

struct Way {
  std::string name;
  nn::StepForm form;
  bool solved = false;  ///< what is kept is chosen by chapter 04's solver, for the budget
};

/// From the textbook to the lean form, one mitigation after the other.
inline std::vector<Way> ways() {
  using nn::AttentionForm, nn::LossForm;
  return {{"textbook", {}},
          {"tiled", {.attention = AttentionForm::tiled}},
          {"fused", {.attention = AttentionForm::fused}},
          {"tiled + chunked loss", {AttentionForm::tiled, LossForm::chunked}},
          {"lean", nn::StepForm::lean()},
          {"lean, solved", nn::StepForm::lean(), true}};
}

/// A model's step at a size that people speak of: peak bytes by category, without cuBLAS workspace. The model has as
/// many positions as the sequence has tokens, or more.
inline ByCategory bytes_of(nn::TransformerSpec spec, const nn::StepForm& form, std::size_t sequences, std::size_t seq,
                           Precision precision) {
  spec.positions = std::max(spec.positions, seq);
  return predict_precision(spec, sequences, seq, precision, form);
}

/// The longest sequence, alone in its batch, whose step fits `budget` bytes; 0 when not even one token does.
inline std::size_t longest_sequence(const nn::TransformerSpec& spec, const nn::StepForm& form, std::size_t budget,
                                    Precision precision) {
  const auto fits = [&](std::size_t seq) { return bytes_of(spec, form, 1, seq, precision).total() <= budget; };
  std::size_t fitting = 0, failing = 1;
  while (fits(failing)) fitting = failing, failing *= 2;
  while (failing - fitting > 1) {
    const std::size_t middle = fitting + (failing - fitting) / 2;
    (fits(middle) ? fitting : failing) = middle;
  }
  return fitting;
}

}  // namespace oomlab::attention_and_loss
