#pragma once
// All ranks of a layout, each with a trainer of its own.

#include <memory>
#include <optional>
#include <utility>

#include "harness/chapter.h"
#include "train/trainer.h"

namespace oomlab::train {

/// `make_store`: of a base that is stored in fewer bits.
template <class T>
class Cluster final : public Team {
 public:
  explicit Cluster(Job job, nn::MakeFrozenStore<T> make_store = {})
      : Team(int(job.layout.ranks())), job_(std::move(job)), make_store_(std::move(make_store)), ids_(job_.layout) {}
  std::unique_ptr<Workload> make(Context& context, int rank) override {
    const std::size_t stage = plan::coordinates_of(job_.layout, rank).stage;
    require_countable(plan::most_in_flight(job_.layout, stage, job_.micro_batches()));
    return std::make_unique<Trainer<T>>(context, job_, ids_, rank, failed, make_store_);
  }
  ByCategory predicted(int rank) const override {
    return predict_rank<T>(job_, plan::coordinates_of(job_.layout, rank));
  }
  HostBytes predicted_on_host(int rank) const override {
    return predict_rank_on_host<T>(job_, plan::coordinates_of(job_.layout, rank));
  }
  std::optional<double> flops(int rank) const override {
    if (job_.pack) return std::nullopt;  // plan::rank_flops() has those of sequences of unequal lengths
    return flops_a_step(job_, plan::coordinates_of(job_.layout, rank));
  }
  /// Parts have equally much of everything, and so have replicas, where their sequences are not packed: packed, each has its
  /// own lengths, and there is one stage.
  int kind(int rank) const override {
    const RankCoordinates place = plan::coordinates_of(job_.layout, rank);
    return int(job_.pack ? place.replica : place.stage);
  }

 private:
  Job job_;
  nn::MakeFrozenStore<T> make_store_;
  Groups::Ids ids_;
};

}  // namespace oomlab::train
