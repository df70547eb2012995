#pragma once
// A quantised model in a safetensors file. Beside its tensors it has one with the name "quantisation": a text that says
// what it is, one thing a line (as bitsandbytes keeps its "quant_state").
//
//   model bytes-llama
//   format int4
//   group 128
//
// A tensor that is stored as it is has the name of nn::tensors_of(); one that is quantised has its parts under this
// name: "layer 1 qkv weight.codes", ".scale", ".zero", ".absmax", ... Which there are: parts_of().

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/check.h"
#include "matrix.h"
#include "nn/files/safetensors.h"
#include "nn/files/state_file.h"
#include "source.h"

namespace oomlab::quantisation {

inline constexpr const char* kAbout = "quantisation";  ///< the tensor that says what a file is

inline std::string about(const nn::TransformerSpec& spec, const Format& format) {
  return "model " + spec.name + "\nformat " + name_of(format.scheme) + "\ngroup " +
         std::to_string(format.scheme == Scheme::int4 ? format.group : 0) + "\n";
}

/// A file that is open, and has said what it is. Model's constructor reads the rest.
class QuantisedFile {
 public:
  /// Throws nn::StateFileError, with one line, for what is no such file.
  explicit QuantisedFile(const std::string& path) : file_(path) {
    const nn::SafetensorsEntry* const entry = file_.find(kAbout);
    if (!entry || entry->dtype != DType::uint8 || entry->bytes > 4096)
      refuse("is no quantised model: it has no text '" + std::string(kAbout) + "'");
    text_.resize(entry->bytes);
    file_.read(*entry, 0, std::as_writable_bytes(std::span(text_)));
    const std::string form = word("format"), group = word("group");
    format_ = Format{.scheme = Scheme::as_is, .group = 0};
    for (const Scheme known : kSchemes)
      if (form == name_of(known)) format_->scheme = known;
    if (format_->scheme == Scheme::as_is) refuse("has a format that is not known");
    for (const char c : group) {
      if (c < '0' || c > '9' || format_->group > (std::size_t(1) << 40)) refuse("has a group that is no number");
      format_->group = format_->group * 10 + static_cast<std::size_t>(c - '0');
    }
  }
  const std::string& path() const noexcept { return file_.path(); }
  /// The group is 0, but for int4.
  const Format& format() const noexcept { return *format_; }
  /// Throws nn::StateFileError, with one line, for a file that is of another model than this.
  void require_model(const nn::TransformerSpec& spec) const {
    if (const std::string model = word("model"); model != spec.name)
      refuse("was quantised for model '" + model + "'; this is '" + spec.name + "'");
  }

  /// Fills a matrix. What it stores as it is may be F32 or BF16 there. Throws nn::StateFileError, with one line that
  /// names the tensor, for one that is not there, has another type or number of bytes, or a scale that is not finite.
  template <class T>
  void load(Context& context, const std::string& name, Matrix<T>& matrix, Loading& loading) const {
    if (matrix.format().scheme == Scheme::as_is) {
      const nn::SafetensorsEntry& entry = checked(name, kRestDTypes, matrix.count());
      matrix.encode(context, loading, [&](Context& c, std::size_t first, std::size_t count, float* to) {
        const std::vector<float> values = floats(entry, first, count);
        copy(c, to, values.data(), values.size() * sizeof(float));
      });
      return;
    }
    for (std::size_t p = 0; p < matrix.layout().size(); ++p) {
      const Part& part = matrix.layout()[p];
      if (!part.count) continue;
      const nn::SafetensorsEntry& entry = checked(name + "." + part.name, {&part.type, 1}, part.count);
      if (planning()) continue;
      constexpr std::size_t piece = std::size_t(1) << 20;
      for (std::size_t first = 0; first < part.count; first += piece) {
        const std::size_t here = std::min(piece, part.count - first);
        const std::size_t element = element_bytes(part.type);
        if (row_of(part.type).smallest_normal > 0) (void)floats(entry, first, here);  // finite
        std::vector<std::byte> bytes(here * element);
        file_.read(entry, first * element, bytes);
        copy(context, matrix.part_data(p) + first * element, bytes.data(), bytes.size());
      }
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw nn::StateFileError("'" + file_.path() + "' " + what);
  }
  // What stands behind a word of the text, at most 100 characters of it.
  std::string word(std::string_view key) const {
    const std::string line = std::string(key) + " ";
    const std::size_t at = text_.starts_with(line) ? 0 : text_.find("\n" + line);
    if (at == std::string::npos) refuse("does not say which " + std::string(key) + " it has");
    const std::size_t begin = at + line.size() + (at == 0 && text_.starts_with(line) ? 0 : 1);
    std::string found = text_.substr(begin, std::min<std::size_t>(100, text_.find('\n', begin) - begin));
    for (char& c : found)
      if (c < ' ' || c > '~') c = '?';
    return found;
  }
  // Of one of these types.
  const nn::SafetensorsEntry& checked(const std::string& name, std::span<const DType> types, std::size_t count) const {
    const nn::SafetensorsEntry* const entry = file_.find(name);
    if (!entry) refuse("has no tensor '" + name + "'");
    if (std::ranges::find(types, entry->dtype) == types.end()) {
      std::string wanted;
      for (const DType type : types) wanted += (wanted.empty() ? "" : " or ") + std::string(safetensors_word(type));
      refuse("has a tensor '" + name + "' of type " + safetensors_word(entry->dtype) + " instead of " + wanted);
    }
    const std::size_t bytes = checked_product(count, element_bytes(entry->dtype));
    if (entry->bytes != bytes)
      refuse("has a tensor '" + name + "' of " + std::to_string(entry->bytes) + " bytes; this model's has " +
             std::to_string(bytes));
    return *entry;
  }
  std::vector<float> floats(const nn::SafetensorsEntry& entry, std::size_t first, std::size_t count) const {
    std::vector<float> values = floats_of(file_, entry, first, count);
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); }))
      refuse("has a tensor '" + entry.name + "' with a number that is not finite");
    return values;
  }
  static void copy(Context& context, void* to, const void* from, std::size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, context.stream()));
    context.synchronize();  // before `from` is gone
  }

  nn::SafetensorsFile file_;
  std::string text_;
  std::optional<Format> format_;
};

}  // namespace oomlab::quantisation
