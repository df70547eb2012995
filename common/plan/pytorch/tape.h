#pragma once
// What PyTorch's autograd keeps and frees, without its numbers: tensors that are only bytes, the graph that a forward
// pass records, and the engine that walks it back. A model that is written with torch_ops.h on this tape allocates and
// frees what the same model does in eager mode, in the same order.
//
// From PyTorch's sources (torch/csrc/autograd): engine.cpp (nodes run in falling order of their sequence number, leaves
// first), input_buffer.cpp (a gradient is added in place where nobody else holds the first one),
// functions/accumulate_grad.h (a leaf takes a gradient that nobody else holds), and torch/utils/checkpoint.py (without
// reentrance: what a region saves is dropped, and made again, up to the last of it, when the first of it is asked for).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/bytes.h"
#include "plan/category.h"

namespace oomlab::fit {

/// One allocation or release, in order. Identifiers are never used twice.
struct MemoryEvent {
  std::uint64_t id, bytes;
  bool release;
  std::uint32_t stream = 0;  ///< for which it was allocated; 0: the one that computes
};

/// Bytes that are live, the most that were live at once, and, if asked for, every event.
class TorchMemory {
 public:
  /// `granule`: what an allocation is rounded up to, 1 on a CPU and 512 on a GPU.
  explicit TorchMemory(std::uint64_t granule, bool recorded) : granule_(granule), recorded_(recorded) {}
  std::uint64_t allocate(std::uint64_t bytes, Category category);
  void release(std::uint64_t id, std::uint64_t bytes, Category category);
  void recategorise(std::uint64_t bytes, Category from, Category to);
  std::uint64_t rounded(std::uint64_t bytes) const { return (bytes + granule_ - 1) / granule_ * granule_; }
  /// What is going on, for the peak: a string that outlives this.
  void moment(const char* name) { moment_ = name; }
  /// For which allocations are from here on.
  void stream(std::uint32_t stream) { stream_ = stream; }
  /// From here on.
  void forget_peak();

  const ByCategory& live() const { return live_; }
  const ByCategory& at_peak() const { return at_peak_; }
  const char* peak_moment() const { return peak_moment_; }
  std::vector<MemoryEvent> take_events() { return std::move(events_); }

 private:
  void look();
  std::uint64_t granule_;
  bool recorded_;
  ByCategory live_, at_peak_;
  std::uint64_t total_ = 0, highest_ = 0, next_ = 0;
  std::uint32_t stream_ = 0;
  const char *moment_ = "", *peak_moment_ = "";
  std::vector<MemoryEvent> events_;
};

/// The bytes behind one or several tensors; released with the last of these.
class Storage {
 public:
  /// `filled`: with its bytes; else there are none before refill().
  Storage(TorchMemory& memory, std::uint64_t bytes, Category category, bool filled = true);
  ~Storage() { empty(); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void become(Category category);
  /// resize_(0), and back: whoever holds it still does.
  void empty();
  void refill();
  std::uint64_t bytes() const { return bytes_; }

 private:
  TorchMemory& memory_;
  std::uint64_t bytes_, id_ = 0;
  Category category_;
  bool filled_ = false;
};

inline constexpr std::uint32_t kNoNode = UINT32_MAX;

/// A handle, as a name in Python is one.
struct Tensor {
  std::shared_ptr<Storage> storage{};
  std::uint64_t count = 0;  ///< values
  DType dtype = DType::fp32;
  bool view = false;             ///< of another tensor: a gradient is not added to it in place
  std::uint32_t node = kNoNode;  ///< whose output it is; none: no gradient goes through it
  std::uint32_t output = 0;      ///< which one of the node's

  explicit operator bool() const { return storage != nullptr; }
  bool differentiable() const { return node != kNoNode; }
  Tensor detached() const { return {storage, count, dtype, view}; }
};

/// A leaf: a weight, and where its gradient goes.
struct Parameter {
  Tensor value;
  bool trained = true;
  Tensor gradient{};
  std::uint32_t node = kNoNode;  ///< of the pass that is being recorded
  Tensor cast{};                 ///< autocast's copy, until the region ends
  bool divided = false;          ///< a rank's part of it, in tensor parallelism
};

/// Calls `run`, and then `end`, also where `run` throws.
template <class Run, class End>
void run_then(const Run& run, const End& end) {
  try {
    run();
  } catch (...) {
    end();
    throw;
  }
  end();
}

class Tape;
using Tensors = std::vector<Tensor>;

/// What a node's backward pass is given, and what it gives: one gradient for each input that wants one.
struct BackwardCall {
  Tape& tape;
  const Tensors& saved;
  Tensors& gradients;  ///< of the outputs
  Tensors& results;    ///< of the inputs; those that nobody wants stay empty
  const std::vector<bool>& wanted;
};
using Backward = std::function<void(BackwardCall&)>;
/// The backward pass of most operators of one input: a gradient like that of the output, in a new tensor.
void fresh_gradient(BackwardCall& call);
/// Of a sum, or of a view: each input's gradient is the output's, the same tensor.
void same_gradient(BackwardCall& call);

class Tape {
 public:
  explicit Tape(TorchMemory& memory) : memory_(memory) {}

  TorchMemory& memory() { return memory_; }
  /// A new tensor without a gradient.
  Tensor make(std::uint64_t count, DType dtype, Category category = Category::activations);
  /// A parameter's tensor as an operator's input.
  Tensor leaf(Parameter& parameter);
  /// `out` as the output of an operator of these inputs; it is returned unchanged where none of them has a gradient.
  /// `saved` is dropped then, and within a checkpointed region.
  Tensor record(Tensor out, std::vector<const Tensor*> inputs, Tensors saved, Backward backward);
  /// The same of several outputs, of which some may get no gradient.
  void record(std::vector<Tensor*> outs, std::vector<const Tensor*> inputs, Tensors saved, Backward backward);

  /// torch.utils.checkpoint(region, input, use_reentrant=False). `region` is kept, and runs a second time within the
  /// backward pass; `recompute` is what surrounds it then.
  Tensor checkpoint(const Tensor& input, std::function<Tensor(Tensor)> region,
                    std::function<void(const std::function<void()>&)> recompute);

  /// Tensor.register_hook(): runs when the gradient of `out` is there, before its node does.
  void before(const Tensor& out, std::function<void()> hook);
  /// Runs when a leaf has its gradient.
  void after_accumulation(std::function<void(Parameter&)> hook) { accumulated_ = std::move(hook); }
  /// A region is being computed again.
  bool recomputing() const { return again_ != nullptr; }

  /// From a scalar to all leaves. Afterwards the tape is empty.
  void backward(Tensor root);

 private:
  struct Frame;
  struct Edge {
    std::uint32_t node = kNoNode, output = 0;
  };
  struct Output {
    std::uint64_t count;
    DType dtype;
  };
  struct Node {
    std::vector<Edge> next;
    std::vector<Output> outputs;
    Tensors saved;
    Backward backward;
    std::function<void()> before{};
    Parameter* parameter = nullptr;
    std::shared_ptr<Frame> frame{};
    std::size_t first = 0, kept = 0;  // of the frame's
  };
  struct StopRecomputation {};

  std::uint32_t add(Node node);
  void keep(Node& node, Tensors saved);
  Tensors unpack(std::uint32_t id);
  void accumulate(Node& node, Tensors& gradients);
  void apply(std::uint32_t id, Tensors& gradients, Tensors& results);
  void conform(const Node& node, Tensors& results);
  void add_to(Tensor& sum, Tensor next);

  TorchMemory& memory_;
  std::vector<Node> nodes_;
  std::vector<Parameter*> leaves_;
  std::function<void(Parameter&)> accumulated_{};
  std::shared_ptr<Frame> frame_{};  // that the forward pass is in
  Frame* again_ = nullptr;          // that is being computed again
};

}  // namespace oomlab::fit
