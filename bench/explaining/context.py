"""What stands around a message: the call that failed, the program that made it, the ranks that fail alike, and whether it went on
afterwards. For bench/explain."""

import functools
import re

from .text import Text

AROUND = 24000  # characters of the log before the message: a deep traceback, with its lines of code
LATER = 6000    # and after it

# Programs that serve: their own flags reserve the memory, so they decide the advice wherever they are named.
SERVERS = re.compile(r"""
    (?P<vllm>\bvllm\b|VllmWorker|EngineCore|RayWorkerWrapper|PreemptionMode|gpu[_-]memory[_-]utilization)
  | (?P<sglang>\bsglang\b|sgl-workspace|mem[-_]fraction[-_]static|retracted_reqs)
  | (?P<tgi>text[_-]generation[_-](?:server|launcher|client|router|inference)|max-batch-prefill)
  | (?P<trtllm>TRT-LLM|tensorrt[_-]llm)
  | (?P<ollama>\bollama\b|llama\ runner|sched\.go)
  | (?P<llama>llama_model_load|llama_context|llama-server|ggml[-_]|llama_kv)
    """, re.X | re.I)
# Programs that train or draw; of several the one nearest to the message.
TRAINERS = re.compile(r"""
    (?P<diffusers>\bdiffusers\b)
  | (?P<comfyui>comfyui|\bcomfy[/\\]|Error\ occurred\ when\ executing|\bKSampler)
  | (?P<webui>stable-diffusion-webui|modules[/\\](?:sd_|processing|txt2img))
  | (?P<deepspeed>\bdeepspeed\b)
  | (?P<lightning>pytorch_lightning|\blightning\b)
  | (?P<ultralytics>\bultralytics\b)
  | (?P<transformers>\btransformers\b|\baccelerate[/\\]|\btrl[/\\]|\bpeft[/\\]|trainer\.train\()
    """, re.X | re.I)

# The calls that decide what helps, as frames and lines of code name them; the innermost frame that names one counts.
CALLS = re.compile(r"""
    (?P<pinned>pin_memory)
  | (?P<capture>captur\w{1,4}\ (?:the\ )?cuda_?\ ?graph|cuda_?graph\w{0,20}[^\n]{0,20}captur|capture_begin|graph_capture|torch\.cuda\.graph\(|capture_model|CUDAGraph\b|cuda_graph_runner)
  | (?P<process_group>init_process_group|ncclComm|_verify_param_shape|_sync_module_states|dist\.(?:barrier|all_reduce|broadcast|all_gather)\(|in\ barrier\b
      |DistributedDataParallel\()
  | (?P<optimizer_first>_init_group|exp_avg|momentum_buffer|state\[[^\n]{0,40}\]\ =\ torch\.zeros)
  | (?P<optimizer>optimizer\.step|torch[/\\]optim[/\\]|_multi_tensor_|torch\._foreach_)
  | (?P<loss>cross_entropy|CrossEntropyLoss|logits\.float\(|logits\.to\(torch\.float32|logits\ =\ [^\n]{0,60}\.float\(|log_softmax|nll_loss|ForCausalLMLoss|_convert_to_fp32|lm_head\()
  | (?P<gathered>nested_concat|nested_gather|pad_across_processes|preds_host|all_preds)
  | (?P<save>_full_post_state_dict|full_state_dict|_gather_state_dict|get_state_dict|_save_checkpoint|save_checkpoint\(|in\ state_dict\b|_zero3_consolidated|torch\.save\()
  | (?P<fused_attention>scaled_dot_product)
  | (?P<fused_already>flash_attn|memory_efficient_attention)
  | (?P<attention>softmax\(|attention_scores|attn_weights|eager_attention|baddbmm|matmul\((?:q|query)|\bq\ @\ k)
  | (?P<load>load_state_dict|torch\.load\(|load_file\(|safe_open|from_pretrained|load_checkpoint|set_module_tensor_to_device|load_weights|load_single_module)
  | (?P<decode>decode_latents|vae\.decode|AutoencoderKL|autoencoder_kl\w{0,20}\.py)
  | (?P<generate>\.generate\(|in\ generate\b|in\ _sample\b|_beam_search|past_key_values|key_cache|cache_utils)
  | (?P<backward>\.backward\(|in\ backward\b|_engine_run_backward)
  | (?P<evaluation>evaluation_loop|prediction_step|\bevaluate\(|validation_step|in\ evaluate\b|in\ validate\b|test_step)
  | (?P<move>in\ _apply\b|in\ convert\b|\bmodel\.(?:to|cuda)\()
    """, re.X)

RANK = re.compile(r"\b(?:local_)?rank[\s_=:]{0,2}(\d{1,4})\b|\b[TD]P(\d{1,3})\b|\[rank(\d{1,4})\]", re.I)
WINDOWS = re.compile(r"(?:^|[\s\"'(])[A-Za-z]:(?:\\{1,2}|/)[\w .-]{1,60}[\\/]")
OUT_OF_MEMORY = re.compile(r"out of memory", re.I)
REPEATED = re.compile(r"\[repeated (\d{1,5})x across cluster\]")
# It took less, or left something out, and tried again.
RETRIES = re.compile(r"retrying|retry with|fall(?:ing|s|en)? back|trying (?:again|batch size)|(?:decreasing|reducing|reduced|halving|lowering) (?:the )?(?:micro[- ]?)?batch[ _]size"
                     r"|(?:skipped|skipping) (?:this |the )?(?:batch|sample|step)|recover(?:ed|ing) from|attempting to recover|retract(?:ed|ing)? request", re.I)
# It goes on: a step, a request, a server that is ready.
GOES_ON = re.compile(r"\b(?:step|epoch|iter(?:ation)?)\b\W{0,3}\d|\bloss\b\W{0,3}\d|\b\d{1,6}/\d{1,6} \[|it/s\b|initializing, n_slots|server is (?:ready|listening)"
                     r"|\b200 OK\b|training (?:finished|complete)|\bdone\b|saved", re.I)
ENDS = re.compile(r"Traceback \(most|\b\w{0,40}(?:Error|Exception)\b|\berror:|\bfatal\b|terminat|Aborted|core dumped|\bKilled\b|exit(?:ed|s)? with|exitcode", re.I)


class Context:
    """The log around a message that was found in it."""

    def __init__(self, found):
        self._found = found
        self.before = found.before.far.raw[-AROUND:]
        self.after = found.after.far.raw[:LATER]

    @functools.cached_property
    def lines(self):
        """The last traceback before the message, without what loggers put before its lines; the last lines where there is none."""
        lines = Text(self.before).lines[-160:]
        starts = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
        return lines[starts[-1]:] if starts else lines[-60:]

    @functools.cached_property
    def call(self):
        """The name of a group of CALLS, None where no frame says it."""
        for line in reversed(self.lines):
            found = min(CALLS.finditer(line[:400]), key=lambda match: match.lastindex, default=None)  # a file's name says less than a function's
            if found:
                return found.lastgroup
        return None

    @functools.cached_property
    def engine(self):
        """The program, by a group of SERVERS or TRAINERS; None where none is named."""
        for programs in (SERVERS, TRAINERS):
            nearest = min(self._named(programs), default=(0, None))[1]
            if nearest == "llama" and re.search(r"\bollama\b|llama runner", self.before + self.after):
                return "ollama"  # which runs llama.cpp
            if nearest:
                return nearest
        return None

    def _named(self, programs):
        """(how far from the message, name) of what is named last before it, and first in it or after it."""
        last = None
        for last in programs.finditer(self.before):
            pass
        first = programs.search(self.after)
        return ([(len(self.before) - last.end(), last.lastgroup)] if last else []) + ([(first.start(), first.lastgroup)] if first else [])

    @functools.cached_property
    def ranks(self):
        """{rank: the device that its message names, or None} of all that say that memory ran out."""
        text, result = self.before[-4000:] + self.after, {}
        for number_, found in zip(range(64), OUT_OF_MEMORY.finditer(text)):
            ranks = RANK.findall(text[max(0, found.start() - 400):found.start()])
            device = re.search(r"\bGPU ?(\d{1,3})\b", text[found.end():found.end() + 120])
            if ranks:
                rank = int(next(filter(None, ranks[-1])))
                result[rank] = int(device[1]) if device else result.get(rank)
        return result

    @functools.cached_property
    def windows(self):
        """Whether a file in the log lies on a Windows drive."""
        return bool(WINDOWS.search(self.before) or WINDOWS.search(self.after))

    @functools.cached_property
    def rank(self):
        """The rank whose message this is, None where nothing says it."""
        named = RANK.findall(self.before[-400:])
        rank = int(next(filter(None, named[-1]))) if named else None
        return rank if rank in self.ranks else None

    @functools.cached_property
    def same_device(self):
        """Whether several ranks name one device, and the message lists several processes on it: with one process, each rank may see
        only its own device, as number 0."""
        devices = [device for device in self.ranks.values() if device is not None]
        return len(devices) > len(set(devices)) and len(self._found.message.processes) > 1

    @functools.cached_property
    def repeated(self):
        found = REPEATED.search(self.after)
        return int(found[1]) if found else 0

    @functools.cached_property
    def recovered(self):
        """Whether it took less and tried again, and the log goes on without another error."""
        tried = RETRIES.search(self.after)
        goes_on = GOES_ON.search(self.after, tried.end()) if tried else None
        return bool(goes_on) and not ENDS.search(self.after, tried.end())

    @functools.cached_property
    def without_pipeline(self):
        """Whether what llama.cpp left out is pipeline parallelism."""
        return "retrying without pipeline parallelism" in self.after

    @functools.cached_property
    def went_on(self):
        """Whether steps follow although nothing says that it tried again."""
        goes_on = GOES_ON.search(self.after, min(len(self.after), 200))
        return bool(goes_on) and not self.recovered and not ENDS.search(self.after, goes_on.end()) and not self.lines_fail

    @property
    def lines_fail(self):
        """Whether the message ended a traceback: what follows is another rank's, or another program's."""
        return any("Traceback (most recent call last)" in line for line in self.lines)
