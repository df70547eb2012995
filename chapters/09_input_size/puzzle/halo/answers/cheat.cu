// FAILS: no_kernel
void blur(const float* image, float* result, int height, int width, int radius) {
  for (int y = 0; y < height; ++y)  // on the host: no device, no bytes
    for (int x = 0; x < width; ++x) {
      float sum = 0;
      for (int r = std::max(0, y - radius); r <= std::min(height - 1, y + radius); ++r)
        for (int c = std::max(0, x - radius); c <= std::min(width - 1, x + radius); ++c) sum += image[size_t(r) * width + c];
      result[size_t(y) * width + x] = sum / ((2 * radius + 1) * (2 * radius + 1));
    }
}
