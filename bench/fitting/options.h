#pragma once
// How options are read: each has a name and what takes its value.

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "question.h"

namespace oomlab::fit {

using Options = std::map<std::string, std::function<void(const std::string& option, const std::string& text)>>;

/// A whole number, 1 to `most`. Throws UsageError for others.
std::uint64_t whole(const std::string& option, const std::string& text, std::uint64_t most);
/// The options that take one of a few words, and these words. Of --weights they are the engine's, and not here.
const std::map<std::string, std::vector<std::string>>& words_of_options();
/// Where `text` stands among those of `option`. Throws UsageError, which lists them, where it does not.
std::size_t word(const std::string& option, const std::string& text);

/// Those of the reader's program, which they fill: --method, --optim, ...
Options reader_options(Question& question);
/// Which of them an engine has, and what it is asked: a server never trains. `task` is empty where none is named. Throws
/// UsageError for an option of another engine.
void read_engine(Question& question, const std::string& task, bool gpus_named);
/// What a network of images is asked: PyTorch trains all of it, in FP32. Throws UsageError for an option that says another.
void require_of_network(const Question& question);
/// What a pipeline that makes images is asked: one card, and a format that it computes in.
void require_of_pipeline(const Question& question);
/// Throws UsageError for an option that only pipelines that make images have.
void require_no_pipeline(const Question& question, const std::string& task);
/// Their part of --help.
std::string reader_help();

}  // namespace oomlab::fit
