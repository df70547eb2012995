#include "bench/puzzling/judge.h"
#include <cuda_fp16.h>

void step(const __half* g, float* w, int n, float rate, float& scale, int& good_steps);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int first : {0, 2, 3}) {
    const int n = size(random_between(20000, 30000), 700), steps = size(24, 10);
    Case now(std::to_string(n) + " gradients, " + std::to_string(steps) + " steps",
             bytes_of<__half>(n) + bytes_of<float>(n) + 512);
    const std::vector<float> begin = random_numbers(n);
    float* w = now.given("w", begin);
    const __half* g = now.input("g", std::vector<__half>(n));
    std::vector<double> wanted(begin.begin(), begin.end());
    float scale = first == 3 ? 65536 : 1024, wanted_scale = scale;
    int good = 0, wanted_good = 0;
    for (int s = 0; s < steps; ++s) {
      const bool overflow = s == first || s == first + 1 || (s > 15 && random_between(0, 3) == 0);
      const std::vector<float> plain = random_numbers(n);
      std::vector<__half> halves(n);
      for (int i = 0; i < n; ++i) halves[i] = plain[i] * std::min(scale, 30000.0f);
      if (overflow)
        halves[random_between(0, n - 1)] =
            s % 2 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      now.refill(g, halves);
      const float before = scale;
      Allowed allowed;
      now.call([&] { step(g, w, n, 0.01f, scale, good); });
      if (overflow) {
        wanted_scale /= 2;
        wanted_good = 0;
      } else {
        for (int i = 0; i < n; ++i) wanted[i] -= 0.01 / before * float(halves[i]);
        if (++wanted_good == 4) {
          wanted_scale = std::min(2 * wanted_scale, 65536.0f);
          wanted_good = 0;
        }
      }
      now.equal(("scale after step " + std::to_string(s)).c_str(), std::vector<float>{scale},
                std::vector<float>{wanted_scale});
    }
    now.equal("w", now.read(w, n), std::vector<float>(wanted.begin(), wanted.end()), 1e-4);
  }
}
