#pragma once
// What is known about a lever. Each has one file beside this one, with one such struct in it; list.h lists them. To add
// one: its file, its line in list.h, its member of Levers, what it changes in the step, and the code that does it.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "plan/elsewhere.h"
#include "plan/levers.h"
#include "plan/price.h"

namespace oomlab::plan {

/// How far a search goes.
struct Reach {
  const Work& work;
  std::uint64_t cards = 1;  ///< ranks at most
};

/// A word by which somebody leaves a part of a lever out: `fit --without NAME`.
struct LeverWord {
  const char* name;
  bool (*used)(const Levers&);
};

/// What a lever answers where it says nothing of its own. (Not lambdas beside the members: where an inline function
/// makes a Lever in a program compiled without optimisation, GCC 12 leaves some of these null.)
struct Silent {
  static std::string refuses(const Work&, const Levers&) { return {}; }
  static Numbers numbers(const Work&, const Levers&) { return {}; }
  static void apply(const Work&, const Levers&, const RankCoordinates&, nn::StepLevers&) {}
  static void price(const Work&, const Levers&, Price&) {}
  static void elsewhere(const Work&, const Levers&, Elsewhere&) {}
};

struct Lever {
  /// What a lever changes, and with it where a search branches: the state and who has it; what a pass keeps; or the
  /// length of a pass.
  enum class Changes { state, activations, micro_batch };

  const char* name;     ///< for people: "attention"
  const char* chapter;  ///< that teaches it: "08_attention_and_loss"
  Changes changes;
  std::vector<ChapterOption> options;
  std::vector<LeverWord> words = {};
  /// With it a step computes and moves at least as much, and has the same state: whatever the rest, a search looks at it
  /// only where the same without it may still be better than the best so far.
  bool saves_memory_alone = false;

  /// From options to the lever. Throws UsageError or std::invalid_argument in one line.
  void (*read)(const OptionValues&, Levers&);
  /// Back: "--attention tiled"; empty where it is not pulled.
  std::string (*options_of)(const Levers&);
  /// Whether the two differ in this lever.
  bool (*differs)(const Levers&, const Levers&);
  /// Makes this lever of `levers` what it is in `target`.
  void (*take)(const Levers& target, Levers& levers);
  /// All that a search tries: combinations that differ in this lever only, the textbook's first.
  std::vector<Levers> (*tries)(const Reach&);

  /// Why the model or the batch cannot be shared out, or empty. Asked of all levers before `refuses`, which may take it
  /// for granted that a rank has whole samples.
  std::string (*cannot_share)(const Work&, const Levers&) = Silent::refuses;
  /// Why the combination cannot be, as far as this lever knows; empty when it can.
  std::string (*refuses)(const Work&, const Levers&) = Silent::refuses;
  Numbers (*numbers)(const Work&, const Levers&) = Silent::numbers;
  /// What it changes in the step of the rank at this place of the grid.
  void (*apply)(const Work&, const Levers&, const RankCoordinates&, nn::StepLevers&) = Silent::apply;
  /// What it costs beside operations of the step: bytes over the bus, host memory.
  void (*price)(const Work&, const Levers&, Price&) = Silent::price;
  /// How it is switched on in other libraries.
  void (*elsewhere)(const Work&, const Levers&, Elsewhere&) = Silent::elsewhere;
};

/// One combination for each value, in which set(levers, value) was called.
template <class Values, class Set>
std::vector<Levers> each_of(const Values& values, Set set) {
  std::vector<Levers> all;
  for (const auto& value : values) set(all.emplace_back(), value);
  return all;
}

}  // namespace oomlab::plan
