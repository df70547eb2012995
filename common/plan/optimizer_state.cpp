#include "plan/optimizer_state.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan/bytes.h"
#include "plan/model/transformer_tensors.h"
#include "plan/named.h"

namespace oomlab::nn {

UpdateRule parse_update_rule(std::string_view name) {
  std::vector<UpdateRule> known;
  for (const UpdateRuleRow& row : kUpdateRules) {
    if (row.of_transformers) known.push_back(row.rule);
  }
  return parse_named<UpdateRule>("optimizer", name, std::span(known));
}
const char* name_of(WeightForm form) noexcept {
  switch (form) {
    case WeightForm::stored: return "stored";
    case WeightForm::master: return "master";
    case WeightForm::stochastic: return "stochastic";
  }
  return "?";
}
WeightForm parse_weight_form(std::string_view name) {
  return parse_named("weight update", name, {WeightForm::stored, WeightForm::master, WeightForm::stochastic});
}

namespace {

std::uint64_t blocks_of(std::uint64_t count) { return count / kCodeBlock + (count % kCodeBlock != 0); }

// What a tensor's state depends on. It has no name: the closed form asks for a model's bytes many times.
struct StateShape {
  std::uint64_t rows, columns;
  bool embeds;
  std::uint64_t count() const { return checked_product(rows, columns); }
};
StateShape state_shape(const TensorShape& shape) {
  return {shape.rows, shape.columns, shape.unit == "token" || shape.unit == "embedding"};
}
StateShape state_shape(const Place& place) {
  return {place.rows, place.columns, place.unit == Place::Unit::token || place.unit == Place::Unit::embedding};
}
bool moments_are_codes(const StateShape& shape, const OptimizerForm& form) {
  return form.rule == UpdateRule::adamw8 && shape.count() >= kLeastOf8Bits && !(form.wide_embeddings && shape.embeds);
}

// Of every array of a tensor's moments: elements, and bytes of each.
template <class Visit>
void visit_moments(const StateShape& shape, const OptimizerForm& form, Visit visit) {
  const std::uint64_t n = shape.count();
  if (form.rule == UpdateRule::adafactor) {
    if (shape.rows == 1) return visit(n, sizeof(float));
    visit(shape.rows, sizeof(float)), visit(shape.columns, sizeof(float));
    return;
  }
  const bool codes = moments_are_codes(shape, form);
  for (std::size_t moment = 0; moment < row_of(form.rule).buffers.value_or(2); ++moment)
    if (codes)
      visit(n, std::uint64_t(1)), visit(blocks_of(n), sizeof(float));
    else
      visit(n, sizeof(float));
}
std::uint64_t moment_bytes(const StateShape& shape, const OptimizerForm& form) {
  std::uint64_t sum = 0;
  visit_moments(shape, form, [&](std::uint64_t count, std::uint64_t size) {
    sum = checked_sum(sum, round_to_granule(checked_product(count, size)));
  });
  return sum;
}
std::uint64_t master_bytes(const StateShape& shape, const OptimizerForm& form) {
  return form.weights == WeightForm::master ? checked_product(shape.count(), sizeof(float)) : 0;
}
std::uint64_t paged(const StateShape& shape, const OptimizerForm& form) {
  return form.paged_moments ? moment_bytes(shape, form) : 0;
}
std::uint64_t on_device(const StateShape& shape, const OptimizerForm& form) {
  const std::uint64_t master = round_to_granule(master_bytes(shape, form));
  return form.paged_moments ? master : checked_sum(master, moment_bytes(shape, form));
}

// The sum over the tensors of a slice.
template <class BytesOf>
std::uint64_t sum_of_tensors(const TransformerSpec& spec, const Slice& slice, BytesOf bytes_of) {
  const TransformerSpec one_layer = with_layers(spec, 1);  // which all layers are like
  const std::uint64_t layers = slice.end(spec) - slice.first_layer;
  const auto has_layer = [](std::uint64_t) { return true; };
  std::uint64_t sum = 0;
  visit_part(one_layer, slice.embeds(), slice.has_head(spec), slice.parts, has_layer, [&](const Place& place) {
    const std::uint64_t times = place.unit == Place::Unit::layer ? layers : 1;
    sum = checked_sum(sum, checked_product(times, bytes_of(place)));
  });
  return sum;
}

// Floats of Adafactor's sums: two for each row, and what is made of them.
std::uint64_t sums_of(std::uint64_t rows) { return checked_sum(checked_product(rows, 2), kAdafactorScalars); }

}  // namespace

bool has_8_bit_moments(const TensorShape& shape, const OptimizerForm& form) {
  return moments_are_codes(state_shape(shape), form);
}
std::uint64_t state_bytes(const TensorShape& shape, const OptimizerForm& form) {
  return on_device(state_shape(shape), form);
}
std::uint64_t paged_bytes(const TensorShape& shape, const OptimizerForm& form) {
  return paged(state_shape(shape), form);
}
std::uint64_t exact_state_bytes(const TensorShape& shape, const OptimizerForm& form) {
  const StateShape of = state_shape(shape);
  std::uint64_t sum = master_bytes(of, form);
  if (form.paged_moments) return sum;
  visit_moments(of, form,
                [&](std::uint64_t count, std::uint64_t size) { sum = checked_sum(sum, checked_product(count, size)); });
  return sum;
}
std::uint64_t state_buffers(UpdateRule rule) {
  if (const auto buffers = row_of(rule).buffers) return *buffers;
  throw std::invalid_argument(std::string(name_of(rule)) + " keeps buffers of other sizes than a parameter's");
}
std::uint64_t adafactor_sums_bytes(std::uint64_t rows) {
  const std::uint64_t sums = rows > 1 ? sums_of(rows) : 0;
  return round_to_granule(checked_product(sums, sizeof(float)));
}
ByCategory optimizer_bytes(const TransformerSpec& spec, const Slice& slice, const OptimizerForm& form) {
  ByCategory bytes;
  std::uint64_t rows = 0;
  bytes[Category::optimizer] = sum_of_tensors(spec, slice, [&](const Place& place) {
    rows = std::max(rows, place.rows);
    return on_device(state_shape(place), form);
  });
  if (form.rule == UpdateRule::adafactor) bytes[Category::workspace] = adafactor_sums_bytes(rows);
  return bytes;
}
std::uint64_t paged_bytes(const TransformerSpec& spec, const Slice& slice, const OptimizerForm& form) {
  return sum_of_tensors(spec, slice, [&](const Place& place) { return paged(state_shape(place), form); });
}

}  // namespace oomlab::nn
