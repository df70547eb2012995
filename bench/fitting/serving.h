#pragma once
// What a server takes that is not PyTorch's generate(): vLLM's and llama.cpp's ways of counting. The bytes are
// plan/engine's; here stands which settings are asked for, what else of a card is taken, and what makes it fit.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/engine/llama_cpp.h"
#include "plan/engine/vllm.h"

namespace oomlab {
class JsonWriter;
}

namespace oomlab::fit {

struct Question;

/// What the question says of a server. Nothing: the server's default.
struct ServingSettings {
  std::string weights;                          ///< --weights, as typed: of vLLM a format, of llama.cpp a GGUF's kind
  std::string cache;                            ///< --cache-type, as typed
  double utilization = 0.9;                     ///< vLLM's gpu_memory_utilization
  std::optional<std::uint64_t> batched_tokens;  ///< vLLM's max_num_batched_tokens
  std::optional<std::uint64_t> sequences;       ///< vLLM's max_num_seqs
  bool eager = false;                           ///< vLLM's enforce_eager: no CUDA graphs
  std::optional<std::uint64_t> layers;          ///< llama.cpp's -ngl
  std::optional<std::uint64_t> cards;           ///< vLLM's tensor_parallel_size
  std::optional<std::uint64_t> micro_batch;     ///< llama.cpp's -ub
};

/// Reads --weights and --cache-type of the question's server into what it starts with, and refuses what it does not
/// have. Throws UsageError with one line.
void read_serving(Question& question);

/// How a figure is known.
enum class Known {
  read,     ///< from the engine's sources: exact
  logs,     ///< read, and it agrees with what logs print
  assumed,  ///< of logs, or a guess
};

struct ServingRow {
  const char* key;  ///< in JSON
  const char* english;
  const char* chinese;
  Between bytes;  ///< of the card that needs most
  Known known;
};

/// One way to serve, and what it needs.
struct ServingWay {
  VllmRun vllm{};
  LlamaCppRun llama_cpp{};
  std::uint64_t requests = 1, tokens = 1;  ///< at once, and of each
  std::vector<ServingRow> rows{};
  std::uint64_t limit = 0;  ///< what there is for all rows: of vLLM its share of the card
  std::uint64_t file = 0;   ///< bytes of a GGUF's tensors
  std::uint64_t host = 0;   ///< bytes of host memory
  Between cached{};         ///< of vLLM: tokens that its cache will hold
  Between needed() const;
  bool fits() const { return needed().high <= limit; }
};

struct ServingAnswer {
  ServingWay as_is;
  std::vector<ServingWay> changed{};    ///< where it does not fit: one change each, the mildest first
  std::optional<ServingWay> largest{};  ///< of --largest, where one fits
};

/// Throws std::invalid_argument for what the engine refuses.
ServingAnswer answer_serving(const Question& question);

/// At most kMostLines lines of at most kMostColumns columns, in the question's language; the first is the answer.
std::string first_words(const Question& question, const ServingAnswer& answer);
std::string first_line(const Question& question, const ServingAnswer& answer);
/// The same as JSON.
void write(JsonWriter& json, const Question& question, const ServingAnswer& answer);
/// "FP8", "AWQ or GPTQ", "Q4_K_M".
std::string weights_of(const Question& question, const ServingWay& way);
std::string cache_of(const Question& question, const ServingWay& way);

}  // namespace oomlab::fit
