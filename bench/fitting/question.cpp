#include "question.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "images.h"
#include "model.h"
#include "options.h"
#include "plan/blas_workspace.h"
#include "plan/bytes.h"
#include "plan/lever/list.h"
#include "plan/limits.h"
#include "plan/names.h"
#include "plan/text.h"

namespace oomlab::fit {
namespace {

constexpr std::uint64_t kMostAsked = 1'000'000, kMostGpus = 1024, kUsualSeq = 2048;
constexpr std::uint64_t kFewestBytes = 1'000'000;  // of less, somebody forgot the unit

std::uint64_t bytes(const std::string& option, const std::string& text, bool may_be_none = true) {
  if (may_be_none && (text == "0" || text == "none")) return 0;
  try {
    return parse_bytes(text);
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

double percent(const std::string& option, std::string text) {
  if (text.ends_with('%')) text.pop_back();
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 90))
    throw UsageError(fmt::format("{} '{}' is not allowed; write percent of the memory, 0 to 90", option, text));
  return value;
}

double gb_per_s(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 1 && value <= 10'000))
    throw UsageError(fmt::format("{} '{}' is not allowed; write GB/s of host memory, 1 to 10000", option, text));
  return value;
}

// Names, with commas between them, in lines below each other.
std::string in_lines(const std::string& names, std::size_t indent, std::size_t width) {
  std::string lines, line;
  for (const std::string& name : split(names, ',')) {
    if (!line.empty() && indent + line.size() + 1 + name.size() > width) {
      lines += line + ",\n" + std::string(indent, ' ');
      line = name.substr(1);
    } else {
      line += line.empty() ? name : "," + name;
    }
  }
  return lines + line;
}

// What of the question is not as somebody may think.
std::vector<std::string> notes_on(const Question& question) {
  const nn::TransformerSpec& spec = question.spec;
  std::vector<std::string> notes;
  if (!question.course) notes.push_back("this course's programs do not know the model; what PyTorch needs is known");
  if (spec.name.find(':') != std::string::npos && question.model.starts_with("--model")) {
    std::string note = fmt::format(
        "{} has a vocabulary of {}, because text here is bytes; published models have tens of "
        "thousands of tokens, which take more",
        spec.name, spec.vocabulary);
    for (const nn::TransformerSpec& named : nn::named_transformers())
      if (named.style == spec.style && named.layers == spec.layers && named.heads == spec.heads &&
          named.width == spec.width && named.keys() == spec.keys() && named.hidden() == spec.hidden())
        note += fmt::format(": write --model {} for its {}", named.name, named.vocabulary);
    notes.push_back(std::move(note));
  }
  if (!spec.stored_as.empty())
    notes.push_back(fmt::format("quantization_config ({}) is left out: weights are planned as this answer's rows say",
                                spec.stored_as));
  if (question.seq >= kCourseTextBytes)
    notes.push_back(
        fmt::format("a sequence is longer than the course's text: without --plan, commands with --seq {} need a "
                    "--text FILE of more bytes",
                    question.seq));
  return notes;
}

// What has no tokens: what asks for these finds one.
void read_no_transformer(Question& question, const std::string& name) {
  question.course = false;
  question.spec.name = name;
  question.model = "--model " + name;
  question.shape = nn::HfShape{.name = name, .family = nn::HfFamily::vit, .positions = 1};
}

std::vector<std::string> words_that_may_be_left_out() {
  std::vector<std::string> words = words_of_levers();
  for (std::string& word : words_of_pipelines()) words.push_back(std::move(word));
  return words;
}

}  // namespace

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::pytorch: return "pytorch";
    case Engine::oomlab: return "oomlab";
    case Engine::vllm: return "vllm";
    case Engine::llama_cpp: return "llama.cpp";
  }
  return "";
}

const Card& card_named(const std::string& option, const std::string& text) {
  const Card* const card = find_card(text);
  if (!card) throw UsageError(fmt::format("{} {}; or give --memory SIZE", option, unknown_card(text)));
  return *card;
}

std::vector<std::string> words_of_levers() {
  std::vector<std::string> words;
  for (const plan::Lever* lever : plan::all_levers())
    for (const plan::LeverWord& word : lever->words) words.push_back(word.name);
  for (const char* const word : {"pages", "kv-8-bits", "weights", "processor"}) words.push_back(word);
  return words;
}

plan::SearchTask search_task(const Question& question) {
  const auto work_on = [&](std::uint64_t ranks) -> plan::Work {
    const std::uint64_t budget = question.room.budget(ranks);
    return {question.spec, question.batch, question.seq, budget, round_to_granule(default_workspace(budget))};
  };
  using Change = plan::Numbers::Change;
  return {.one = work_on(1),
          .several = work_on(2),
          .cards = question.gpus,
          .card = question.card,
          .host_bytes = question.room.host,
          .host_gb_per_s = question.host_gb_per_s,
          .change = question.numbers == Numbers::same    ? Change::rounding
                    : question.numbers == Numbers::adamw ? Change::fewer_bits
                                                         : Change::other,
          .precision = question.precision,
          .without = question.without,
          .progress = {}};
}

std::optional<Question> parse_question(const std::vector<std::string>& arguments) {
  auto all = parse_questions(arguments);
  return all ? std::optional(std::move(all->front())) : std::nullopt;
}

std::optional<std::vector<Question>> parse_questions(const std::vector<std::string>& arguments) {
  Question question;
  std::string model, config, gpu, gpus, memory;
  std::optional<std::uint64_t> seq, context, nccl, reserve;
  std::optional<double> host_bandwidth;
  question.room.host = kHostMemory;
  std::optional<double> fragmentation;
  bool checkpointing = false;
  std::string task;
  Options options{
      {"--model", [&](auto&, auto& text) { model = text; }},
      {"--config", [&](auto&, auto& text) { config = text; }},
      {"--batch", [&](auto& o, auto& text) { question.batch = whole(o, text, kMostAsked); }},
      {"--seq", [&](auto& o, auto& text) { seq = whole(o, text, std::uint64_t(1) << 30); }},
      {"--task",
       [&](auto& o, auto& text) {
         question.training = word(o, text) == 0;
         task = text;
       }},
      {"--gpu", [&](auto&, auto& text) { gpu = text; }},
      {"--gpus", [&](auto&, auto& text) { gpus = text; }},
      {"--memory", [&](auto&, auto& text) { memory = text; }},
      {"--context", [&](auto& o, auto& text) { context = bytes(o, text); }},
      {"--fragmentation", [&](auto& o, auto& text) { fragmentation = percent(o, text); }},
      {"--reserve", [&](auto& o, auto& text) { reserve = bytes(o, text); }},
      {"--nccl", [&](auto& o, auto& text) { nccl = bytes(o, text); }},
      {"--host-memory",
       [&](auto& o, auto& text) {
         question.room.host = bytes(o, text);
         question.host_named = true;
       }},
      {"--host-bandwidth", [&](auto& o, auto& text) { host_bandwidth = gb_per_s(o, text); }},
      {"--precision", [&](auto& o, auto& text) { question.precision = kModelDTypes[word(o, text)]; }},
      {"--numbers", [&](auto& o, auto& text) { question.numbers = static_cast<Numbers>(word(o, text)); }},
      {"--without",
       [&](auto& o, auto& text) {
         for (const std::string& lever : split(text, ',')) {
           (void)parse_word(o, lever, words_that_may_be_left_out());
           question.without.insert(lever);
         }
       }},
  };
  for (auto& [name, read] : reader_options(question)) options.emplace(name, read);
  const std::map<std::string, bool*> flags{{"--json", &question.json},
                                           {"--all", &question.all},
                                           {"--must-fit", &question.must_fit},
                                           {"--gradient-checkpointing", &checkpointing},
                                           {"--expandable-segments", &question.reader.expandable},
                                           {"--enforce-eager", &question.serving.eager}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    if (name == "-h" || name == "--help") return std::nullopt;
    if (const auto flag = flags.find(name); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    const std::size_t equals = name.find('=');
    const bool joined = name.starts_with("--") && equals != name.npos;
    if (joined) value = name.substr(equals + 1), name.resize(equals);
    const auto option = options.find(name);
    if (option == options.end()) throw UsageError(fmt::format("'{}' is not an option of fit; see --help", name));
    if (!joined) value = ++i < arguments.size() ? arguments[i] : "";
    if (value.empty()) throw UsageError(fmt::format("{} needs a value", name));
    option->second(name, value);
  }

  if (!model.empty() && !config.empty()) throw UsageError("--model and --config are two models; leave one out");
  if (model.empty() && config.empty())
    throw UsageError("say which model: --model NAME, for example bert-large, or --config FILE; see --help");
  if (config.empty()) question.backbone = nn::fpn_backbone_named(model);
  if (config.empty() && !question.backbone) question.network = network_named(lower_case(model));
  if (config.empty() && !question.of_images()) question.called = pipeline_called(model);
  if (question.called) question.pipeline = &image::pipeline_named(question.called->name);
  if (!question.pipeline) require_no_pipeline(question, task);
  if (question.of_images()) {
    read_no_transformer(question, question.network ? question.network->name : question.backbone->name);
    read_images(question);
  } else if (question.pipeline) {
    read_no_transformer(question, question.pipeline->name);
  } else {
    read_model(model, config, question);
  }
  require_input(question);
  if (checkpointing) question.reader.checkpoint = true;
  const std::uint64_t most = question.shape->positions;
  question.seq = seq.value_or(std::min<std::uint64_t>(question.course ? question.spec.positions : most, kUsualSeq));
  if (question.course && question.seq > question.spec.positions) question.course = false;
  if (question.seq > most)
    throw UsageError(
        fmt::format("--seq {} is longer than the {} positions of model '{}'", question.seq, most, question.spec.name));

  if (question.prompt && *question.prompt >= question.seq)
    throw UsageError(
        fmt::format("--prompt {} leaves no token of --seq {} to generate", *question.prompt, question.seq));

  // "4xa100-40" is both.
  std::string count = gpus;
  if (const std::size_t x = gpus.find('x'); x != gpus.npos) {
    if (!gpu.empty())
      throw UsageError(fmt::format("--gpus '{}' names a card, and --gpu another; leave --gpu out", gpus));
    count = gpus.substr(0, x), gpu = gpus.substr(x + 1);
    if (gpu.empty()) throw UsageError(fmt::format("--gpus '{}' is not allowed; write 4, or 4xa100-40gb", gpus));
  }
  if (!gpus.empty()) question.gpus = whole("--gpus", count, kMostGpus);
  read_engine(question, task, !gpus.empty());
  if (!question.training && question.gpus > 1 && question.engine == Engine::oomlab)
    throw UsageError("--task infer is for one card: what answers here, chapters 11 and 12, runs on one");
  if (question.of_images() && question.gpus > 1) throw UsageError("networks of images are planned for one card");
  const ReaderSettings& reader = question.reader;
  if ((reader.offload_optimizer || reader.offload_weights) && !(reader.sharding && is_zero(*reader.sharding)))
    throw UsageError("--to-host is DeepSpeed's: say --sharding zero2 or zero3, too");
  question.memory_named = !gpu.empty() || !memory.empty();
  const bool of_images = question.of_images() || question.pipeline;
  if (!question.memory_named && (!question.training || question.engine == Engine::oomlab || of_images))
    throw UsageError("say how much memory there is: --gpu NAME, or --memory 12GB");
  if (!question.memory_named && question.largest)
    throw UsageError("--largest: say how much memory there is: --gpu NAME, or --memory 12GB");
  if (!question.memory_named && question.must_fit)
    throw UsageError("--must-fit: say how much memory there is: --gpu NAME, or --memory 12GB");
  question.card_named = !gpu.empty();
  question.other_cards = other_cards(gpu);
  question.card = gpu.empty() ? find_card("a100-80gb") : &card_named(gpus == count ? "--gpu" : "--gpus", gpu);

  question.host_gb_per_s = host_bandwidth.value_or(plan::host_gb_per_s(*question.card));
  question.notes = notes_on(question);

  if (is_server(question.engine)) read_serving(question);
  if (question.pipeline) read_pipeline(question, task);

  std::vector<Question> all;
  for (const std::string& size : split(memory, ',')) {
    Room& room = question.room;
    room.memory = size.empty() && memory.empty() ? question.card->total_bytes() : bytes("--memory", size, false);
    room.context = context.value_or(context_on(*question.card).started);
    room.fragmentation_percent = fragmentation;
    room.fragmentation =
        static_cast<std::uint64_t>(static_cast<double>(room.memory) * fragmentation.value_or(kFragmentation) / 100);
    room.reserve = reserve.value_or(context_on(*question.card).growth);
    room.nccl = question.gpus > 1 ? nccl.value_or(kNccl) : 0;
    const std::uint64_t taken =
        checked_sum(checked_sum(checked_sum(room.context, room.fragmentation), room.reserve), room.nccl);
    if (taken >= room.memory && room.memory < kFewestBytes)
      throw UsageError(
          fmt::format("--memory '{}' is {} bytes; gigabytes are written as 24GB, or 24.5GB", size, room.memory));
    if (taken >= room.memory)
      throw UsageError(fmt::format(
          "context, fragmentation, reserve and NCCL take {} of the {} bytes: nothing is left; see --context "
          "and --reserve",
          taken, room.memory));
    room.workspace = round_to_granule(default_workspace(room.budget()));
    if (room.workspace >= room.budget())
      throw UsageError(fmt::format("{} bytes of memory leave nothing for a step", room.memory));
    all.push_back(question);
  }
  return all;
}

std::string help(std::string_view command) {
  return fmt::format(
      R"({0}: does it fit, and what is the cheapest way to make it?

  {0} --model llama-3.1-8b --gpu rtx4090
  {0} --model llama-3.2-1b --batch 1 --seq 2048 --gpu rtx3060
  {0} --config config.json --task infer --memory 9GB
  {0} --model llama-3.1-70b --batch 64 --seq 4096 --gpus 64xh100-sxm
  {0} --cards     cards, and the memory that CUDA reports of each; with --json as JSON

what
  --model NAME         meta-llama/Llama-3.1-8B, qwen3-8b, bert-large, gpt2, gpt:LAYERS-HEADS-WIDTH, ...
  --config FILE        or a Hugging Face config.json (llama, mistral, mixtral, qwen2 and 3, qwen3_moe, gemma2 and 3,
                       phi3, gpt2, bert, vit)
  --batch N            samples of a step, on all cards (default 1); with --task infer, sequences at a time
  --seq N              tokens of a sequence (default: the model's longest, at most {1})
  --task train|infer|image  default train; of sdxl, flux.1-dev, ... image
where
  --gpu NAME           {2}
  --gpus N             so many of them; or --gpus 4xa100-40gb
  --memory SIZE        bytes of a card, as 9GB or 8GiB (default: what CUDA reports of this card: docs/hardware.md);
                       of several, 8GB,12GB,24GB, a line each
what the step cannot have
  --context SIZE       the CUDA context with PyTorch's kernels (default {3}MB; from Hopper on {4}MiB, as measured on an H100)
  --fragmentation P    percent of the memory (default {5}: the mean of PyTorch's allocator over four traces)
  --reserve SIZE       what an answer leaves free (default {6}MB, from Hopper on {7}MiB: what the context grows by when its
                       kernels are loaded)
  --nccl SIZE          a rank's buffers, of several cards (default 256MiB: assumed, not measured)
the host, for updates and layers on the processor
  --host-memory SIZE   what they may take (default {8}GB: 32 modules of 128 GB, more than most machines have)
  --host-bandwidth N   GB/s of it, for times (default: {9} beside GeForce cards, two channels of DDR5-6400, as desktops
                       have; {10} beside others, a server's twelve)
what may change
  --numbers WORD       same (AdamW in FP32; inference: no fewer bits), adamw (default: some of it in 16 or 8 bits),
                       any (any optimizer)
  --precision WORD     only fp32, fp16 or bf16
  --without A,B        leave levers out: {11}
  --all                the whole answer, this course's own programs too
  --json               all of it as JSON
  --must-fit           for scripts: exit code 0 only where it fits as it is, on every size of --memory
  --list               the models, cards and words that it knows; --cards the cards and their memory; with --json for programs
{12}exit code: 0 it fits, as it is or with changes; 1 nothing does; 64 bad usage
)",
      command, kUsualSeq, in_lines(card_names(), 23, 120), kContext.started / 1'000'000,
      kContextSinceHopper.started >> 20, kFragmentation, kContext.growth / 1'000'000, kContextSinceHopper.growth >> 20,
      kHostMemory / 1'000'000'000, plan::kDesktopGbPerS, plan::kServerGbPerS, fmt::join(words_of_levers(), ", "),
      reader_help());
}

}  // namespace oomlab::fit
