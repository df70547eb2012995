"""What is to be said first of messages in their surroundings: (name, text, diagnosis, key of first_words.FIRST, words that the answer has).

The traceback decides, the program decides the flags and their direction, and what a log says beside the message is said: ranks,
what went on, a notebook. The figures and paths are made up; the wordings are the frameworks'.
"""
from cases import new, old
from latest_answers import LATEST_ANSWERS
from more_answers import MORE_ANSWERS

LIVE = new("3.00 GiB", "23.64 GiB", "210.19 MiB", "21.40 GiB", "300.02 MiB", this="23.10 GiB")[0]
LAST_STRAW = new("20.00 MiB", "23.64 GiB", "9.19 MiB", "22.90 GiB", "8.02 MiB", this="23.40 GiB")[0]
NEARLY = new("1.50 GiB", "23.64 GiB", "910.19 MiB", "21.40 GiB", "300.02 MiB", this="22.30 GiB")[0]
PIECES = new("1.50 GiB", "23.64 GiB", "210.19 MiB", "18.10 GiB", "4.02 GiB", this="23.10 GiB")[0]
OLD_PIECES = old("870.00 MiB", "15.78 GiB", "11.20 GiB", "120.31 MiB", "14.90 GiB")[0]
ERROR = "torch.OutOfMemoryError: "


def traceback(*frames, error=ERROR + LIVE):
    """A traceback of (file, function, line of code) frames, the innermost last."""
    lines = [f'  File "{file}", line {31 + 7 * i}, in {function}\n    {code}' for i, (file, function, code) in enumerate(frames)]
    return "\n".join(["Traceback (most recent call last):", *lines, error])


MAIN = ("train.py", "<module>", "main()")
MODULE = ("/env/site-packages/torch/nn/modules/module.py", "_call_impl", "return forward_call(*args, **kwargs)")
TRAINER = ("/env/site-packages/transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)")
DEEPSPEED = ("/env/site-packages/deepspeed/runtime/engine.py", "forward", "loss = self.module(*inputs)")
LIGHTNING = ("/env/site-packages/pytorch_lightning/trainer/call.py", "_call_lightning_module_hook", "output = fn(*args)")
ADAM = ("/env/site-packages/torch/optim/adamw.py", "_init_group", 'state["exp_avg"] = torch.zeros_like(p)')
VLLM = ("/env/site-packages/vllm/v1/worker/gpu_model_runner.py", "profile_run", "self._dummy_run(n)")
SGLANG = ("/sgl-workspace/sglang/python/sglang/srt/model_executor/model_runner.py", "forward", "return self.model.forward(batch)")


def by_call():
    yield "nothing around it", ERROR + LIVE, "live_tensors_fill_it", "smaller_batch", ["are missing. In all, the program must use at least 10 % less", "chapters/01"]
    yield "a small request", ERROR + LAST_STRAW, "live_tensors_fill_it", "smaller_batch", ["only the last straw"]
    yield "little missing", ERROR + NEARLY, "live_tensors_fill_it", "slightly_smaller", ["1.4 % less", "a tenth smaller", "only 1.4 % are missing"]
    yield "pieces", ERROR + PIECES, "fragmentation", "segments", ["export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "If it is set already"]
    yield "pieces of an older one", "RuntimeError: " + OLD_PIECES, "fragmentation", "keep_large_update", ["Update to PyTorch 2.1", "max_split_size_mb:512"]
    yield "pieces of one that knows the setting", "RuntimeError: " + OLD_PIECES + " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.", \
        "fragmentation", "keep_large", ["max_split_size_mb:512", "!Versions before"]
    contexts = dict(this="22.60 GiB", before=[(901, "410.00 MiB")], after=[(902, "410.00 MiB")])
    yield "contexts of other ranks", ERROR + new("300.00 MiB", "23.64 GiB", "100.00 MiB", "22.10 GiB", "20.00 MiB", **contexts)[0], "live_tensors_fill_it", "rank_contexts", \
        ["2 processes of 410.00 MiB each", "map_location", "LOCAL_RANK"]
    yield "contexts that are too small for what is missing", ERROR + new("3.00 GiB", "23.64 GiB", "100.00 MiB", "22.10 GiB", "20.00 MiB", **contexts)[0], "live_tensors_fill_it", \
        "smaller_batch", ["!map_location"]
    others = dict(this="22.60 GiB", before=[(901, "440.00 MiB")], after=[(902, "380.00 MiB")])
    yield "others of two sizes", ERROR + new("300.00 MiB", "23.64 GiB", "100.00 MiB", "22.10 GiB", "20.00 MiB", **others)[0], "live_tensors_fill_it", "smaller_batch", \
        ["!map_location", "Other processes hold 820.00 MiB"]
    yield "much outside PyTorch", ERROR + new("300.00 MiB", "23.64 GiB", "100.00 MiB", "21.10 GiB", "20.00 MiB", this="23.40 GiB")[0], "live_tensors_fill_it", "smaller_batch", \
        ["holds 2.28 GiB outside the framework"]
    yield "a context and no more outside PyTorch", ERROR + new("300.00 MiB", "23.64 GiB", "100.00 MiB", "22.90 GiB", "20.00 MiB", this="23.40 GiB")[0], "live_tensors_fill_it", \
        "smaller_batch", ["!outside"]
    yield "room, and yet refused", ERROR + new("3.00 GiB", "23.64 GiB", "9.10 GiB", "13.10 GiB", "20.00 MiB", this="13.90 GiB")[0], "not_enough_information", "look_fresh", \
        ["torch.empty(3221225472,", "!mem_get_info"]
    yield "room, and yet refused, old", "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 9.62 MiB already allocated; 6.41 GiB free; "\
        "2.38 MiB cached)", "not_enough_information", "look_build", ["ulimit -v", "!mem_get_info"]
    yield "pieces, 2.9", ERROR + PIECES + " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True", \
        "fragmentation", "segments", ["export PYTORCH_ALLOC_CONF=expandable_segments:True"]
    yield "pieces, HIP", ERROR + PIECES.replace("CUDA out", "HIP out"), "fragmentation", "keep_large_rocm", ["export PYTORCH_HIP_ALLOC_CONF=max_split_size_mb:512", "!=expandable", "!garbage"]
    loss = ("/env/site-packages/torch/nn/functional.py", "cross_entropy", "return torch._C._nn.cross_entropy_loss(input, target)")
    yield "a loss", traceback(MAIN, loss), "live_tensors_fill_it", "loss", ["chapters/08", "cut_cross_entropy"]
    yield "logits in 32 bits", traceback(MAIN, ("model.py", "forward", "logits = logits.float()")), "live_tensors_fill_it", "loss", []
    yield "a loss in a trainer", traceback(TRAINER, MODULE, loss), "live_tensors_fill_it", "loss_trainer", ["use_liger_kernel=True"]
    pin = ("/env/site-packages/torch/utils/data/_utils/pin_memory.py", "pin_memory", "return data.pin_memory(device)")
    yield "pinning", traceback(MAIN, pin, error="RuntimeError: CUDA error: out of memory"), "host_memory", "pinned", ["pin_memory=False", "it could lock no more", "need not be full"]
    offload = ("/env/site-packages/deepspeed/accelerator/cuda_accelerator.py", "pin_memory", "return tensor.pin_memory()")
    yield "pinning, DeepSpeed", traceback(DEEPSPEED, offload, error="RuntimeError: CUDA error: out of memory"), "host_memory", "pinned_deepspeed", ['"pin_memory": false']
    yield "the first step", traceback(MAIN, ("train.py", "main", "optimizer.step()"), ADAM), "live_tensors_fill_it", "optimizer_first", ["first step", "AdamW8bit"]
    yield "the first step, frames alone", traceback(("/env/site-packages/torch/optim/adamw.py", "_init_group", "")), "live_tensors_fill_it", "optimizer_first", []
    yield "the first step in a trainer", traceback(TRAINER, ADAM), "live_tensors_fill_it", "optimizer_first_trainer", ['optim="adamw_bnb_8bit"']
    foreach = ("/env/site-packages/torch/optim/adamw.py", "_multi_tensor_adamw", "exp_avg_sq_sqrt = torch._foreach_sqrt(device_sqs)")
    yield "a later step", traceback(MAIN, ("train.py", "main", "optimizer.step()"), foreach[:2] + ("torch._foreach_sqrt(sqs)",)), "live_tensors_fill_it", "optimizer", ["fused=True"]
    scores = ("model.py", "forward", "weights = torch.softmax(scores, dim=-1)")
    yield "attention", traceback(MAIN, MODULE, scores), "live_tensors_fill_it", "attention", ["scaled_dot_product_attention"]
    yield "attention of a model", traceback(TRAINER, ("/env/site-packages/transformers/models/x/modeling_x.py", "eager_attention_forward", "p = nn.functional.softmax(w)")), \
        "live_tensors_fill_it", "attention_model", ['attn_implementation="sdpa"']
    yield "backward", traceback(MAIN, ("train.py", "main", "loss.backward()"), ("/env/torch/autograd/graph.py", "_engine_run_backward", "return f(*a)")), \
        "live_tensors_fill_it", "backward", ["checkpoint(layer"]
    yield "loading", traceback(MAIN, ("train.py", "main", 'state = torch.load("model.pt")')), "live_tensors_fill_it", "load", ['map_location="cpu"']
    yield "loading a model", traceback(("run.py", "<module>", "model = AutoModel.from_pretrained(name)"), ("/env/transformers/modeling_utils.py", "_load_state_dict_into_meta_model", "x()")), \
        "live_tensors_fill_it", "load_model", ['device_map="auto"']
    yield "moving", traceback(MAIN, ("train.py", "main", "model.cuda()"), ("/env/torch/nn/modules/module.py", "_apply", "self._apply(fn)"),
                              ("/env/torch/nn/modules/module.py", "convert", "return t.to(device)")), "live_tensors_fill_it", "move", ["bfloat16"]
    yield "generating", traceback(("run.py", "<module>", "out = model.generate(**inputs)"), MODULE, ("m.py", "forward", "x = self.mlp(x)")), "live_tensors_fill_it", "generate", []
    yield "evaluating", traceback(MAIN, ("train.py", "evaluate", "out = model(x)"), MODULE), "live_tensors_fill_it", "evaluation", ["torch.no_grad()"]
    yield "gathering", traceback(("/env/transformers/trainer_pt_utils.py", "nested_concat", "return torch.cat((a, b))")), "live_tensors_fill_it", "gathered", ["eval_accumulation_steps"]
    yield "capturing", traceback(MAIN, ("g.py", "warm", "with torch.cuda.graph(g):"), MODULE), "live_tensors_fill_it", "capture", []
    yield "meeting", traceback(MAIN, ("t.py", "main", 'dist.init_process_group("nccl")'), error="RuntimeError: CUDA error: out of memory"), \
        "not_enough_information", "process_group", ["LOCAL_RANK"]


def by_program():
    yield "a trainer", traceback(TRAINER, MODULE), "live_tensors_fill_it", "trainer", ["gradient_accumulation_steps=8"]
    yield "Lightning", traceback(LIGHTNING, MODULE), "live_tensors_fill_it", "lightning", ["accumulate_grad_batches"]
    yield "DeepSpeed", traceback(DEEPSPEED, MODULE), "live_tensors_fill_it", "deepspeed", ['"stage": 3']
    yield "diffusers", traceback(("/env/site-packages/diffusers/models/unet.py", "forward", "x = block(x)")), "live_tensors_fill_it", "diffusers", ["enable_model_cpu_offload"]
    yield "diffusers, decoding", traceback(("/env/site-packages/diffusers/pipelines/p.py", "decode_latents", "self.vae.decode(z)")), "live_tensors_fill_it", "decode", ["enable_tiling"]
    yield "ComfyUI", traceback(("/srv/ComfyUI/execution.py", "execute", "run(node)")), "live_tensors_fill_it", "comfyui", ["--novram"]
    yield "vLLM", traceback(VLLM), "live_tensors_fill_it", "vllm_lower", ["--gpu-memory-utilization 0.85", "--max-num-seqs", "chapters/11"]
    yield "vLLM, weights that fill the card", traceback(VLLM, error=ERROR + new("512.00 MiB", "60.96 GiB", "12.31 MiB", "60.21 GiB", "300.00 MiB")[0]), "live_tensors_fill_it", \
        "vllm_weights", ["--tensor-parallel-size", "--gpu-memory-utilization 0.85"]
    yield "vLLM, a loss in it", traceback(VLLM, ("/env/vllm/sampler.py", "forward", "logits = logits.float()")), "live_tensors_fill_it", "vllm_lower", []
    yield "vLLM, a model of transformers in it", traceback(VLLM, ("/env/site-packages/transformers/models/x/modeling_x.py", "forward", "x = self.mlp(x)")), \
        "live_tensors_fill_it", "vllm_lower", []
    yield "vLLM, the sampler", "RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy requests. Please try lowering `max_num_seqs` or " \
        "`gpu_memory_utilization` when initializing the engine.", "kv_cache_or_pool_reservation", "vllm_sampler", ["--max-num-seqs 128", "512"]
    yield "vLLM, blocks", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", \
        "kv_cache_or_pool_reservation", "vllm_raise", ["0.95"]
    yield "vLLM, a length", "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (20992).", \
        "kv_cache_or_pool_reservation", "vllm_length", ["--max-model-len 20992"]
    cache = "ValueError: To serve at least one request with the models's max seq len (40960), (10.00 GiB KV cache is needed, which is larger than the available KV cache memory " \
        "(1.25 GiB)."
    yield "vLLM, a cache", cache, "kv_cache_or_pool_reservation", "vllm_length", ["--max-model-len 5120"]
    yield "vLLM, a cache and its estimate", cache + " Based on the available memory, the estimated maximum model length is 5104.", "kv_cache_or_pool_reservation", "vllm_length", \
        ["--max-model-len 5104"]
    yield "vLLM, at its start", "ValueError: Free memory on device (22.10/23.64 GiB) on startup is less than desired GPU memory utilization (0.95, 22.46 GiB).", \
        "kv_cache_or_pool_reservation", "vllm_start", ["--gpu-memory-utilization 0.92"]
    yield "vLLM beside others", "ValueError: Free memory on device (4.10/23.64 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB).", \
        "other_process", "holders", ["nvidia-smi"]
    yield "SGLang, serving", traceback(SGLANG), "live_tensors_fill_it", "sglang_lower", ["calls for a lower value"]
    left = "[TP0] Load weight begin. avail mem=78.40 GB\n[TP0] Load weight end. avail mem={} GB\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    yield "SGLang, at its start", left.format("20.00"), "kv_cache_or_pool_reservation", "sglang_raise", ["above 0.74 = 1 - 20.00/78.40", "--mem-fraction-static 0.79", "calls for a higher value"]
    yield "SGLang, weights", left.format("2.10"), "kv_cache_or_pool_reservation", "sglang_split", ["--tp 2"]
    tokens = "RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate {} tokens.\nAvailable tokens: {}"
    yield "SGLang, tokens", tokens.format(90, 17), "kv_cache_or_pool_reservation", "sglang_requests", ["90", "17", "--max-running-requests"]
    yield "SGLang, pages", tokens.format(90, 1700), "kv_cache_or_pool_reservation", "sglang_pages", ["1,700", "--page-size 1"]
    yield "SGLang, others", "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "other_process", "holders", ["most likely other processes", "as if another process"]
    yield "TGI", "ERROR warmup: text_generation_client: Server error: Not enough memory to handle 6144 prefill tokens. You need to decrease `--max-batch-prefill-tokens`", \
        "kv_cache_or_pool_reservation", "tgi_tokens", ["--max-batch-prefill-tokens 3072"]
    yield "FlashInfer in vLLM", "vllm: RuntimeError: allocator.h:49: Buffer overflow when allocating memory for batch_prefill_tmp_v with size 301989888 and alignment 16, " \
        "but only 268435456 bytes available in AlignedAllocator. Increase the workspace buffer size.", "kv_cache_or_pool_reservation", "workspace_vllm", ["=1073741824", "394 MiB"]
    failed = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {} MiB on device 0: cudaMalloc failed: out of memory\n"
    yield "llama.cpp, buffers", failed.format("9216.00") + "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9663676416", \
        "not_enough_information", "llama_buffers", ["-ub 256", "not weights"]
    yield "llama.cpp, weights", failed.format("18770.25") + "llama_model_load: error loading model: unable to allocate CUDA0 buffer", "not_enough_information", "llama_layers", ["-ngl"]
    yield "llama.cpp, cache", failed.format("5830.00") + "llama_kv_cache_init: failed to allocate buffer for kv cache", "kv_cache_or_pool_reservation", "llama_context", ["-c 8192"]
    yield "llama.cpp, slots", "decode: failed to find a memory slot for batch of size 512", "kv_cache_or_pool_reservation", "llama_slots", ["has run out of cells"]
    yield "llama.cpp, fit", "W common_fit_params: projected to use 41210 MiB of device memory vs. 23810 MiB of free device memory\nW common_fit_params: failed to fit params to " \
        "free device memory: n_gpu_layers already set by user to 99, abort", "not_enough_information", "llama_fit", ["--fit on", "40.24 GiB"]
    yield "Ollama", "Error: llama runner process has terminated: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 2147483648", \
        "not_enough_information", "ollama_buffers", ["OLLAMA_FLASH_ATTENTION", "!llama-server"]
    yield "Ollama, killed", 'level=ERROR source=server.go:410 msg="llama runner terminated" error="signal: killed"', "host_memory", "ollama_killed", ["dmesg"]
    yield "Ollama, the host", "Error: model requires more system memory (21.0 GiB) than is available (14.2 GiB)", "host_memory", "ollama_host", []


def two_truths():
    rank = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File \"t.py\", line 9, in f\n[rank{0}]:     y = g(x)\n[rank{0}]: torch.OutOfMemoryError: {1}\n"
    several = "".join(rank.format(i, LIVE.replace("GPU 0", f"GPU {i}")) for i in range(4))
    yield "ranks on their own devices", several, "live_tensors_fill_it", "smaller_batch", ["ranks 0, 1, 2 and 3 fail the same way", "!except", "!tries again"]
    listed = new("60.00 MiB", "23.64 GiB", "30.00 MiB", "5.40 GiB", "20.00 MiB", this="5.91 GiB", before=[(901, "5.90 GiB"), (902, "5.90 GiB")], after=[(904, "5.80 GiB")])[0]
    yield "ranks on one device", "".join(rank.format(i, listed) for i in range(2)), "other_process", "own_device", ["GPU 0", "LOCAL_RANK", "!Somebody", "!See who holds"]
    for engine, key, flag in (("vllm", "own_device_serving", "nvidia-smi -L"), ("[TRT-LLM]", "own_device_trtllm", "--gpus_per_node")):
        yield f"ranks of {engine} on one device", engine + "\n" + "".join(rank.format(i, listed) for i in range(2)), "other_process", key, [flag, "!LOCAL_RANK"]
    outside = new("300.00 MiB", "23.64 GiB", "110.00 MiB", "6.40 GiB", "71.10 MiB", this="6.91 GiB")[0]
    yield "ranks that each see one device", "".join(rank.format(i, outside) for i in range(2)), "other_process", "holders", ["ranks 0 and 1", "!LOCAL_RANK"]
    yield "repeated in a cluster", ERROR + LIVE + " [repeated 7x across cluster]", "live_tensors_fill_it", "smaller_batch", ["7 more workers"]
    yield "interleaved ranks", "[rank1]: torch.OutOfMemoryError: " + LIVE + "\n[rank0]: NCCL WARN watchdog timeout\n[rank3]: torch.OutOfMemoryError: " + LIVE, \
        "live_tensors_fill_it", "smaller_batch", ["ranks 1 and 3"]
    yield "an NCCL error after it", ERROR + LIVE + "\nncclUnhandledCudaError: Last error:\nCuda failure 2 'out of memory'", "live_tensors_fill_it", "smaller_batch", []
    yield "cuBLAS before it", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n" + ERROR + LIVE, "live_tensors_fill_it", "smaller_batch", []
    yield "killed after it", ERROR + LIVE + "\n./run.sh: line 3:  4711 Killed                  python train.py", "live_tensors_fill_it", "smaller_batch", []
    yield "OOMKilled false beside it", ERROR + LIVE + '\n"OOMKilled": false', "live_tensors_fill_it", "smaller_batch", []
    yield "sigkill_handler after it", ERROR + LIVE + "\n[launch.py:320:sigkill_handler] Killing subprocess 12", "live_tensors_fill_it", "smaller_batch", []
    yield "a disk that is full, and the killer", "OSError: [Errno 28] No space left on device\nOut of memory: Killed process 99 (python) total-vm:1024kB, anon-rss:512kB", \
        "host_memory", "host", []
    yield "a retry inside except", ERROR + LIVE + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + ERROR + LIVE, \
        "live_tensors_fill_it", "smaller_batch", ["Inside `except`"]
    yield "two in one log", ERROR + LIVE + "\nnext experiment\n" + ERROR + LIVE, "live_tensors_fill_it", "smaller_batch", ["more than once"]
    gone = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 30208.00 MiB on device 1: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n_impl: failed to allocate " \
        "CUDA1 buffer of size 31675383808\nsched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
    yield "recovered, llama.cpp", gone + "srv    load_model: initializing, n_slots = 4, n_ctx_slot = 8192", "not_enough_information", "llama_buffers", ["The program went on afterwards"]
    yield "not recovered, llama.cpp", gone + "error: failed to create context", "not_enough_information", "llama_buffers", ["!went on"]
    yield "recovered, a smaller batch", LIVE + "\nDecreasing batch size to: 16\nstep 1 loss 2.31\nstep 2 loss 2.20", "live_tensors_fill_it", "smaller_batch", ["The program went on afterwards"]
    yield "recovered, a batch left out", "WARNING | " + LIVE + "\n| WARNING: attempting to recover from OOM in forward pass\nepoch 1 | loss 4.10", "live_tensors_fill_it", "smaller_batch", \
        ["The program went on afterwards"]
    yield "tried again in vain", LIVE + "\nDecreasing batch size to: 16\n" + traceback(MAIN), "live_tensors_fill_it", "smaller_batch", ["!went on afterwards"]
    yield "a while later in vain", LIVE + "\nDecreasing batch size to: 16\nstep 1 loss 2.31\n" + traceback(MAIN, error="RuntimeError: CUDA error: out of memory"), \
        "live_tensors_fill_it", "smaller_batch", ["!went on afterwards"]
    yield "the log goes on", "worker 3: " + ERROR + LIVE + "\nstep 41 loss 1.20\nstep 42 loss 1.19", "live_tensors_fill_it", "smaller_batch", ["log goes on"]
    page = LIVE.replace("GPU 0", "<b>GPU 0</b>").replace(" GiB", "&nbsp;GiB")
    yield "quoted in a page", f"<p>Then it says:</p><pre><code>{ERROR}{page}</code></pre>", "live_tensors_fill_it", "smaller_batch", ["21.40 GiB of 23.64 GiB"]
    yield "quoted in a page, broken lines", ERROR + LIVE.replace(". ", ".<br>"), "live_tensors_fill_it", "smaller_batch", ["21.40 GiB of 23.64 GiB"]
    yield "an escaped page", "&lt;pre&gt;" + ERROR + LIVE.replace(" MiB", "&nbsp;MiB") + "&lt;/pre&gt;", "live_tensors_fill_it", "smaller_batch", ["21.40 GiB of 23.64 GiB"]
    yield "quoted in a mail", "> " + ERROR + LIVE.replace("GPU 0", "\n> GPU 0").replace("Of the", "\n> Of the"), "live_tensors_fill_it", "smaller_batch", ["21.40 GiB of 23.64 GiB"]
    json_log = '{"level": "error", "ts": 1717, "msg": "step failed: ' + ERROR + LIVE.replace('"', "'") + '\\n", "rank": 2}\n{"level": "info", "msg": "bye"}'
    yield "a JSON log", json_log, "live_tensors_fill_it", "smaller_batch", ["21.40 GiB of 23.64 GiB"]
    yield "a JSON log with a traceback", '{"exc": "' + traceback(MAIN, ("m.py", "f", "loss = F.cross_entropy(x, y)")).replace("\n", "\\n").replace('"', '\\"') + '"}', \
        "live_tensors_fill_it", "loss", []
    yield "split in words", "\n".join(LIVE[i:i + 80] for i in range(0, len(LIVE), 80)), "live_tensors_fill_it", "smaller_batch", ["21.40 GiB of 23.64 GiB"]
    yield "a box around the traceback", "│ /w/train.py:31 in main │\n│ ❱ 31 │   loss = F.cross_entropy(a, b) │\n╰────╯\n" + ERROR + LIVE, "live_tensors_fill_it", "loss", []
    yield "a notebook and a loss", "Cell In[4], line 2\n----> 2 loss = F.cross_entropy(logits, y)\n\n" + ERROR + LIVE, "live_tensors_fill_it", "loss", ["In a notebook"]
    colab = "OutOfMemoryError                          Traceback (most recent call last)\n[<ipython-input-3-aa00bb11cc22>](https://localhost:8080/#) in <cell line: 4>()\n" \
        "----> 4 trainer.train()\n\n" + ERROR + LIVE
    yield "Colab", colab, "live_tensors_fill_it", "trainer", ["In a notebook"]
    yield "an impossible size", "RuntimeError: " + new("4294967296.00 GiB", "23.64 GiB", "20.19 GiB", "2.40 GiB", "300.02 MiB", this="3.10 GiB")[0], \
        "too_big_for_the_card", "shapes", ["computed wrongly"]
    yield "an impossible size, host", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4611686018427387904 bytes.", "host_memory", "shapes", ["computed wrongly", "!what the host has left"]
    yield "an impossible size, CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,580,000,000,000,000,000 bytes (allocated so far: 512 bytes).", \
        "too_big_for_the_card", "shapes", ["computed wrongly"]
    alone = new("300.00 MiB", "79.15 GiB", "90.00 MiB", "70.40 GiB", "71.10 MiB")[0].replace(" Of the", " Process 71 has 79.06 GiB memory in use. Of the")
    yield "the listed process is this one", ERROR + alone, "live_tensors_fill_it", "smaller_batch", ["Process 71, the only one listed, is this one", "!See who holds"]
    yield "more to say than there is room for", "Cell In[4], line 2\n----> 2 step()\n\n" + ERROR + alone + "\n\nDuring handling of the above exception, another exception " \
        "occurred:\n\n" + ERROR + alone, "live_tensors_fill_it", "smaller_batch", ["In a notebook", "!Inside `except`"]
    beside = new("300.00 MiB", "79.15 GiB", "90.00 MiB", "20.40 GiB", "71.10 MiB")[0].replace(" Of the", " Process 71 has 58.00 GiB memory in use. Of the")
    yield "the listed process is another one", ERROR + beside, "other_process", "holders", ["nvidia-smi", "!--query-compute-apps", "!is this one"]
    yield "a device without a blank", ERROR + LIVE.replace("GPU 0", "GPU5"), "live_tensors_fill_it", "smaller_batch", []
    yield "figures without a cause", "Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 9437184\n- Requested memory: 41943040", \
        "not_enough_information", "xgboost", ["40.00 MiB", "9.00 MiB", "!no figures"]
    yield "sizes that are not relied on", "RuntimeError: CUDA out of memory. We had 3.5 GB left", "not_enough_information", "paste_whole", ["!no figures"]
    yield "an error handled, and a real one", "except torch.cuda.OutOfMemoryError:\n" + ERROR + LIVE, "live_tensors_fill_it", "smaller_batch", []
    yield "advice, then the error", "Tip: avoid CUDA out of memory errors with a smaller batch\n" + ERROR + LIVE, "live_tensors_fill_it", "smaller_batch", []
    yield "a warning of TensorFlow, then the killer", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.25GiB. The caller indicates that this is not a failure\n" \
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 5.0 cgroup.", "host_memory", "more_memory", ["sacct -j 5 "]
    yield "a heap of JavaScript, then the card", "FATAL ERROR: Reached heap limit - JavaScript heap out of memory\n" + ERROR + LIVE, "live_tensors_fill_it", "smaller_batch", []


ANSWERS = [*by_call(), *by_program(), *two_truths(), *MORE_ANSWERS, *LATEST_ANSWERS]
