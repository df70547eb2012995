#include "bench/puzzling/judge.h"
void train(float* const* w, const float* const* g, int ranks, int n, int steps, float rate, float beta);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int ranks : {size(4, 3), size(random_between(5, 7), 2), 1}) {
    const int n = size(random_between(3000, 9000) * ranks + ranks - 1, 50 * ranks + ranks - 1),
              steps = size(random_between(2, 4), 2);
    const int share = (n + ranks - 1) / ranks;
    Allowed allowed;
    allowed.largest = bytes_of<float>(share);
    Case now(std::to_string(ranks) + " ranks, " + std::to_string(n) + " weights, " + std::to_string(steps) + " steps",
             2 * std::size_t(ranks) * bytes_of<float>(n) + std::size_t(ranks) * bytes_of<float>(share), allowed);
    const std::vector<float> begin = random_numbers(n);
    std::vector<float*> w;
    std::vector<const float*> g;
    std::vector<double> mean(n), momentum(n), wanted(begin.begin(), begin.end());
    for (int r = 0; r < ranks; ++r) {
      const std::vector<float> gradient = random_numbers(n);
      for (int i = 0; i < n; ++i) mean[i] += gradient[i] / ranks;
      w.push_back(now.given(("weights of rank " + std::to_string(r)).c_str(), begin));
      g.push_back(now.input(("gradients of rank " + std::to_string(r)).c_str(), gradient));
    }
    const float rate = 0.1f, beta = 0.5f + 0.1f * float(random_between(0, 4));
    now.call([&] { train(w.data(), g.data(), ranks, n, steps, rate, beta); });
    for (int s = 0; s < steps; ++s)
      for (int i = 0; i < n; ++i) {
        momentum[i] = beta * momentum[i] + mean[i];
        wanted[i] -= rate * momentum[i];
      }
    for (int r = 0; r < ranks; ++r) {
      const std::string name = "weights of rank " + std::to_string(r);
      now.equal(name.c_str(), now.read(w[r], n), std::vector<float>(wanted.begin(), wanted.end()), 1e-5);
    }
  }
}
