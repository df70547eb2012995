#pragma once
// The same arithmetic as the portable kernels, as the OpenMP loops that one would write for a CPU: what
// portability costs is measured against these.

#include <cstddef>

namespace oomlab::bench::by_hand {

void bias_relu(float* y, const float* bias, std::size_t rows, std::size_t width);
void bias_gelu(float* y, const float* bias, std::size_t rows, std::size_t width);
void relu_backward(float* dy, const float* y, std::size_t count);
void gelu_backward(float* dy, const float* z, std::size_t count);
void column_sum(const float* x, float* sums, std::size_t rows, std::size_t width);
void softmax_cross_entropy(float* logits, const int* labels, float* row_loss, std::size_t rows, std::size_t classes,
                           float scale);
void sgd(float* w, const float* g, std::size_t count, float lr);
void momentum(float* w, const float* g, float* v, std::size_t count, float lr, float momentum);
void adamw(float* w, const float* g, float* m, float* v, std::size_t count, float lr, float beta1, float beta2,
           float eps, float weight_decay, int step);
void gather(const unsigned char* images, const unsigned char* labels, float* out, int* labels_out, std::size_t count,
            std::size_t batch, std::size_t pixels, float scale);
void resize(const unsigned char* images, const unsigned char* labels, float* out, int* labels_out, std::size_t count,
            std::size_t batch, int from_height, int from_width, int height, int width, float scale);

/// to[i] = from[i], and x[i] *= factor: what memory can do. A copy may have to read the lines that it writes.
void copy(float* to, const float* from, std::size_t count);
void scale(float* x, std::size_t count, float factor);
/// Multiplications and additions that touch no memory: what the cores can do. Returns the operations done.
double arithmetic(std::size_t rounds, float* result);

}  // namespace oomlab::bench::by_hand
