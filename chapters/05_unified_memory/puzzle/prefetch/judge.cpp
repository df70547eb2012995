#include "bench/puzzling/judge.h"
void forward(const float* weights, float* x, int n, int layers);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int layers : {random_between(9, 14), 1, 2, random_between(20, 30)}) {
    const int n = size(random_between(20000, 40000), 600);
    Allowed allowed;
    allowed.synchronisations = 2;
    Case now(std::to_string(layers) + " layers of " + std::to_string(n), 3 * bytes_of<float>(n), allowed);
    const std::vector<float> w = random_numbers(std::size_t(n) * layers), begin = random_numbers(n);
    float* weights = nullptr;
    if (cudaMallocHost(&weights, w.size() * sizeof(float)))
      refuse("the judge has no pinned memory", "评判程序没有锁页内存");
    std::copy(w.begin(), w.end(), weights);
    float* x = now.given("x", begin);
    now.call([&] { forward(weights, x, n, layers); });
    (void)cudaFreeHost(weights);
    std::vector<float> wanted(n);
    for (int i = 0; i < n; ++i) {
      double value = begin[i];
      for (int l = 0; l < layers; ++l) value = value * w[std::size_t(l) * n + i] + 1;
      wanted[i] = float(value);
    }
    now.equal("x", now.read(x, n), wanted, 1e-4);
  }
}
