#include "bench/puzzling/judge.h"
void decode(const float* image, const float* w1, const float* w2, float* result, int height, int width);

using namespace oomlab::puzzle;

namespace {

constexpr int hidden = 4, strip = 32;

// [height, width, in] to [height, width, out]
std::vector<double> convolved(const std::vector<double>& x, const std::vector<float>& w, int in, int out, int height,
                              int width) {
  std::vector<double> y(height * width * out);
  for (int i = 0; i < int(y.size()); ++i) {
    const int row = i / out / width, column = i / out % width, channel = i % out;
    for (int r = std::max(0, row - 1); r <= std::min(height - 1, row + 1); ++r)
      for (int c = std::max(0, column - 1); c <= std::min(width - 1, column + 1); ++c)
        for (int j = 0; j < in; ++j)
          y[i] += x[(r * width + c) * in + j] * w[(channel * in + j) * 9 + (r - row + 1) * 3 + c - column + 1];
  }
  return y;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  // No whole number of strips; less than one; a last strip with a single row; a whole number.
  for (const int height : {size(random_between(5, 7), 2) * strip + random_between(2, strip - 1),
                           random_between(3, strip - 1), 2 * strip + 1, 3 * strip}) {
    const int width = random_between(40, 70);
    Allowed allowed;
    allowed.host_bytes = KiB(2);  // the feature map does not wait there
    Case now(std::to_string(height) + " x " + std::to_string(width),
             2 * bytes_of<float>(9 * hidden) + bytes_of<double>(2) + bytes_of<float>(strip * width) +
                 bytes_of<float>((strip + 4) * width) + bytes_of<float>((strip + 2) * width * hidden),
             allowed);
    std::vector<float> image = random_numbers(height * width), result(height * width, NAN);
    for (int i = 0; i < height * width; ++i) image[i] += 2.0f * (i / width) / height;  // brighter from row to row
    const std::vector<float> w1 = random_numbers(9 * hidden), w2 = random_numbers(9 * hidden);
    const float* device_w1 = now.input("w1", w1);
    const float* device_w2 = now.input("w2", w2);
    now.call([&] { decode(image.data(), device_w1, device_w2, result.data(), height, width); });
    std::vector<double> h = convolved(std::vector<double>(image.begin(), image.end()), w1, 1, hidden, height, width);
    double mean = 0, variance = 0;
    for (const double value : h) mean += value / h.size();
    for (const double value : h) variance += (value - mean) * (value - mean) / h.size();
    for (double& value : h) value = std::max(0.0, (value - mean) / std::sqrt(variance + 1e-5));
    const std::vector<double> wanted = convolved(h, w2, hidden, 1, height, width);
    now.equal("result", result, std::vector<float>(wanted.begin(), wanted.end()), 1e-4, width);
  }
}
