#pragma once
// What a network of images takes, in FP32. Of resnet50, mobilenet-v3-large, unet and their like this course's network is
// planned (plan/network_step.h, chapter 10); PyTorch's keeps the same maps. Of a detector's backbone PyTorch's own step is
// followed (plan/pytorch/detection.h). Workspaces of cuDNN come on top of both.

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
  std::uint64_t allocator = 0;                      ///< reserved beyond what is live, where PyTorch's step is followed
  std::uint64_t outside = 0, spare = 0, limit = 0;  ///< the context, what it may grow by, and what there is
  std::uint64_t needed() const { return checked_sum({bytes.total(), allocator, outside}); }
  bool fits() const { return checked_sum(needed(), spare) <= limit; }
};

struct ImagesAnswer {
  ImagesWay as_is;
  std::optional<ImagesWay> changed{};  ///< where it does not fit, with the least change with which it does
  std::optional<ImagesWay> largest{};  ///< of --largest batch, where one fits
};

/// The network of this name; nothing: there is none. Throws std::invalid_argument for a name with wrong figures.
std::optional<nn::NetworkSpec> network_named(const std::string& name);

/// Sets the input where the question has none. Throws UsageError, in one line, for what no network of images is asked.
void read_images(Question& question);
/// Throws UsageError where --input says something of a model that takes no image, or none of that size.
void require_input(const Question& question);
/// All of the model's parameters.
std::uint64_t parameters_of_images(const Question& question);

/// Throws std::invalid_argument for an input that the network does not take.
ImagesAnswer answer_images(const Question& question);
std::string first_words(const Question& question, const ImagesAnswer& answer);
std::string first_line(const Question& question, const ImagesAnswer& answer);
void write(JsonWriter& json, const Question& question, const ImagesAnswer& answer);

}  // namespace oomlab::fit
