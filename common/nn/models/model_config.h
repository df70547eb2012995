#pragma once
// A model's shape from a config.json: what plan/model/config.h reads, of a file.

#include <string>

#include "memory/files.h"
#include "plan/model/config.h"

namespace oomlab::nn {

/// parse_model_config() of a file, at most a megabyte, with its path as name. Throws BadFile for one that cannot be
/// read, too.
inline TransformerSpec read_model_config(const std::string& path) {
  return parse_model_config(read_file(path, kMostConfigBytes), path);
}

}  // namespace oomlab::nn
