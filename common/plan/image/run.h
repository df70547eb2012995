#pragma once
// How a pipeline makes images, and what of memory that takes in this repository's programs (common/nn/models/image,
// chapters/18_image_generation): exact to the byte.

#include <cstdint>

#include "dtype.h"
#include "plan/host_bytes.h"
#include "plan/image/spec.h"
#include "plan/model/convolution.h"
#include "plan/peak.h"
#include "plan/quantised/format.h"
#include "plan/step_form.h"

namespace oomlab::image {

/// Where weights are.
enum class Residency {
  all,    ///< all models' on the device
  model,  ///< in pinned host memory; a model's are on the device while it runs
  layer   ///< in pinned host memory; a block's are on the device while it runs
};
/// How attention is computed: nn/ops/attention.h has the three. Heads too wide for the fused kernels (kFusedDepth), as the
/// one of an autoencoder may be, are computed in tiles then.
using PixelAttention = nn::AttentionForm;
enum class DecoderCut {
  whole,   ///< all images at once
  images,  ///< one image after the other: the same but for rounding
  halo,    ///< an image in strips, whose borders are recomputed; norms see all of the image: the same but for rounding
  blended  ///< an image in tiles that know nothing of each other and are blended where they overlap: other values
};
/// "all", "model", "layer"; "whole", "images", "halo", "blended".
const char* name_of(Residency residency) noexcept;
const char* name_of(DecoderCut cut) noexcept;

/// On a side of an image. A strip may be a row of latents: more would take long to plan.
inline constexpr std::uint64_t kMostPixels = std::uint64_t(1) << 16;

struct Run {
  std::uint64_t batch = 1;    ///< images
  std::uint64_t size = 0;     ///< pixels on a side; 0: the pipeline's
  std::uint64_t steps = 0;    ///< of the denoiser; 0: the pipeline's
  DType dtype = DType::fp32;  ///< of weights and activations: fp32, fp16 or bf16
  Residency residency = Residency::all;
  PixelAttention attention = PixelAttention::textbook;
  unsigned guidance_passes = 1;  ///< of a guided pipeline: 1: both predictions in a doubled batch; 2: one by one
  DecoderCut decoder = DecoderCut::whole;
  unsigned denoiser_bits = 0;  ///< of the denoiser's linear weights: 8 (scaled by rows) or 4 (NF4); 0: as dtype says
  nn::ConvolutionWay convolution = nn::ConvolutionWay::tiled;
  std::uint64_t tile = 0;  ///< latent pixels on a tile's side, of a strip its rows; 0: half of the latents, rounded up
};
/// How matrices of `bits` a weight are stored (Run::denoiser_bits); 0: as they are. Throws std::invalid_argument, with one
/// line, for any other than 8 and 4.
quantised::Format format_of_bits(unsigned bits);

/// The latents of a run's images. Throws std::invalid_argument, with one line, for a size that the pipeline does not make.
nn::InputSize latents_of(const PipelineSpec& spec, const Run& run);
/// Throws so for latents.
void require_latents(const PipelineSpec& spec, nn::InputSize latents);

/// Peaks of the three stages, and of the program: beside the context's cuBLAS workspace, which the caller adds.
struct Stages {
  PeakBytes text, denoiser, decoder;
  PeakBytes whole;
};
/// Throws std::invalid_argument, with one line, where the run is not possible; std::length_error beyond 64 bits.
Stages peaks_of(const PipelineSpec& spec, const Run& run);

/// The weights of one model as `run` stores them, and one forward pass, which begins with its input on the device and
/// ends with its output there. walk.h says what is allocated, and when. Throw as peaks_of().
PeakBytes predict_text_encoder(const TextEncoderSpec& spec, const Run& run, std::uint64_t texts);
PeakBytes predict_denoiser(const PipelineSpec& spec, const Run& run, std::uint64_t images, nn::InputSize latents);
PeakBytes predict_decoder(const AutoencoderSpec& spec, const Run& run, std::uint64_t images, nn::InputSize latents);

/// What a run costs beside the device's memory.
struct Cost {
  HostBytes host;            ///< weights that wait in pinned memory, and where a cut keeps maps there
  double bus_bytes = 0;      ///< over the bus for all images of the batch, weights loaded once before are not counted
  double multiply_adds = 0;  ///< of matrix products and convolutions, for all images of the batch and all steps
  double weight_bytes = 0;   ///< of weights that the device reads from its memory for them, each once a pass
};
Cost cost_of(const PipelineSpec& spec, const Run& run);

}  // namespace oomlab::image
