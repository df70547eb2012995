"""The stacks of a snapshot: which line is the reader's, and what a stack says of the block that it made."""
import re

from explaining.snapshot_pickle import Refused

LONGEST = 300  # characters of a name that are kept
PROFILER = re.compile(r"(?P<file>.{1,300})\((?P<line>\d{1,7})\): (?P<name>.+)", re.S)  # PyTorch's profiler writes all in the name
# Where other people's Python lies. A path without a folder is the reader's, unless it is one of the standard library's.
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<(frozen|built-in|string)|^(torch|torchvision|transformers|accelerate|"
                       r"lightning|pytorch_lightning|deepspeed|vllm|sglang|diffusers|peft|trl|bitsandbytes|apex|xformers|flash_attn|"
                       r"torchrec|fbgemm_gpu|megatron|numpy)/"
                       r"|^(threading|contextlib|runpy|functools|socketserver|queue|typing)\.py$|^(importlib|multiprocessing|concurrent|asyncio)/"
                       r"|^[A-Z]:/.*/Lib/")
PYTHON = re.compile(r"\.pyw?$|^<ipython-input|^<stdin>|ipykernel|^Cell \[?In")
NOISE = re.compile(r"CapturedTraceback|unwind::|gather_with_cpp|_start|__libc|^_Py|^Py[A-Z]\w*_|CUDACachingAllocator|DeviceCachingAllocator|"
                   r"^at::(detail::)?empty|^at::_ops::|c10::(impl|Dispatcher|KernelFunction)|^\?\?$|^<built-in|THPVariable|"
                   r"StorageImpl|^malloc$|::allocate\b|::malloc\b")

# What a frame says, by "file:name" of Python and the name in C++. A stack says the first that one of its frames says, in the order
# of this list, because an optimizer calls Modules' methods less often than a Module in a backward pass is recomputed.
SIGNS = [
    ("optimizer_state", r"(torch/optim/|bitsandbytes/optim/|apex/optimizers/|deepspeed/ops/adam|/optim\w*/)[^:]*:_?(init_group|init_state|"
                        r"init_group_state|_init_group|get_state_buffer|initialize_state)"),
    ("optimizer", r"torch/optim/[^:]*\.py:|bitsandbytes/optim/|apex/optimizers/|fused_adam|FusedAdam|deepspeed/runtime/zero/.*:step"
                  r"|:clip_grad_norm_?|multi_tensor|_foreach_|_fused_adamw?_|torch/amp/grad_scaler\.py:"),
    ("recomputed", r"torch/utils/checkpoint\.py:(unpack_hook|backward|recompute_fn|inner_unpack)|:_checkpoint_recompute"),
    ("accumulate", r"AccumulateGrad"),
    ("backward", r"autograd::(Engine|python::PythonEngine|Node)\b|torch/_tensor\.py:backward|autograd/__init__\.py:(backward|grad)\b"
                 r"|autograd/graph\.py:_engine_run_backward|:_engine_run_backward|_run_backward|Backward\d?::apply"),
    ("communication", r"ncclComm|ProcessGroupNCCL|c10d::|nccl::|distributed/distributed_c10d\.py:"),
    ("workspace", r"(?i)cublas\w*workspace|getWorkspace|parseChosenWorkspaceSize|cublasLt\w*|getCurrentCUDABlas|cudnn_convolution|"
                  r"cudnn\w*workspace|workspace|cusolver|_cudnn_rnn_flatten"),
    ("cache", r"(?i)kv_?cache|cache_utils\.py:|cache_engine\.py|past_key_value|:_?allocate_kv|StaticCache|PagedAttention"),
    ("parameters", r"nn/modules/module\.py:(_apply|convert|to|cuda|to_empty|half|float|bfloat16|register_\w+)$|nn/modules/[^:]*:(__init__|reset_parameters)$"
                   r"|:(load_state_dict|from_pretrained|_load_pretrained_model|set_module_tensor_to_device|_load_state_dict_into_\w+|"
                   r"load_weights|load_model|load_file|create_weights|materialize\w*)$|safetensors/|flat_param\.py:|nn/parameter\.py:"
                   r"|peft/[^:]*:(__init__|update_layer|\w*cast_adapter_dtype|\w*move_adapter\w*)$"),
    ("data", r"torch/utils/data/|:pin_memory|:collate|DataLoader|data_loader\.py:send_to_device|send_to_device"),
    ("module", r"nn/modules/module\.py:(_call_impl|_wrapped_call_impl|_slow_forward)$|^nn\.Module: |torch/nn/functional\.py:"
               r"|nn/modules/[^:]*:forward$"),
    ("moved", r"_to_copy|THPVariable_(to|cuda)\b|method (to|cuda|pin_memory|randn|randint|rand|zeros|ones|tensor) of|copy_kernel"
              r"|THPVariable_(randn|randint|rand|zeros|ones|tensor)\b|^aten::(randn|randint|rand|to|_to_copy)$"),
    ("checkpointed", r"torch/utils/checkpoint\.py:"),
    ("loss", r"torch/nn/functional\.py:(cross_entropy|nll_loss|log_softmax)$|transformers/loss/"),
]
SIGNS = [(name, re.compile(pattern)) for name, pattern in SIGNS]
OPTIMIZER, INNER = {"optimizer", "optimizer_state"}, {"module", "backward", "accumulate", "recomputed", "data"}


class Frame:
    def __init__(self, name, file, line):
        written = PROFILER.fullmatch(name) if file in ("none", "") else None
        if written:
            name, file, line = written["name"], written["file"], int(written["line"])
        self.name, self.file, self.line = name, file.replace("\\", "/"), line
        self.is_python = PYTHON.search(self.file) is not None
        self.is_readers = self.is_python and INSTALLED.search(self.file) is None
        self.is_libraries = self.is_python and not re.search(r"(^|/)torch/|^<", self.file)
        # A folder of the reader's means nothing: /workspace and kv_cache_project are names like any other.
        file = self.file.split("/")[-1] if self.is_readers else self.file
        text = f"{file}:{self.name}" if self.is_python else self.name
        self.signs = [sign for sign, pattern in SIGNS if pattern.search(text) and not (self.is_python and sign == "workspace")]
        self.is_call = "module.py:_call_impl" in text or text.startswith("nn.Module: ")

    def place(self):
        """As it is shown: file:line in function."""
        if not self.is_python:
            return self.name
        file = "/".join(self.file.split("/")[-2:]) if not self.is_readers else self.file.split("/")[-1]
        if "ipykernel" in self.file or "ipython-input" in self.file:
            file = "notebook cell " + file.rsplit(".", 1)[0]
        return f"{file}:{self.line}" + (f" in {self.name}" if self.name not in ("<module>", "") else "")


class Stack:
    """Innermost first. `ours`: of OOM Lab's own programs, whose stacks are a tag and the phases that it was made in."""

    def __init__(self, frames):
        self.frames = frames
        self.ours = bool(frames) and all(not f.line and not f.is_python and "/" not in f.file and f.file not in ("??", "none", "")
                                         for f in frames)
        self.signs = signs = self.find_signs()
        self.sign = next((name for name, _ in SIGNS if name in signs), None)
        self.site = self.find_site()
        self.path = self.find_path()

    def find_signs(self):
        """Those of all frames. A pass that an optimizer's closure runs is not the optimizer's: Lightning's all do, L-BFGS too."""
        inner = set()
        for frame in self.frames:
            if INNER & inner and OPTIMIZER & set(frame.signs):
                continue
            inner.update(frame.signs)
        return inner

    def find_site(self):
        """The frame that answers "where": the reader's innermost; else that of a library above PyTorch, as vLLM; else PyTorch's; else of C++."""
        if self.ours:
            return self.frames[0]
        for wanted in ("is_readers", "is_libraries", "is_python"):
            for frame in self.frames:
                if getattr(frame, wanted):
                    return frame
        return next((f for f in self.frames if not NOISE.search(f.name)), self.frames[0] if self.frames else None)

    def find_path(self):
        """The Python frames outermost first; in our own programs the phases, without the tag."""
        if self.ours:
            return self.frames[:0:-1]
        return [frame for frame in reversed(self.frames) if frame.is_python]

    def place(self):
        if self.site is None:
            return ""
        if self.ours:
            return ", ".join([self.site.name, *(f.name for f in self.frames[1:2])])
        return self.site.place()


class Stacks:
    """Every distinct stack once. What the pickle shares is looked at once: the same list of frames may stand in many events."""

    def __init__(self, size):
        self.all = [Stack([])]
        self.none = 0
        self.by_list, self.by_ids, self.by_text = {}, {}, {(): 0}
        self.frame_of, self.frames = {}, {}
        self.room = size  # frames in all lists together cannot be more than bytes of the file

    def of(self, frames, where):
        """The number of the stack. Raises Refused."""
        number = self.by_list.get(id(frames))
        if number is not None:
            return number
        if frames is None:
            return self.none
        if not isinstance(frames, list):
            raise Refused(f"{where}: its frames are no list")
        self.room -= len(frames) + 1
        if self.room < 0:
            raise Refused(f"{where}: its frames repeat themselves")
        ids = tuple(map(id, frames))
        number = self.by_ids.get(ids)
        if number is None:
            text = tuple(self.frame(frame, where) for frame in frames)
            number = self.by_text.get(text)
            if number is None:
                number = self.by_text[text] = len(self.all)
                self.all.append(Stack(list(text)))
            self.by_ids[ids] = number
        self.by_list[id(frames)] = number
        return number

    def frame(self, frame, where):
        known = self.frame_of.get(id(frame))
        if known is None:
            if not isinstance(frame, dict):
                raise Refused(f"{where}: a frame is no dictionary")
            name, file, line = frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)
            if not (isinstance(name, str) and isinstance(file, str) and isinstance(line, int)):
                raise Refused(f"{where}: a frame has no name, file and line")
            key = (name[:LONGEST], file[-LONGEST:], line if 0 <= line < 1 << 31 else 0)
            known = self.frames.get(key)
            if known is None:
                known = self.frames[key] = Frame(*key)
            self.frame_of[id(frame)] = known
        return known

    def forget_ids(self):
        """When the tree goes: other things may get the same ids then."""
        self.by_list, self.by_ids, self.by_text, self.frame_of = {}, {}, {}, {}
