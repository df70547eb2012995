#include "data/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "cuda/backend.h"
#include "plan/bytes.h"

namespace oomlab::data {

namespace embedded {
extern const std::span<const unsigned char> course_text_txt;
}

Text course_text() {
  return {"the course's text", {embedded::course_text_txt.begin(), embedded::course_text_txt.end()}};
}

Text read_text(const std::string& path) {
  const std::string contents = read_file(path, std::size_t(1) << 30);
  Text text{path, {contents.begin(), contents.end()}};
  if (text.bytes.empty()) throw DataError("'" + path + "' is empty");
  return text;
}

double unigram_entropy(const Text& text) {
  std::array<std::size_t, 256> counts{};
  for (const unsigned char byte : text.bytes) ++counts[byte];
  double entropy = 0;
  for (const std::size_t count : counts)
    if (count) {
      const double p = static_cast<double>(count) / static_cast<double>(text.bytes.size());
      entropy -= p * std::log(p);
    }
  return entropy;
}

std::size_t TokenSamples::targets() const {
  if (planning()) return count;
  return static_cast<std::size_t>(std::count_if(labels.begin(), labels.end(), [](int label) { return label >= 0; }));
}

TextSampler::TextSampler(const Text& text, const Settings& settings) : text_(text), settings_(settings) {
  const std::size_t next = settings.task == TextTask::next_token ? 1 : 0;
  const bool too_short = text.bytes.size() < next || text.bytes.size() - next < settings.seq;
  if (settings.seq == 0 || text.bytes.empty() || (too_short && !settings.goes_round))
    throw DataError("'" + text.name + "' has " + std::to_string(text.bytes.size()) + " bytes; a sequence of " +
                    std::to_string(settings.seq) +
                    (next ? " tokens needs one more than that" : " tokens needs as many"));
}

namespace {

// SplitMix64's finaliser.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

TokenSamples TextSampler::samples(std::size_t first, std::size_t count, std::span<const std::uint64_t> lengths) const {
  TokenSamples made{{}, {}, count, settings_.seq, {lengths.begin(), lengths.end()}};
  if (planning()) return made;  // nobody reads them, and a batch may have any size

  const std::size_t seq = settings_.seq, rows = checked_product(count, seq);
  const bool next = settings_.task == TextTask::next_token;
  const std::size_t size = text_.bytes.size(), needed = seq + (next ? 1 : 0);
  const std::size_t places = size < needed ? size : size - needed + 1;
  made.tokens.assign(rows, 0);
  made.labels.assign(rows, -1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t key = mix(mix(settings_.seed) + first + i);
    const std::size_t from = mix(key) % places;
    const auto read = [&](std::size_t begin, std::size_t tokens_there, int* to) {
      for (std::size_t t = 0; t < tokens_there; ++t) to[t] = text_.bytes[(begin + t) % size];
    };
    const std::size_t shortest = std::max<std::size_t>(1, seq / 8);
    const std::size_t drawn = settings_.ragged ? shortest + mix(key + 1) % (seq - shortest + 1) : seq;
    const std::size_t length = lengths.empty() ? drawn : lengths[i];
    int* const tokens = made.tokens.data() + i * seq;
    int* const labels = made.labels.data() + i * seq;
    read(from, length, tokens);
    if (next) {
      read(from + 1, length, labels);
      continue;
    }
    const std::size_t surely = mix(key + 2) % length;
    for (std::size_t t = 0; t < length; ++t)
      if (t == surely || mix(key ^ mix(t + 3)) % 100 < 15) {
        labels[t] = tokens[t];
        tokens[t] = settings_.mask_token;
      }
  }
  return made;
}

std::vector<std::uint64_t> paragraph_lengths(const Text& text, std::uint64_t seq) {
  std::vector<std::uint64_t> lengths;
  const auto& bytes = text.bytes;
  std::size_t first = 0;
  for (std::size_t i = 1; i <= bytes.size(); ++i) {
    const bool after_empty_line = bytes[i - 1] == '\n' && i >= 2 && bytes[i - 2] == '\n';
    const bool ends = i == bytes.size() || (after_empty_line && bytes[i] != '\n');
    if (!ends) continue;
    lengths.push_back(std::min<std::uint64_t>(i - first, seq));
    first = i;
  }
  return lengths;
}

std::vector<std::uint64_t> ragged_lengths(std::size_t count, std::uint64_t seq) {
  const std::uint64_t shortest = std::max<std::uint64_t>(1, seq / 8);
  std::vector<std::uint64_t> lengths;
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(i == 0 ? seq : shortest + mix(i) % (seq - shortest + 1));
  return lengths;
}

TokenSamples without_padding(const TokenSamples& samples, std::size_t first, std::size_t count) {
  TokenSamples packed{{}, {}, count, samples.seq, {}};
  for (std::size_t i = first; i < first + count; ++i) {
    const std::size_t length = samples.lengths.at(i);
    packed.lengths.push_back(length);
    if (samples.tokens.empty()) continue;  // plan mode
    const auto from = static_cast<std::ptrdiff_t>(i * samples.seq), to = from + static_cast<std::ptrdiff_t>(length);
    packed.tokens.insert(packed.tokens.end(), samples.tokens.begin() + from, samples.tokens.begin() + to);
    packed.labels.insert(packed.labels.end(), samples.labels.begin() + from, samples.labels.begin() + to);
  }
  return packed;
}

}  // namespace oomlab::data
