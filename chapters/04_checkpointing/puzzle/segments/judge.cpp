#include "bench/puzzling/judge.h"

void backward(const float* w, int layers, const float* input, float* gradient, int n);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  // Numbers of layers that are no squares, one that is, and one that is a single layer.
  for (const int layers : {1, size(16, 4), size(random_between(50, 60), 7), size(61, 11)}) {
    const int n = size(random_between(40000, 60000), 1000);
    const int root = int(std::ceil(std::sqrt(double(layers))));
    const std::size_t budget = std::size_t(2 + 2 * root) * bytes_of<float>(n);
    Allowed allowed;
    allowed.launches = std::uint64_t(4 * layers);
    Case now(std::to_string(layers) + " layers of " + std::to_string(n), budget, allowed);
    const std::vector<float> w = random_numbers(layers), x = random_numbers(n, 2), g = random_numbers(n);
    const float* input = now.input("input", x);
    float* gradient = now.given("gradient", g);
    now.call([&] { backward(w.data(), layers, input, gradient, n); });

    std::vector<double> wanted(n);
    for (int i = 0; i < n; ++i) {
      std::vector<double> inputs{x[i]};
      for (int l = 0; l + 1 < layers; ++l) inputs.push_back(inputs[l] + w[l] / (1 + inputs[l] * inputs[l]));
      wanted[i] = g[i];
      for (int l = layers - 1; l >= 0; --l) {
        const double d = 1 + inputs[l] * inputs[l];
        wanted[i] *= 1 - 2 * w[l] * inputs[l] / (d * d);
      }
    }
    now.equal("gradient", now.read(gradient, n), std::vector<float>(wanted.begin(), wanted.end()), 2e-3);
    now.equal("input", now.read(input, n), x);
  }
}
