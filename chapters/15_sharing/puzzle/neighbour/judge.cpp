#include "bench/puzzling/judge.h"
void job(const float* in, float* out, int n, size_t reserve);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  const std::size_t unit = KiB(64);
  for (const int round : {0, 1, 2}) {
    const int n = size(random_between(300000, 500000), 70000);
    const std::size_t card = 40 * unit, reserve = std::size_t(random_between(3, 6)) * unit;
    Allowed allowed;
    allowed.failed_allocations = true;
    allowed.launches = 4 * (n * sizeof(float) / unit + 4);
    Case now("a card of 2.5 MiB, " + std::to_string(reserve >> 10) + " KiB of it the neighbour's, round " +
                 std::to_string(round + 1),
             card, allowed);
    std::vector<float> in = random_numbers(n), out(n, NAN), wanted(n);
    for (int i = 0; i < n; ++i) wanted[i] = in[i] * in[i];
    int calls = 0;
    std::size_t largest_free = 0;
    // Between any two calls the neighbour may take or give back memory, but never more than leaves its reserve and the job's smallest chunk. In
    // the last round it always takes what was just said to be free.
    now.at_each_call([&] {
      if (now.live() && now.live() + reserve > card && now.live() > unit)
        refuse("the job has " + std::to_string(now.live() >> 10) + " KiB, and leaves less than the neighbour's " +
                   std::to_string(reserve >> 10) + " KiB free.",
               "作业占用了 " + std::to_string(now.live() >> 10) + " KiB，留给邻居的不足 " +
                   std::to_string(reserve >> 10) + " KiB。");
      ++calls;
      largest_free = std::max(largest_free, card);
      if (round == 1 && calls % 2 == 0) now.set_budget(now.live() + unit * std::size_t(random_between(1, 8)));
      if (round == 1 && calls % 2 == 1)
        now.set_budget(std::max(now.live() + unit, card - unit * std::size_t(random_between(0, 30))));
      if (round == 2 && calls % 2 == 0) now.set_budget(now.live() + unit * 5 / 4);
      if (round == 2 && calls % 2 == 1) now.set_budget(card);
    });
    now.call([&] { job(in.data(), out.data(), n, reserve); });
    if (round == 0 && now.peak() > card - reserve)
      refuse("the job had " + std::to_string(now.peak() >> 10) + " KiB of " + std::to_string(card >> 10) + ", and " +
                 std::to_string(reserve >> 10) + " were to stay free.",
             "作业用了 " + std::to_string(card >> 10) + " KiB 中的 " + std::to_string(now.peak() >> 10) +
                 " KiB，而应留出 " + std::to_string(reserve >> 10) + " KiB。");
    if (round == 0 && !small() && now.peak() < (card - reserve) / 2)
      refuse("the job had " + std::to_string(now.peak() >> 10) + " KiB at most, and twice as much was there for it.",
             "作业最多只用了 " + std::to_string(now.peak() >> 10) + " KiB，而可用的是两倍以上。");
    now.equal("out", out, wanted, 1e-6);
  }
}
