#include "bench/puzzling/judge.h"
void all_reduce(float* const* rank, int ranks, int n);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int ranks : {4, 1, random_between(5, 7), 8}) {
    const int n = ranks == 8 ? 5 : size(random_between(3000, 9000) * ranks + 1, 60 * ranks + 1);
    Allowed allowed;
    allowed.no_kernel = ranks == 1;  // of one rank nothing need be done
    Case now(std::to_string(ranks) + " ranks, " + std::to_string(n) + " elements",
             std::size_t(ranks) * bytes_of<float>(n) + bytes_of<float>((n + ranks - 1) / ranks), allowed);
    std::vector<float*> rank;
    std::vector<double> sum(n);
    for (int r = 0; r < ranks; ++r) {
      const std::vector<float> values = random_numbers(n);
      for (int i = 0; i < n; ++i) sum[i] += values[i];
      rank.push_back(now.given(("rank " + std::to_string(r)).c_str(), values));
    }
    now.call([&] { all_reduce(rank.data(), ranks, n); });
    for (int r = 0; r < ranks; ++r) {
      const std::string name = "rank " + std::to_string(r);
      now.equal(name.c_str(), now.read(rank[r], n), std::vector<float>(sum.begin(), sum.end()), 1e-5);
    }
  }
}
