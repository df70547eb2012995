#pragma once
// What the same pipelines need in PyTorch, as diffusers and transformers run them: an estimate of live bytes
// (torch.cuda.max_memory_allocated()), from the shapes and from the modules as they are written (diffusers 0.42,
// transformers 5.24). What it leaves out: workspaces of cuDNN, which depend on the card and the algorithm that it
// chooses; cuBLAS's workspace and the context; what the caching allocator keeps beside live bytes; schedulers.

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
  DType dtype = DType::fp16;  ///< torch_dtype
  Offload offload = Offload::none;
  Attention attention = Attention::sdpa;  ///< of the U-Net; Flux always has SDPA
  bool vae_slicing = false;               ///< enable_vae_slicing()
  bool vae_tiling =
      false;  ///< enable_vae_tiling(): above the size that the autoencoder was trained at, nothing below it
  unsigned denoiser_bits = 0;  ///< bitsandbytes' load_in_8bit or load_in_4bit (NF4, no double quantisation); 0: dtype
  unsigned text_bits = 0;      ///< the same of T5, whose last matrices of the MLPs ("wo") stay in FP32
};

/// Bytes.
struct DiffusersStage {
  std::uint64_t weights = 0;  ///< of all components that are on the device while it runs
  std::uint64_t activations = 0;
  std::uint64_t total() const { return weights + activations; }
};
struct DiffusersPeaks {
  std::uint64_t loaded = 0;  ///< before the first call; 0 with an offload
  DiffusersStage text, denoiser, decoder;
  std::uint64_t whole() const;  ///< the largest of all
};
/// Throws std::invalid_argument, with one line, where the run is not possible.
DiffusersPeaks diffusers_peaks(const PipelineSpec& spec, const DiffusersRun& run);

}  // namespace oomlab::image
