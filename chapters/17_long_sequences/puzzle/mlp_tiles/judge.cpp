#include "bench/puzzling/judge.h"
void backward(const float* x, const float* dy, const float* W1, const float* W2, float* dx, float* dW1, float* dW2,
              int tokens, int width, int hidden);

using namespace oomlab::puzzle;

namespace {

constexpr int tile = 16;

// Eighths: products of two are exact, and so are their sums, so that nobody's rounding decides what is above zero.
std::vector<float> eighths(int count) {
  std::vector<float> values(count);
  for (float& value : values) value = float(random_between(-8, 8)) / 8;
  return values;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  for (const int round : {0, 1, 2}) {
    // No whole number of tiles, less than one, and a whole number.
    const int tokens = round == 0   ? size(random_between(6, 9), 1) * tile + random_between(1, tile - 1)
                       : round == 1 ? random_between(1, tile - 1)
                                    : 3 * tile;
    const int width = size(random_between(20, 30), 5), hidden = size(random_between(70, 90), 11);
    Case now(
        std::to_string(tokens) + " tokens, " + std::to_string(width) + " to " + std::to_string(hidden),
        3 * bytes_of<float>(tokens * width) + 4 * bytes_of<float>(width * hidden) + 2 * bytes_of<float>(tile * hidden));
    const std::vector<float> x = eighths(tokens * width), dy = eighths(tokens * width), w1 = eighths(width * hidden),
                             w2 = eighths(hidden * width);
    const float* device_x = now.input("x", x);
    const float* device_dy = now.input("dy", dy);
    const float* device_w1 = now.input("W1", w1);
    const float* device_w2 = now.input("W2", w2);
    float* dx = now.to_fill<float>("dx", tokens * width);
    float* dw1 = now.to_fill<float>("dW1", width * hidden);
    float* dw2 = now.to_fill<float>("dW2", hidden * width);
    now.call([&] { backward(device_x, device_dy, device_w1, device_w2, dx, dw1, dw2, tokens, width, hidden); });
    std::vector<double> wanted_dx(tokens * width), wanted_dw1(width * hidden), wanted_dw2(hidden * width);
    for (int t = 0; t < tokens; ++t)
      for (int j = 0; j < hidden; ++j) {
        double h = 0, dh = 0;
        for (int c = 0; c < width; ++c) {
          h += double(x[t * width + c]) * w1[c * hidden + j];
          dh += double(dy[t * width + c]) * w2[j * width + c];
        }
        if (h <= 0) continue;
        for (int c = 0; c < width; ++c) {
          wanted_dw2[j * width + c] += h * dy[t * width + c];
          wanted_dw1[c * hidden + j] += dh * x[t * width + c];
          wanted_dx[t * width + c] += dh * w1[c * hidden + j];
        }
      }
    const auto floats = [](const std::vector<double>& numbers) {
      return std::vector<float>(numbers.begin(), numbers.end());
    };
    now.equal("dW2", now.read(dw2, hidden * width), floats(wanted_dw2), 1e-4, width);
    now.equal("dW1", now.read(dw1, width * hidden), floats(wanted_dw1), 1e-4, hidden);
    now.equal("dx", now.read(dx, tokens * width), floats(wanted_dx), 1e-4, width);
  }
}
