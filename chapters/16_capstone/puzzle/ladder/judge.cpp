#include "bench/puzzling/judge.h"
unsigned ladder(int levers, double (*time)(unsigned set), cudaError_t (*step)(unsigned set));

using namespace oomlab::puzzle;

namespace {

int levers;
double saves[8], slows[8];
std::vector<int> tried;

std::size_t bytes(unsigned set) {
  double activations = 1000, state = 1000;  // KiB; even levers save activations, odd ones state
  for (int i = 0; i < levers; ++i)
    if (set >> i & 1) (i % 2 ? state : activations) *= saves[i];
  return counted(KiB(std::size_t(activations)) + KiB(std::size_t(state)));
}
double time_of(unsigned set) {
  double seconds = 1;
  for (int i = 0; i < levers; ++i)
    if (set >> i & 1) seconds *= slows[i];
  return seconds;
}
unsigned all() { return (1u << levers) - 1; }
void draw(int count) {
  levers = count;
  tried.assign(std::size_t(1) << levers, 0);
  for (int i = 0; i < levers; ++i) {
    saves[i] = 0.3 + 0.01 * random_between(0, 50);
    slows[i] = 1.01 + 0.01 * random_between(0, 60);
  }
  slows[0] = 2;  // the first lever is dear, and often not needed
}
std::size_t between(std::size_t low, std::size_t high, double share) {
  return counted(std::size_t(double(low) + double(high - low) * share));
}

// ~0u where none fits.
unsigned fastest(std::size_t budget) {
  unsigned best = ~0u;
  for (unsigned set = 0; set <= all(); ++set)
    if (bytes(set) <= budget && (best == ~0u || time_of(set) < time_of(best))) best = set;
  return best;
}
// What one gets by switching on the cheapest lever, then the next one, until it fits.
unsigned cheapest_first(std::size_t budget) {
  unsigned set = 0;
  while (bytes(set) > budget) {
    int next = -1;
    for (int i = 0; i < levers; ++i)
      if (!(set >> i & 1) && (next < 0 || slows[i] < slows[next])) next = i;
    set |= 1u << next;
  }
  return set;
}

cudaError_t step(unsigned set) {
  if (set >> levers) return cudaErrorInvalidValue;
  ++tried[set];
  void* memory = nullptr;
  if (const cudaError_t error = allocate_as_reader("the step", &memory, bytes(set))) return error;
  return release_as_reader(memory);
}

std::string names(unsigned set) {
  std::string text;
  for (int i = 0; i < levers; ++i)
    if (set >> i & 1) text += (text.empty() ? "" : "+") + std::to_string(i);
  return text.empty() ? "{}" : text;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  for (const int round : {0, 1, 2, 3, 4}) {
    std::size_t budget = 0;
    do {
      draw(round == 1 ? 3 : size(random_between(5, 7), 4));
      budget = round == 0   ? bytes(0)
               : round == 1 ? bytes(all()) - 512
                            : between(bytes(all()), bytes(0), 0.1 * random_between(2, 6));
    } while (round > 1 && time_of(cheapest_first(budget)) <=
                              time_of(fastest(budget)));  // where adding single levers is not good enough
    Allowed allowed;
    allowed.no_kernel = allowed.failed_allocations = true;
    Case now(std::to_string(levers) + " levers, a budget of " + std::to_string(budget >> 10) + " KiB", budget, allowed);
    const unsigned best = fastest(budget);
    unsigned found = 0;
    now.call([&] { found = ladder(levers, time_of, step); });
    if (best == ~0u && found != best)
      refuse("no set fits, and the answer names one.", "没有任何组合放得下，答案却给出了一个。");
    if (best != ~0u && found == ~0u)
      refuse("the answer is that no set fits; levers " + names(best) + " do.",
             "答案说没有组合放得下；而 " + names(best) + " 就可以。");
    if (best != ~0u && (found > all() || bytes(found) > budget))
      refuse("the answer does not fit.", "答案的组合放不下。");
    if (best != ~0u && time_of(found) > time_of(best) * 1.000001)
      refuse("levers " + names(found) + " fit and take " + std::to_string(time_of(found)) + " s; " + names(best) +
                 " fit and take " + std::to_string(time_of(best)) + " s.",
             "组合 " + names(found) + " 放得下，用 " + std::to_string(time_of(found)) + " 秒；而 " + names(best) +
                 " 也放得下，只用 " + std::to_string(time_of(best)) + " 秒。");
    for (unsigned set = 0; set <= all(); ++set)
      if (tried[set] > 1 || (tried[set] && best != ~0u && time_of(set) > time_of(best) * 1.000001))
        refuse("a step with levers " + names(set) + " was tried, and need not have been.",
               "试了组合 " + names(set) + "，本不必试。");
  }
}
