#pragma once
// What somebody asks of `fit`: a model, a batch, a task, and the memory that there is for it.

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pipelines.h"
#include "plan/model/fpn.h"
#include "plan/model/huggingface_config.h"
#include "plan/model/network.h"
#include "plan/search/task.h"
#include "reader.h"
#include "serving.h"

namespace oomlab::fit {

/// Of a card's memory, bytes: what the step cannot have, and what it can.
struct Room {
  std::uint64_t memory = 0;                     ///< of one card
  std::uint64_t context = 0;                    ///< the CUDA context, with the kernels that it loads
  std::uint64_t fragmentation = 0;              ///< what an allocator reserves and cannot hand out
  std::optional<double> fragmentation_percent;  ///< of what a program of PyTorch has live; nothing: by replay
  std::uint64_t reserve = 0;                    ///< what an answer leaves free
  std::uint64_t nccl = 0;                       ///< buffers between ranks; 0 for one card
  std::uint64_t workspace = 0;                  ///< cuBLAS's: part of a program's --budget
  std::uint64_t host = 0;                       ///< bytes of host memory that a step may take
  /// For --budget. A step that uses one card of several has no buffers between ranks.
  std::uint64_t budget(std::uint64_t ranks = 2) const {
    return memory - context - fragmentation - reserve - (ranks > 1 ? nccl : 0);
  }
  /// For the step's own peak.
  std::uint64_t left(std::uint64_t ranks = 2) const { return budget(ranks) - workspace; }
};

/// What a process has on a card beside its tensors, bytes.
struct Context {
  std::uint64_t started;  ///< with lazy loading, the default since CUDA 12.2
  std::uint64_t growth;   ///< by the kernels that are loaded when they are first used; so much an answer leaves free
};
/// Before Hopper: 287 MB with PyTorch's kernels, 667 MB with all of them loaded (its pull request 86509). 141 MiB were
/// measured on a T4 (fitcheck-llm 0.3.1).
inline constexpr Context kContext{287'000'000, 667'000'000 - 287'000'000};
/// Since: 532 MiB of PyTorch 2.11's that has just started on an H100, 788 MiB after the last of 24 settings, without
/// another process's 612 MiB (`used_before` of the first row, and `used` less `reserved` of the last, in
/// bench/results/peers/huggingface_training_nvidia-h100-80gb-hbm3.json and pytorch_training_….json).
inline constexpr Context kContextSinceHopper{std::uint64_t(532) << 20, std::uint64_t(788 - 532) << 20};
/// Of such a card PyTorch takes more: a larger context, and larger workspaces of cuBLAS.
inline bool since_hopper(const Card& card) { return card.capability >= 9; }
inline const Context& context_on(const Card& card) { return since_hopper(card) ? kContextSinceHopper : kContext; }
/// Percent of the memory: what PyTorch's allocator needed above the live peak in the mean of four traces
/// (bench/results/host/allocators.txt: 2.08 %; with steps of equal shapes 0.2 %).
inline constexpr double kFragmentation = 2;
/// Host memory: two sockets with 16 modules of 128 GB each, which few machines have.
inline constexpr std::uint64_t kHostMemory = std::uint64_t(2) * 16 * 128'000'000'000;
/// A rank's. Assumed, not measured: NCCL_BUFFSIZE's default of 4 MiB, for 32 channels, to send and to receive.
inline constexpr std::uint64_t kNccl = std::uint64_t(256) << 20;

/// How far a combination may change what is learned.
enum class Numbers {
  same,   ///< AdamW in FP32: losses the same within rounding
  adamw,  ///< AdamW, some of it in 16 or 8 bits; no update vanishes in rounding
  any,    ///< any optimizer, and weights in 16 bits that nothing makes up for
};

/// Whose program the first answer is about.
enum class Engine {
  pytorch,  ///< the reader's: Hugging Face's modules
  oomlab,   ///< this course's
  vllm,
  llama_cpp,
};
/// "pytorch", "oomlab", "vllm", "llama.cpp": for --engine.
const char* name_of(Engine engine);
inline constexpr std::array kEngines{Engine::pytorch, Engine::oomlab, Engine::vllm, Engine::llama_cpp};
/// vLLM and llama.cpp.
inline bool is_server(Engine engine) { return engine == Engine::vllm || engine == Engine::llama_cpp; }
/// In whose words it says what to write.
enum class Framework { trainer, trl, deepspeed, torchtune };
/// How generate() keeps keys and values.
enum class Cache {
  dynamic,  ///< each layer's grow by concatenation
  fixed,    ///< cache_implementation="static"
  tuple,    ///< every token makes all layers' anew beside the old ones, as models did before transformers 4.36
};
/// What --largest looks for.
enum class Largest { batch, seq, size };
/// The most sequences that `--largest batch` tries where it asks for inference.
inline constexpr std::uint64_t kMostAtATime = std::uint64_t(1) << 20;

struct Question {
  /// Answered by images.h.
  bool of_images() const { return network || backbone; }
  nn::TransformerSpec spec;          ///< where this course's programs do not know the model, only its name
  std::optional<nn::HfShape> shape;  ///< the model as transformers has it
  bool course = true;                ///< this course's programs know the model
  std::string model;                 ///< as the programs take it: "--model bert-large", "--config /a/config.json"
  std::uint64_t batch = 1, seq = 0;
  bool training = true;
  const Card* card = nullptr;  ///< whose times are bounds
  bool card_named = false;
  std::string other_cards;  ///< that the name may mean, too
  std::uint64_t gpus = 1;
  Room room;
  double host_gb_per_s = 0;  ///< of host memory
  Numbers numbers = Numbers::adamw;
  std::optional<DType> precision;  ///< only this one
  std::set<std::string> without;   ///< levers that are left out, by words_of_levers()
  std::vector<std::string> notes;  ///< what is not as somebody may think: sentences for the answer
  bool json = false;
  bool all = false;           ///< the whole answer, not only its first lines
  bool must_fit = false;      ///< exit code 0 only where it fits as it is
  bool chinese = false;       ///< the first lines
  bool host_named = false;    ///< --host-memory says how much host memory there is
  bool memory_named = false;  ///< there is a card, or a size; else the question is how large it must be
  Engine engine = Engine::pytorch;
  Framework framework = Framework::trainer;
  std::optional<Largest> largest;
  std::optional<std::uint64_t> prompt;  ///< of the tokens that generate() reads and writes
  Cache cache = Cache::dynamic;
  ReaderSettings reader;
  ServingSettings serving;
  std::optional<nn::NetworkSpec> network;         ///< of images, instead of a transformer
  std::optional<nn::FpnBackbone> backbone;        ///< of a detector, instead of a transformer
  std::optional<nn::InputSize> input;             ///< pixels of an image; set where there is a network or a backbone
  const image::PipelineSpec* pipeline = nullptr;  ///< that makes images, instead of a transformer
  const PublicPipeline* called = nullptr;         ///< the same, as diffusers has it
  std::uint64_t size = 0;                         ///< pixels of the side of an image that it makes
  PipelineLevers with;                            ///< that it has switched on
};

/// What --without takes: the words of all levers of training, then those of inference.
std::vector<std::string> words_of_levers();
/// The question of training, as a search takes it.
plan::SearchTask search_task(const Question& question);

/// Reads a command line. Nothing: --help was asked for. Throws UsageError, or std::invalid_argument, with one line that
/// says what is known or allowed.
std::optional<Question> parse_question(const std::vector<std::string>& arguments);
/// The same; of several memories, "--memory 8GB,12GB", a question for each.
std::optional<std::vector<Question>> parse_questions(const std::vector<std::string>& arguments);
/// What --help prints. `command`: what people type to ask.
std::string help(std::string_view command = "bench/fit");

/// A card by a name of plan/card.h. Throws UsageError for others.
const Card& card_named(const std::string& option, const std::string& text);

}  // namespace oomlab::fit
