#pragma once
// A forward pass of each model of a pipeline as allocations and releases in order, without running it. What runs
// (common/nn/models/image) is written from the same sentences, and tests hold both together to the byte.
//
// THE CONVENTION. B images or texts; E bytes of dtype; every buffer is rounded to the granule on its own. Buffers are of
// category activations, unless it is said otherwise. "x = [P, C] of b" allocates x before b is released. "in place" and
// "adds to" allocate nothing. Biases, activations and what is added to all pixels of an image are in place.
//
// Weights. A tensor is a buffer of category parameters. Of a matrix in fewer bits the buffer has all parts
// (quantised::parts_of()), each begins at a multiple of kPartAlign. A store is loaded tensor by tensor, in the order of
// tensors_of(): with Residency::all the tensors stay on the device; otherwise they go to pinned host memory, one buffer a
// tensor, and only one that is encoded is on the device while it is. While a store with matrices in fewer bits is
// loaded, there is quantised::loading_bytes() of the largest of them (workspace; its piece and its absmax are two
// buffers); behind that, as long as the store lives, room for a decoded part (workspace): the largest
// max(⌈rows / 8⌉ · columns, rows · ⌈columns / 8⌉) elements of E bytes.
//   Residency::model   stage(): all tensors come when the model's turn comes, and go when its turn is over.
//   Residency::layer   a block's tensors come before it allocates anything else, and go after all it releases. Blocks:
//     clip       the two tables; a layer; final_layer_norm with text_projection
//     U-Net      time_embedding with add_embedding; conv_in; a residual block; a downsampler; an upsampler; of a
//                transformer each of its layers, the first one with norm and proj_in, the last one with proj_out;
//                conv_norm_out with conv_out
//     decoder    post_quant_conv; conv_in; a residual block; the attention; an upsampler; conv_norm_out with conv_out
//     t5         shared; a layer ("encoder.block.i", the first one with the table of relative positions, which is read
//                once); final_layer_norm
//     Flux       what stands in front of the blocks; a block; norm_out with proj_out
//
// A convolution allocates its columns meanwhile (convolution_workspace().columns, category workspace); one with a
// 1 × 1 kernel has none.
//
// Attention of q [rows, width] with k and v [key rows, width], each a buffer of its own, gives a:
//   textbook   p = the probabilities [B, heads, rows, key rows]; q and k are released; a; p and v are released
//   tiled      a; one tile of scores, [attention_tile()'s matrices · rows, key rows], meanwhile; q, k and v are released
//   fused      a; q, k and v are released
//
// Residual block (x of in channels → out; time: a row an image, or none):
//   n = [P, in] of x, norm1 and SiLU; h = [P, out], conv1; n is released; t = [B, out] of time, time_emb_proj; t is added
//   to h; t is released; norm2 and SiLU of h in place; o = [P, out], conv2; h is released; o += x, or conv_shortcut of x
//   (a linear layer that adds to o); x is released, unless it waits for its way up.
//
// Text encoder, clip (R = B · positions rows):
//   x = [R, width], both tables.
//   Layer: n = [R, width] of x, layer_norm1; q, k, v = [R, width]; n is released; attention (causal) gives a; x +=
//   out_proj of a; a is released; n of x, layer_norm2; f = [R, mlp]; its activation in place; n is released; x += fc2 of
//   f; f is released.
//   y = [R, width] of x, final_layer_norm; x is released. y is the output. With a projection: g = [B, width], the row of
//   y behind the text; p = [B, projection]; g is released; p is an output, too.
// t5, which is planned and not run: the same, with q, k and v of width inner(), a gate g = [R, mlp] beside f, which is
//   released when f has been multiplied with it, and in front of the layers a bias [heads, positions, positions] of the
//   scores, which stays until the last layer has run.
//
// Denoiser, U-Net (latents, timesteps, text and, with add_embedding, the pooled text [B, projection] are its caller's; T
// = tokens of a text):
//   s = [B, channels[0]], sinusoids; e = [B, 4 channels[0]], linear_1, SiLU; s is released; time = [B, 4 channels[0]],
//   linear_2; e is released; with add_embedding: c = [B, added_condition]; e, linear_1, SiLU; c is released; time +=
//   linear_2 of e; e is released; SiLU of time in place. It lives until conv_out has run.
//   x = [P, channels[0]], conv_in. What "waits for its way up": x behind conv_in, behind each layer of a level (residual
//   block, and transformer where there is one), and behind each downsampler.
//   Transformer: n = [P, C] of x, norm; y = [P, C], proj_in; n is released; its layers; x += proj_out of y; y is released.
//   Its layer: n of y, norm1; q, k, v = [P, C]; n is released; attention gives a; y += to_out of a; a is released; n of y,
//   norm2; q = [P, C]; n is released; k, v = [B · T, C] of text; attention gives a; y += to_out of a; a is released; n of
//   y, norm3; f = [P, 8 C]; n is released; g = [P, 4 C], GEGLU of f; f is released; y += ff.net.2 of g; g is released.
//   Downsampler: x = [P / 4, C] (padding 1) of x, which waits.
//   Middle: residual block, transformer, residual block.
//   Up: for each layer c = [P, both] of x and what has waited, last in first out; both are released; residual block of c;
//   transformer. Upsampler: n = [4 P, C] of x, nearest; x is released; x = [4 P, C], conv; n is released.
//   norm and SiLU of x in place; o = [P, out_channels], conv_out; x and time are released. o is the output.
// U-Net, a training step (adapters of rank r on attention; all other weights are frozen, and resident). In front of it, in
//   this order: the weights; of each adapter's tensors A and B the tensor, its gradient and the optimizer's state; the loss
//   scale; the loss, one float (workspace). The batch, all of category data: noisy latents, noise, timesteps [B] FP32, the
//   text's rows; with add_embedding pooled rows, and six numbers of each image, FP32.
//   Forward as above, and what stands in front of the first transformer keeps nothing. Each projection with an adapter
//   allocates x Aᵀ, [rows, r], meanwhile. Behind the first transformer, and in it, a block keeps what its backward pass reads:
//     norm          its input x, and behind its output mean and rstd, FP32: [B, groups] each, of a layer norm [P] each. It is
//                   not in place. The first transformer's own norm keeps nothing.
//     attention     q, k and v, and textbook p, fused lse = [B, heads, rows] FP32 in front of a; and a
//     MLP           f
//     "y += .." of a y that is kept: y' = a copy of y, to which is added.
//   Loss: the gradient takes the place of o.
//   Backward, from the end; d is the gradient of x, and a block releases what it has kept when it has read it:
//     conv_norm_out with conv_out  n = [P, C]; d is released; d = n, in place; x and its norm are released.
//     Upsampler     n = [4 P, C]; d is released; d = [P, C]; n is released.
//     Joined        d = [P, C of x] and s = [P, C of what had waited] of d, which is released; s waits, or is released where
//                   nothing in front of it is trained.
//     Waited        s is added to d, and released.
//     Downsampler   n = [4 P, C]; d is released; d = n.
//     Residual block  m = [P, out], conv2; norm2 in place; h and its norm are released; n = [P, in], conv1; m is released;
//                   of in channels = out norm1 adds to d, and n is released; otherwise norm1 in place, conv_shortcut adds to
//                   n, d is released; d = n. x and its norm are released.
//     Transformer   e = [P, C], proj_out; its layers, the last one first; n = [P, C], proj_in; e is released; norm adds to d;
//                   n, x and its norm are released. Of the first one: e and d are released.
//       MLP         g = [P, 4 C], ff.net.2; f becomes its gradient; g is released; n = [P, C]; f is released; the norm adds to
//                   e; n, y and its norm are released.
//       attention   adapters of to_out; b = [P, C], to_out; fused: [B, heads, rows] FP32; a is released; gradients of q, k and
//                   v; meanwhile textbook one as large as p, tiled two tiles, and of 16 bits, where a tile has not all
//                   queries, FP32 sums of two of its matrices [key rows, depth]; b, q, k, v and what was kept with them are
//                   released; n = [P, C], the norm again; adapters of to_q, to_k, to_v; n is released. Then, but for the first
//                   one of all: of the text those of k and v are released; n = [P, C], to_q; that of q is released; of the
//                   pixels to_k and to_v add to n, and release theirs; the norm adds to e; n is released. In the end y and
//                   its norm.
//       adapter     its weights: x Aᵀ and then dy B, [rows, r] each, meanwhile. Its input: dy B, meanwhile.
// Flux, which is planned and not run. K tokens of latents, T of text, W width, N = K + T:
//   s = [B, 256]; e = [B, W], linear_1, SiLU; s is released; time = [B, W], linear_2; e is released; the same of guidance
//   (with sinusoids of its own) and of the pooled text (without), which add to time. SiLU of time in place.
//   i = [B · K, in_channels], the packed latents; x = [B · K, W]; i is released; t = [B · T, W], context_embedder. Cosines
//   and sines r = [N, depth] each, FP32.
//   Double block: m = [B, 6 W], m' = [B, 6 W]; n = [B · K, W] of x; q, k, v = [B · N, W], of which K rows of n; n is
//   released; n' = [B · T, W] of t; q, k, v's other T rows; n' is released; attention gives a; u = [B · K, W], to_out, is
//   added to x through its gate, and released; u = [B · T, W], to_add_out, to t; a is released; n of x; f = [B · K, 4 W]; n
//   is released; u = [B · K, W] of f; f is released; u is added to x, and released; the same of t; m and m' are released.
//   h = [B · N, W] of t and x; both are released.
//   Single block: m = [B, 3 W]; n = [B · N, W]; q, k, v; c = [B · N, 5 W], of which 4 W are the MLP's; n is released;
//   attention gives a, which is copied to c's other W, and is released; u = [B · N, W] of c, added, and released; c and
//   m are released.
//   x = [B · K, W] of h; h is released; m = [B, 2 W]; norm in place; o = [B · K, in_channels]; x, m, r and time are
//   released; y = o in the shape of the latents; o is released. y is the output.
//
// Decoder (it owns its latents z [B, h, w, latent channels]):
//   with quant convolutions: z' = [P, latent channels] of z; z is released. x = [P, C], conv_in; z' (or z) is released.
//   Middle: residual block; n = [P, C] of x, group_norm; q, k, v; n is released; attention, of one head, gives a; x +=
//   to_out of a; a is released; residual block.
//   Up: residual blocks; upsampler as the U-Net's. norm and SiLU of x in place; o = [P, image channels], conv_out; x is
//   released. o is the output.
// DecoderCut::images   the output [B, height, width, image channels]; for each image z = a copy of its latents [h, w, ..];
//   the decoder gives o; o is copied to the output, and released. In the end the latents are released.
// DecoderCut::blended  the same for each tile of each image: it begins at multiples of step = tile − tile / 4, its sides
//   are `tile`, or what is left. It is blended with what is there over the first tile / 4 latent pixels where a tile stood
//   before it.
// DecoderCut::halo     one image after the other as with `images`, up to the end of the middle. Behind that a map of an
//   image is whole on the device only while something reads it, and goes through pinned host memory (category
//   activations; to the host and back, whole). It is cut into strips of tile · 2^level rows, the last one of what is left:
//   Residual block: mean and rstd of x, [groups] FP32 each; H = [P, out] on the host; for each strip n = [its rows and one
//   more on each side where there is one, in], norm1 and SiLU; c = [its rows, out], conv1; n is released; c is copied to H,
//   and released. mean and rstd are released. X = [P, in] on the host, a copy of x; x is released; h = [P, out], a copy of
//   H; H is released. mean and rstd of h; O = [P, out] on the host; for each strip n of h, norm2 and SiLU; c, conv2; n is
//   released; s = [its rows, in] of X; c += s, or conv_shortcut of s; s is released; c is copied to O, and released. mean,
//   rstd, h and X are released; x = [P, out], a copy of O; O is released.
//   Upsampler: O = [4 P, C] on the host; for each strip of x: n = [2 · (its rows and one more on each side where there is
//   one), 2 w, C], nearest; c = [2 · its rows, 2 w, C], conv; n is released; c is copied to O, and released. x is
//   released; x = [4 P, C], a copy of O; O is released.
//   End: mean and rstd of x; for each strip n, norm and SiLU; conv_out writes to the output; n is released. mean, rstd and
//   x are released.
//
// Pipeline. All stores are loaded: text encoders, denoiser, decoder (post_quant_conv and decoder of the autoencoder).
//   N = 2 B texts where the pipeline is guided, else B: all for no text first.
//   Text: for each encoder its turn begins; tokens = [N, positions] int32 (data); forward; tokens are released; its turn is
//   over. Several encoders of a U-Net: text = [N · T, sum of widths] of all; they are released; the pooled rows of the last
//   one stay. Of Flux the rows of T5 stay, and g = [N, width] of clip's rows, which are released.
//   Denoiser: latents = [B, h, w, channels]; its turn begins; timesteps = [n] FP32 (data), n = N in one pass, B in two; with
//   add_embedding six numbers of each image, [n, 6] FP32 (data), too.
//   Each step: in one pass d = the latents twice; e = forward of d; d is released; latents change by e; e is released. In
//   two passes u = forward without text, c = forward with text; latents change; both are released. Not guided: e = forward
//   of the latents. In the end timesteps are released; its turn is over; text and what is pooled are released.
//   Decoder: its turn begins; images = forward of the latents; its turn is over.

#include "plan/image/simulation.h"

namespace oomlab::image {

/// Strips or tiles along a side of `size` latent pixels: where each begins, and its length. Of `blended` they overlap.
struct Span {
  std::uint64_t first, count;
};
std::vector<Span> strips_of(std::uint64_t size, std::uint64_t tile);
std::vector<Span> blended_tiles_of(std::uint64_t size, std::uint64_t tile);
/// The tile of a run whose latents have this height: what it says, or half of them, and at most all.
std::uint64_t tile_of(const Run& run, std::uint64_t height);

/// What a text encoder leaves. `pooled` has no bytes where there is no projection.
struct Encoded {
  Buffer rows, pooled;
};
/// Forward passes. The weights are loaded, and the model's turn has begun.
Encoded encode_text(Simulation& simulation, Weights& weights, const TextEncoderSpec& spec, std::uint64_t texts);
/// `tokens` of each text. Gives the prediction, [images, height, width, out_channels].
Buffer denoise(Simulation& simulation, Weights& weights, const UNetSpec& spec, std::uint64_t images,
               nn::InputSize latents, std::uint64_t tokens);
Buffer denoise(Simulation& simulation, Weights& weights, const FluxSpec& spec, std::uint64_t images,
               nn::InputSize latents, std::uint64_t tokens);
/// Releases the latents, and gives the images.
Buffer decode(Simulation& simulation, Weights& weights, const AutoencoderSpec& spec, Buffer latents,
              std::uint64_t images, nn::InputSize size);

// ---- what several models are made of

nn::InputSize doubled(nn::InputSize size);
/// A residual block of `x`, which is released unless it `waits`. time: width of the time embedding, 0: none.
Buffer residual_block(Simulation& simulation, Buffer x, bool waits, std::uint64_t batch, nn::InputSize size,
                      std::uint64_t in, std::uint64_t out, std::uint64_t time);
/// Nearest sampling to twice the size, and a convolution. Releases x.
Buffer upsampled(Simulation& simulation, Buffer x, std::uint64_t batch, nn::InputSize size, std::uint64_t channels);

}  // namespace oomlab::image
