#pragma once
// What a network of images takes: resnet50, mobilenet-v3-large, unet. It is this course's network that is planned
// (plan/network_step.h, chapter 10), in FP32; PyTorch's keeps the same maps, and has workspaces of cuDNN beside them.

#include <optional>
#include <string>
#include <vector>

#include "plan/category.h"
#include "plan/model/network.h"

namespace oomlab {
class JsonWriter;
}

namespace oomlab::fit {

struct Question;

/// One way to train or to run it.
struct ImagesWay {
  std::uint64_t batch = 1;
  bool in_place = false, recomputed = false;  ///< activations in place of norms; norms made again in the backward pass
  ByCategory bytes{};
  std::uint64_t outside = 0, spare = 0, limit = 0;  ///< the context, what it may grow by, and what there is
  std::uint64_t needed() const { return checked_sum(bytes.total(), outside); }
  bool fits() const { return checked_sum(needed(), spare) <= limit; }
};

struct ImagesAnswer {
  ImagesWay as_is;
  std::optional<ImagesWay> changed{};  ///< where it does not fit, with the least change with which it does
  std::optional<ImagesWay> largest{};  ///< of --largest batch, where one fits
};

/// The network of this name; nothing: there is none. Throws std::invalid_argument for a name with wrong figures.
std::optional<nn::NetworkSpec> network_named(const std::string& name);

/// Throws std::invalid_argument for an input that the network does not take.
ImagesAnswer answer_images(const Question& question);
std::string first_words(const Question& question, const ImagesAnswer& answer);
std::string first_line(const Question& question, const ImagesAnswer& answer);
void write(JsonWriter& json, const Question& question, const ImagesAnswer& answer);

}  // namespace oomlab::fit
