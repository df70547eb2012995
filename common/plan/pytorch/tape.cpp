#include "plan/pytorch/tape.h"

#include <queue>
#include <stdexcept>
#include <utility>

namespace oomlab::fit {

// ------------------------------------------------------------------------------------------------------------ memory

std::uint64_t TorchMemory::allocate(std::uint64_t bytes, Category category) {
  live_[category] = checked_sum(live_[category], bytes);
  total_ = checked_sum(total_, bytes);
  look();
  const std::uint64_t id = next_++;
  if (recorded_) events_.push_back({id, bytes, false, stream_});
  return id;
}

void TorchMemory::release(std::uint64_t id, std::uint64_t bytes, Category category) {
  live_[category] -= bytes;
  total_ -= bytes;
  if (recorded_) events_.push_back({id, bytes, true});
}

void TorchMemory::recategorise(std::uint64_t bytes, Category from, Category to) {
  live_[from] -= bytes;
  live_[to] = checked_sum(live_[to], bytes);
}

void TorchMemory::forget_peak() {
  highest_ = 0;
  look();
}

void TorchMemory::look() {
  if (total_ <= highest_) return;
  highest_ = total_;
  at_peak_ = live_;
  peak_moment_ = moment_;
}

Storage::Storage(TorchMemory& memory, std::uint64_t bytes, Category category, bool filled)
    : memory_(memory), bytes_(memory.rounded(bytes)), category_(category) {
  if (filled) refill();
}

void Storage::empty() {
  if (filled_) memory_.release(id_, bytes_, category_);
  filled_ = false;
}

void Storage::refill() {
  if (!filled_) id_ = memory_.allocate(bytes_, category_);
  filled_ = true;
}

void Storage::become(Category category) {
  memory_.recategorise(bytes_, category_, category);
  category_ = category;
}

// ------------------------------------------------------------------------------------------------------ the recording

void fresh_gradient(BackwardCall& call) {
  if (!call.wanted[0]) return;
  const Tensor& gradient = call.gradients[0];
  call.results[0] = call.tape.make(gradient.count, gradient.dtype);
}

void same_gradient(BackwardCall& call) {
  for (std::size_t i = 0; i < call.results.size(); ++i)
    if (call.wanted[i]) call.results[i] = call.gradients[0];
}

// A checkpointed region.
struct Tape::Frame {
  Tensor input;
  bool differentiable;  // the input
  std::function<Tensor(Tensor)> region;
  std::function<void(const std::function<void()>&)> recompute;
  std::size_t kept = 0;  // tensors that the first forward pass would have saved
  Tensors recomputed{};  // the same, made again
  bool is_recomputed = false;
};

Tensor Tape::make(std::uint64_t count, DType dtype, Category category) {
  return {std::make_shared<Storage>(memory_, checked_product(count, element_bytes(dtype)), category), count, dtype};
}

std::uint32_t Tape::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

Tensor Tape::leaf(Parameter& parameter) {
  Tensor tensor = parameter.value;
  if (!parameter.trained) return tensor;
  if (parameter.node == kNoNode) {
    Node node;
    node.outputs = {{tensor.count, tensor.dtype}};
    node.parameter = &parameter;
    parameter.node = add(std::move(node));
    leaves_.push_back(&parameter);
  }
  tensor.node = parameter.node;
  return tensor;
}

void Tape::keep(Node& node, Tensors saved) {
  std::size_t there = 0;
  for (const Tensor& tensor : saved) there += tensor ? 1 : 0;
  if (again_) {  // for the nodes of the first forward pass; those of this one are never run
    for (Tensor& tensor : saved) {
      if (!tensor) continue;
      again_->recomputed.push_back(tensor.detached());
      if (again_->recomputed.size() == again_->kept) throw StopRecomputation();
    }
    return;
  }
  if (!frame_) {
    for (Tensor& tensor : saved) tensor.node = kNoNode;
    node.saved = std::move(saved);
    return;
  }
  node.frame = frame_;
  node.first = frame_->kept;
  node.kept = there;
  frame_->kept += there;
  node.saved.resize(saved.size());
  for (std::size_t i = 0; i < saved.size(); ++i) node.saved[i].count = saved[i] ? 1 : 0;  // which ones there are
}

void Tape::record(std::vector<Tensor*> outs, std::vector<const Tensor*> inputs, Tensors saved, Backward backward) {
  Node node;
  bool any = false;
  for (const Tensor* input : inputs) {
    node.next.push_back({input->node, input->output});
    any |= input->differentiable();
  }
  if (!any) return;
  for (const Tensor* out : outs) node.outputs.push_back({out->count, out->dtype});
  node.backward = std::move(backward);
  keep(node, std::move(saved));
  const std::uint32_t id = add(std::move(node));
  for (std::size_t i = 0; i < outs.size(); ++i) {
    outs[i]->node = id;
    outs[i]->output = static_cast<std::uint32_t>(i);
  }
}

Tensor Tape::record(Tensor out, std::vector<const Tensor*> inputs, Tensors saved, Backward backward) {
  record(std::vector{&out}, std::move(inputs), std::move(saved), std::move(backward));
  return out;
}

Tensor Tape::checkpoint(const Tensor& input, std::function<Tensor(Tensor)> region,
                        std::function<void(const std::function<void()>&)> recompute) {
  if (frame_ || again_) throw std::logic_error("checkpointed regions are not nested here");
  frame_ = std::make_shared<Frame>(input.detached(), input.differentiable(), region, std::move(recompute));
  Tensor out = region(input);
  frame_.reset();
  return out;
}

// -------------------------------------------------------------------------------------------------- the backward pass

Tensors Tape::unpack(std::uint32_t id) {
  if (!nodes_[id].frame) return nodes_[id].saved;
  Frame& frame = *nodes_[id].frame;
  if (!frame.is_recomputed && nodes_[id].kept > 0) {
    frame.is_recomputed = true;
    again_ = &frame;
    const std::size_t nodes = nodes_.size();
    try {
      frame.recompute([&] {
        Tensor input = frame.input;
        if (frame.differentiable) input.node = 0;  // whosever: nothing of this pass is run
        frame.region(std::move(input));
      });
    } catch (const StopRecomputation&) {
    }
    again_ = nullptr;
    nodes_.resize(nodes);
    if (frame.recomputed.size() != frame.kept) throw std::logic_error("a recomputed region saves something else");
  }
  const Node& node = nodes_[id];  // only now: recomputing adds nodes
  Tensors saved(node.saved.size());
  std::size_t at = node.first;
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (node.saved[i].count) saved[i] = std::move(frame.recomputed[at++]);
  return saved;
}

void Tape::before(const Tensor& out, std::function<void()> hook) { nodes_.at(out.node).before = std::move(hook); }

// torch::autograd::AccumulateGrad.
void Tape::accumulate(Node& node, Tensors& gradients) {
  Parameter& parameter = *node.parameter;
  Tensor& gradient = gradients[0];
  if (parameter.gradient) return;  // added in place
  if (gradient.storage.use_count() == 1) {
    gradient.storage->become(Category::gradients);
    parameter.gradient = std::move(gradient);
  } else {
    parameter.gradient = make(gradient.count, gradient.dtype, Category::gradients);
  }
  parameter.gradient.view = false;
  if (accumulated_) accumulated_(parameter);
}

void Tape::apply(std::uint32_t id, Tensors& gradients, Tensors& results) {
  if (nodes_[id].before) std::exchange(nodes_[id].before, nullptr)();
  if (nodes_[id].parameter) return accumulate(nodes_[id], gradients);
  const Tensors saved = unpack(id);
  Node& node = nodes_[id];
  std::vector<bool> wanted;
  for (const Edge& edge : node.next) wanted.push_back(edge.node != kNoNode);
  BackwardCall call{*this, saved, gradients, results, wanted};
  node.backward(call);
}

// What the engine does to a result that is not what the node wants which gets it: a sum where it was broadcast, a cast.
void Tape::conform(const Node& node, Tensors& results) {
  for (std::size_t i = 0; i < node.next.size(); ++i) {
    const Edge& edge = node.next[i];
    Tensor& result = results[i];
    if (edge.node == kNoNode || !result) continue;
    const Output& wanted = nodes_[edge.node].outputs[edge.output];
    if (result.count != wanted.count) {
      Tensor sum = make(wanted.count, result.dtype);
      result = std::move(sum);
    }
    if (result.dtype == wanted.dtype) continue;
    Tensor cast = make(result.count, wanted.dtype);
    result = std::move(cast);
  }
}

void Tape::add_to(Tensor& sum, Tensor next) {
  if (!sum) {
    sum = std::move(next);
    return;
  }
  if (!sum.view && sum.storage.use_count() == 1) return;  // in place
  Tensor both = make(sum.count, sum.dtype);
  sum = std::move(both);
}

void Tape::backward(Tensor root) {
  const std::size_t count = nodes_.size();
  std::vector<std::uint32_t> dependencies(count, 0);
  std::vector<bool> seen(count, false);
  std::vector<std::uint32_t> stack{root.node};
  seen[root.node] = true;
  while (!stack.empty()) {
    const std::uint32_t id = stack.back();
    stack.pop_back();
    for (const Edge& edge : nodes_[id].next) {
      if (edge.node == kNoNode) continue;
      ++dependencies[edge.node];
      if (seen[edge.node]) continue;
      seen[edge.node] = true;
      stack.push_back(edge.node);
    }
  }

  std::vector<Tensors> buffers(count);
  const auto buffer = [&](std::uint32_t id) -> Tensors& {
    if (buffers[id].empty()) buffers[id].resize(nodes_[id].outputs.size());
    return buffers[id];
  };
  using Turn = std::pair<std::uint64_t, std::uint32_t>;  // leaves first, then the latest
  std::priority_queue<Turn> ready;
  const auto push = [&](std::uint32_t id) { ready.push({nodes_[id].parameter ? UINT64_MAX : id, id}); };
  buffer(root.node)[root.output] = make(1, root.dtype);
  push(root.node);
  root = {};
  while (!ready.empty()) {
    const std::uint32_t id = ready.top().second;
    ready.pop();
    Tensors results(nodes_[id].next.size());
    {
      Tensors gradients = std::move(buffers[id]);
      apply(id, gradients, results);
      conform(nodes_[id], results);
    }
    nodes_[id].saved.clear();
    nodes_[id].frame.reset();
    nodes_[id].backward = nullptr;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Edge& edge = nodes_[id].next[i];
      if (edge.node == kNoNode) continue;
      if (results[i]) add_to(buffer(edge.node)[edge.output], std::move(results[i]));
      if (--dependencies[edge.node] == 0) push(edge.node);
    }
  }
  nodes_.clear();
  for (Parameter* leaf : leaves_) leaf->node = kNoNode;
  leaves_.clear();
}

}  // namespace oomlab::fit
