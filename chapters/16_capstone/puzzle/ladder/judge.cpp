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
    levers = round == 1 ? 3 : size(random_between(5, 7), 4);
    tried.assign(std::size_t(1) << levers, 0);
    for (int i = 0; i < levers; ++i) {
      saves[i] = 0.3 + 0.01 * random_between(0, 50);
      slows[i] = 1.01 + 0.01 * random_between(0, 60);
    }
    slows[0] = 2;  // the first lever is dear, and often not needed
    const unsigned all = (1u << levers) - 1;
    std::size_t budget = bytes(0);  // round 0: nothing is needed
    if (round == 1) budget = bytes(all) - 512;
    if (round > 1) budget = std::size_t(double(bytes(all)) + double(bytes(0) - bytes(all)) * 0.1 * random_between(2, 6));
    Allowed allowed;
    allowed.no_kernel = allowed.failed_allocations = true;
    Case now(std::to_string(levers) + " levers, a budget of " + std::to_string(budget >> 10) + " KiB", budget, allowed);
    unsigned best = ~0u;
    for (unsigned set = 0; set <= all; ++set)
      if (bytes(set) <= budget && (best == ~0u || time_of(set) < time_of(best))) best = set;
    unsigned found = 0;
    now.call([&] { found = ladder(levers, time_of, step); });
    if (best == ~0u && found != best) refuse("no set fits, and the answer names one.", "没有任何组合放得下，答案却给出了一个。");
    if (best != ~0u && found == ~0u) refuse("the answer is that no set fits; levers " + names(best) + " do.", "答案说没有组合放得下；而 " + names(best) + " 就可以。");
    if (best != ~0u && (found > all || bytes(found) > budget)) refuse("the answer does not fit.", "答案的组合放不下。");
    if (best != ~0u && time_of(found) > time_of(best) * 1.000001)
      refuse("levers " + names(found) + " fit and take " + std::to_string(time_of(found)) + " s; " + names(best) + " fit and take " +
                 std::to_string(time_of(best)) + " s.",
             "组合 " + names(found) + " 放得下，用 " + std::to_string(time_of(found)) + " 秒；而 " + names(best) + " 也放得下，只用 " +
                 std::to_string(time_of(best)) + " 秒。");
    for (unsigned set = 0; set <= all; ++set)
      if (tried[set] > 1 || (tried[set] && best != ~0u && time_of(set) > time_of(best) * 1.000001))
        refuse("a step with levers " + names(set) + " was tried, and need not have been.", "试了组合 " + names(set) + "，本不必试。");
  }
}
