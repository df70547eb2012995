#include "bench/puzzling/judge.h"
void generate(const float* tokens, float* out, int n, int width, int window);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const auto [n, window] :
       {std::pair(size(random_between(300, 400), 40), random_between(20, 30)), std::pair(10, 16), std::pair(25, 1)}) {
    const int width = random_between(30, 50);
    Case now(std::to_string(n) + " tokens, window " + std::to_string(window),
             bytes_of<float>(window * width) + bytes_of<float>(width));
    const std::vector<float> tokens = random_numbers(n * width, 0.4f);
    std::vector<float> out(n * width, NAN), wanted(n * width);
    now.call([&] { generate(tokens.data(), out.data(), n, width, window); });
    for (int t = 0; t < n; ++t) {
      double sum = 0;
      std::vector<double> value(width);
      for (int j = std::max(0, t - window + 1); j <= t; ++j) {
        double score = 0;
        for (int c = 0; c < width; ++c) score += double(tokens[t * width + c]) * tokens[j * width + c];
        sum += std::exp(score);
        for (int c = 0; c < width; ++c) value[c] += std::exp(score) * tokens[j * width + c];
      }
      for (int c = 0; c < width; ++c) wanted[t * width + c] = float(value[c] / sum);
    }
    now.equal("out", out, wanted, 1e-4);
  }
}
