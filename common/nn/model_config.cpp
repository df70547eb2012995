#include "nn/model_config.h"

#include <cstddef>

#include "memory/files.h"

namespace oomlab::nn {

namespace {

constexpr std::size_t kMostBytes = std::size_t(1) << 20;  // real ones have a few thousand

}  // namespace

TransformerSpec read_model_config(const std::string& path) {
  return parse_model_config(read_file(path, kMostBytes), path);
}

}  // namespace oomlab::nn
