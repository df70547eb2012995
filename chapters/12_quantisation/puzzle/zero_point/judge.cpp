#include "bench/puzzling/judge.h"
void quantise(const float* w, int rows, int width, unsigned char* codes, float* scales, unsigned char* zeros);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int rows : {size(random_between(50, 90), 7), 1}) {
    const int width = size(random_between(500, 900), 70);
    std::vector<float> w = random_numbers(rows * width);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < width; ++i) {
        float& x = w[r * width + i];
        const float range = float(1 + r % 5);
        // Rows that are symmetric, all above 0, all below, mostly above, zeros, and far from 0.
        x = r % 6 == 0   ? x * range
            : r % 6 == 1 ? (x + 1) * range
            : r % 6 == 2 ? (x - 1.1f) * range
            : r % 6 == 3 ? x + 0.8f
            : r % 6 == 4 ? 0
                         : x + 5;
        if (i % 50 == 0 && r % 2 == 0) x = 0;
      }
    // The zero point is rounded up here, and so is the highest: its code would be 256.
    if (rows > 1) {
      w[(rows - 1) * width] = -101.5f;
      w[(rows - 1) * width + 1] = 153.5f;
    }
    Case now(std::to_string(rows) + " rows of " + std::to_string(width),
             bytes_of<float>(rows * width) + counted(rows * width) + bytes_of<float>(rows) + counted(rows));
    const float* dw = now.input("w", w);
    unsigned char* codes = now.to_fill<unsigned char>("codes", rows * width);
    float* scales = now.to_fill<float>("scales", rows);
    unsigned char* zeros = now.to_fill<unsigned char>("zeros", rows);
    now.call([&] { quantise(dw, rows, width, codes, scales, zeros); });
    std::vector<float> wanted_scales(rows), back(rows * width);
    const std::vector<unsigned char> c = now.read(codes, rows * width), z = now.read(zeros, rows);
    const std::vector<float> s = now.read(scales, rows);
    for (int r = 0; r < rows; ++r) {
      float lowest = 0, highest = 0;
      for (int i = 0; i < width; ++i) {
        lowest = std::min(lowest, w[r * width + i]);
        highest = std::max(highest, w[r * width + i]);
      }
      wanted_scales[r] = highest > lowest ? (highest - lowest) / 255 : 1;
      const auto [low, high] = std::minmax_element(w.begin() + r * width, w.begin() + (r + 1) * width);
      const float narrow = (*high - *low) / 255;
      if (narrow < wanted_scales[r] * 0.9999f && std::abs(s[r] - narrow) <= narrow * 1e-6f)
        refuse("scales[" + std::to_string(r) + "] covers the row's numbers, from " + std::to_string(*low) + " to " +
                   std::to_string(*high) + ": 0 has to be in the range, too.",
               "scales[" + std::to_string(r) + "] 只覆盖了该行的数，从 " + std::to_string(*low) + " 到 " +
                   std::to_string(*high) + "：范围还必须包含 0。");
    }
    now.equal("scales", s, wanted_scales, 1e-6);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < width; ++i) {
        const float x = w[r * width + i], got = float(int(c[r * width + i]) - int(z[r])) * s[r];
        const std::string where = "w[" + std::to_string(r) + "][" + std::to_string(i) + "]";
        if (x == 0 && got != 0)
          refuse(where + " is 0 and comes back as " + std::to_string(got) + ".",
                 where + " 是 0，还原后是 " + std::to_string(got) + "。");
        if (!(std::abs(got - x) <= s[r] * 0.501f + 1e-6f) &&
            !(std::abs(got - x) <= s[r] && (c[r * width + i] == 0 || c[r * width + i] == 255)))
          refuse(where + " is " + std::to_string(x) + " and comes back as " + std::to_string(got) + ": " +
                     std::to_string(std::abs(got - x)) + " away, and half a step is " + std::to_string(s[r] / 2) +
                     ". Its code is " + std::to_string(c[r * width + i]) + ", and the row's zero point " +
                     std::to_string(z[r]) + ".",
                 where + " 是 " + std::to_string(x) + "，还原后是 " + std::to_string(got) + "：相差 " +
                     std::to_string(std::abs(got - x)) + "，而半个步长是 " + std::to_string(s[r] / 2) +
                     "。它的编码是 " + std::to_string(c[r * width + i]) + "，该行的零点是 " + std::to_string(z[r]) +
                     "。");
      }
  }
}
