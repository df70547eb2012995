#pragma once
// What a combination of levers needs, to the byte, and what it costs at least: in closed form, without a run.

#include <functional>
#include <optional>
#include <string>

#include "plan/card.h"
#include "plan/flops.h"
#include "plan/host_bytes.h"
#include "plan/levers.h"
#include "plan/price.h"

namespace oomlab::plan {

struct Plan {
  nn::Schedule schedule;  ///< of the first rank
  ByCategory peak;        ///< of the rank that needs most, without cuBLAS's workspace
  HostBytes host = {};    ///< of the rank that has most host memory
  Price price;
};

/// What the layers of a rank keep: schedule_of(), or what asks it once for combinations that have the same.
using Schedules = std::function<nn::Schedule(const Work&, const Levers&, const RankCoordinates&)>;

/// Peak and price of a step. Throws std::invalid_argument with refused()'s line where there is one, and
/// std::length_error when a figure does not fit 64 bits. Takes microseconds; a solved schedule, milliseconds.
Plan plan_of(const Work& work, const Levers& levers);
Plan plan_of(const Work& work, const Levers& levers, const Schedules& schedules);

// ------------------------------------------------------------------------------------------------------- its parts

/// What levers make of the step of the rank at `place`; a schedule that is solved is not among it.
nn::StepLevers step_of(const Work& work, const Levers& levers, const RankCoordinates& place = {});
/// Its form alone; of several ranks also whether layers keep anything.
nn::StepForm form_of(const Work& work, const Levers& levers);
/// What stays on the device of the rank at `place` from step to step.
ByCategory resident_bytes(const Work& work, const Levers& levers, const RankCoordinates& place = {});
/// What the layers of the rank at `place` keep. Solved: the schedule that recomputes least among all that the solver
/// finds within the budget; every layer, where nothing fits.
nn::Schedule schedule_of(const Work& work, const Levers& levers, const RankCoordinates& place = {});
/// Operations of the matrix products of a step of the rank at `place` with this schedule.
double rank_flops(const Work& work, const Levers& levers, const RankCoordinates& place, const nn::Schedule& schedule);

// ------------------------------------------------------------------------------------------------------------ time

/// GB/s in one direction: PCIe 5.0 with 16 lanes, and NVLink of a B200. With slower ones a step takes longer; a bound
/// from below stays one.
inline constexpr double kBusGbPerS = 63, kLinkGbPerS = 900;
/// GB/s of host memory, at most: a channel of DDR5-6400 has 51.2. Desktops have two of them, a server's socket up
/// to 12.
inline constexpr double kDesktopGbPerS = 102.4, kServerGbPerS = 614.4;
/// Of the machine that a card is taken to be in: GeForce cards (rtx-3060, gtx-1660, ...) are in desktops.
double host_gb_per_s(const Card& card);

/// No step takes less: the largest of computing, moving (plan/card.h), the bus, the links, and host memory, in which
/// the CPU's update begins after the forward pass, and ends after all else. Seconds; nothing when the card does not
/// compute so. `host_gb_per_s`: of host memory, where not the card's own.
std::optional<double> least_seconds(const Card& card, const Levers& levers, const Plan& plan,
                                    std::optional<double> host_gb_per_s = std::nullopt);

/// The command that plans this: `model` is "--model bert-large", or a --config. The budget is in it where a schedule is
/// solved for it, or where `with_budget` says so.
std::string command_of(const std::string& model, const Work& work, const Levers& levers, bool with_budget = false);

}  // namespace oomlab::plan
