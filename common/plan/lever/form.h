#pragma once
// What the levers have in common that choose one of several forms of the same computation: attention.h and loss.h.

#include <type_traits>
#include <utility>

#include "plan/lever/lever.h"
#include "plan/text.h"

namespace oomlab::plan::lever {

/// kForm: the member of Levers; kOption takes the forms' names, the textbook's (the enumerator 0) first. Another form
/// than that adds in another order.
template <auto kForm, const Option<std::string>& kOption, auto kParse>
Lever form_lever(const char* chapter) {
  using Form = std::remove_cvref_t<decltype(std::declval<Levers>().*kForm)>;
  return {
      .name = kOption.name,
      .chapter = chapter,
      .changes = Lever::Changes::activations,
      .options = {kOption},
      .words = {{kOption.name, [](const Levers& levers) { return levers.*kForm != Form{}; }}},
      .read =
          [](const OptionValues& options, Levers& levers) {
            if (const auto name = options.find(kOption)) levers.*kForm = kParse(*name);
          },
      .options_of =
          [](const Levers& levers) {
            return levers.*kForm == Form{} ? "" : fmt::format("--{} {}", kOption.name, name_of(levers.*kForm));
          },
      .differs = [](const Levers& a, const Levers& b) { return a.*kForm != b.*kForm; },
      .take = [](const Levers& target, Levers& levers) { levers.*kForm = target.*kForm; },
      .tries =
          [](const Reach&) {
            return each_of(split(kOption.words, ' '),
                           [](Levers& levers, const std::string& name) { levers.*kForm = kParse(name); });
          },
      .numbers =
          [](const Work&, const Levers& levers) {
            return levers.*kForm == Form{} ? Numbers{} : Numbers{Numbers::Change::rounding};
          },
  };
}

}  // namespace oomlab::plan::lever
