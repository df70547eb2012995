#include "kernels_by_hand.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "nn/ops/kernel.h"

namespace oomlab::bench {
namespace {

void bias_relu(float* y, const float* bias, std::size_t rows, std::size_t width) {
#pragma omp parallel for
  for (std::size_t r = 0; r < rows; ++r)
#pragma omp simd
    for (std::size_t c = 0; c < width; ++c) {
      const float v = y[r * width + c] + bias[c];
      y[r * width + c] = v > 0.0f ? v : 0.0f;
    }
}

void bias_gelu(float* y, const float* bias, std::size_t rows, std::size_t width) {
#pragma omp parallel for
  for (std::size_t r = 0; r < rows; ++r)
#pragma omp simd
    for (std::size_t c = 0; c < width; ++c) y[r * width + c] = nn::gelu(y[r * width + c] + bias[c]);
}

void relu_backward(float* dy, const float* y, std::size_t count) {
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) dy[i] *= y[i] > 0.0f ? 1.0f : 0.0f;
}

void gelu_backward(float* dy, const float* z, std::size_t count) {
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) dy[i] *= nn::gelu_derivative(z[i]);
}

void column_sum(const float* x, float* sums, std::size_t rows, std::size_t width) {
  constexpr std::size_t kPiece = 512;  // of columns: their sums stay in the first-level cache
#pragma omp parallel for
  for (std::size_t first = 0; first < width; first += kPiece) {
    const std::size_t last = first + kPiece < width ? first + kPiece : width;
    for (std::size_t c = first; c < last; ++c) sums[c] = 0.0f;
    for (std::size_t r = 0; r < rows; ++r)
#pragma omp simd
      for (std::size_t c = first; c < last; ++c) sums[c] += x[r * width + c];
  }
}

void softmax_cross_entropy(float* logits, const int* labels, float* row_loss, std::size_t rows, std::size_t classes,
                           float scale) {
#pragma omp parallel for
  for (std::size_t r = 0; r < rows; ++r) {
    float* x = logits + r * classes;
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (std::size_t i = 0; i < classes; ++i) largest = largest < x[i] ? x[i] : largest;
    const float target = x[labels[r]] - largest;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = 0; i < classes; ++i) sum += x[i] = nn::exp_of(x[i] - largest);
    const float factor = scale / sum;
#pragma omp simd
    for (std::size_t i = 0; i < classes; ++i) x[i] *= factor;
    x[labels[r]] = (nn::exp_of(target) / sum - 1.0f) * scale;
    row_loss[r] = std::log(sum) - target;
  }
}

void sgd(float* w, const float* g, std::size_t count, float lr) {
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) w[i] -= lr * g[i];
}

void momentum(float* w, const float* g, float* v, std::size_t count, float lr, float momentum) {
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) {
    const float new_v = momentum * v[i] + g[i], new_w = w[i] - lr * new_v;
    v[i] = new_v;
    w[i] = new_w;
  }
}

void adamw(float* __restrict w, const float* __restrict g, float* __restrict m, float* __restrict v, std::size_t count,
           float lr, float beta1, float beta2, float eps, float weight_decay, int step) {
  const float keep = 1.0f - lr * weight_decay;
  const float rate = static_cast<float>(lr / (1.0 - std::pow(double(beta1), step)));
  const float unbiased = static_cast<float>(1.0 / (1.0 - std::pow(double(beta2), step)));
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) {
    // all loads before all stores: buffers start at the same place in a page, and a load right after a store
    // to the same place of another page waits for it
    const float new_m = beta1 * m[i] + (1.0f - beta1) * g[i], new_v = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
    const float new_w = keep * w[i] - rate * new_m / (std::sqrt(new_v * unbiased) + eps);
    m[i] = new_m;
    v[i] = new_v;
    w[i] = new_w;
  }
}

void gather(const unsigned char* images, const unsigned char* labels, float* out, int* labels_out, std::size_t count,
            std::size_t batch, std::size_t pixels, float scale) {
#pragma omp parallel for
  for (std::size_t b = 0; b < batch; ++b) {
    const std::size_t image = b % count;
#pragma omp simd
    for (std::size_t i = 0; i < pixels; ++i)
      out[b * pixels + i] = static_cast<float>(images[image * pixels + i]) * scale;
    labels_out[b] = labels[image];
  }
}

void resize(const unsigned char* images, const unsigned char* labels, float* out, int* labels_out, std::size_t count,
            std::size_t batch, int from_height, int from_width, int height, int width, float scale) {
  struct Between {
    int low, high;
    float weight;
  };
  const auto between = [](int i, float ratio, int from) {
    const float at = std::max(0.0f, (static_cast<float>(i) + 0.5f) * ratio - 0.5f);
    const int low = std::min(static_cast<int>(at), from - 1);
    return Between{low, std::min(low + 1, from - 1), at - static_cast<float>(low)};
  };
  const float ratio_y = static_cast<float>(from_height) / static_cast<float>(height);
  const float ratio_x = static_cast<float>(from_width) / static_cast<float>(width);
  const std::size_t pixels = static_cast<std::size_t>(from_height) * static_cast<std::size_t>(from_width);
#pragma omp parallel for
  for (std::size_t b = 0; b < batch; ++b) {
    const unsigned char* image = images + b % count * pixels;
    float* to = out + b * static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
    for (int line = 0; line < height; ++line) {
      const Between y = between(line, ratio_y, from_height);
      const unsigned char *top = image + y.low * from_width, *bottom = image + y.high * from_width;
#pragma omp simd
      for (int i = 0; i < width; ++i) {
        const Between x = between(i, ratio_x, from_width);
        const float left =
            static_cast<float>(top[x.low]) * (1.0f - y.weight) + static_cast<float>(bottom[x.low]) * y.weight;
        const float right =
            static_cast<float>(top[x.high]) * (1.0f - y.weight) + static_cast<float>(bottom[x.high]) * y.weight;
        to[line * width + i] = (left + (right - left) * x.weight) * scale;
      }
    }
    labels_out[b] = labels[b % count];
  }
}

}  // namespace

std::function<void()> by_hand(std::string_view kernel, const KernelData& d) {
  const std::size_t count = d.rows * d.width;
  if (kernel == "bias_relu") return [=] { bias_relu(d.x, d.bias, d.rows, d.width); };
  if (kernel == "bias_gelu") return [=] { bias_gelu(d.x, d.bias, d.rows, d.width); };
  if (kernel == "relu_backward") return [=] { relu_backward(d.x, d.y, count); };
  if (kernel == "gelu_backward") return [=] { gelu_backward(d.x, d.y, count); };
  if (kernel == "column_sum") return [=] { column_sum(d.x, d.sums, d.rows, d.width); };
  if (kernel == "softmax_cross_entropy")
    return [=] { softmax_cross_entropy(d.y, d.labels, d.row_loss, d.rows, d.width, 1.0f); };
  if (kernel == "sgd") return [=] { sgd(d.x, d.m, count, 1e-3f); };
  if (kernel == "momentum") return [=] { momentum(d.x, d.m, d.y, count, 1e-3f, 0.5f); };
  if (kernel == "adamw") return [=] { adamw(d.x, d.y, d.m, d.v, count, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, 10); };
  if (kernel == "adamw8") return nullptr;  // by hand one would write the same loops: its floors are the measure
  if (kernel == "batch_gather")
    return [=] { gather(d.images, d.image_labels, d.x, d.labels, d.image_count, count / 64, 64, 1.0f / 16); };
  if (kernel == "batch_resize")
    return
        [=] { resize(d.images, d.image_labels, d.x, d.labels, d.image_count, count / 512, 8, 8, 16, 32, 1.0f / 16); };
  throw std::invalid_argument("nobody has written " + std::string(kernel) + " by hand");
}

void copy(float* to, const float* from, std::size_t count, cudaStream_t) {
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

void scale(float* x, std::size_t count, float factor, cudaStream_t) {
#pragma omp parallel for simd
  for (std::size_t i = 0; i < count; ++i) x[i] *= factor;
}

double arithmetic(std::size_t rounds, float* result, cudaStream_t) {
  constexpr std::size_t kChains = 128;  // independent, and few enough to live in registers
  double operations = 0;
  float total = 0;
#pragma omp parallel reduction(+ : operations, total)
  {
    float chain[kChains];
    for (std::size_t k = 0; k < kChains; ++k) chain[k] = static_cast<float>(k);
    for (std::size_t i = 0; i < rounds; ++i)
#pragma omp simd
      for (std::size_t k = 0; k < kChains; ++k) chain[k] = chain[k] * 0.999f + 0.001f;
    for (std::size_t k = 0; k < kChains; ++k) total += chain[k];
    operations += 2.0 * static_cast<double>(rounds) * kChains;
  }
  *result = total;
  return operations;
}

}  // namespace oomlab::bench
