#pragma once
// The options that several chapters have, and what --help says of the models they train.

#include <cstddef>
#include <string>

#include "plan/lever/micro_batch.h"
#include "plan/lever/precision.h"

namespace oomlab::train {

/// Chapters on images.
inline constexpr Option<std::string> kData{"data", "Folder with IDX files (MNIST layout, plain or .gz) to train on"};

/// Chapters on text.
inline constexpr const char* kTextModels = "bytes-gpt, gpt2, bert-large, llama-3.1-8b or gpt:4-4-128";
/// Published ones, by size.
inline constexpr const char* kGpt2Models = "gpt2 gpt2-medium gpt2-large gpt2-xl";
inline constexpr const char* kGpt2AndBertModels = "gpt2 gpt2-medium gpt2-large gpt2-xl bert-base bert-large";
/// Those that no single card trains without mitigations.
inline constexpr const char* kLargeTextModels =
    "gpt3-175b llama-3.2-1b llama-3.1-8b llama-3.1-70b qwen2.5-7b llama-2-7b mistral-7b";
inline constexpr Option<std::string> kModelConfig{
    "config", "A Hugging Face config.json (llama, mistral, qwen2): the model, in place of --model", "", true};
inline constexpr Option<std::size_t> kSeq{"seq", "Tokens per sequence"};
inline constexpr Option<std::size_t> kPositions{
    "positions", "Longest sequence, in place of the model's own, where positions are rotary and have no table"};
inline constexpr Option<std::string> kLengths{"lengths",
                                              "Tokens of a step's sequences, in turn: 512,128,64, the longest as "
                                              "--seq; paragraphs: as long as those of the text, "
                                              "cut at --seq; or ragged: drawn, up to --seq"};
inline constexpr Option<std::string> kText{
    "text", "File to train on, as bytes (default: the course's text, which is built in)"};

/// Of levers; what is known about each stands in its file.
using plan::lever::kMicroBatch, plan::lever::kPrecision;

}  // namespace oomlab::train
