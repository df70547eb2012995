#include "harness/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "harness/benchmark_flags.h"
#include "harness/filter.h"
#include "harness/outputs.h"
#include "plan/bytes.h"
#include "plan/language.h"
#include "plan/limits.h"
#include "plan/names.h"

namespace oomlab {
namespace {

std::size_t parse_count(const std::string& option, const std::string& text) { return parse_number(option, text, 1); }

std::size_t parse_size(const char* option, const std::string& text, bool or_none) {
  if (or_none && text == "none") return kUnlimited;
  try {
    return parse_bytes(text);
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("{}: {}{}", option, error.what(), or_none ? ", or none" : ""));
  }
}

// The default of an option: of the first of `defaults` that names one. Not set when none does.
void set_default(OptionValues& values, const ChapterOption& option, std::initializer_list<const Defaults*> defaults) {
  for (const Defaults* d : defaults)
    for (const ChapterOption& o : d->options)
      if (o.has_default && std::string_view(o.name) == option.name)
        return option.kind == ChapterOption::Kind::number ? values.set(option.name, o.number)
                                                          : values.set(option.name, std::string(o.word));
}

// The values that go with a published model, or `otherwise`.
const Defaults& defaults_of(const std::string& model, const Defaults& full, const Defaults& otherwise) {
  for (const Defaults* d = &full; d->published; d = d->published) {
    for (const std::string& name : split(d->published_models, ' '))
      if (name == model) return *d->published;
  }
  return otherwise;
}

std::string describe(const Defaults& d, const Defaults& full) {
  std::string options;
  for (const ChapterOption& option : full.options) {
    OptionValues value;
    set_default(value, option, {&d, &full});
    for (const OptionValues::Entry& entry : value.entries()) options += " --" + entry.words();
  }
  return fmt::format("--model {} --batch {}{}{} --steps {} --budget {}", d.model, d.batch, options,
                     d.devices ? fmt::format(" --devices {}", d.devices) : "", d.steps,
                     d.budget == kUnlimited ? "none" : format_bytes(d.budget));
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv, const std::string& program, const Defaults& full,
                               const Defaults& quick) {
  CommandLine result;
  Config& config = result.config;
  struct Own {  // an option of the chapter's own
    const ChapterOption* option;
    std::string text = "";
    bool flag = false;
  };
  std::string budget, workspace, host_memory, device, devices, batch, steps, memory_steps, card, language;
  bool version = false;

  CLI::App app{fmt::format("{}: a chapter of OOM Lab.\nDefaults: {}\nWith --quick: {}", program, describe(full, full),
                           describe(quick, full)),
               program};
  app.set_help_flag("-h,--help", "Show this and exit");
  app.add_flag("--version", version, "Show the version and exit");
  const CLI::Option* budget_option =
      app.add_option("--budget", budget, "Device memory the run may allocate, for example 512MiB or 2GiB, or none");
  app.add_option("--workspace", workspace,
                 "cuBLAS workspace, counted (default 8 MiB, but at most 5 % of the budget), for example 32MiB");
  app.add_option("--host-memory", host_memory,
                 "Host memory that all ranks together may have, pinned, pageable and managed, for example 64GiB "
                 "(default: as much as there is)");
  app.add_flag("--tf32", config.tf32,
               "Products of FP32 matrices in TF32: on tensor cores, operands rounded to 10 bits of mantissa");
  const CLI::Option* device_option =
      app.add_option("--device", device, "Device number (default 0), or auto: the one with the most free memory");
  const CLI::Option* devices_option =
      app.add_option("--devices", devices, "Number of devices, for chapters that use several");
  const CLI::Option* model_option =
      app.add_option("--model", config.model,
                     fmt::format("Model by name, of up to {} layers, for example {}", kMostLayers, full.models));
  const CLI::Option* batch_option = app.add_option("--batch", batch, "Samples per step");
  const CLI::Option* steps_option = app.add_option("--steps", steps, "Timed steps per variant");
  const CLI::Option* memory_steps_option = app.add_option(
      "--memory-steps", memory_steps,
      fmt::format("Steps whose memory is counted, before any is timed (default {}); with {} or more, what "
                  "grows from step to step is named. With --plan any number: steps that repeat each other are left out",
                  kMemorySteps, kStepsForGrowth));
  std::vector<Own> own;
  own.reserve(full.options.size());  // the parser writes into it
  for (const ChapterOption& option : full.options) {
    Own& mine = own.emplace_back(&option);
    const std::string name = fmt::format("--{}", option.name);
    option.kind == ChapterOption::Kind::flag ? app.add_flag(name, mine.flag, option.help)
                                             : app.add_option(name, mine.text, option.help);
  }
  app.add_flag("--quick", config.quick, "A small model and few steps: done in seconds");
  app.add_flag("--plan", config.plan, "Count the bytes and compute nothing; any size on any machine");
  const CLI::Option* card_option = app.add_option(
      "--card", card, fmt::format("With --plan: the least time that a step can take on this card: {}", card_names()));
  app.add_flag("--list", config.list, "List the variants and claims, and exit");
  app.add_option("--filter", config.filter, "Run only variants whose name matches this regular expression");
  app.add_flag("--no-claims", config.no_claims, "Judge no claims; some of them plan thousands of steps");
  app.add_option("--json", config.json, "Write the results to this file");
  app.add_option("--trace", config.trace, "Write the first variant's timeline for Chrome or Perfetto");
  app.add_option("--snapshot", config.snapshot, "Write the first variant's timeline for PyTorch's memory_viz");
  app.add_flag("--series", config.series, "With --json: what each step held, and the rate of each timed step");
  app.add_flag(
      "--watch", config.watch,
      "Print live and peak bytes after each phase and step whose memory is counted or planned, to standard error: "
      "one line on a terminal, else many. Not with --quiet");
  app.add_option("--lang", language,
                 "zh: what stands below a table, and the report of an OOM, in Chinese. Tables, progress and files stay "
                 "English");
  app.add_flag("--quiet", config.quiet, "Print no progress and no table; the exit code and files tell");
  app.allow_extras();
  app.footer(
      "Flags of Google Benchmark (--benchmark_...) work too.\n"
      "Exit code: 0 ran, out-of-memory rows included; 1 a check failed or a file could not be written;\n"
      "2 cannot run here; 64 bad usage; 130 interrupted.");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    result.quit = true;
    result.text = app.help();
    return result;
  } catch (const CLI::ArgumentMismatch& error) {
    for (const ChapterOption& option : full.options)  // what it takes is said, not only that it takes something
      if (std::string_view(error.what()).starts_with(fmt::format("--{}:", option.name)))
        throw UsageError(fmt::format("--{} needs a value: {}", option.name, option.help));
    throw UsageError(fmt::format("{}; see --help", error.what()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}; see --help", error.what()));
  }
  if (version) {
    result.quit = true;
    result.text = fmt::format("{} of OOM Lab " OOMLAB_VERSION "\n", program);
    return result;
  }
  for (const Own& mine : own)  // the parser takes the next option for its value
    if (mine.text.starts_with("--"))
      throw UsageError(fmt::format("--{} needs a value: {}", mine.option->name, mine.option->help));
  std::string benchmark_out;
  for (const std::string& extra : app.remaining()) {
    for (const ChapterOption& option : full.options)
      if (*option.formerly && extra.substr(0, extra.find('=')) == fmt::format("--{}", option.formerly))
        throw UsageError(fmt::format("--{} is --{} here: {}", option.formerly, option.name, option.help));
    if (extra.rfind("--benchmark_", 0) != 0)
      throw UsageError(fmt::format("'{}' is not an option of this program; see --help", extra));
    check_benchmark_flag(extra);
    if (const std::string v = benchmark_value(extra, "--benchmark_filter"); !v.empty()) result.benchmark_filter = v;
    if (const std::string v = benchmark_value(extra, "--benchmark_out"); !v.empty()) benchmark_out = v;
    result.benchmark_flags.push_back(extra);
  }

  config.model = lower_case(config.model);
  const Defaults& size = config.quick ? quick : full;
  const Defaults& defaults = defaults_of(config.model, full, size);
  const auto given = [](const CLI::Option* option) { return option->count() > 0; };
  config.budget = given(budget_option) ? parse_size("--budget", budget, /*or_none=*/true) : defaults.budget;
  config.batch = given(batch_option) ? parse_count("--batch", batch) : defaults.batch;
  if (config.batch > kMostBatch)
    throw UsageError(fmt::format("--batch {} is not allowed; up to {} samples are", config.batch, kMostBatch));
  config.steps = given(steps_option) ? parse_count("--steps", steps) : defaults.steps;
  if (given(memory_steps_option)) config.memory_steps = parse_count("--memory-steps", memory_steps);
  if (config.series && config.memory_steps > kMostSteps)
    throw UsageError(fmt::format("--series has what each of up to {} steps held; --memory-steps says {}", kMostSteps,
                                 config.memory_steps));
  if (config.series && config.json.empty()) throw UsageError("--series goes with --json: that is where it is written");
  if (config.quiet) config.watch = false;
  config.workspace = workspace.empty() ? default_workspace(config.budget) : parse_size("--workspace", workspace, false);
  if (!host_memory.empty()) config.host_memory = parse_size("--host-memory", host_memory, false);
  if (!given(model_option)) config.model = size.model;
  for (const Own& mine : own) {
    if (mine.option->names_model && !mine.text.empty()) {
      if (given(model_option))
        throw UsageError(fmt::format("--{} and --model both say which model; give one of them", mine.option->name));
      config.model = mine.text;
    }
    if (mine.flag) config.options.set(mine.option->name, true);
    if (!mine.text.empty())
      set_option(config.options, *mine.option, mine.text);
    else
      set_default(config.options, *mine.option, {&defaults, &full});
  }
  if (device == "auto") {
    result.device_auto = true;
  } else if (given(device_option)) {
    config.device = int(parse_number("--device", device, 0, std::numeric_limits<int>::max(), ", or auto"));
  }
  config.devices = full.devices ? defaults.devices : 1;
  config.devices_given = given(devices_option);
  if (config.devices_given) config.devices = parse_number("--devices", devices, 1);
  if (given(card_option)) {
    if (!config.plan) throw UsageError("--card goes with --plan; a run on a GPU knows its own");
    config.card = find_card(card);
    if (!card.empty() && !config.card) throw UsageError(fmt::format("--card {}", unknown_card(card)));
  }
  if (!language.empty()) config.chinese = asks_for_chinese(language);
  check_filter("--filter", config.filter);
  for (const CLI::Option* option : app.get_options())  // an unset variable in a script is no value
    if (option->count() > 0 && option->get_expected_min() > 0 && option->results().front().empty())
      throw UsageError(fmt::format("{} needs a value", option->get_name()));
  check_outputs(config, {{"--benchmark_out", benchmark_out}});
  return result;
}

}  // namespace oomlab
