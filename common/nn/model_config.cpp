#include "nn/model_config.h"

#include "memory/files.h"

namespace oomlab::nn {

TransformerSpec read_model_config(const std::string& path) {
  return parse_model_config(read_file(path, kMostConfigBytes), path);
}

}  // namespace oomlab::nn
