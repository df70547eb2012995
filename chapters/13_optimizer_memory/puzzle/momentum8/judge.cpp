#include "bench/puzzling/judge.h"
void step(float* w, const float* g, signed char* codes, float* scales, int n, float rate, float beta);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int n : {size(random_between(100, 200) * 256 + random_between(1, 255), 700), 5}) {
    const int groups = (n + 255) / 256, steps = 5;
    Allowed allowed;
    allowed.threads = 32;  // a warp
    Case now(std::to_string(n) + " weights, " + std::to_string(steps) + " steps",
             2 * bytes_of<float>(n) + counted(n) + bytes_of<float>(groups), allowed);
    const std::vector<float> begin = random_numbers(n);
    float* w = now.given("w", begin);
    const float* g = now.input("g", std::vector<float>(n));
    signed char* codes = now.given("codes", std::vector<signed char>(n));
    float* scales = now.given("scales", std::vector<float>(groups));
    std::vector<float> wanted = begin, wanted_scales(groups), m(n);
    std::vector<int> wanted_codes(n);
    const float rate = 0.1f, beta = 0.9f;
    for (int s = 0; s < steps; ++s) {
      std::vector<float> gradient = random_numbers(n);
      for (int i = 0; i < n; ++i)
        gradient[i] *= i % 256 == 0 ? 20.0f : i / 256 % 3 == 0 ? 0.01f : 1.0f;  // one large number in each group
      now.refill(g, gradient);
      now.call([&] { step(w, g, codes, scales, n, rate, beta); });
      for (int b = 0; b < groups; ++b) {
        float largest = 0;
        for (int i = b * 256; i < std::min(n, b * 256 + 256); ++i) {
          m[i] = beta * float(wanted_codes[i]) * wanted_scales[b] + gradient[i];
          wanted[i] -= rate * m[i];
          largest = std::max(largest, std::abs(m[i]));
        }
        wanted_scales[b] = largest > 0 ? largest / 127 : 1;
        for (int i = b * 256; i < std::min(n, b * 256 + 256); ++i)
          wanted_codes[i] = int(std::rint(m[i] / wanted_scales[b]));
      }
      now.equal("scales", now.read(scales, groups), wanted_scales, 1e-5);
      // A number in the middle between two codes may go either way: contraction differs.
      const std::vector<signed char> got = now.read(codes, n);
      for (int i = 0; i < n; ++i) {
        const float exact = m[i] / wanted_scales[i / 256];
        if (std::abs(float(got[i]) - exact) > 0.502f)
          refuse("after step " + std::to_string(s + 1) + " codes[" + std::to_string(i) + "] is " +
                     std::to_string(got[i]) + ", and " + std::to_string(exact) + " is to be rounded.",
                 "第 " + std::to_string(s + 1) + " 步之后 codes[" + std::to_string(i) + "] 是 " +
                     std::to_string(got[i]) + "，而要取整的是 " + std::to_string(exact) + "。");
        wanted_codes[i] = got[i];
      }
    }
    now.equal("w", now.read(w, n), wanted, 1e-4);
  }
}
