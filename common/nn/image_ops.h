#pragma once
// What stands between convolutions: batch norm, pooling, residuals. Images are channels last, [batch, height, width,
// channels] (nn/convolution.h), so most of it is matrices [pixels, channels]. Every operator queues its work on the
// context's stream and allocates nothing. Stored as T, computed and added up in FP32; statistics are FP32.

#include <cstddef>

#include "memory/context.h"
#include "nn/convolution.h"
#include "nn/ops.h"

namespace oomlab::nn {

/// Running statistics of a batch norm, [channels] floats each on the device: updated by training, used by inference.
struct BatchNormState {
  float *running_mean = nullptr, *running_variance = nullptr;
};
struct BatchNormSettings {
  float eps = 1e-5f;
  float momentum = 0.1f;  ///< running = (1 − momentum) · running + momentum · new; the variance unbiased (n − 1)
};

/// Training: y = activation(x̂ · gamma + beta + residual), x̂ = (x − mean) / √(variance + eps) over all rows of a
/// channel. `residual` [rows, channels] may be null. mean[channels] and inv_std[channels] are kept for the backward
/// pass, running statistics are updated (null: not). y may be x or residual. NaN stays NaN, behind every activation.
/// Throws std::invalid_argument for fewer than two rows: a single value has no variance.
template <class T>
void batch_norm_forward(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                        float* mean, float* inv_std, BatchNormState running, std::size_t rows, std::size_t channels,
                        Activation activation, const BatchNormSettings& settings = {});
/// The same y again, bit by bit, of a forward pass without residual whose x still exists: mean[channels] and
/// inv_std[channels] are what it wrote.
template <class T>
void batch_norm_again(Context& context, const T* x, const float* gamma, const float* beta, T* y, const float* mean,
                      const float* inv_std, std::size_t rows, std::size_t channels, Activation activation);
/// Inference, with the running statistics. y may be x or residual.
template <class T>
void batch_norm_inference(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                          BatchNormState running, std::size_t rows, std::size_t channels, Activation activation,
                          const BatchNormSettings& settings = {});
/// From dy, the gradient before the activation (activation_backward() or norm_activation_backward() first): x becomes dx;
/// dgamma and dbeta are overwritten. dy is not changed: it is also the residual's gradient.
template <class T>
void batch_norm_backward(Context& context, T* x, const T* dy, const float* gamma, const float* mean,
                         const float* inv_std, float* dgamma, float* dbeta, std::size_t rows, std::size_t channels);

/// y += x.
template <class T>
void add_to(Context& context, T* y, const T* x, std::size_t count);

/// Pooling: each channel on its own, windows of kernel × kernel pixels. Padding is left out: the maximum is over the
/// pixels that exist, and so is the mean (count_include_pad = False). `which` [output elements] keeps the maximum's
/// place in its window, one byte each (null: not kept, for inference). Backward overwrites dx, and reads the `which`
/// that forward wrote. Throws std::invalid_argument unless in_channels = out_channels, the kernel is at most 15 and the
/// padding at most half of it.
template <class T>
void max_pool_forward(Context& context, const ConvolutionShape& shape, const T* x, T* y, unsigned char* which);
template <class T>
void max_pool_backward(Context& context, const ConvolutionShape& shape, const T* dy, const unsigned char* which, T* dx);
template <class T>
void average_pool_forward(Context& context, const ConvolutionShape& shape, const T* x, T* y);
template <class T>
void average_pool_backward(Context& context, const ConvolutionShape& shape, const T* dy, T* dx);

/// y[batch, channels] (+)= scale · the sum over an image's pixels; scale 1 / pixels makes it the mean.
template <class T>
void global_pool_forward(Context& context, const T* x, T* y, std::size_t batch, std::size_t pixels,
                         std::size_t channels, float scale, bool accumulate = false);
/// dx[batch, pixels, channels] = scale · dy[batch, channels].
template <class T>
void global_pool_backward(Context& context, const T* dy, T* dx, std::size_t batch, std::size_t pixels,
                          std::size_t channels, float scale);

}  // namespace oomlab::nn
