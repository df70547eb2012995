#include "harness/outputs.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <variant>

#include "harness/chapter.h"
#include "memory/files.h"

namespace oomlab {

void check_output_path(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  if (const std::string why = why_not_writable(path); !why.empty())
    throw UsageError(fmt::format("{}: {}", option, why));
}

void check_outputs(const Config& config, const NamedPaths& more) {
  NamedPaths outputs = {{"--json", config.json}, {"--trace", config.trace}, {"--snapshot", config.snapshot}};
  outputs.insert(outputs.end(), more.begin(), more.end());
  std::erase_if(outputs, [](const auto& output) { return output.second.empty(); });
  for (const auto& [option, path] : outputs) check_output_path(option, path);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (same_file(outputs[i].second, outputs[j].second))
        throw UsageError(fmt::format("{} '{}' and {} '{}' are one file: one would overwrite the other",
                                     outputs[j].first, outputs[j].second, outputs[i].first, outputs[i].second));
  for (const OptionValues::Entry& entry : config.options.entries()) {
    const auto* const word = std::get_if<std::string>(&entry.value);
    std::error_code ignored;
    if (!word || !std::filesystem::exists(*word, ignored)) continue;
    for (const auto& [option, path] : outputs)
      if (same_file(path, *word))
        throw UsageError(fmt::format("{} '{}' would overwrite the file of --{}", option, path, entry.name));
  }
}

}  // namespace oomlab
