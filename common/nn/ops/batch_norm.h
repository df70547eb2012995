#pragma once
// Batch norm: over all pixels of a channel; statistics are FP32. Images are channels last,
// [batch, height, width, channels] (nn/ops/convolution.h), so most of it is matrices [pixels, channels].
// Queued on the context's stream; nothing is allocated; a repeated run gives the same bits. T is the type that tensors
// are stored as (nn/ops/instances.h); sums are FP32.

#include <cstddef>

#include "memory/context.h"
#include "plan/model/activation.h"

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
/// Takes none, ReLU and hard swish. Throws std::invalid_argument for another activation, and for fewer than two rows: a
/// single value has no variance.
template <class T>
void batch_norm_forward(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                        float* mean, float* inv_std, BatchNormState running, std::size_t rows, std::size_t channels,
                        Activation activation, const BatchNormSettings& settings = {});
/// The same y again, bit by bit, of a forward pass without residual whose x still exists: mean[channels] and
/// inv_std[channels] are what it wrote. Takes the same activations.
template <class T>
void batch_norm_again(Context& context, const T* x, const float* gamma, const float* beta, T* y, const float* mean,
                      const float* inv_std, std::size_t rows, std::size_t channels, Activation activation);
/// Inference, with the running statistics: of x[rows, channels] and residual, null or the same, y[rows, channels],
/// which may be either of them. gamma and beta are [channels]. Takes the same activations.
template <class T>
void batch_norm_inference(Context& context, const T* x, const float* gamma, const float* beta, const T* residual, T* y,
                          BatchNormState running, std::size_t rows, std::size_t channels, Activation activation,
                          const BatchNormSettings& settings = {});
/// From dy[rows, channels], the gradient before the activation (activation_backward() or norm_activation_backward()
/// first): x[rows, channels] becomes dx; dgamma[channels] and dbeta[channels] are overwritten. dy is not changed: it is
/// also the residual's gradient.
template <class T>
void batch_norm_backward(Context& context, T* x, const T* dy, const float* gamma, const float* mean,
                         const float* inv_std, float* dgamma, float* dbeta, std::size_t rows, std::size_t channels);

}  // namespace oomlab::nn
