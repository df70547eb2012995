#pragma once
// What the walks through all models have in common: buffers that come and go, weights that come and go with them, and
// the operations that are done meanwhile. walk.h has the convention.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "plan/attention.h"
#include "plan/image/run.h"

namespace oomlab::image {

/// A buffer that a simulation has allocated.
struct Buffer {
  Category category = Category::activations;
  std::uint64_t bytes = 0;
};

/// What is done beside allocating.
struct Work {
  double multiply_adds = 0;
  double bus_bytes = 0;
  double weight_bytes = 0;  ///< that the device reads from its own memory
};

/// The ledger of a device and of the pinned memory of its host, for one run.
class Simulation {
 public:
  /// Throws std::invalid_argument, with one line, for a number format or a count that no run has.
  explicit Simulation(const Run& run);
  const Run& run() const { return run_; }
  std::uint64_t element_bytes() const { return element_bytes_; }

  // ---- memory of the device
  Buffer bytes(std::uint64_t bytes, Category category);
  /// [rows, width] of the run's number format.
  Buffer rows(std::uint64_t rows, std::uint64_t width);
  /// FP32 activations.
  Buffer floats(std::uint64_t count);
  void free(Buffer& buffer);
  void free(std::initializer_list<Buffer*> buffers);
  /// Allocates and releases.
  void meanwhile(std::uint64_t bytes, Category category);
  const PeakBytes& peak() const { return device_.peak(); }
  /// From here on the peak is that of what comes.
  void begin_phase() { device_ = PeakTracker(device_.live()); }

  // ---- pinned memory of the host
  Buffer pinned(std::uint64_t bytes, Category category);
  void free_pinned(Buffer& buffer);
  const PeakBytes& pinned_peak() const { return pinned_.peak(); }

  // ---- operations
  /// A convolution to a new buffer, [output pixels, out_channels].
  Buffer convolution(const nn::ConvolutionShape& shape);
  /// The same into a buffer that is there.
  void convolve(const nn::ConvolutionShape& shape);
  /// x [rows, in] → a new buffer [rows, out].
  Buffer linear(std::uint64_t rows, std::uint64_t out, std::uint64_t in);
  /// What adds to a buffer that is there.
  void add_linear(std::uint64_t rows, std::uint64_t out, std::uint64_t in);
  /// Releases q, k and v, and gives what they attended.
  Buffer attention(const nn::AttentionShape& shape, Buffer& q, Buffer& k, Buffer& v);
  /// x [shape.rows(), width] gets what its rows, normed, attend to each other.
  void add_self_attention(const nn::AttentionShape& shape, std::uint64_t width);
  void copies(std::uint64_t bus_bytes) { work_.bus_bytes += static_cast<double>(bus_bytes); }
  void reads_weights(std::uint64_t bytes) { work_.weight_bytes += static_cast<double>(bytes); }

  const Work& work() const { return work_; }
  /// What has been done since then is done so many times more, in the same memory.
  void repeat(const Work& since, std::uint64_t times);

 private:
  Run run_;
  std::uint64_t element_bytes_;
  PeakTracker device_, pinned_;
  Work work_;
};

/// The weights of one model.
class Weights {
 public:
  /// `bits` of linear layers' matrices: 0, 8 or 4. Loads them.
  Weights(Simulation& simulation, const std::vector<TensorOf>& tensors, unsigned bits);

  /// Its turn begins, and is over.
  Buffer stage();
  /// A block begins: the tensors of these names, or whose names go on behind one of them with a dot. Throws
  /// std::logic_error where there are none.
  Buffer block(std::initializer_list<std::string_view> names);
  Buffer block(std::string_view name) { return block({name}); }
  void end(Buffer& lease) { simulation_.free(lease); }
  /// A forward pass reads all of it.
  void read() { simulation_.reads_weights(stored_); }

 private:
  struct Tensor {
    std::string name;
    std::uint64_t bytes;
  };
  Buffer come(std::uint64_t bytes);
  Simulation& simulation_;
  std::vector<Tensor> tensors_;
  std::uint64_t counted_ = 0;  // bytes of all buffers
  std::uint64_t stored_ = 0;   // without rounding to the granule
};

/// Convolution of 3 x 3 pixels, with padding that keeps the size.
nn::ConvolutionShape same_size(std::uint64_t batch, nn::InputSize size, std::uint64_t in, std::uint64_t out);

}  // namespace oomlab::image
