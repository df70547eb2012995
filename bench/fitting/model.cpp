#include "model.h"

#include <fmt/format.h>

#include "memory/files.h"
#include "plan/limits.h"
#include "plan/model/config.h"
#include "plan/option.h"
#include "plan/text.h"

namespace oomlab::fit {

namespace {

// A file's path that a shell takes as one word, from whichever folder. What would not be shown as it is is written out,
// as bash reads it back.
std::string word_of(const std::string& file) {
  const std::string path = absolute_path(file);
  const bool plain = one_line(path) == path;
  std::string escaped;
  for (const char c : path) {
    if (c == '\'')
      escaped += plain ? "'\\''" : "\\'";
    else if (c == '\\' && !plain)
      escaped += "\\\\";
    else
      escaped += c;
  }
  return plain ? "'" + escaped + "'" : "$'" + one_line(escaped) + "'";
}

// What `read` makes of a model, or nothing; then `why` says what it said.
template <class Read>
auto attempt(Read read, std::string& why) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const std::invalid_argument& error) {
    why = error.what();
    return std::nullopt;
  }
}

bool same_layers(const nn::HfShape& a, const nn::HfShape& b) {
  return a.layers == b.layers && a.width == b.width && a.heads == b.heads && a.kv_heads == b.kv_heads &&
         a.head_dim == b.head_dim && a.mlp == b.mlp && a.vocabulary == b.vocabulary && a.experts == b.experts &&
         a.tied == b.tied && a.qkv_bias == b.qkv_bias && a.gated() == b.gated();
}

// The course's model for one of transformers'.
std::optional<nn::TransformerSpec> course_model(const nn::HfShape& shape) {
  for (const nn::TransformerSpec& spec : nn::named_transformers()) {
    const nn::HfShape here = nn::hf_shape_of(spec);
    if (here.family == shape.family && here.positions == shape.positions && same_layers(here, shape)) return spec;
  }
  return std::nullopt;
}

// What transformers have for a name of the course: "mistral-7b" is a mistral there.
nn::HfShape shape_of(const nn::TransformerSpec& spec) {
  nn::HfShape here = nn::hf_shape_of(spec);
  for (const nn::HfShape& shape : nn::hf_models())
    if (here.name.find(':') == here.name.npos && same_layers(here, shape)) return shape;
  return here;
}

}  // namespace

void read_model(const std::string& name, const std::string& config, Question& question) {
  std::optional<nn::TransformerSpec> spec;
  std::string why_no_spec, why_no_shape;
  if (config.empty()) {
    spec = attempt([&] { return nn::parse_transformer(name); }, why_no_spec);
    question.shape = attempt([&] { return nn::hf_model(name); }, why_no_shape);
    if (!spec && question.shape) spec = course_model(*question.shape);
  } else {
    const std::string text = read_file(config, nn::kMostConfigBytes);
    spec = attempt([&] { return nn::parse_model_config(text, config); }, why_no_spec);
    question.shape = attempt([&] { return nn::parse_hf_config(text, config); }, why_no_shape);
  }
  // A shape in figures has this course's grammar; other names are looked for among transformers' models.
  if (!spec && !question.shape)
    throw std::invalid_argument(config.empty() && name.find(':') != name.npos ? why_no_spec : why_no_shape);
  if (spec && !question.shape) question.shape = shape_of(*spec);
  question.course = spec.has_value();
  if (spec)
    question.spec = *spec;
  else
    question.spec.name = question.shape->name;
  question.model = config.empty() ? "--model " + question.spec.name : "--config " + word_of(config);
  if (question.shape->layers > kMostLayers)
    throw UsageError(fmt::format("model '{}' has {} layers; fit knows what to do with up to {}", question.spec.name,
                                 question.shape->layers, kMostLayers));
}

}  // namespace oomlab::fit
