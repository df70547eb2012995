"""The messages of libraries that learn or search without PyTorch, of other languages and of other makers' cards. For bench/explain."""

from .figures import NUMBER, exact, read_size
from .text import SIZE, SIZE_IN_CHINESE, UNIT, Text, message, number, rule


@rule("xgboost", "memory", r"memory allocation error on worker \d+")
def xgboost(before, after):
    def figure(label):
        found = after.first(rf"{label}\s+memory:\s+({NUMBER})\s?(?:{UNIT})?")
        return read_size(found[0], found[1] or "bytes") if found else None
    return message("xgboost", "XGBoost", after.loose, asked=figure("Requested"), free=figure("Free"), facts={"trees"})


@rule("catboost", "requested", r"out of memory\. requested [\d.]+ mb; free [\d.]+ mb", back=120)
def catboost(before, after):
    return message("catboost", "CatBoost", after.loose, asked=after.size(rf"Requested\s+{SIZE}\s?;"), free=after.size(rf";\s+Free\s+{SIZE}"),
                   facts={"trees"})


def paddle_size(text, *patterns):
    """What is allocated may be printed as 0.000000B."""
    return text.size(*(pattern.format(SIZE_IN_CHINESE) for pattern in patterns)) or (
        exact(0) if any(text.has(pattern.format(r"(0\.0{1,9})B\b")) for pattern in patterns) else None)


@rule("paddle", "out of memory", r"out of memory error on (?:gpu|xpu|npu|dcu) \d+\. cannot allocate")
@rule("paddle", "\u5206\u914d", "\u65e0\u6cd5\u5728~gpu~\\d+~\u4e0a\u5206\u914d")
@rule("paddle", "\u5206\u914d", "gpu~\\d+~\u4e0a\u65e0\u6cd5\u5206\u914d")
def paddle(before, after):
    text = after.until_another(r"Cannot\s+allocate|\u65e0\u6cd5")
    m = message("paddle", "PaddlePaddle", text.loose, device=number(text.first(r"(?<![A-Za-z])[GXND][PC]U\s?(\d+)")),
                asked=paddle_size(text, r"Cannot\s+allocate\s+{}", "\u4e0a(?:\u65e0\u6cd5)?\u5206\u914d(?:\u4e86)?\\s?{}"),
                allocated=paddle_size(text, r"{}\s+memory\s+has\s+been\s+allocated", "\u5df2(?:\u7ecf)?(?:\u88ab)?\u5206\u914d(?:\u4e86)?\\s?{}"),
                free=paddle_size(text, r"available\s+memory\s+is\s+only\s+{}", "\u53ef\u7528(?:\u5185\u5b58|\u663e\u5b58)?\\s?(?:\u4ec5|\u53ea\u6709|\u53ea\u5269)\\s?(?:\u4e3a)?{}"))
    f = m.figures
    if {"asked", "allocated", "free"} <= f.keys() and f["asked"].bytes > f["free"].bytes:
        # Both are of this card, and there is nothing else of it but the context.
        whole = f["allocated"].bytes + f["free"].bytes
        m.verdict = "live_tensors_fill_it" if f["allocated"].bytes * 4 >= whole * 3 and f["asked"].bytes < whole else "not_enough_information"
    return m


@rule("julia", "gpu memory", r"out of gpu memory trying to allocate [\d.]+")
def julia(before, after):
    used = after.find(rf"GPU\s+memory\s+usage:\s+[\d.]{{1,9}}%\s+\({SIZE}/{SIZE}\)")
    pool = after.find(rf"pool\s+usage:\s+{SIZE}\s+\({SIZE}\s+reserved\)")
    in_use, capacity = (read_size(*used[i:i + 2]) for i in (0, 2)) if used else (None, None)
    allocated, reserved = (read_size(*pool[i:i + 2]) for i in (0, 2)) if pool else (None, None)
    return message("julia", "CUDA.jl", after.loose, asked=after.size(rf"trying\s+to\s+allocate\s+{SIZE}"), capacity=capacity,
                   free=capacity - in_use if capacity and in_use else None, allocated=allocated, reserved=reserved)


@rule("faiss", "alloc fail type", r"alloc fail type \w+ dev \d+")
@rule("faiss", "cudamalloc", r"failed to cudamalloc \d+ bytes \(error 2")
def faiss(before, after):
    return message("faiss", "faiss", after.lines[0], "not_enough_information",
                   asked=after.whole(r"\bsize\s+(\d+)\s+bytes\s+\(") or after.whole(r"cudaMalloc\s+(\d+)\s+bytes"),
                   device=number(after.first(r"\bdev\s+(\d+)")))


@rule("mlx", "metal::malloc", r"\[metal::malloc\] attempting to allocate \d+ bytes which is greater than")
def mlx(before, after):
    return message("mlx", "MLX", after.lines[0], "too_big_for_the_card", asked=after.whole(r"to\s+allocate\s+(\d+)\s+bytes"),
                   limit=after.whole(r"buffer\s+size\s+of\s+(\d+)\s+bytes"))


@rule("mlx_wait", "[malloc", r"\[malloc\w*\] (?:unable|attempting) to allocate \d+ bytes")
def mlx_wait(before, after):
    return message("mlx_wait", "MLX", after.lines[0], "not_enough_information", asked=after.whole(r"to\s+allocate\s+(\d+)\s+bytes"))


@rule("directml", "gpu video memory", r"could not allocate tensor with \d+ bytes\. there is not enough gpu video memory")
def directml(before, after):
    return message("directml", "DirectML", after.lines[0], "not_enough_information", asked=after.whole(r"tensor\s+with\s+(\d+)\s+bytes"))


@rule("level_zero", "_error_out_of_", r"\b(?:ur|pi|ze)(?:_result)?_error_out_of_(?:device_memory|host_memory|resources)", rank=2)
def level_zero(before, after):
    host = after.has(r"^\W{0,3}\w+_OUT_OF_HOST_MEMORY")
    sure = host or after.has(r"^\W{0,3}\w+_OUT_OF_DEVICE_MEMORY")
    return message("level_zero", "Intel's Level Zero", after.lines[0], "host_memory" if host else "not_enough_information",
                   facts=() if sure else {"perhaps_memory"})


@rule("blender", "system is out of", r"system is out of gpu(?: and shared host)? memory")
@rule("blender", "cumem", r"out of memory in cumem\w+")
def blender(before, after):
    return message("blender", "Blender's Cycles", after.lines[0], "not_enough_information", facts={"scene"})


@rule("onnx_cuda", "failure", r"(?:cuda|hip|cudnn) failure \d+: out of memory ; gpu=\d+")
def onnx_cuda(before, after):
    return message("onnx_cuda", "ONNX Runtime", after.lines[0], "not_enough_information", device=number(after.first(r"GPU=(\d+)")))


@rule("dispatched", "whole model", r"you are trying to offload the whole model to the disk")
@rule("dispatched", "cpu/disk", r"found modules on cpu/disk")
@rule("dispatched", "dispatched on", r"some modules are dispatched on the cpu or the disk")
def dispatched(before, after):
    return message("dispatched", "transformers", after.lines[0], "not_enough_information", facts={"dispatched"})


@rule("driver_log", "nv_err_no_memory", r"out of memory \[nv_err_no_memory\]", rank=2)
def driver_log(before, after):
    near = Text("\n".join((*before.lines[-30:], *after.lines[:10])))
    unified = near.has(r"\b(?:GB10|tegra|jetson|orin|thor|nvgpu)\b")
    return message("driver_log", "NVIDIA's driver", after.lines[0], "not_enough_information", facts={"unified"} if unified else ())
