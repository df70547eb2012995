#include "bench/puzzling/judge.h"
void blur(const float* image, float* result, int height, int width, int radius);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const auto [height, radius] :
       {std::pair(size(random_between(5, 8) * 32 + random_between(1, 31), 75), 2), std::pair(10, 1),
        std::pair(size(160, 64), random_between(3, 5)), std::pair(70, 40)}) {
    const int width = random_between(20, 60);
    Case now(std::to_string(height) + " x " + std::to_string(width) + ", radius " + std::to_string(radius),
             bytes_of<float>(32 * width) + bytes_of<float>((32 + 2 * radius) * width));
    const std::vector<float> image = random_numbers(height * width);
    std::vector<float> result(height * width, NAN), wanted(height * width);
    now.call([&] { blur(image.data(), result.data(), height, width, radius); });
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) {
        double sum = 0;
        for (int r = std::max(0, y - radius); r <= std::min(height - 1, y + radius); ++r)
          for (int c = std::max(0, x - radius); c <= std::min(width - 1, x + radius); ++c) sum += image[r * width + c];
        wanted[y * width + x] = float(sum / ((2 * radius + 1) * (2 * radius + 1)));
      }
    now.equal("result", result, wanted, 1e-4);
  }
}
