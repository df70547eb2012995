"""More of answers.py: messages of programs of all kinds in the words of 2018 to 2025, each of which was once answered wrongly or not at all."""
from cases import new, old

HOST, UNKNOWN, LIMIT, LIVE = "host_memory", "not_enough_information", "limit_set_by_user", "live_tensors_fill_it"
# A process that the driver does not see, as from within a container, is printed with 0 bytes.
UNSEEN = new("1.50 GiB", "79.11 GiB", "1.20 GiB", "70.10 GiB", "22.16 MiB", this="0 bytes")[0]
DECODED = new("7.90 GiB", "23.53 GiB", "3.10 GiB", "18.10 GiB", "1.80 GiB", this="20.41 GiB")[0]
STATE = old("12.50 GiB", "39.39 GiB", "30.10 GiB", "7.10 GiB", "30.70 GiB")[0]


def servers():
    yield "vLLM's sampler, a process that is not seen", '  File "/v/vllm/v1/sample/ops/topk.py", line 9, in f\n    logits_sort, idx = logits.sort(dim=-1)\n' \
        "torch.OutOfMemoryError: " + UNSEEN, LIVE, "vllm_lower", ["70.10 GiB of 79.11 GiB", "!contradict"]
    yield "Ollama, the host's figures", "Error: model requires more system memory (43.1 GiB) than is available (29.4 GiB)", HOST, "ollama_host", ["43.10 GiB are needed", "29.40 GiB are available"]


def drawing():
    yield "ComfyUI, a model that moves", '  File "/c/ComfyUI/comfy/model_patcher.py", line 607, in load\n    x[2].to(device_to)\n  File "/c/torch/nn/modules/module.py", line 9, in convert\n' \
        "    return t.to(\ntorch.OutOfMemoryError: Allocation on device\n\nGot an OOM, unloading all loaded models.", UNKNOWN, "comfyui", ["--lowvram", "!bfloat16"]
    yield "diffusers, a model that moves", '  File "/e/diffusers/pipelines/pipeline_utils.py", line 9, in to\n    module.to(device)\n  File "/e/torch/nn/modules/module.py", line 9, in convert\n' \
        "    return t.to(\ntorch.OutOfMemoryError: " + DECODED, LIVE, "diffusers", ["enable_model_cpu_offload", "!bfloat16"]
    yield "a video that is decoded", '  File "/e/diffusers/models/autoencoders/autoencoder_kl_wan.py", line 1240, in decode\n    decoded = self._decode(z).sample\n' \
        "torch.OutOfMemoryError: " + DECODED, LIVE, "decode", ["enable_tiling"]


def training():
    yield "DeepSpeed's own optimizer", '  File "/e/deepspeed/ops/adam/fused_adam.py", line 128, in step\n    state[\'exp_avg\'] = torch.zeros_like(p.data)\n' \
        "torch.cuda.OutOfMemoryError: " + STATE, LIVE, "deepspeed", ["offload_optimizer", "!bitsandbytes"]
    yield "cuSOLVER's handle", "torch._C._LinAlgError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`.", UNKNOWN, "look", ["often fails"]
    yield "cuSOLVER's workspace", "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnXsyevd(...)`", UNKNOWN, "look", ["!often fails"]
    yield "cuFFT", "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", UNKNOWN, "look", ["!often fails"]
    yield "cuSPARSE", "RuntimeError: CUDA error: insufficient resources when calling `cusparseSpGEMM_workEstimation(...)`", UNKNOWN, "look", ["!often fails"]
    yield "JAX, a constant", "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 8589934592 bytes for new constant", UNKNOWN, "xla_share", ["8.00 GiB"]
    yield "a saver of memory", "[torch_memory_saver.cpp] CUresult error  result=2 file=csrc/torch_memory_saver.cpp func=cu_mem_create line=103", UNKNOWN, "look", []


def on_a_mac():
    yield "MPS, most of it beside PyTorch", "RuntimeError: MPS backend out of memory (MPS allocated: 9.50 GiB, other allocations: 17.30 GiB, max allowed: 27.00 GiB). Tried to " \
        "allocate 292.50 MiB on private pool.", LIMIT, "fraction_mps", ["9.50 GiB", "17.30 GiB", "27.00 GiB"]
    yield "MPS, 256 bytes", "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried to allocate 256 bytes on shared pool.", \
        LIVE, "smaller_batch", ["3.31 GiB more are held beside", "!of it are live"]


def elsewhere():
    yield "RMM in 2019", "rmm.rmm.RMMError: RMM_ERROR_OUT_OF_MEMORY", UNKNOWN, "look_card", []
    yield "RMM's pool, with figures", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/r/pool_memory_resource.hpp:254: Maximum pool size exceeded (failed to allocate 4.660675 GiB)", \
        LIMIT, "fraction_rmm", ["4.66 GiB"]
    yield "Kokkos", 'Kokkos failed to allocate memory for label "x". Allocation using MemorySpace named "Cuda" failed with the following error: Allocation of size 4.2 G failed, likely ' \
        "due to insufficient memory.", UNKNOWN, "look_card", []
    yield "Kokkos, the host", 'Kokkos failed to allocate memory for label "x". Allocation using MemorySpace named "Host" failed', HOST, "host", []
    yield "FFmpeg's decoder", "[vist#0:0/h264 @ 0x55] Device setup failed for decoder on input stream #0:0 : Cannot allocate memory", UNKNOWN, "look_card", []
    yield "pinned memory of a simulation", "Fatal error:\ncudaMallocHost of size 123456 bytes failed: out of memory", HOST, "locked", ["Pinned", "!nvidia-smi"]
    yield "DyNet, the host", "CPU memory allocation failed n=8053063680 align=32\nterminate called after throwing an instance of 'dynet::out_of_memory'", HOST, "host", ["7.50 GiB"]
    yield "Windows, weights", "OSError: The paging file is too small for this operation to complete. (os error 1455)", HOST, "page_file_larger", ["page file larger", "!num_workers"]
    yield "Windows, a library", 'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "C:\\t\\cudnn_cnn64_9.dll"', HOST, "page_file", ["num_workers=0"]
    yield "NumPy's array", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with shape (100000, 50000) and data type float64", HOST, "mapped", ["37.30 GiB"]


LATEST_ANSWERS = [*servers(), *drawing(), *training(), *on_a_mac(), *elsewhere()]
