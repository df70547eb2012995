#pragma once
// Which model a question is about: by name or by config.json, for this course's programs and for transformers.

#include <string>

#include "question.h"

namespace oomlab::fit {

/// Fills question.spec, .shape, .course and .model. One of `name` and `config`, a file, is not empty. Throws
/// std::invalid_argument, UsageError or BadFile with one line where neither knows the model.
void read_model(const std::string& name, const std::string& config, Question& question);

}  // namespace oomlab::fit
