#include "plan/image/simulation.h"

#include <algorithm>
#include <stdexcept>

#include "plan/adapter_state.h"
#include "plan/quantised/format.h"

namespace oomlab::image {

Simulation::Simulation(const Run& run) : run_(run) {
  if (std::find(kModelDTypes.begin(), kModelDTypes.end(), run.dtype) == kModelDTypes.end())
    throw std::invalid_argument(std::string("a pipeline's number format is one of fp32, fp16 and bf16, not ") +
                                name_of(run.dtype));
  if (run.batch == 0) throw std::invalid_argument("a batch has at least one image");
  element_bytes_ = oomlab::element_bytes(run.dtype);
}

Buffer Simulation::bytes(std::uint64_t bytes, Category category) {
  const Buffer buffer{category, round_to_granule(bytes)};
  device_.add(category, buffer.bytes);
  return buffer;
}

Buffer Simulation::rows(std::uint64_t rows, std::uint64_t width) {
  return bytes(checked_product(checked_product(rows, width), element_bytes_), Category::activations);
}

Buffer Simulation::floats(std::uint64_t count) {
  return bytes(checked_product(count, sizeof(float)), Category::activations);
}

void Simulation::free(Buffer& buffer) {
  device_.drop(buffer.category, buffer.bytes);
  buffer.bytes = 0;
}

void Simulation::free(std::initializer_list<Buffer*> buffers) {
  for (Buffer* const buffer : buffers) free(*buffer);
}

void Simulation::meanwhile(std::uint64_t size, Category category) {
  Buffer buffer = bytes(size, category);
  free(buffer);
}

Buffer Simulation::pinned(std::uint64_t bytes, Category category) {
  const Buffer buffer{category, round_to_granule(bytes)};
  pinned_.add(category, buffer.bytes);
  return buffer;
}

void Simulation::free_pinned(Buffer& buffer) {
  pinned_.drop(buffer.category, buffer.bytes);
  buffer.bytes = 0;
}

Buffer Simulation::convolution(const nn::ConvolutionShape& shape) {
  const Buffer output = rows(shape.out_pixels(), shape.out_channels);
  convolve(shape);
  return output;
}

void Simulation::convolve(const nn::ConvolutionShape& shape) {
  meanwhile(nn::convolution_workspace(shape, run_.convolution, element_bytes_).columns, Category::workspace);
  work_.multiply_adds += nn::convolution_flops(shape) / 2;
}

Buffer Simulation::linear(std::uint64_t count, std::uint64_t out, std::uint64_t in) {
  const Buffer output = rows(count, out);
  add_linear(count, out, in);
  return output;
}

void Simulation::add_linear(std::uint64_t count, std::uint64_t out, std::uint64_t in) {
  work_.multiply_adds += static_cast<double>(count) * static_cast<double>(out) * static_cast<double>(in);
}

void Simulation::repeat(const Work& since, std::uint64_t times) {
  const auto more = [&](double& now, double before) { now += (now - before) * static_cast<double>(times); };
  more(work_.multiply_adds, since.multiply_adds);
  more(work_.bus_bytes, since.bus_bytes);
  more(work_.weight_bytes, since.weight_bytes);
}

Buffer Simulation::attention(const nn::AttentionShape& shape, Buffer& q, Buffer& k, Buffer& v) {
  const auto real = [](std::uint64_t n) { return static_cast<double>(n); };
  work_.multiply_adds += 2 * real(shape.rows()) * real(shape.key_length()) * real(shape.width);  // with K, and with V
  nn::AttentionForm form = run_.attention;
  if (form == nn::AttentionForm::fused && shape.depth() > nn::kFusedDepth) form = nn::AttentionForm::tiled;
  if (form == nn::AttentionForm::textbook) {
    Buffer probabilities = rows(checked_product(shape.matrices(), shape.seq), shape.key_length());
    free({&q, &k});
    const Buffer attended = rows(shape.rows(), shape.width);
    free({&probabilities, &v});
    return attended;
  }
  const Buffer attended = rows(shape.rows(), shape.width);
  if (form == nn::AttentionForm::tiled) {
    const nn::AttentionTile tile = nn::attention_tile(shape);
    Buffer scores = rows(checked_product(tile.matrices, tile.rows), shape.key_length());
    free(scores);
  }
  free({&q, &k, &v});
  return attended;
}

void Simulation::add_self_attention(const nn::AttentionShape& shape, std::uint64_t width) {
  const std::uint64_t count = shape.rows();
  Buffer normed = rows(count, width);
  Buffer q = linear(count, shape.width, width);
  Buffer k = linear(count, shape.width, width);
  Buffer v = linear(count, shape.width, width);
  free(normed);
  Buffer attended = attention(shape, q, k, v);
  add_linear(count, width, shape.width);
  free(attended);
}

namespace {

// Of a matrix in fewer bits, all parts in one buffer.
std::uint64_t encoded_bytes(const quantised::Format& format, std::uint64_t rows, std::uint64_t columns) {
  std::uint64_t bytes = 0;
  for (const quantised::Part& part : quantised::parts_of(format, rows, checked_product(rows, columns)))
    bytes =
        checked_sum(bytes, (part.bytes() + quantised::kPartAlign - 1) / quantised::kPartAlign * quantised::kPartAlign);
  return bytes;
}

}  // namespace

Weights::Weights(Simulation& simulation, const std::vector<TensorOf>& tensors, unsigned bits)
    : simulation_(simulation) {
  const quantised::Format format = format_of_bits(bits);
  const bool encodes = bits != 0, stays = simulation.run().residency == Residency::all;
  quantised::LoadingBytes loading;
  std::uint64_t decoded = 0;  // elements
  const auto is_encoded = [&](const TensorOf& tensor) { return encodes && is_linear(tensor); };
  for (const TensorOf& tensor : tensors) {
    if (!is_encoded(tensor)) continue;
    const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
    const auto eighth = [](std::uint64_t n) { return (n + nn::kDecodedParts - 1) / nn::kDecodedParts; };
    loading.at_least(quantised::loading_bytes(format, rows, columns));
    decoded = std::max({decoded, checked_product(eighth(rows), columns), checked_product(rows, eighth(columns))});
  }
  Buffer piece = simulation.bytes(loading.piece, Category::workspace);
  Buffer largest = simulation.bytes(loading.largest, Category::workspace);
  for (const TensorOf& tensor : tensors) {
    const std::uint64_t bytes = is_encoded(tensor) ? encoded_bytes(format, tensor.shape[0], tensor.shape[1])
                                                   : checked_product(tensor.elements(), simulation.element_bytes());
    const std::uint64_t counted = round_to_granule(bytes);
    tensors_.push_back({tensor.name, counted});
    counted_ = checked_sum(counted_, counted);
    stored_ = checked_sum(stored_, bytes);
    if (!stays) simulation.pinned(bytes, Category::parameters);
    if (stays)
      simulation.bytes(bytes, Category::parameters);
    else if (is_encoded(tensor))
      simulation.meanwhile(bytes, Category::parameters);
  }
  simulation.free({&piece, &largest});
  simulation.bytes(checked_product(decoded, simulation.element_bytes()), Category::workspace);
}

Buffer Weights::come(std::uint64_t bytes) {
  simulation_.copies(bytes);
  return simulation_.bytes(bytes, Category::parameters);
}

Buffer Weights::stage() {
  return simulation_.run().residency == Residency::model ? come(counted_) : Buffer{Category::parameters, 0};
}

Buffer Weights::block(std::initializer_list<std::string_view> names) {
  if (simulation_.run().residency != Residency::layer) return {Category::parameters, 0};
  std::uint64_t bytes = 0;
  for (const std::string_view name : names) {
    bool found = false;
    for (const Tensor& tensor : tensors_) {
      const bool goes_on = tensor.name.size() > name.size() && tensor.name[name.size()] == '.';
      if (!tensor.name.starts_with(name) || (tensor.name != name && !goes_on)) continue;
      found = true;
      bytes = checked_sum(bytes, tensor.bytes);
    }
    if (!found) throw std::logic_error("no tensor of a model is called '" + std::string(name) + "'");
  }
  return come(bytes);
}

nn::ConvolutionShape same_size(std::uint64_t batch, nn::InputSize size, std::uint64_t in, std::uint64_t out) {
  return nn::convolution_shape(batch, size.height, size.width, in, out, 3, 1, 1);
}

}  // namespace oomlab::image
