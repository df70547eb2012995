#pragma once
// What the same pipelines need in PyTorch, as diffusers and transformers run them: an estimate of live bytes
// (torch.cuda.max_memory_allocated()), from the shapes and from the modules as they are written (diffusers 0.42,
// transformers 5.24). What it leaves out: workspaces of cuDNN, which depend on the card and the algorithm that it
// chooses, unless they are to be assumed; cuBLAS's workspace and the context; what the caching allocator keeps beside live
// bytes; schedulers.

#include <cstdint>

#include "dtype.h"
#include "plan/image/spec.h"

namespace oomlab::image {

/// Words of diffusers' pipelines.
struct DiffusersRun {
  enum class Offload {
    none,       ///< pipe.to("cuda")
    model,      ///< enable_model_cpu_offload(): one component at a time
    sequential  ///< enable_sequential_cpu_offload(): one leaf module's weights at a time
  };
  enum class Attention {
    sdpa,    ///< F.scaled_dot_product_attention, the default of PyTorch 2, by a kernel that stores no scores
    sliced,  ///< enable_attention_slicing(): half of the heads at a time, in matrices, in place of SDPA
    eager    ///< AttnProcessor(): all scores in matrices, the only one before PyTorch 2
  };
  std::uint64_t batch = 1;    ///< num_images_per_prompt, or prompts
  std::uint64_t size = 0;     ///< pixels on a side; 0: the pipeline's
  std::uint64_t steps = 0;    ///< of the denoiser; 0: the pipeline's
  DType dtype = DType::fp16;  ///< torch_dtype
  Offload offload = Offload::none;
  Attention attention = Attention::sdpa;  ///< of the U-Net; Flux always has SDPA
  /// Of a guided pipeline: 1, both predictions in a doubled batch, as the pipelines do; 2, one after the other, as the
  /// guiders of Modular Diffusers do.
  unsigned guidance_passes = 1;
  bool vae_fp16 =
      false;  ///< an autoencoder that does not overflow in FP16 ("sdxl-vae-fp16-fix") in place of SDXL's own
  bool vae_slicing = false;  ///< enable_vae_slicing()
  bool vae_tiling =
      false;  ///< enable_vae_tiling(): above the size that the autoencoder was trained at, nothing below it
  unsigned denoiser_bits = 0;  ///< bitsandbytes' load_in_8bit or load_in_4bit (NF4, no double quantisation); 0: dtype
  unsigned text_bits = 0;      ///< the same of T5, whose last matrices of the MLPs ("wo") stay in FP32
  /// cuDNN's in the decoder, assumed and not known: its tensor cores take channels last, so it copies what a convolution
  /// reads, and what it writes. docs/fit_public.md has the figures that were in view.
  bool assumed_workspace = false;
};

/// Bytes.
struct DiffusersStage {
  std::uint64_t weights = 0;                     ///< of all components that are on the device while it runs
  std::uint64_t activations = 0, workspace = 0;  ///< at the moment at which their sum is largest
  std::uint64_t total() const { return weights + activations + workspace; }
};
struct DiffusersPeaks {
  std::uint64_t loaded = 0;  ///< before the first call; 0 with an offload
  DiffusersStage text, denoiser, decoder;
  const DiffusersStage& fullest() const;  ///< of the three the first one that needs most
  std::uint64_t whole() const;            ///< the largest of all
};
/// Whether the autoencoder is cast to FP32 before it decodes (force_upcast): SDXL's overflows in FP16.
bool is_upcast(const PipelineSpec& spec, DType dtype);
/// Throws std::invalid_argument, with one line, where the run is not possible; std::length_error beyond 64 bits.
DiffusersPeaks diffusers_peaks(const PipelineSpec& spec, const DiffusersRun& run);

/// What an offload costs beside time (accelerate's hooks).
struct DiffusersCost {
  std::uint64_t host = 0;  ///< bytes of weights in host memory; 0 without an offload
  /// Over the bus, for one call. enable_model_cpu_offload() copies a component's weights to the card and back;
  /// enable_sequential_cpu_offload() copies a module's to it whenever it runs, and drops them.
  double bus_bytes = 0;
};
DiffusersCost diffusers_cost(const PipelineSpec& spec, const DiffusersRun& run);

}  // namespace oomlab::image
