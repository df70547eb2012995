#pragma once
// Text as tokens: one byte is one token, so that any file will do and no tokenizer is needed. Token ids 0…255 are
// bytes; models with a larger vocabulary leave the rest unused (the last id is the mask).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace oomlab::data {

struct Text {
  std::string name;
  std::vector<unsigned char> bytes;
};

/// The frozen text in data/text/, built into the program.
Text course_text();
/// Reads a file as bytes, whatever they are. Throws BadFile when it cannot be read, is empty, or has more than a GiB.
Text read_text(const std::string& path);

/// −Σ p ln p over the bytes' frequencies, in nats: the loss of a model that knows nothing but these. 0 for no text.
double unigram_entropy(const Text& text);

/// What the model has to predict.
enum class TextTask {
  next_token,    ///< the label of a place is the token after it
  masked_token,  ///< 15 % of the places show the mask, and their labels are what stood there; no other place has a
                 ///< label
};

/// Sequences from a text, [count, seq] each; a negative label says "no target here". In plan mode without tokens and
/// labels.
struct TokenSamples {
  std::vector<int> tokens, labels;
  std::size_t count = 0, seq = 0;
  std::vector<std::uint64_t> lengths = {};  ///< [count]; empty: each has seq tokens
  std::size_t targets() const;              ///< in plan mode one a sequence
};

/// Sample number n is a window of the text at a place that is a hash of the seed and n: the same on every platform.
class TextSampler {
 public:
  struct Settings {
    std::size_t seq = 0;
    TextTask task = TextTask::next_token;
    int mask_token = 0;   ///< masked_token only
    bool ragged = false;  ///< sequences end early, after seq/8 … seq tokens; token 0 and no label follow
    std::uint64_t seed = 1;
    /// For plans, which count tokens and read none: a text that is shorter than a sequence goes on from its beginning.
    bool goes_round = false;
  };
  /// Throws DataError when the text is empty, or, but where it goes round, shorter than one sequence (and, for
  /// next_token, the token after it).
  TextSampler(const Text& text, const Settings& settings);
  /// Samples number first, first + 1, …. Each has a target at least. Where `lengths` [count] is not empty, sample first + i
  /// ends after lengths[i] tokens, from 1 to seq: token 0 and no label follow.
  TokenSamples samples(std::size_t first, std::size_t count, std::span<const std::uint64_t> lengths = {}) const;

 private:
  Text text_;
  Settings settings_;
};

/// Bytes of each paragraph of a text, with the empty line that ends it; longer ones are cut at seq.
std::vector<std::uint64_t> paragraph_lengths(const Text& text, std::uint64_t seq);
/// Lengths of texts that nobody has cut: seq first, and then by a hash from seq/8 to seq. The same on every platform.
std::vector<std::uint64_t> ragged_lengths(std::size_t count, std::uint64_t seq);
/// Sequences first … first + count − 1 of samples with lengths, each without what follows it: one behind the other.
TokenSamples without_padding(const TokenSamples& samples, std::size_t first, std::size_t count);

}  // namespace oomlab::data
