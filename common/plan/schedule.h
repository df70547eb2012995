#pragma once
// Schedules of recomputation (Chen et al., "Training deep nets with sublinear memory cost", 2016): the usual ones, what
// each needs, and the one that a budget allows (schedule_solver.cpp). step_form.h says what a schedule is.

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/step.h"

namespace oomlab::nn {

/// Every layer keeps all that its backward pass reads.
Schedule keep_everything(std::uint64_t layers);
/// Every layer keeps this much, and computes the rest again.
Schedule keep_selected(std::uint64_t layers, Keep keep);
/// Segments of at most `length` layers, each recomputed from its input.
Schedule recompute_segments(std::uint64_t layers, std::uint64_t length);
/// √layers, rounded up: as many segments as each has layers.
std::uint64_t root_of(std::uint64_t layers);

/// Peak of one device's step with this schedule, of a model in this form, by category, above `resident`: bytes between
/// steps. Throws as simulate_step().
ByCategory predict_schedule(const TransformerSpec& spec, std::uint64_t element_bytes, std::uint64_t sequences,
                            std::uint64_t seq, const Schedule& schedule, const ByCategory& resident,
                            const StepForm& form = {});

/// What a segment recomputes, in operations: matrix products, and 30 for a GELU and 8 for a normalised element. It is
/// no time. These two are bound by memory: an A100 reads and writes a value of 16 bits in the time of some 600
/// operations of its tensor cores. So a schedule that recomputes the fewest operations need not be the fastest.
double recompute_cost(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq, const Segment& segment,
                      const StepForm& form = {});
double recompute_cost(const TransformerSpec& spec, std::uint64_t sequences, std::uint64_t seq, const Schedule& schedule,
                      const StepForm& form = {});

/// All ways to treat a stretch of layers that the solver knows; recomputed segments have up to `longest` layers.
std::vector<Segment> segment_choices(std::uint64_t longest, const StepForm& form = {});

/// The schedule that recomputes the fewest operations (not the least time, see recompute_cost()) among all whose peak
/// is at most `budget` bytes, `resident` included; nothing when there is none. Exact: dynamic programming over the
/// layers, whose states are all (bytes held, operations) of which no other is better in both. Of schedules that are
/// equal in both it is the one whose last segment comes first in segment_choices(), and so on towards the front: the
/// same with every library.
std::optional<Schedule> solve_schedule(const TransformerSpec& spec, std::uint64_t element_bytes,
                                       std::uint64_t sequences, std::uint64_t seq, std::uint64_t budget,
                                       const ByCategory& resident, const StepForm& form = {});

}  // namespace oomlab::nn
