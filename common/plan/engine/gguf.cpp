#include "plan/engine/gguf.h"

#include <iterator>
#include <stdexcept>

#include "plan/names.h"

namespace oomlab::fit {

namespace {

struct Block {
  GgufType type;
  const char* name;
  std::uint64_t values, bytes;
};
// clang-format off
constexpr Block kBlocks[] = {
    {GgufType::f32,     "f32",     1, element_bytes(DType::fp32)},
    {GgufType::f16,     "f16",     1, element_bytes(DType::fp16)},
    {GgufType::bf16,    oomlab::name_of(DType::bf16), 1, element_bytes(DType::bf16)},
    {GgufType::q4_0,    "q4_0",    32,  18},
    {GgufType::q4_1,    "q4_1",    32,  20},
    {GgufType::q5_0,    "q5_0",    32,  22},
    {GgufType::q5_1,    "q5_1",    32,  24},
    {GgufType::q8_0,    "q8_0",    32,  34},
    {GgufType::q2_k,    "q2_k",    256, 84},
    {GgufType::q3_k,    "q3_k",    256, 110},
    {GgufType::q4_k,    "q4_k",    256, 144},
    {GgufType::q5_k,    "q5_k",    256, 176},
    {GgufType::q6_k,    "q6_k",    256, 210},
    {GgufType::iq1_s,   "iq1_s",   256, 50},
    {GgufType::iq1_m,   "iq1_m",   256, 56},
    {GgufType::iq2_xxs, "iq2_xxs", 256, 66},
    {GgufType::iq2_xs,  "iq2_xs",  256, 74},
    {GgufType::iq2_s,   "iq2_s",   256, 82},
    {GgufType::iq3_xxs, "iq3_xxs", 256, 98},
    {GgufType::iq3_s,   "iq3_s",   256, 110},
    {GgufType::iq4_nl,  "iq4_nl",  32,  18},
    {GgufType::iq4_xs,  "iq4_xs",  256, 136},
};

constexpr GgufKind kKinds[] = {
    {"f32",     GgufType::f32},
    {"f16",     GgufType::f16},
    {oomlab::name_of(DType::bf16), GgufType::bf16},
    {"q8_0",    GgufType::q8_0},
    {"q6_k",    GgufType::q6_k},
    {"q5_k_m",  GgufType::q5_k},
    {"q5_k_s",  GgufType::q5_k},
    {"q5_1",    GgufType::q5_1},
    {"q5_0",    GgufType::q5_0},
    {"q4_k_m",  GgufType::q4_k},
    {"q4_k_s",  GgufType::q4_k},
    {"q4_1",    GgufType::q4_1},
    {"q4_0",    GgufType::q4_0},
    {"iq4_nl",  GgufType::iq4_nl},
    {"iq4_xs",  GgufType::iq4_xs},
    {"q3_k_l",  GgufType::q3_k},
    {"q3_k_m",  GgufType::q3_k},
    {"q3_k_s",  GgufType::q3_k},
    {"iq3_m",   GgufType::iq3_s},
    {"iq3_s",   GgufType::iq3_s},
    {"iq3_xs",  GgufType::iq3_s},
    {"iq3_xxs", GgufType::iq3_xxs},
    {"q2_k",    GgufType::q2_k},
    {"q2_k_s",  GgufType::q2_k},
    {"iq2_m",   GgufType::iq2_s},
    {"iq2_s",   GgufType::iq2_xs},
    {"iq2_xs",  GgufType::iq2_xs},
    {"iq2_xxs", GgufType::iq2_xxs},
    {"iq1_m",   GgufType::iq1_m},
    {"iq1_s",   GgufType::iq1_s},
};
// clang-format on

const Block& block(GgufType type) { return kBlocks[static_cast<std::size_t>(type)]; }

constexpr bool blocks_are_in_order() {
  for (std::size_t i = 0; i < std::size(kBlocks); ++i)
    if (kBlocks[i].type != static_cast<GgufType>(i)) return false;
  return true;
}
static_assert(blocks_are_in_order());

/// What a tensor is to the quantiser.
enum class Role { token_embedding, output, value, key, query, attention_output, gate, up, down, other };

Role role_of(const std::string& name) {
  static constexpr struct {
    const char* name;
    Role role;
  } kRoles[] = {
      {"embed_tokens.weight", Role::token_embedding},
      {"wte.weight", Role::token_embedding},
      {"lm_head.weight", Role::output},
      {"v_proj.weight", Role::value},
      {"qkv_proj.weight", Role::value},  // one matrix for three has the rules of values
      {"c_attn.weight", Role::value},
      {"k_proj.weight", Role::key},
      {"q_proj.weight", Role::query},
      {"o_proj.weight", Role::attention_output},
      {"attn.c_proj.weight", Role::attention_output},
      {"gate_proj.weight", Role::gate},
      {"up_proj.weight", Role::up},
      {"gate_up_proj.weight", Role::up},
      {"c_fc.weight", Role::up},
      {"down_proj.weight", Role::down},
      {"mlp.c_proj.weight", Role::down},
  };
  for (const auto& row : kRoles)
    if (name == row.name) return row.role;
  return Role::other;
}

// The mixture of one kind over one model's layers.
class Mixture {
 public:
  Mixture(const nn::HfShape& shape, std::string_view kind, GgufType base)
      : shape_(shape), kind_(kind), base_(base), layers_(shape.layers) {}

  GgufType type_of(const nn::HfTensor& tensor) const {
    const Role role = role_of(tensor.name);
    if (tensor.rows == 1 || tensor.name == "wpe.weight") return GgufType::f32;
    if (block_of(base_) == 1) return base_;
    const GgufType wanted = mixed(role, tensor.layer ? tensor.layer - 1 : 0, tensor.columns);
    return tensor.columns % block_of(wanted) == 0 ? wanted : replacement(wanted, tensor.columns);
  }

 private:
  bool is(std::initializer_list<std::string_view> kinds) const {
    for (const std::string_view kind : kinds)
      if (kind_ == kind) return true;
    return false;
  }
  // Of so few bits that the other matrices have rules of their own.
  bool two_bits() const { return is({"iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq1_s", "iq1_m"}); }
  bool many_queries() const { return shape_.heads / shape_.kv_heads >= 4; }
  // The first and the last eighth of the layers, and every third between them.
  bool more_bits(std::uint64_t layer) const {
    const std::uint64_t eighth = layers_ / 8;
    return layer < eighth || layer >= 7 * layers_ / 8 || (layer - eighth) % 3 == 2;
  }

  GgufType mixed(Role role, std::uint64_t layer, std::uint64_t columns) const {
    if (role == Role::output || (role == Role::token_embedding && shape_.tied)) return output(columns);
    switch (role) {
      case Role::token_embedding: return embedding();
      case Role::value: return value(layer);
      case Role::key:
      case Role::query: return is({"iq3_xs"}) ? GgufType::iq3_xxs : is({"iq3_xxs"}) ? GgufType::iq2_s : base_;
      case Role::down: return down(layer);
      case Role::attention_output: return attention_output();
      case Role::gate:
      case Role::up: {
        const bool inner = layer >= layers_ / 8 && layer < 7 * layers_ / 8;
        return is({"iq3_xs"}) && inner ? GgufType::iq3_xxs : base_;
      }
      default: return base_;
    }
  }

  GgufType output(std::uint64_t columns) const {
    if (columns % block_of(base_) != 0) return GgufType::q8_0;
    if (two_bits() || is({"iq3_xxs"})) return GgufType::q5_k;
    return base_ == GgufType::q8_0 ? base_ : GgufType::q6_k;
  }
  GgufType embedding() const {
    if (is({"iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"})) return GgufType::q2_k;
    return is({"iq2_s", "iq2_m", "iq3_xxs"}) ? GgufType::iq3_s : base_;
  }
  GgufType value(std::uint64_t layer) const {
    const GgufType type = value_of_any(layer);
    // A model of 80 layers has eight heads for each of keys and values: what its values cost is little.
    const bool raised = !two_bits() && layers_ == 80 && (type == GgufType::q3_k || type == GgufType::q4_k);
    return raised ? GgufType::q5_k : type;
  }
  GgufType value_of_any(std::uint64_t layer) const {
    const bool many = many_queries();
    if (two_bits()) {
      if (many) return GgufType::q4_k;
      return is({"iq2_s", "iq2_m"}) ? GgufType::iq3_s : GgufType::q2_k;
    }
    if (is({"q2_k"})) return many ? GgufType::q4_k : GgufType::q3_k;
    if (is({"q2_k_s", "iq3_xs", "iq3_s"}) && many) return GgufType::q4_k;
    if (is({"iq3_xxs"})) return many ? GgufType::q4_k : GgufType::iq3_xxs;
    if (is({"iq3_m"})) return GgufType::q4_k;
    if (is({"q3_k_m"})) return layer < 2 ? GgufType::q5_k : GgufType::q4_k;
    if (is({"q3_k_l"})) return GgufType::q5_k;
    if (is({"iq4_nl", "iq4_xs"}) && many) return GgufType::q5_k;
    if (is({"q4_k_m", "q5_k_m"}) && more_bits(layer)) return GgufType::q6_k;
    if (is({"q4_k_s"}) && layer < 4) return GgufType::q5_k;
    return base_;
  }
  GgufType down(std::uint64_t layer) const {
    const bool first = layer < layers_ / 8;
    if (two_bits()) {
      if (!first) return base_;
      return is({"iq2_s", "iq2_m"}) ? GgufType::iq3_s : GgufType::q2_k;
    }
    if (is({"q2_k"})) return GgufType::q3_k;
    if (is({"q2_k_s"}) && first) return GgufType::q4_k;
    if (is({"q3_k_m"})) return layer < layers_ / 16 ? GgufType::q5_k : GgufType::q4_k;
    if (is({"iq3_m"}) && first) return GgufType::q4_k;
    if (is({"q3_k_l"})) return GgufType::q5_k;
    if (is({"q4_k_m", "q5_k_m"}) && more_bits(layer)) return GgufType::q6_k;
    if (is({"iq4_nl", "iq4_xs", "q4_k_s"}) && first) return GgufType::q5_k;
    return base_;
  }
  GgufType attention_output() const {
    if (is({"iq1_s", "iq1_m"})) return GgufType::iq2_xxs;
    if (is({"iq2_s", "iq2_m", "iq3_xxs"})) return GgufType::iq3_s;
    if (is({"q2_k"})) return GgufType::q3_k;
    if (is({"q3_k_m", "iq3_m"})) return GgufType::q4_k;
    return is({"q3_k_l"}) ? GgufType::q5_k : base_;
  }

  // For rows that are no whole blocks of 256.
  static GgufType replacement(GgufType type, std::uint64_t columns) {
    GgufType other = GgufType::iq4_nl;
    if (type == GgufType::q2_k || type == GgufType::q3_k) other = GgufType::q4_0;
    if (type == GgufType::q4_k) other = GgufType::q5_0;
    if (type == GgufType::q5_k) other = GgufType::q5_1;
    if (type == GgufType::q6_k) other = GgufType::q8_0;
    return columns % block_of(other) == 0 ? other : GgufType::f16;
  }

  const nn::HfShape& shape_;
  std::string_view kind_;
  GgufType base_;
  std::uint64_t layers_;
};

}  // namespace

const char* name_of(GgufType type) { return block(type).name; }

std::uint64_t block_of(GgufType type) { return block(type).values; }

std::uint64_t gguf_bytes(GgufType type, std::uint64_t rows, std::uint64_t columns) {
  const Block& one = block(type);
  if (columns % one.values != 0)
    throw std::invalid_argument("rows of " + std::to_string(columns) + " values are no whole blocks of " + one.name);
  return checked_product(checked_product(rows, columns / one.values), one.bytes);
}

std::span<const GgufKind> gguf_kinds() { return kKinds; }

const GgufKind* gguf_kind(std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const GgufKind& kind : kKinds)
    if (wanted == kind.name) return &kind;
  return nullptr;
}

std::vector<GgufTensor> gguf_tensors(const nn::HfShape& shape, const GgufKind& kind) {
  if (!shape.gated() && shape.family != nn::HfFamily::gpt2)
    throw std::invalid_argument("llama.cpp: " + shape.name + " is no decoder that is known");
  if (shape.experts)
    throw std::invalid_argument("llama.cpp: mixtures of experts are not known; leave --engine out for PyTorch's");
  const Mixture mixture(shape, kind.name, kind.base);
  std::vector<GgufTensor> all;
  for (const nn::HfTensor& tensor : nn::parameters_of(shape))
    all.push_back({tensor.name, tensor.layer, mixture.type_of(tensor), tensor.rows, tensor.columns});
  return all;
}

}  // namespace oomlab::fit
