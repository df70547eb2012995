#include "bench/puzzling/judge.h"
void step(const float* input, float* output, float* gradient, int n, int layers, unsigned seed, unsigned& drawn);

using namespace oomlab::puzzle;

namespace {

bool keeps(unsigned number, int i) {
  unsigned hash = number ^ (unsigned(i) * 2246822519u);
  hash = (hash ^ (hash >> 15)) * 2654435761u;
  return (hash >> 13) % 4 != 0;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  for (const int layers : {random_between(4, 6), 1}) {
    const int n = size(random_between(40000, 60000), 900);
    Case now(std::to_string(layers) + " layers of " + std::to_string(n) + ", 2 steps", 4 * bytes_of<float>(n));
    const std::vector<float> x = random_numbers(n, 2);
    const float* input = now.input("input", x);
    float* output = now.to_fill<float>("output", n);
    float* gradient = now.given("gradient", std::vector<float>(n, 1.0f));
    const unsigned seed = unsigned(random_between(1, 1 << 30));
    unsigned drawn = 0;
    for (int s = 0; s < 2; ++s) {
      std::vector<float> ones(n, 1.0f), wanted_y(n), wanted_g(n);
      now.refill(gradient, ones);
      now.call([&] { step(input, output, gradient, n, layers, seed, drawn); });
      for (int i = 0; i < n; ++i) {
        double y = x[i], g = 1;
        for (int l = 0; l < layers; ++l) {
          const bool kept = keeps(seed + 2654435769u * unsigned(s * layers + l + 1), i);
          g *= kept ? 4 * (1 - y * y) / ((1 + y * y) * (1 + y * y)) : 0;
          y = kept ? 4 * y / (1 + y * y) : 0;
        }
        wanted_y[i] = float(y);
        wanted_g[i] = float(g);
      }
      now.equal("output", now.read(output, n), wanted_y, 1e-3);
      now.equal("gradient", now.read(gradient, n), wanted_g, 5e-3);
      if (drawn != unsigned((s + 1) * layers))
        refuse("after step " + std::to_string(s + 1) + " the generator has drawn " + std::to_string(drawn) +
                   " numbers, and a step draws " + std::to_string(layers) +
                   ": the steps after it would not be those of a training that keeps everything.",
               "第 " + std::to_string(s + 1) + " 步之后，生成器已抽取 " + std::to_string(drawn) +
                   " 个数，而一步应抽取 " + std::to_string(layers) + " 个：此后的各步就不再与保留全部激活的训练相同。");
    }
  }
}
