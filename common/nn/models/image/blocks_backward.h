#pragma once
// The backward pass of the blocks of a denoiser whose weights are frozen: from the gradient of what a block gave to that of
// what it read, and to those of the adapters of its attention (overwritten). Each takes what the forward pass kept
// (blocks.h), and frees it as soon as it has read it. plan/image/walk.h lists the allocations, in order.

#include <string>

#include "nn/models/image/blocks.h"

namespace oomlab::image {

template <class T>
class BackwardBlocks : private Blocks<T> {
 public:
  /// As Blocks(); the text is the forward pass's.
  BackwardBlocks(Context& context, WeightStore<T>& weights, const Form& form, std::size_t groups, float eps,
                 LoraAdapters<T>* adapters, const TextRows<T>& text)
      : Blocks<T>(context, weights, form, groups, eps, adapters), text_(text) {}

  /// d is the gradient of the block's output, and freed; each returns that of its input. All throw OutOfMemory.
  Map<T> residual(KeptResidual<T>& kept, Map<T> d);
  /// Of one that does not reach its input, nothing is returned.
  Map<T> transformer(KeptTransformer<T>& kept, Map<T> d);
  Map<T> end(KeptEnd<T>& kept, Map<T> d);
  /// Of an image of this size.
  Map<T> downsample(const std::string& name, nn::InputSize size, Map<T> d);
  Map<T> upsample(const std::string& name, Map<T> d);

 private:
  using Base = Blocks<T>;
  using Base::activation, Base::like, Base::linear, Base::shape_of, Base::shape_of_norm, Base::shape_of_attention;
  using Base::context_, Base::weights_, Base::form_, Base::eps_, Base::kAttentionEps;

  Map<T> convolution_input(const std::string& name, const Map<T>& d, const Map<T>& as, std::size_t stride = 1);
  void norm(const std::string& name, const Map<T>& x, nn::NormStatistics& kept, float eps, nn::Activation activation,
            const DeviceBuffer<T>& dy, DeviceBuffer<T>& dx, bool add);
  void layer_norm(const std::string& name, DeviceBuffer<T>& x, nn::NormStatistics& kept, const DeviceBuffer<T>& dy,
                  Map<T>& dx);
  void attention(const std::string& layer, int number, KeptAttention<T>& kept, Map<T>& d, std::size_t heads,
                 const TextRows<T>& text, bool reaches_x);
  void mlp(const std::string& layer, KeptMlp<T>& kept, Map<T>& d);

  TextRows<T> text_;
};

}  // namespace oomlab::image
