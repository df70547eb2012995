#pragma once
// The mitigation: one training step on many devices. Each rank has its place in the grid of grid.h: a slice of the
// model (its stage's layers, its part of each), a share of the batch (its replica's), and of the state what ZeRO
// leaves.
//
//   among parts      two all-reduces of [rows, width] per layer, forward and backward (Megatron-LM)
//   among stages     activations forward, their gradients backward
//   among replicas   gradients, unit by unit, while the backward pass of earlier layers still runs (Li et al., "PyTorch
//                    distributed", 2020)
//   both ends        a tied token table is on the first and the last stage; the sum of its gradients on both

#include <memory>

#include "cuda/backend.h"
#include "layout.h"
#include "nn/ops/values.h"
#include "train/text_training.h"
#include "units.h"

namespace oomlab::multi_gpu {

using namespace train;

/// What all ranks of a run work on.
struct Job {
  nn::TransformerSpec spec;
  std::shared_ptr<const data::TextSampler> text;
  Layout layout;
  std::size_t batch, micro_batch, seq;
  nn::StepForm form;  ///< chapter 04's and 08's mitigations inside this one
};

/// The groups that a rank belongs to, each with its communicator. A group of one is no group.
struct Groups {
  /// Ids for every group of a layout, made once and known to all ranks.
  struct Ids {
    struct Id {  // nvcc 13.0 breaks down over a vector of ncclUniqueId itself
      ncclUniqueId nccl{};
    };
    std::vector<Id> world, parts, replicas, forward, backward, ends;
    explicit Ids(const Layout& l) {
      const auto make = [](std::vector<Id>& ids, std::size_t groups, std::size_t of) {
        if (of == 1) return;
        ids.resize(groups);
        made_by_the_first_process(ids.data(), groups * sizeof(Id), [&] {
          for (Id& id : ids) NCCL_CHECK(ncclGetUniqueId(&id.nccl));
        });
      };
      make(world, 1, l.ranks());
      make(parts, l.dp * l.pp, l.tp);
      make(replicas, l.tp * l.pp, l.dp);
      for (auto* ids : {&forward, &backward, &ends}) make(*ids, l.tp * l.dp, l.pp);
    }
    static ncclUniqueId at(const std::vector<Id>& ids, std::size_t i) {
      return ids.empty() ? ncclUniqueId{} : ids[i].nccl;
    }
  };
  /// `tied`: the model's head and its token table are one.
  Groups(const Ids& ids, const Layout& l, bool tied, int rank, const std::atomic<bool>& failed)
      : place(coordinates_of(l, rank)),
        world(Ids::at(ids.world, 0), int(l.ranks()), rank, failed),
        parts(Ids::at(ids.parts, place.stage * l.dp + place.replica), int(l.tp), int(place.part), failed),
        replicas(Ids::at(ids.replicas, place.stage * l.tp + place.part), int(l.dp), int(place.replica), failed),
        forward(Ids::at(ids.forward, place.replica * l.tp + place.part), int(l.pp), int(place.stage), failed),
        backward(Ids::at(ids.backward, place.replica * l.tp + place.part), int(l.pp), int(place.stage), failed),
        at_an_end(tied && l.pp > 1 && (place.stage == 0 || place.stage + 1 == l.pp)),
        ends(Ids::at(ids.ends, place.replica * l.tp + place.part), at_an_end ? 2 : 1, at_an_end && place.stage ? 1 : 0,
             failed) {}
  ~Groups() { Communicator::abort_together({&world, &parts, &replicas, &forward, &backward, &ends}); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  std::uint64_t bytes_sent() const {
    return parts.bytes_sent() + replicas.bytes_sent() + forward.bytes_sent() + backward.bytes_sent() +
           ends.bytes_sent();
  }

  RankCoordinates place;
  Communicator world, parts, replicas;
  Communicator forward, backward;  // two, so that a stage may send in one direction while it waits for the other
  bool at_an_end;
  Communicator ends;
};

template <class T>
class RankTraining final : public Workload {
 public:
  RankTraining(Context& context, Job job, const Groups::Ids& ids, int rank, const std::atomic<bool>& failed)
      : context_(context),
        job_(std::move(job)),
        groups_(ids, job_.layout, job_.spec.tied, rank, failed),
        model_(context, job_.spec, slice_of(job_.spec, job_.layout, groups_.place),
               [this](Context& c, T* data, std::size_t count) { groups_.parts.all_reduce(data, count, c.stream()); }),
        units_(context, model_, groups_.replicas, job_.layout.zero, kTextSeed),
        shown_loss_(context.buffer<float>(1, Category::workspace, "loss of all")) {
    model_.set_form(job_.form);
  }

  void step() override {
    const Layout& layout = job_.layout;
    const std::size_t micro_batches = run_micro_batches();
    const std::size_t share = planning() ? 0 : job_.batch / layout.dp;
    const data::TokenSamples samples =
        job_.text->samples(first_, planning() ? micro_batches * job_.micro_batch : job_.batch);
    first_ += job_.batch;
    targets_ = samples.targets();
    if (job_.spec.tied && embeds() && !has_head()) zero_token_gradient();  // the head would have overwritten it
    std::vector<Flight> flights(micro_batches);
    std::size_t now = 0;
    const std::uint64_t before = sent_for_micro_batches();
    for (const Pass& pass : passes_of(layout, groups_.place.stage, micro_batches)) {
      const std::size_t at = groups_.place.replica * share + pass.micro_batch * job_.micro_batch;
      if (pass.forward) {
        most_in_flight_ = std::max(most_in_flight_, ++now);
        forward(flights[pass.micro_batch], samples, at);
      } else {
        backward(std::move(flights[pass.micro_batch]), pass.micro_batch > 0, pass.micro_batch + 1 == micro_batches);
        --now;
      }
    }
    settle();
    left_out_ += (sent_for_micro_batches() - before) / micro_batches * (this->micro_batches() - micro_batches);
    if (groups_.at_an_end)
      groups_.ends.all_reduce(model_.parameter(0).gradient, model_.parameter(0).count, context_.stream());
    if (has_token()) units_.sum_gradients("token", context_.stream());
    join(reduce_stream_, context_.stream());
    units_.step();
  }
  std::size_t samples_per_step() const override { return job_.batch; }
  std::uint64_t fingerprint() override { return units_.fingerprint(); }
  std::uint64_t bytes_sent() const override { return groups_.bytes_sent() + left_out_; }
  std::size_t most_in_flight() const override { return most_in_flight_; }

  /// The loss of the whole batch, the same on every rank.
  double figure() override {
    if (planning()) return 0;
    const bool mine = has_head() && groups_.place.part == 0;
    nn::fill(context_, shown_loss_.data(), 1, 0.0f);
    if (mine)
      CUDA_CHECK(cudaMemcpyAsync(shown_loss_.data(), model_.loss_buffer(), sizeof(float), cudaMemcpyDeviceToDevice,
                                 context_.stream()));
    groups_.world.all_reduce(shown_loss_.data(), 1, context_.stream());
    float loss = 0;
    CUDA_CHECK(cudaMemcpyAsync(&loss, shown_loss_.data(), sizeof loss, cudaMemcpyDeviceToHost, context_.stream()));
    groups_.world.wait(context_.stream());
    return loss;
  }
  /// For tests.
  const Units<T>& units() const { return units_; }
  const nn::Transformer<T>& model() const { return model_; }

 private:
  struct Flight {
    nn::TokenBatch batch;
    typename nn::Transformer<T>::EmbeddingActivations embedding;
    std::vector<DeviceBuffer<T>> x;
    std::vector<nn::LayerActivations<T>> kept;
    DeviceBuffer<T> out;  // last stage: what the head reads
  };
  std::size_t micro_batches() const { return job_.batch / job_.layout.dp / job_.micro_batch; }
  // In plan mode, when the pipeline is full and has begun to drain, the rest is the same again.
  std::size_t run_micro_batches() const {
    const bool all = !planning() || !job_.layout.one_forward_one_backward;
    return all ? micro_batches() : std::min(micro_batches(), job_.layout.pp + 1);
  }
  // Of what is sent while micro-batches run, what each of them sends: all but the sums of whole gradients.
  std::uint64_t sent_for_micro_batches() const {
    return groups_.parts.bytes_sent() + groups_.forward.bytes_sent() + groups_.backward.bytes_sent() +
           (job_.layout.zero >= 2 ? groups_.replicas.bytes_sent() : 0);
  }
  bool embeds() const { return model_.slice().embeds(); }
  bool has_head() const { return model_.slice().has_head(job_.spec); }
  bool has_token() const { return embeds() || (job_.spec.tied && has_head()); }
  std::string layer_name(std::size_t l) const { return "layer " + std::to_string(model_.slice().first_layer + l + 1); }

  void forward(Flight& f, const data::TokenSamples& samples, std::size_t at) {
    const Phase phase(context_.ledger(), "forward");
    f.batch.sequences = job_.micro_batch, f.batch.seq = job_.seq;
    if (embeds()) settle();
    if (embeds() || has_head()) f.batch = upload(context_, samples, at, job_.micro_batch);
    DeviceBuffer<T> out;
    if (embeds()) {
      units_.gather("token"), units_.gather("embedding");
      out = model_.embed(context_, f.batch, f.embedding);
      units_.release("token"), units_.release("embedding");
    } else {
      out = receive(groups_.forward, f, int(groups_.place.stage) - 1, forward_stream_, "layer input");
    }
    f.x.resize(model_.slice().layers), f.kept.resize(model_.slice().layers);
    for (std::size_t l = 0; l < f.x.size(); ++l) {
      f.x[l] = std::move(out);
      units_.gather(layer_name(l));
      out = model_.forward_layer(context_, model_.slice().first_layer + l, f.batch, f.x[l].data(), job_.form.keep,
                                 f.kept[l]);
      units_.release(layer_name(l));
    }
    if (has_head()) {
      f.out = std::move(out);
    } else {
      send(groups_.forward, std::move(out), int(groups_.place.stage) + 1, forward_stream_);
    }
  }

  void backward(Flight f, bool accumulate, bool last) {
    const Phase phase(context_.ledger(), "backward");
    DeviceBuffer<T> d;
    if (has_head()) {
      settle();
      if (job_.spec.tied) units_.gather("token");
      units_.gather("head");
      if (job_.form.loss == nn::LossForm::chunked) {  // gradients come with the first chunk of logits
        make_head_gradients();
        d = model_.head(context_, f.batch, std::move(f.out), {accumulate, targets_}, nullptr);
      } else {
        auto kept = model_.head_forward(context_, f.batch, std::move(f.out));
        model_.cross_entropy(context_, f.batch, kept.logits.data(), {accumulate, targets_}, nullptr);
        make_head_gradients();
        d = model_.head_backward(context_, std::move(kept), accumulate);
      }
      if (job_.spec.tied) units_.release("token");
      units_.release("head");
      finished("head", accumulate, last);
    } else {
      d = receive(groups_.backward, f, int(groups_.place.stage) + 1, backward_stream_, "residual gradient");
    }
    for (std::size_t l = f.x.size(); l-- > 0;) {
      units_.gather(layer_name(l)), units_.make_gradients(layer_name(l));
      const std::size_t layer = model_.slice().first_layer + l;
      model_.rebuild_layer(context_, layer, f.batch, f.x[l].data(), f.kept[l]);  // --checkpoint 1
      model_.backward_layer(context_, layer, f.batch, f.x[l].data(), std::move(f.kept[l]), d, accumulate);
      f.x[l].reset();
      units_.release(layer_name(l));
      finished(layer_name(l), accumulate, last);
    }
    if (embeds()) {
      if (!job_.spec.tied) units_.make_gradients("token");
      units_.gather("embedding"), units_.make_gradients("embedding");
      model_.embed_backward(context_, f.batch, std::move(f.embedding), std::move(d), accumulate);
      units_.release("embedding");
      units_.reduce_gradients("token", accumulate);
      finished("embedding", accumulate, last);
    } else {
      send(groups_.backward, std::move(d), int(groups_.place.stage) - 1, backward_stream_);
    }
  }

  void make_head_gradients() {
    if (job_.spec.tied) units_.make_gradients("token");
    units_.make_gradients("head");
  }

  // A send may not end before its receive has begun (NCCL's contract), and two neighbours that each wait for the end of
  // a send before they receive wait for ever. So what is sent stays, and nothing waits for it until this stage has
  // begun to receive what it needs next.
  void send(Communicator& neighbours, DeviceBuffer<T> what, int to, cudaStream_t stream) {
    join(context_.stream(), stream);
    neighbours.send(what.data(), what.size(), to, stream);
    sending_ = std::move(what), sending_on_ = stream;
  }
  DeviceBuffer<T> receive(Communicator& neighbours, const Flight& f, int from, cudaStream_t stream, const char* tag) {
    auto what = context_.buffer<T>(f.batch.rows() * job_.spec.width, Category::activations, tag);
    join(context_.stream(), stream);
    neighbours.receive(what.data(), what.size(), from, stream);
    settle();
    join(stream, context_.stream());
    return what;
  }
  // The last send has ended before anything that is queued from now on.
  void settle() {
    if (sending_.data() == nullptr) return;
    join(sending_on_, context_.stream());
    sending_.reset();
  }

  // A unit's gradients are complete: the replicas add them up, beside what comes next.
  void finished(const std::string& unit, bool accumulate, bool last) {
    units_.reduce_gradients(unit, accumulate);
    if (!last || groups_.replicas.ranks() == 1) return;
    join(context_.stream(), reduce_stream_);
    units_.sum_gradients(unit, reduce_stream_);
  }
  // What is queued on `second` from now on runs after all that is queued on `first`.
  void join(cudaStream_t first, cudaStream_t second) {
    event_.record(first);
    CUDA_CHECK(cudaStreamWaitEvent(second, event_));
  }
  void zero_token_gradient() {
    const auto token = model_.parameter(0);
    CUDA_CHECK(cudaMemsetAsync(token.gradient, 0, token.count * sizeof(T), context_.stream()));
  }

  Context& context_;
  Job job_;
  Groups groups_;
  Stream reduce_stream_, forward_stream_, backward_stream_;
  Event event_;
  nn::Transformer<T> model_;
  Units<T> units_;
  DeviceBuffer<float> shown_loss_;
  DeviceBuffer<T> sending_;
  cudaStream_t sending_on_ = nullptr;
  std::size_t first_ = 0, targets_ = 0, most_in_flight_ = 0;
  std::uint64_t left_out_ = 0;  // sent by the micro-batches that plan mode leaves out, bytes
};

inline std::size_t micro_batches_of(const Job& job) { return job.batch / job.layout.dp / job.micro_batch; }
/// The step of one rank as its prediction sees it.
template <class T>
nn::StepLevers levers_of(const Job& job, const RankCoordinates& place) {
  return rank_levers(job.spec, job.layout, place, sizeof(T), job.micro_batch, micro_batches_of(job), job.seq, job.form);
}
/// Peak allocated bytes of a rank.
template <class T>
ByCategory predict_rank(const Job& job, const RankCoordinates& place) {
  return rank_bytes(job.spec, levers_of<T>(job, place));
}
/// Payload in bytes that a rank sends in a step, as Communicator::bytes_sent() counts it.
template <class T>
std::uint64_t sent_a_step(const Job& job, const RankCoordinates& place) {
  return sent_by_rank(job.spec, job.layout, place, levers_of<T>(job, place));
}

/// Operations of the matrix products that a rank has in a step (Variant::flops). A part has its share of each layer;
/// head and loss are whole on each part of the last stage.
inline std::optional<double> flops_a_step(const Job& job, const RankCoordinates& place) {
  const nn::Slice slice = slice_of(job.spec, job.layout, place);
  if (job.form.attention == nn::AttentionForm::tiled && slice.parts > 1) return std::nullopt;  // a part's own tiles
  const std::size_t layers = slice.layers;
  nn::TransformerSpec of_layers = job.spec;
  of_layers.layers = layers;
  const auto all = flops_of_step(of_layers, job.micro_batch, job.seq, {}, job.form);
  of_layers.layers = 0;
  const auto head = flops_of_step(of_layers, job.micro_batch, job.seq);
  if (!all || !head) return std::nullopt;
  const auto micro_batches = static_cast<double>(job.batch / job.layout.dp / job.micro_batch);
  return micro_batches * ((*all - *head) / static_cast<double>(slice.parts) + (slice.has_head(job.spec) ? *head : 0));
}

/// The ranks of a layout.
template <class T>
class Cluster final : public Team {
 public:
  explicit Cluster(Job job) : Team(int(job.layout.ranks())), job_(std::move(job)), ids_(job_.layout) {}
  std::unique_ptr<Workload> make(Context& context, int rank) override {
    const std::size_t stage = coordinates_of(job_.layout, rank).stage;
    require_countable(multi_gpu::most_in_flight(job_.layout, stage, micro_batches_of(job_)));
    return std::make_unique<RankTraining<T>>(context, job_, ids_, rank, failed);
  }
  ByCategory predicted(int rank) const override { return predict_rank<T>(job_, coordinates_of(job_.layout, rank)); }
  std::optional<double> flops(int rank) const override { return flops_a_step(job_, coordinates_of(job_.layout, rank)); }
  /// Parts and replicas have equally much of everything.
  int kind(int rank) const override { return int(coordinates_of(job_.layout, rank).stage); }

 private:
  Job job_;
  Groups::Ids ids_;
};

/// The largest rank's.
template <class T>
ByCategory predict_largest(const Job& job) {
  PeakBytes largest, next;
  for (std::size_t stage = 0; stage < job.layout.pp; ++stage) {
    next.at_peak = predict_rank<T>(job, RankCoordinates{0, 0, stage});
    largest = later_peak(largest, next);
  }
  return largest.at_peak;
}

}  // namespace oomlab::multi_gpu
