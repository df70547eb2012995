#include "bench/puzzling/judge.h"
void row_losses(const float* x, const float* w, int rows, int width, int hidden, float* loss);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int rows : {64, size(random_between(5, 8) * 64 + random_between(1, 63), 150), 1}) {
    const int width = random_between(5, 12), hidden = size(random_between(300, 700), 60);
    Allowed allowed;
    allowed.launches = 2 * std::uint64_t(rows / 32 + 2);
    Case now(std::to_string(rows) + " rows, " + std::to_string(hidden) + " hidden units",
             bytes_of<float>(rows * width) + bytes_of<float>(width * hidden) + bytes_of<float>(rows) +
                 bytes_of<float>(64 * hidden),
             allowed);
    const std::vector<float> x = random_numbers(rows * width), w = random_numbers(width * hidden);
    const float* device_x = now.input("x", x);
    const float* device_w = now.input("W", w);
    float* loss = now.to_fill<float>("loss", rows);
    now.call([&] { row_losses(device_x, device_w, rows, width, hidden, loss); });
    std::vector<float> wanted(rows);
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int j = 0; j < hidden; ++j) {
        double h = 0;
        for (int k = 0; k < width; ++k) h += double(x[r * width + k]) * w[k * hidden + j];
        sum += h > 0 ? h * h : 0;
      }
      wanted[r] = float(sum);
    }
    now.equal("loss", now.read(loss, rows), wanted, 1e-4);
  }
}
