#pragma once
// A model's shape from a config.json: what plan/model/config.h reads, of a file.

#include <string>

#include "plan/model/config.h"

namespace oomlab::nn {

/// parse_model_config() of a file, at most a megabyte, with its path as name. Throws BadFile for one that cannot be read, too.
TransformerSpec read_model_config(const std::string& path);

}  // namespace oomlab::nn
