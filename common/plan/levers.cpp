// What follows from all levers together.

#include "plan/levers.h"

#include <algorithm>
#include <ranges>
#include <sstream>

#include "plan/lever/attention.h"
#include "plan/lever/checkpoint.h"
#include "plan/lever/checkpoints.h"
#include "plan/lever/context.h"
#include "plan/lever/in_backward.h"
#include "plan/lever/list.h"
#include "plan/lever/loss.h"
#include "plan/lever/method.h"
#include "plan/lever/micro_batch.h"
#include "plan/lever/moments.h"
#include "plan/lever/offload.h"
#include "plan/lever/optimizer.h"
#include "plan/lever/pack.h"
#include "plan/lever/precision.h"
#include "plan/lever/ranks.h"
#include "plan/lever/selective_recompute.h"
#include "plan/lever/sequence_parallel.h"
#include "plan/lever/stream.h"
#include "plan/lever/tiles_mlp.h"
#include "plan/lever/weight_update.h"
#include "plan/lever/wide_embeddings.h"
#include "plan/lever/zero.h"
#include "plan/named.h"

namespace oomlab::plan {

std::span<const Lever* const> all_levers() {
  static const Lever* const all[] = {
      &lever::precision(),
      &lever::method(),
      &lever::micro_batch(),
      &lever::pack(),
      &lever::attention(),
      &lever::loss(),
      &lever::tiles_mlp(),
      &lever::selective_recompute(),
      &lever::checkpoint(),
      &lever::checkpoints(),
      &lever::optimizer(),
      &lever::weight_update(),
      &lever::wide_embeddings(),
      &lever::moments(),
      &lever::in_backward(),
      &lever::offload(),
      &lever::stream(),
      &lever::ranks(),
      &lever::sequence_parallel(),
      &lever::context(),
      &lever::zero(),
  };
  return all;
}

const char* name_of(Method method) noexcept {
  switch (method) {
    case Method::full: return "full";
    case Method::lora: return "lora";
    case Method::qlora: return "qlora";
  }
  return "?";
}
Method parse_method(std::string_view name) {
  return nn::parse_named("method", name, {Method::full, Method::lora, Method::qlora});
}

std::string refused(const Work& work, const Levers& levers) {
  if (work.seq > work.spec.positions)
    return fmt::format("--seq {} is longer than the {} positions of model '{}'", work.seq, work.spec.positions,
                       work.spec.name);
  for (const auto reason : {&Lever::cannot_share, &Lever::refuses})
    for (const Lever* lever : all_levers())
      if (std::string why = (lever->*reason)(work, levers); !why.empty()) return why;
  return "";
}

Numbers numbers_of(const Work& work, const Levers& levers) {
  Numbers all;
  for (const Lever* lever : all_levers()) {
    const Numbers own = lever->numbers(work, levers);
    const bool first = all.change < Numbers::Change::fewer_bits && own.change >= Numbers::Change::fewer_bits;
    if (first || own.change == Numbers::Change::adapters) all.why = own.why;  // adapters before any rounding
    all.change = std::max(all.change, own.change);
  }
  return all;
}

std::string words_of(const Numbers& numbers) {
  switch (numbers.change) {
    case Numbers::Change::none: return "bit-equal";
    case Numbers::Change::rounding: return "the same within rounding";
    case Numbers::Change::fewer_bits:
    case Numbers::Change::other:
    case Numbers::Change::adapters: break;
  }
  return numbers.why;
}

std::string options_of(const Levers& levers) {
  std::string words;
  for (const Lever* lever : all_levers()) {
    const std::string own = lever->options_of(levers);
    if (!own.empty()) words += (words.empty() ? "" : " ") + own;
  }
  return words;
}

std::optional<Levers> levers_of(const OptionValues& options) {
  Levers levers;
  bool asked = false;
  for (const Lever* lever : all_levers()) {
    lever->read(options, levers);
    for (const ChapterOption& option : lever->options) asked = asked || options.has(option.name);
  }
  return asked ? std::optional(levers) : std::nullopt;
}

Levers parse_levers(std::string_view options) {
  const ChapterOptions known = with_levers({});
  std::istringstream words{std::string(options)};
  OptionValues values;
  for (std::string word; words >> word;) {
    const auto option =
        std::ranges::find_if(known, [&](const ChapterOption& o) { return word == std::string("--") + o.name; });
    if (option == known.end()) throw UsageError(fmt::format("'{}' is no option of a lever", word));
    if (option->kind == ChapterOption::Kind::flag) {
      values.set(option->name, true);
      continue;
    }
    std::string value;
    words >> value;
    set_option(values, *option, value);
  }
  return levers_of(values).value_or(Levers{});
}

ChapterOptions with_levers(ChapterOptions own, std::initializer_list<const char*> chapters) {
  for (const Lever* lever : all_levers())
    if (chapters.size() == 0 || std::ranges::count(chapters, std::string_view(lever->chapter)))
      for (const ChapterOption& option : lever->options) own.add(option);
  return own;
}

std::uint64_t changes_between(const Levers& base, const Levers& levers) {
  return std::uint64_t(
      std::ranges::count_if(all_levers(), [&](const Lever* lever) { return lever->differs(base, levers); }));
}

Elsewhere elsewhere(const Work& work, const Levers& levers) {
  Elsewhere words;
  lever::micro_batch().elsewhere(work, levers, words);  // the size of a batch comes first everywhere
  for (const Lever* lever : all_levers())
    if (lever != &lever::micro_batch()) lever->elsewhere(work, levers, words);
  return words;
}

std::vector<std::string> lines_of(const Elsewhere& words) {
  std::vector<std::string> lines;
  const auto part = [&](const char* heading, const std::vector<std::string>& list) {
    if (list.empty()) return;
    lines.push_back(heading);
    for (const std::string& line : list) lines.push_back("  " + line);
  };
  part("PyTorch", words.pytorch);
  part("Hugging Face TrainingArguments", words.trainer);
  part("DeepSpeed", words.deepspeed);
  part("no counterpart, or only a near one", words.unsupported);
  return lines;
}

}  // namespace oomlab::plan
