#pragma once
// DataParallel as it is commonly criticised (torch.nn.DataParallel does this in one process): rank 0 has the model, the
// optimizer, the whole batch's labels, and all logits; the others get a copy of the parameters in every step, compute
// their share, and give logits and gradients back.

#include "layout.h"
#include "nn/models/scheduled_step.h"
#include "train/cluster.h"

namespace oomlab::multi_gpu {

using namespace train;

template <class T>
class DataParallel final : public Workload {
 public:
  DataParallel(Context& context, const Job& job, const Groups::Ids& ids, int rank, const std::atomic<bool>& failed)
      : context_(context),
        job_(job),
        rank_(rank),
        world_(Groups::Ids::at(ids.world, 0), int(job.layout.dp), rank, failed),
        model_(context, job.spec, nn::Slice{.layers = job.spec.layers}, nullptr),
        schedule_(job.schedule_at({})),
        shapes_(nn::units_of(job.spec, model_.slice(), 1)) {
    model_.set_form(job.form);
    if (rank != 0) return;
    units_.emplace(context, model_, alone_, 0, nn::GradientLife::always, kTextSeed);
    optimizer_.emplace(context, units_->shapes(), units_->values(), optimizer_of<T>(job));
  }

  void step() override {
    const data::TokenSamples samples = job_.text->samples(first_, job_.batch);
    first_ += job_.batch;
    const std::size_t share = job_.batch / job_.layout.dp;
    const cudaStream_t stream = context_.stream();
    std::vector<DeviceBuffer<T>> values, gradients;  // of a replica
    if (rank_ != 0) replicate(values, Category::parameters, false);
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      world_.broadcast(first_value(shapes_[i]), shapes_[i].count, 0, stream);

    nn::TokenBatch all;
    if (rank_ == 0) all = upload(context_, samples, 0, job_.batch);
    nn::TokenBatch batch = upload(context_, samples, std::size_t(rank_) * share, share);
    nn::ScheduledPass<T> pass(context_, model_, batch, schedule_);
    auto head = model_.head_forward(context_, batch, pass.output());
    exchange_logits(head.logits, all, samples.targets());
    all = {};

    const Phase phase(context_.ledger(), "backward");
    if (rank_ != 0) replicate(gradients, Category::gradients, true);
    DeviceBuffer<T> d = model_.head_backward(context_, std::move(head), false);
    pass.backward(context_, model_, batch, std::move(d));
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      world_.reduce(first_gradient(shapes_[i]), shapes_[i].count, 0, stream);
    if (rank_ == 0) update();
  }
  std::size_t samples_per_step() const override { return job_.batch; }
  std::uint64_t fingerprint() override { return units_ ? units_->fingerprint() : 0; }  // replicas hold nothing
  std::uint64_t bytes_sent() const override { return world_.bytes_sent() - loss_bytes_; }
  double figure() override {
    if (planning()) return 0;
    const std::uint64_t before = world_.bytes_sent();
    world_.broadcast(model_.loss_buffer(), 1, 0, context_.stream());
    loss_bytes_ += world_.bytes_sent() - before;
    world_.wait(context_.stream());
    return model_.loss(context_);
  }

 private:
  // The loss is rank 0's business: it gets all logits, and sends their gradients back.
  void exchange_logits(DeviceBuffer<T>& logits, const nn::TokenBatch& all, std::size_t targets) {
    const Phase phase(context_.ledger(), "forward");
    const cudaStream_t stream = context_.stream();
    if (rank_ != 0) {
      world_.send(logits.data(), logits.size(), 0, stream);
      world_.receive(logits.data(), logits.size(), 0, stream);
      return;
    }
    const std::size_t n = logits.size();
    DeviceBuffer<T> gathered = context_.buffer<T>(n * job_.layout.dp, Category::activations, "gathered logits");
    CUDA_CHECK(cudaMemcpyAsync(gathered.data(), logits.data(), n * sizeof(T), cudaMemcpyDeviceToDevice, stream));
    for (int r = 1; r < int(job_.layout.dp); ++r) world_.receive(gathered.data() + std::size_t(r) * n, n, r, stream);
    model_.cross_entropy(context_, all, gathered.data(), {false, targets}, nullptr);
    for (int r = 1; r < int(job_.layout.dp); ++r) world_.send(gathered.data() + std::size_t(r) * n, n, r, stream);
    CUDA_CHECK(cudaMemcpyAsync(logits.data(), gathered.data(), n * sizeof(T), cudaMemcpyDeviceToDevice, stream));
  }
  void replicate(std::vector<DeviceBuffer<T>>& into, Category category, bool zero) {
    for (const nn::UnitShape& shape : shapes_) {
      into.push_back(context_.buffer<T>(shape.count, category, shape.name + " replica"));
      T* const data = into.back().data();
      if (zero) CUDA_CHECK(cudaMemsetAsync(data, 0, shape.count * sizeof(T), context_.stream()));
      for (std::size_t t = 0; t < shape.tensors.size(); ++t) {
        T* const tensor = data + shape.offsets[t];
        const std::size_t i = shape.tensors[t];
        zero ? model_.bind(i, model_.parameter(i).value, tensor) : model_.bind(i, tensor, nullptr);
      }
    }
  }
  void update() {
    const Phase phase(context_.ledger(), "optimizer");
    std::vector<typename nn::Optimizer<T>::Update> all;
    for (std::size_t p = 0; p < units_->pieces().size(); ++p) {
      const auto& piece = units_->pieces()[p];
      all.push_back({p, units_->my_gradients(piece.unit) + piece.offset});
    }
    optimizer_->update(context_, all);
    optimizer_->end_step();
  }
  T* first_value(const nn::UnitShape& shape) { return model_.parameter(shape.tensors[0]).value; }
  T* first_gradient(const nn::UnitShape& shape) { return model_.parameter(shape.tensors[0]).gradient; }

  Context& context_;
  const Job& job_;
  int rank_;
  Communicator world_, alone_;
  nn::Transformer<T> model_;
  nn::Schedule schedule_;
  std::vector<nn::UnitShape> shapes_;
  std::optional<Units<T>> units_;              // rank 0
  std::optional<nn::Optimizer<T>> optimizer_;  // the same
  std::size_t first_ = 0;
  std::uint64_t loss_bytes_ = 0;
};

/// Rank 0: all state, the batch twice (all of it, and its own share), all logits. Others: parameters and gradients
/// while a step runs.
template <class T>
ByCategory predict_data_parallel(const Job& job, int rank) {
  const nn::StepLevers levers{
      .element_bytes = sizeof(T),
      .sequences = job.batch / job.layout.dp,
      .seq = job.seq,
      .form = job.form,
      .schedule = job.schedule_at({}),
      .replicas = job.layout.dp,
      .data_parallel = rank == 0 ? nn::DataParallel::first_device : nn::DataParallel::other_device,
      .optimizer = optimizer_of<T>(job)};
  ByCategory resident;
  if (rank == 0)
    resident = nn::unit_state_bytes(job.spec, {.element_bytes = sizeof(T), .optimizer = optimizer_of<T>(job)});
  resident[Category::workspace] = round_to_granule(sizeof(float));  // the loss
  return nn::simulate_step(job.spec, levers, resident).at_peak;
}

/// Payload in bytes that a rank sends in a step: parameters to all, logits to rank 0 and their gradients back,
/// gradients to rank 0.
template <class T>
std::uint64_t sent_by_data_parallel(const Job& job, int rank) {
  const std::size_t n = job.layout.dp;
  const std::uint64_t logits = job.batch / n * job.seq * job.spec.vocabulary * sizeof(T);
  std::uint64_t sent = logits * (rank == 0 ? n - 1 : 1);
  for (const nn::UnitShape& unit : nn::units_of(job.spec, {.layers = job.spec.layers}, 1))
    sent += 2 * (unit.count * sizeof(T) / n * (n - 1));
  return sent;
}

template <class T>
class DataParallelTeam final : public Team {
 public:
  explicit DataParallelTeam(Job job) : Team(int(job.layout.dp)), job_(std::move(job)), ids_(job_.layout) {}
  std::unique_ptr<Workload> make(Context& context, int rank) override {
    return std::make_unique<DataParallel<T>>(context, job_, ids_, rank, failed);
  }
  ByCategory predicted(int rank) const override { return predict_data_parallel<T>(job_, rank); }
  std::optional<double> flops(int) const override {
    if (job_.form.attention == nn::AttentionForm::tiled) return std::nullopt;  // the tiles of a whole share
    return flops_a_step(job_, {0, 0, 0});
  }
  int kind(int rank) const override { return rank > 0; }

 private:
  Job job_;
  Groups::Ids ids_;
};

}  // namespace oomlab::multi_gpu
