#pragma once
// The walk through a U-Net, forward and backward: walk.h has the convention.

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "plan/image/walk.h"

namespace oomlab::image {

class UNetWalk {
 public:
  /// `rank` of the adapters on attention; 0: there are none, and nothing is kept.
  UNetWalk(Simulation& simulation, Weights& weights, const UNetSpec& spec, std::uint64_t images, nn::InputSize latents,
           std::uint64_t tokens, std::uint64_t rank = 0)
      : simulation_(simulation),
        weights_(weights),
        spec_(spec),
        batch_(images),
        size_(latents),
        tokens_(tokens),
        rank_(rank) {}

  /// Gives the prediction.
  Buffer forward();
  /// From the gradient of the prediction, which is released, to those of the adapters. Releases what forward() has kept.
  void backward(Buffer gradient);

 private:
  struct Waiting {
    Buffer buffer;
    std::uint64_t channels;
    bool trained;       // whether something in front of it is trained
    bool kept = false;  // whether a residual block has kept it, and releases it
  };
  struct Norm {
    Buffer mean, rstd;
  };
  struct Residual {
    Buffer x, hidden;
    Norm norm1, norm2;
    std::uint64_t in, out;
  };
  struct Attention {
    Buffer x;
    Norm norm;
    Buffer q, k, v, probabilities, attended, lse;
    nn::AttentionShape shape;
    bool of_text;
  };
  struct Mlp {
    Buffer x;
    Norm norm;
    Buffer gated;
  };
  struct Layer {
    Attention pixels, text;
    Mlp mlp;
  };
  struct Transformer {
    bool reaches_x;
    Buffer x;
    Norm norm;
    std::vector<Layer> layers;
  };
  struct Joined {
    std::uint64_t x_channels, skip_channels;
    bool skip_trained;
  };
  struct Halved {};
  struct Doubled {};
  struct Waited {};
  struct End {
    Buffer x;
    Norm norm;
  };
  using Kept = std::variant<Residual, Transformer, Joined, Halved, Doubled, Waited, End>;

  // ---- forward (unet_walk.cpp)
  bool keeps() const { return rank_ > 0 && trained_; }
  std::uint64_t pixels() const { return checked_product(batch_, checked_product(size_.height, size_.width)); }
  void wait();
  Buffer time_embedding();
  void residual(const std::string& name, std::uint64_t out, bool waits);
  void residual_kept(std::uint64_t out, bool waits);
  void down(std::uint64_t level);
  void join();
  void go_up(std::uint64_t up);
  Buffer end();
  void transformer(const std::string& name, std::uint64_t layers, std::uint64_t heads);
  Buffer transformer_layer(Buffer y, std::uint64_t heads, Layer* kept);
  Buffer attend(Buffer y, const nn::AttentionShape& shape, bool of_text, Attention* kept);
  Buffer attended(const nn::AttentionShape& shape, Attention& kept);
  Buffer copy_of(Buffer x) { return x.bytes ? simulation_.bytes(x.bytes, x.category) : x; }
  Norm norm(std::uint64_t count) { return {simulation_.floats(count), simulation_.floats(count)}; }
  Buffer projected(std::uint64_t rows, std::uint64_t out, std::uint64_t in);
  void project(std::uint64_t rows, std::uint64_t out, std::uint64_t in);

  // ---- backward (unet_backward_walk.cpp): d_ is the gradient of x
  void free(Norm& kept) { simulation_.free({&kept.mean, &kept.rstd}); }
  void back(Residual& kept);
  void back(Transformer& kept);
  void back(Layer& kept, bool reaches_x);
  void back(Attention& kept, bool reaches_x);
  void back(Mlp& kept);
  void back(Joined& kept);
  void back(Halved& kept);
  void back(Doubled& kept);
  void back(Waited& kept);
  void back(End& kept);
  void back_attended(Attention& kept, Buffer& d_attended, Buffer& d_q, Buffer& d_k, Buffer& d_v);
  void back_adapter_weights(std::uint64_t rows, std::uint64_t out, std::uint64_t in);
  void back_project(std::uint64_t rows, std::uint64_t out, std::uint64_t in);

  Simulation& simulation_;
  Weights& weights_;
  const UNetSpec& spec_;
  std::uint64_t batch_;
  nn::InputSize size_;
  std::uint64_t tokens_, rank_;
  Buffer x_;
  std::uint64_t channels_ = 0;
  bool trained_ = false;  // whether something that x comes from is trained
  std::vector<Waiting> waiting_;
  std::vector<Kept> kept_;
  Buffer d_;
  std::vector<Buffer> waiting_gradients_;
};

}  // namespace oomlab::image
