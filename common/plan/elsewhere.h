#pragma once
// What a combination of levers is called in PyTorch, in Hugging Face's TrainingArguments and in a DeepSpeed
// configuration. Each lever says its own part (lever/NAME.h). What has no counterpart there is said, and what is only
// near.
//
// PyTorch's names are those of 2.15. The others are from https://huggingface.co/docs/transformers/main_classes/trainer,
// https://www.deepspeed.ai/docs/config-json, and the documentation of bitsandbytes and torchao
// (torchao/optim/README.md). Nothing of them is run here.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace oomlab::plan {

struct Work;
struct Levers;

/// Lines of text, one setting each. A list may be empty: then its defaults do it.
struct Elsewhere {
  std::vector<std::string> pytorch;      ///< Python
  std::vector<std::string> trainer;      ///< TrainingArguments: "name=value"
  std::vector<std::string> deepspeed;    ///< members of its JSON
  std::vector<std::string> unsupported;  ///< sentences: what has no counterpart, or only one that differs

  template <class... T>
  void in_pytorch(fmt::format_string<T...> text, T&&... values) {
    pytorch.push_back(fmt::format(text, std::forward<T>(values)...));
  }
  template <class... T>
  void in_trainer(fmt::format_string<T...> text, T&&... values) {
    std::string line = fmt::format(text, std::forward<T>(values)...);  // several levers may ask for the same file
    if (std::ranges::find(trainer, line) == trainer.end()) trainer.push_back(std::move(line));
  }
  template <class... T>
  void in_deepspeed(fmt::format_string<T...> text, T&&... values) {
    deepspeed.push_back(fmt::format(text, std::forward<T>(values)...));
  }
  template <class... T>
  void nowhere(fmt::format_string<T...> text, T&&... values) {
    unsupported.push_back(fmt::format(text, std::forward<T>(values)...));
  }
};

/// What this combination is called elsewhere. Of a combination that refused() refuses: of each of its parts.
Elsewhere elsewhere(const Work& work, const Levers& levers);

/// The same as lines to print, "PyTorch", "TrainingArguments", "DeepSpeed" and "no counterpart" as headings; a list
/// that is empty is left out.
std::vector<std::string> lines_of(const Elsewhere& words);

}  // namespace oomlab::plan
