#include "bench/puzzling/judge.h"
void pruned(const float* x, const float* w1, const float* w2, float* y, int in, int middle, int out, int length,
            const std::vector<int>& kept);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int round : {0, 1, 2}) {
    const int in = random_between(2, 4), middle = random_between(12, 20), out = random_between(2, 5),
              length = size(random_between(1500, 3000), 90);
    std::vector<int> kept;
    for (int c = 0; c < middle; ++c)
      if (round == 1 ? c == middle - 1 : random_between(0, 3) == 0 || c == 1) kept.push_back(c);
    const int k = int(kept.size());
    Case now(std::to_string(k) + " of " + std::to_string(middle) + " channels, length " + std::to_string(length),
             bytes_of<float>(in * length) + bytes_of<float>(middle * in * 3) + bytes_of<float>(out * middle * 3) +
                 bytes_of<float>(out * length) + bytes_of<float>(k * length) + bytes_of<float>(k * in * 3) +
                 bytes_of<float>(out * k * 3) + bytes_of<int>(k));
    const std::vector<float> x = random_numbers(in * length), w1 = random_numbers(middle * in * 3),
                             w2 = random_numbers(out * middle * 3);
    const float* dx = now.input("x", x);
    const float* d1 = now.input("W1", w1);
    const float* d2 = now.input("W2", w2);
    float* y = now.to_fill<float>("y", out * length);
    now.call([&] { pruned(dx, d1, d2, y, in, middle, out, length, kept); });
    std::vector<double> h(k * length);
    std::vector<float> wanted(out * length);
    for (int i = 0; i < k; ++i)
      for (int t = 0; t < length; ++t) {
        double sum = 0;
        for (int c = 0; c < in; ++c)
          for (int s = 0; s < 3; ++s)
            if (t + s >= 1 && t + s - 1 < length)
              sum += double(w1[(kept[i] * in + c) * 3 + s]) * x[c * length + t + s - 1];
        h[i * length + t] = std::max(sum, 0.0);
      }
    for (int o = 0; o < out; ++o)
      for (int t = 0; t < length; ++t) {
        double sum = 0;
        for (int i = 0; i < k; ++i)
          for (int s = 0; s < 3; ++s)
            if (t + s >= 1 && t + s - 1 < length) sum += w2[(o * middle + kept[i]) * 3 + s] * h[i * length + t + s - 1];
        wanted[o * length + t] = float(sum);
      }
    now.equal("y", now.read(y, out * length), wanted, 1e-4);
  }
}
