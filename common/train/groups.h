#pragma once
// The groups of ranks that a rank of a grid belongs to, each with its communicator.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/backend.h"
#include "cuda/nccl.h"
#include "harness/chapter.h"
#include "plan/ranks.h"

namespace oomlab::train {

/// A group of one is no group.
struct Groups {
  /// Ids for every group of a layout, made once and known to all ranks.
  struct Ids {
    struct Id {  // nvcc 13.0 breaks down over a vector of ncclUniqueId itself
      ncclUniqueId nccl{};
    };
    std::vector<Id> world, parts, tokens, replicas, forward, backward, ends;
    explicit Ids(const plan::Layout& l) {
      const auto make = [](std::vector<Id>& ids, std::size_t groups, std::size_t of) {
        if (of == 1) return;
        ids.resize(groups);
        made_by_the_first_process(ids.data(), groups * sizeof(Id), [&] {
          for (Id& id : ids) NCCL_CHECK(ncclGetUniqueId(&id.nccl));
        });
      };
      make(world, 1, l.ranks());
      make(parts, l.replicas() * l.pp, l.tp);
      make(tokens, l.tp * l.dp * l.pp, l.cp);
      make(replicas, l.tp * l.pp, l.replicas());
      for (auto* ids : {&forward, &backward, &ends}) make(*ids, l.tp * l.replicas(), l.pp);
    }
    static ncclUniqueId at(const std::vector<Id>& ids, std::size_t i) {
      return ids.empty() ? ncclUniqueId{} : ids[i].nccl;
    }
  };
  /// `tied`: the model's head and its token table are one.
  Groups(const Ids& ids, const plan::Layout& l, bool tied, int rank, const std::atomic<bool>& failed)
      : place(plan::coordinates_of(l, rank)),
        world(Ids::at(ids.world, 0), int(l.ranks()), rank, failed),
        parts(Ids::at(ids.parts, place.stage * l.replicas() + place.replica), int(l.tp), int(place.part), failed),
        tokens(Ids::at(ids.tokens, (place.stage * l.dp + place.share_of_samples(l)) * l.tp + place.part), int(l.cp),
               int(place.share_of_tokens(l)), failed),
        replicas(Ids::at(ids.replicas, place.stage * l.tp + place.part), int(l.replicas()), int(place.replica), failed),
        forward(Ids::at(ids.forward, place.replica * l.tp + place.part), int(l.pp), int(place.stage), failed),
        backward(Ids::at(ids.backward, place.replica * l.tp + place.part), int(l.pp), int(place.stage), failed),
        at_an_end(tied && l.pp > 1 && (place.stage == 0 || place.stage + 1 == l.pp)),
        ends(Ids::at(ids.ends, place.replica * l.tp + place.part), at_an_end ? 2 : 1, at_an_end && place.stage ? 1 : 0,
             failed) {}
  ~Groups() { Communicator::abort_together({&world, &parts, &tokens, &replicas, &forward, &backward, &ends}); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  /// Payload that this rank has sent for its steps, in bytes.
  std::uint64_t bytes_sent() const {
    return parts.bytes_sent() + tokens.bytes_sent() + replicas.bytes_sent() + forward.bytes_sent() +
           backward.bytes_sent() + ends.bytes_sent();
  }

  plan::RankCoordinates place;
  Communicator world, parts;
  Communicator tokens;             ///< ranks that share out the tokens of the same samples
  Communicator replicas;           ///< ranks with the same slice of the model, these among them
  Communicator forward, backward;  ///< two, so that a stage may send in one direction while it waits for the other
  bool at_an_end;
  Communicator ends;  ///< both stages that have a tied token table
};

}  // namespace oomlab::train
