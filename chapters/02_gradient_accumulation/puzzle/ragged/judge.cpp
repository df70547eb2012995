#include "bench/puzzling/judge.h"
void accumulate(const float* x, const float* y, const float* w, int samples, int width, int micro, float* gradient);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const auto [samples, micro] :
       {std::pair(64, 16), std::pair(5, 8), std::pair(size(random_between(3000, 5000) * 2 + 1, 301), size(512, 64)),
        std::pair(97, 32)}) {
    const int width = random_between(3, 9);
    Case now(std::to_string(samples) + " samples in micro-batches of " + std::to_string(micro),
             bytes_of<float>(samples * width) + bytes_of<float>(samples) + 2 * bytes_of<float>(width) +
                 bytes_of<float>(micro));
    const std::vector<float> x = random_numbers(samples * width), y = random_numbers(samples),
                             w = random_numbers(width);
    const float* device_x = now.input("x", x);
    const float* device_y = now.input("y", y);
    const float* device_w = now.input("w", w);
    float* gradient = now.to_fill<float>("gradient", width);
    now.call([&] { accumulate(device_x, device_y, device_w, samples, width, micro, gradient); });
    std::vector<double> sum(width);
    for (int i = 0; i < samples; ++i) {
      double r = -double(y[i]);
      for (int k = 0; k < width; ++k) r += double(x[i * width + k]) * w[k];
      for (int k = 0; k < width; ++k) sum[k] += 2 * r * x[i * width + k] / samples;
    }
    now.equal("gradient", now.read(gradient, width), std::vector<float>(sum.begin(), sum.end()), 2e-5);
  }
}
