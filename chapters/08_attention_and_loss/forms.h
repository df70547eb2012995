#pragma once
// The ways of a step that this chapter compares, and their bytes in closed form. What each form computes, and how, is
// in nn/ops/attention.h and nn/models/transformer.h: the chapters before this one can choose it, too.

#include <cmath>
#include <map>
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
          {"lean", nn::StepForm::min_memory()},
          {"lean, solved", nn::StepForm::min_memory(), true}};
}

/// What the memory pass has seen.
struct Observed {
  std::vector<float> baseline;                   ///< the first step's gradients, the textbook's way
  std::map<std::string, double> distance;        ///< from these, relative L2, by variant
  std::map<std::string, std::uint64_t> counted;  ///< operations of a step's matrix products, by variant
};

/// Training in one of the ways, whose first gradient is compared with the textbook's. `observed` must outlive it.
template <class T>
class FormTraining final : public checkpointing::Checkpointed<T> {
 public:
  FormTraining(Context& context, const nn::TransformerSpec& spec, const data::TextSampler& text, std::size_t batch,
               Precision precision, const Schedule& schedule, const Way& way, Observed& observed)
      : checkpointing::Checkpointed<T>(context, spec, text, precision,
                                       checkpointing::step_of(sizeof(T), batch, 0, schedule, way.form),
                                       observed.counted[way.name]),
        name_(way.name),
        observed_(observed) {}

  double figure() override {
    if (!planning() && figures_++ == 0) compare_gradients();
    return checkpointing::Checkpointed<T>::figure();
  }

 private:
  void compare_gradients() {
    const std::vector<float> all = gradients_of(this->context_, this->model_);
    if (name_ == "textbook") observed_.baseline = all;
    if (observed_.baseline.size() != all.size()) return;  // the baseline was not run
    double difference = 0, square = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double b = observed_.baseline[i];
      difference += (all[i] - b) * (all[i] - b), square += b * b;
    }
    observed_.distance[name_] = std::sqrt(difference / square);
  }

  std::string name_;
  Observed& observed_;
  std::size_t figures_ = 0;
};

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
