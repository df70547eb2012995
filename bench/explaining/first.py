"""What to do first: by the call that failed, the program that made it, and the diagnosis, with the line to paste. For bench/explain."""

import math
import re

from .causes import percent_text
from .figures import MIB
from .first_words import FIRST

# Fewer percent too much than this: a slightly smaller batch does it.
SLIGHTLY = 5
# More than this no process holds that only has a context on a card.
LARGEST_CONTEXT = 1024 * MIB
# Of a card: vLLM's usual share is less, so where PyTorch has more of it, a smaller share need not help.
ABOVE_SHARE = 0.95
# Rules of messages without PyTorch around them.
NO_TORCH = ("tensorflow", "xla", "cupy", "julia", "paddle", "onnx", "engine", "rmm", "mlx", "level", "opencl", "graphics")
# What cards are called in PyTorch, and who tells what uses them: by the word before "out of memory".
TORCH_MODULES = {"HIP": "cuda", "XPU": "xpu", "NPU": "npu", "MUSA": "musa", "MLU": "mlu"}
HOLDERS = {"HIP": "rocm-smi --showpids", "XPU": "xpu-smi ps", "NPU": "npu-smi info", "MUSA": "mthreads-gmi", "MLU": "cnmon"}

SERVERS = ("vllm", "sglang", "tgi", "trtllm", "llama", "ollama")
# FlashInfer's workspace as the engines make it, where no variable says otherwise.
WORKSPACES = {"vllm": 394 * MIB, "sglang": 384 * MIB}
HOST = (("compiler", "compiler"), ("evicted", "evicted"), ("swap", "vllm_swap"), ("object_store", "object_store"), ("page_file_load", "page_file_larger"), ("page_file_workers", "page_file"), ("page_file", "page_file_either"), ("node", "node"), ("addresses", "addresses"), ("shared_memory", "shared_memory"),
        ("pinned_llama", "llama_pinned"), ("pinned", "locked"), ("limit_of_job", "more_memory"), ("cgroup", "container"),
        ("mac", "killed_mac"), ("only_killed", "killed"), ("windows", "host_windows"), ("tensorflow_pool", "host_tensorflow"))


# Where each is shown, if not where the diagnosis is.
CHAPTERS = {"loss": ("08",), "loss_trainer": ("08",), "attention": ("08",), "attention_model": ("08",), "pinned": ("05",), "pinned_deepspeed": ("05",),
            "optimizer_first": ("13",), "optimizer_first_trainer": ("13",), "optimizer": ("13",), "backward": ("04",), "backward_model": ("04",),
            "gathered": ("11",), "evaluation": ("11",), "generate": ("11",), "load": ("05", "12"), "load_model": ("05", "12"), "move": ("03", "12"),
            "capture": ("11",), "process_group": ("07",), "own_device": ("07", "15"), "own_device_serving": ("07", "15"), "own_device_trtllm": ("07", "15"),
            "rank_contexts": ("07", "15"), "holders": ("15",), "llama_pinned": ("05",), "halve_tensorflow": ("01", "02"), "halve_tensorflow_below": ("01", "02"), "look_fresh": ("00",), "look_build": ("00",),
            "fraction": ("00",), "fraction_cupy": ("00",), "fraction_onnx": ("00",), "fraction_rmm": ("00",), "fraction_rmm_limit": ("00",), "tf_grow": ("00",), "pool_grow": ("00",), "xla_less": ("06",), "xla_share": ("00",), "xla_outputs": ("00",), "trainer": ("02", "04"), "lightning": ("02", "03"),
            "deepspeed": ("07", "05"), "ultralytics": ("09", "01"), "slightly_smaller": ("01", "02"), "halve_batch": ("01", "02"), "smaller_batch": ("01", "02", "04"), "compiler": (),
            "page_file": (), "page_file_larger": (), "page_file_either": (), "workspace": (), "workspace_vllm": (), "workspace_sglang": (), "shapes": ("00",), "paste_whole": ("00",), "look_library": ("00",), "tensorrt": ("00",), "look": ("00",), "look_card": ("00",), "metal_full": ("05",), "metal_buffer": ("08", "09"),
            "save": ("07", "16"), "fused_attention": ("08",), "xgboost": ("00", "15"), "catboost": ("00", "05"), "faiss": ("00",), "blender": (),
            "addresses": ("06",), "evicted": (), "nvml": ("00",), "unified": ("05",), "node": ("05",),
            "diffusers": ("05",), "diffusers_attention": ("08", "09"), "comfyui": ("05",), "webui": ("05",), "dispatched": ("12",), "half_model": ("12",), "decode": ("09",)}
OF_SERVERS = ("11", "12")


def serves(key):
    """Whether the key is one of a program that serves."""
    return key.split("_")[0] in SERVERS


def chapters(key, otherwise, engine=None):
    """Numbers of the chapters that show it, to somebody who runs that engine."""
    if key == "holders" and engine in SERVERS:
        return "15", "11"
    if key == "llama_pinned":
        return CHAPTERS[key]
    return OF_SERVERS if serves(key) else CHAPTERS.get(key, otherwise)


def first(explanation):
    """(key of FIRST, the values that its line to paste needs)."""
    m, context, diagnosis = explanation.found.message, explanation.context, explanation.diagnosis
    family, values = m.rule.split("_")[0], dict(m.values)
    values.setdefault("variable", "PYTORCH_CUDA_ALLOC_CONF")
    card = values.get("card") or card_of(m)
    holders = HOLDERS.get(card, "nvidia-smi")
    values.update(module=TORCH_MODULES.get(card, "cuda"), holders=holders, tool=holders.split()[0],
                  watched="nvidia-smi -l 1" if holders == "nvidia-smi" else f"watch -n 1 {holders}")
    device = m.device if m.device is not None else next((d for d in context.ranks.values() if d is not None), 0)
    values.update(device=device, split=split(explanation.account.sizes.get("asked")))
    engine = family if family in SERVERS and context.engine != "ollama" else context.engine
    if family == "ours":
        engine = None
    if diagnosis == "other_process" and context.same_device:
        return "own_device_trtllm" if engine == "trtllm" else "own_device_serving" if engine in SERVERS else "own_device", values
    if m.rule in ("mlx", "mps_buffer", "metal", "mlx_wait") and not explanation.account.impossible():
        return "metal_buffer" if m.rule in ("mlx", "mps_buffer") else "metal_full", values
    if diagnosis == "too_big_for_the_card" and (explanation.account.impossible() or "whole_program" not in m.facts):
        by_call = call(context.call, engine, ("loss", "attention", "load", "move", "decode")) if not explanation.account.impossible() else None
        return by_call or ("shapes" if engine not in SERVERS else server(explanation, engine, values) or "shapes"), values
    if diagnosis == "host_memory":
        return host(explanation, engine), values
    if diagnosis == "other_process" and not (engine == "vllm" and "at_start" in m.facts and values.setdefault("share_free", share_free(explanation))):
        return "holders", values
    if diagnosis == "limit_set_by_user":
        return {"ours": "budget", "cupy": "fraction_cupy", "onnx": "fraction_onnx", "rmm": "fraction_rmm_limit" if "adaptor" in m.facts else "fraction_rmm",
                "mps": "fraction_mps", "pytorch": "segment_reserve" if "segment_reserve" in m.facts else "fraction"}.get(family, "fraction"), values
    if diagnosis == "fragmentation":
        if family in ("tensorflow", "xla", "ours"):
            return "planned" if family == "ours" else "pool_async", values
        if card == "HIP":
            return "keep_large_rocm", values
        if card == "XPU":
            return "segments_xpu", values
        if context.windows:
            return "keep_large_windows", values
        if "no_split" in m.facts:
            return "keep_large_update", values
        return "keep_large" if "no_segments" in m.facts else "segments", values
    if diagnosis == "live_tensors_fill_it" and engine not in SERVERS and rank_contexts(explanation, values):
        return "rank_contexts", values
    key = server(explanation, engine, values) if engine in SERVERS else None
    return key or fact(explanation, values) or call(context.call, engine) or trainer(explanation, engine) or general(explanation, family, values), values


def rank_contexts(explanation, values):
    """Whether several others of one size, as small as contexts, hold what is missing: other ranks that use this device, too."""
    listed = [size for _, size in explanation.found.message.processes]
    short = explanation.missing("asked", "free", "cached")
    others = explanation.account.sizes.get("others")
    if len(listed) < 2 or len(set(listed)) > 1 or listed[0].bytes > LARGEST_CONTEXT or not short or not others or others.bytes < short.bytes:
        return False
    values.update(contexts=len(listed), context_size=explanation.shown(listed[0]))
    return True


def card_of(message):
    """The maker's word for the card, where the message is of no kind of PyTorch."""
    return "XPU" if message.rule == "level_zero" else "NPU" if "npu" in message.facts else "HIP" if re.search(r"\b(?:hip|rocm)", message.text, re.I) else "CUDA"


def split(asked):
    """MiB above which blocks stay whole, so that one of `asked` finds one."""
    return 2 ** max(5, min(9, int(math.log2(max(1, asked.bytes / MIB))))) if asked else 128


def share_free(explanation):
    """The part of the card that is free, a little below it; "" where it is not known, or too small for anything."""
    sizes = explanation.account.sizes
    if not {"free", "capacity"} <= sizes.keys():
        return ""
    share = math.floor(sizes["free"].bytes / sizes["capacity"].bytes * 100) - 1
    return f"{share / 100:.2f}" if share >= 50 else ""


def call(name, engine, of=None):
    """The key for a call, in the words of the program that made it."""
    if name is None or (of and name not in of):
        return None
    models = engine in ("transformers", "deepspeed", "lightning", "diffusers")
    trainer_ = engine == "transformers"
    if engine in ("comfyui", "webui"):
        return engine  # whoever draws with them writes no code
    if engine == "diffusers" and name in ("attention", "fused_attention", "move", "load"):
        return "diffusers_attention" if name == "attention" else engine
    if engine == "deepspeed" and name in ("optimizer", "optimizer_first"):
        return engine
    named = {("loss", trainer_): "loss_trainer", ("optimizer_first", trainer_): "optimizer_first_trainer", ("attention", models): "attention_model",
             ("load", models): "load_model", ("backward", models and engine != "lightning"): "backward_model"}
    return named.get((name, True), name) if name in FIRST else None


def server(explanation, engine, values):
    """The key for a program that serves, with its flags in the direction that this failure wants."""
    m, context, sizes = explanation.found.message, explanation.context, explanation.account.sizes
    facts, text = m.facts, m.text
    if "retracted" in facts:
        return f"{engine}_retract"
    if "workspace" in facts:
        values["more"] = sizes["asked"].whole() if "asked" in sizes else 2**28
        # What is used of it is not printed: with as much more as was asked for, this request fits.
        values["workspace"] = 2 ** math.ceil(math.log2(max(1, WORKSPACES.get(engine, 0) + values["more"])))
        return f"workspace_{engine}" if engine in WORKSPACES else "workspace"
    if engine == "vllm":
        return vllm(explanation, values)
    if engine == "sglang":
        if facts & {"pages", "pages_prefill"}:
            return "sglang_pages"
        if "token_pool" in facts:
            return "sglang_requests"
        if re.search(r"(?:increase|increasing) --?mem", text, re.I):
            return sglang_share(context, values)
        return "sglang_graphs" if context.call == "capture" or re.search(r"Capture cuda graph failed", context.before[-400:]) else "sglang_lower"
    if engine == "tgi":
        if "tokens" in values:
            values["fewer"] = max(1, values["tokens"] // 2)
            return "tgi_tokens"
        return "tgi_lower"
    if engine == "trtllm":
        return "trtllm_unsaid" if "component" in facts and m.values["component"] == "-" else "trtllm_lower"
    if "cells" in facts:
        return "llama_slots"
    if "whole_model" in facts:
        return "llama_fit"
    if "kv_cache" in facts:
        return "ollama_context" if engine == "ollama" else "llama_context"
    if "compute_buffer" in facts:
        return "ollama_buffers" if engine == "ollama" else "llama_buffers"
    return "ollama_layers" if engine == "ollama" else "llama_layers"


def vllm(explanation, values):
    m, sizes = explanation.found.message, explanation.account.sizes
    requests = re.search(r"with (\d{1,6}) dummy requests", m.text)
    if requests:
        values.update(requests=int(requests[1]), fewer=max(1, int(requests[1]) // 4))
        return "vllm_sampler"
    if "at_start" in m.facts:
        values.setdefault("share_free", share_free(explanation))
        return "vllm_start" if values["share_free"] else "holders"
    if "length" in values:
        return "vllm_length"
    if "tokens_held" in sizes:
        values["length"] = sizes["tokens_held"].whole()
        return "vllm_length"
    if explanation.diagnosis == "kv_cache_or_pool_reservation":
        return "vllm_raise"
    outside = sizes.get("own_outside")
    much = outside and "capacity" in sizes and outside.bytes * 8 > sizes["capacity"].bytes
    if much or explanation.context.call == "capture":
        return "vllm_graphs"
    full = {"allocated", "capacity"} <= sizes.keys() and sizes["allocated"].bytes > sizes["capacity"].bytes * ABOVE_SHARE
    return "vllm_weights" if full else "vllm_lower"


def sglang_share(context, values):
    """What is left after the weights has to be more than what the share leaves out, both of what was free before them."""
    seen = [float(figure) for figure in re.findall(r"avail mem=(\d{1,4}\.\d{1,3}) ?GB", context.before)]
    if len(seen) < 2 or not 0 < seen[-1] < seen[0]:
        return "sglang_raise_some"
    above = 1 - seen[-1] / seen[0]
    values.update(above=f"{above:.2f} = 1 - {seen[-1]:.2f}/{seen[0]:.2f}", raised=f"{min(0.97, above + 0.05):.2f}")
    return "sglang_split" if above > 0.94 else "sglang_raise"


def fact(explanation, values):
    """The key for what the words themselves say."""
    m = explanation.found.message
    if "workspace" in m.facts:
        return server(explanation, None, values)
    if m.rule == "julia" and "asked" not in explanation.account.sizes:
        return "halve_batch"
    return next((key for key in ("dispatched", "nvml", "unified") if key in m.facts), None) or {
        "xgboost": "xgboost", "catboost": "catboost", "julia": "julia", "faiss": "faiss", "directml": "half_model", "blender": "blender", "mlc": "mlc_split",
        "dispatched": "dispatched", "cupy": "holders", "tensorrt": "tensorrt"}.get("tensorrt" if "tensorrt" in m.facts else m.rule.split("_")[0])


def trainer(explanation, engine):
    """The key for a program that trains or draws, of a message that is about its tensors."""
    return {"transformers": "trainer", "accelerate": "trainer"}.get(engine, engine if engine in FIRST else None)


def host(explanation, engine):
    m, context = explanation.found.message, explanation.context
    if explanation.account.impossible():
        return "shapes"
    if context.call == "pinned" and "pinned" not in m.facts and m.rule in ("cuda", "pytorch", "host"):
        return "pinned_deepspeed" if engine == "deepspeed" else "pinned"
    if m.rule == "ollama" or (engine == "ollama" and m.rule == "killer"):
        return "ollama_host" if m.rule == "ollama" else "ollama_killed"
    if engine in ("llama", "ollama") and m.rule == "llama_host" and "pinned" not in m.facts:
        return "llama_host"
    if m.rule == "host" and "asked" in explanation.account.sizes and "array" in m.text:
        return "array"
    key = next((key for name, key in HOST if name in m.facts), None)
    return key or ("loader" if m.rule == "loader" else "host_windows" if context.windows else "host")


def general(explanation, family, values):
    """The key by the diagnosis alone."""
    diagnosis, torch = explanation.diagnosis, family not in NO_TORCH
    facts = explanation.found.message.facts
    if diagnosis == "live_tensors_fill_it":
        percent = explanation.percent()
        if family == "ours":
            return "levers"
        if percent is not None and percent < SLIGHTLY and not explanation.is_small():
            values["percent"] = percent_text(percent)
            return "slightly_smaller"
        return "shapes" if torch and explanation.one_request() else "smaller_batch" if torch else "halve_batch"
    if diagnosis == "kv_cache_or_pool_reservation":
        return "xla_less" if family == "xla" else "look_card"
    if diagnosis == "too_big_for_the_card":
        return "whole_program" if "whole_program" in facts else "shapes"
    if family == "xla":
        sizes = explanation.account.sizes
        large = {"outputs", "program"} <= sizes.keys() and sizes["outputs"].bytes * 2 > sizes["program"].bytes
        return "pool_grow" if "pool" in facts else "whole_program" if "whole_program" in facts else "xla_outputs" if large else "xla_share"
    if family == "tensorflow":
        return "halve_tensorflow_below" if explanation.found.message.rule == "tensorflow_async" else "halve_tensorflow"
    if explanation.missing("asked", "free"):
        return "look_card" if explanation.found.message.rule == "pytorch_map" else "holders"
    around = explanation.found.message.text + explanation.context.before[-4000:] + explanation.context.after[:2000]
    if family == "memory":
        return "look_both"
    if family in ("cuda", "cudnn", "cublas") and re.search(r"tensorflow|Could not create cud\w+ handle|Dst tensor", around):
        return "tf_grow"
    if "npu" in facts or not (torch and re.search(r"torch|\bc10\b|RuntimeError|CUDA out of memory", around)):
        return "look_card"
    sizes = explanation.account.sizes
    if family == "pytorch" and {"asked", "free"} <= sizes.keys() and sizes["free"].bytes >= sizes["asked"].bytes:
        values["bytes"] = sizes["asked"].whole()
        return "look_build" if "cached_wording" in facts else "look_fresh"
    if "cut_off" in facts:
        return "paste_whole"
    if "perhaps_memory" in facts:
        return "look_library"
    return "look_card" if "old_torch" in facts else "look"
