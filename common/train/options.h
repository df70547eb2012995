#pragma once
// The options that several chapters have, and what --help says of the models they train.

#include <cstddef>
#include <string>

#include "dtype.h"
#include "harness/option.h"

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
    "gpt3-175b llama-3.2-1b llama-3.1-8b llama-3.1-70b qwen2.5-7b mistral-7b";
inline constexpr Option<std::string> kModelConfig{
    "config", "A Hugging Face config.json (llama, mistral, qwen2): the model, in place of --model", "", true};
inline constexpr Option<std::size_t> kSeq{"seq", "Tokens per sequence"};
inline constexpr Option<std::string> kText{
    "text", "File to train on, as bytes (default: the course's text, which is built in)"};

/// Samples of one forward and backward pass.
inline constexpr Option<std::size_t> kMicroBatch{"micro-batch", "Samples of one forward and backward pass"};
inline constexpr NameList kModelDTypeWords = names_of(kModelDTypes, " ", " ");
inline constexpr NameList kModelDTypeChoice = names_of(kModelDTypes, ", ", " or ");
inline constexpr Option<std::string> kPrecision{"precision", kModelDTypeChoice.text, kModelDTypeWords.text};

/// How a transformer goes about a step: chapter 08's mitigations, for the chapters before it.
inline constexpr Option<std::string> kAttention{"attention", "textbook, tiled or fused", "textbook tiled fused"};
inline constexpr Option<std::string> kLoss{"loss", "full, or chunked: logits of some rows at a time", "full chunked"};
inline constexpr Option<bool> kLean{
    "lean", "Keep nothing that is cheap to recompute: norms, GELU, the sum after the attention"};

}  // namespace oomlab::train
