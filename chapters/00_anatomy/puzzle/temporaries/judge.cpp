#include "bench/puzzling/judge.h"
void adamw(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int n : {size(random_between(100000, 200000), 1500), 1}) {
    Case now(std::to_string(n) + " parameters, 3 steps", 4 * bytes_of<float>(n));
    std::vector<float> w = random_numbers(n);
    float* device_w = now.given("w", w);
    std::vector<float> g(n);
    const float* device_g = now.input("g", g);
    float* m = now.given("m", std::vector<float>(n));
    float* v = now.given("v", std::vector<float>(n));
    std::vector<double> wanted(w.begin(), w.end()), wanted_m(n), wanted_v(n);
    const float rate = 0.01f * float(random_between(1, 3)), decay = 0.1f;
    for (int t = 1; t <= 3; ++t) {
      g = random_numbers(n);
      now.refill(device_g, g);
      now.call([&] { adamw(device_w, device_g, m, v, n, t, rate, decay); });
      for (int i = 0; i < n; ++i) {
        wanted_m[i] = 0.9 * wanted_m[i] + 0.1 * g[i];
        wanted_v[i] = 0.999 * wanted_v[i] + 0.001 * g[i] * g[i];
        const double a = wanted_m[i] / (1 - std::pow(0.9, t)), b = wanted_v[i] / (1 - std::pow(0.999, t));
        wanted[i] -= rate * (a / (std::sqrt(b) + 1e-8) + decay * wanted[i]);
      }
    }
    now.equal("w", now.read(device_w, n), std::vector<float>(wanted.begin(), wanted.end()), 2e-4);
    now.equal("m", now.read(m, n), std::vector<float>(wanted_m.begin(), wanted_m.end()), 1e-5);
    now.equal("v", now.read(v, n), std::vector<float>(wanted_v.begin(), wanted_v.end()), 1e-5);
  }
}
