#include "plan/model/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace oomlab::nn {

namespace {

// Slots of `targets`, which is a word for several.
bool in_group(const AdapterSlot& slot, std::string_view targets) {
  const std::string_view name = slot.name;
  const bool whole = name != "q" && name != "v";  // gpt's Q and V beside c_attn
  if (targets == "all") return whole;
  if (targets == "attention")
    return whole && (slot.matrix == LayerMatrix::qkv || slot.matrix == LayerMatrix::projection);
  return name == "q" || name == "v" || name == "q_proj" || name == "v_proj";
}

std::string known_names(const std::vector<AdapterSlot>& slots) {
  std::string names;
  for (const AdapterSlot& slot : slots) names += std::string(names.empty() ? "" : ", ") + slot.name;
  return names;
}

[[noreturn]] void bad_targets(std::string_view targets, const std::string& why) {
  throw std::invalid_argument(fmt::format("targets '{}' {}", targets, why));
}

}  // namespace

std::vector<AdapterSlot> all_adapter_slots(const TransformerSpec& spec) {
  using enum LayerMatrix;
  const std::uint64_t c = spec.width;
  const std::uint64_t hidden = spec.hidden();
  const std::uint64_t keys = checked_product(spec.keys(), spec.depth());
  if (spec.llama())
    return {{"q_proj", "self_attn.q_proj", qkv, 0, c, c},
            {"k_proj", "self_attn.k_proj", qkv, c, keys, c},
            {"v_proj", "self_attn.v_proj", qkv, checked_sum(c, keys), keys, c},
            {"o_proj", "self_attn.o_proj", projection, 0, c, c},
            {"gate_proj", "mlp.gate_proj", up, 0, hidden, c},
            {"up_proj", "mlp.up_proj", up, hidden, hidden, c},
            {"down_proj", "mlp.down_proj", down, 0, c, hidden}};
  if (spec.bert())
    throw std::invalid_argument(
        fmt::format("adapters are for decoders, gpt and llama, and model '{}' is none", spec.name));
  return {{"c_attn", "attn.c_attn", qkv, 0, spec.qkv_width(), c},
          {"q", "", qkv, 0, c, c},
          {"v", "", qkv, checked_product(c, 2), c, c},
          {"attn.c_proj", "attn.c_proj", projection, 0, c, c},
          {"c_fc", "mlp.c_fc", up, 0, hidden, c},
          {"mlp.c_proj", "mlp.c_proj", down, 0, c, hidden}};
}

std::vector<AdapterSlot> adapter_slots(const TransformerSpec& spec, std::string_view targets) {
  const std::vector<AdapterSlot> known = all_adapter_slots(spec);
  std::vector<AdapterSlot> chosen;
  if (targets == "all" || targets == "attention" || targets == "qv") {
    std::ranges::copy_if(known, std::back_inserter(chosen),
                         [&](const AdapterSlot& slot) { return in_group(slot, targets); });
    return chosen;
  }
  std::vector<bool> named(known.size());
  for (std::string_view rest = targets;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    const auto slot = std::ranges::find(known, name, [](const AdapterSlot& s) { return std::string_view(s.name); });
    if (slot == known.end())
      bad_targets(targets, fmt::format("names '{}', which model '{}' does not have; it has {}, and all, attention, qv",
                                       name, spec.name, known_names(known)));
    const auto number = std::size_t(slot - known.begin());
    if (named[number]) bad_targets(targets, fmt::format("names {} twice", name));
    named[number] = true;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  for (std::size_t i = 0; i < known.size(); ++i)
    if (named[i]) chosen.push_back(known[i]);
  if (!spec.llama() && named[0] && (named[1] || named[2]))
    bad_targets(targets, "names c_attn, which has Q and V in it, and one of these, too");
  return chosen;
}

AdapterSlot AdapterSlot::of_part(std::uint64_t parts) const {
  AdapterSlot part = *this;
  if (by_columns()) {
    part.in /= parts;
  } else {
    part.first /= parts;
    part.out /= parts;
  }
  return part;
}

std::vector<TensorShape> adapter_tensors(const TransformerSpec& spec, const AdapterForm& form, const Slice& slice) {
  const std::vector<AdapterSlot> slots = adapter_slots(spec, form.targets);
  std::vector<TensorShape> all;
  for (std::uint64_t layer = slice.first_layer + 1; layer <= slice.end(spec); ++layer) {
    const std::string unit = "layer " + std::to_string(layer);
    for (const AdapterSlot& whole : slots) {
      const AdapterSlot slot = whole.of_part(slice.parts);
      all.push_back({unit + " " + slot.name + " A", unit, form.rank, slot.in});
      all.push_back({unit + " " + slot.name + " B", unit, slot.out, form.rank});
    }
  }
  return all;
}

void require_adapters(const TransformerSpec& spec, const AdapterForm& form) {
  if (form.rank == 0) throw std::invalid_argument("rank 0: an adapter has a rank of at least 1");
  if (!(form.dropout >= 0) || !(form.dropout < 1))
    throw std::invalid_argument(fmt::format("a dropout of {} is no share that is below 1", form.dropout));
  (void)adapter_slots(spec, form.targets);
}

std::uint64_t adapter_parameters(const TransformerSpec& spec, const AdapterForm& form) {
  std::uint64_t of_layer = 0;
  for (const AdapterSlot& slot : adapter_slots(spec, form.targets))
    of_layer = checked_sum(of_layer, checked_product(form.rank, checked_sum(slot.in, slot.out)));
  return checked_product(of_layer, spec.layers);
}

}  // namespace oomlab::nn
