"""Texts that look like out-of-memory messages and are none: (text, the reason that is given, or None)."""

REFUSED = [
    # Denied in so many words.
    ('"State": {"Status": "exited", "OOMKilled": false, "Pid": 0, "ExitCode": 1}', "not_killed"),
    ('State:\n  OOMKilled: false\n  ExitCode: 2', "not_killed"),
    ("container web: OOMKilled=false restarts=4", "not_killed"),
    ("The nightly run did not go out of memory.", None),
    ("Finished 300 steps without CUDA out of memory errors", None),
    ("peak 21.4 GiB, no CUDA out of memory.", None),
    ("test_large_batch: never ran out of memory", None),
    ("oom_kill 0\noom_group_kill 0", None),
    # Asked, planned, taught.
    ("How do I avoid CUDA out of memory?", None),
    ("What is CUDA error: out of memory?", None),
    ("If you run into CUDA out of memory. reduce --batch-size", None),
    ("Tips to prevent out of memory errors on small cards", None),
    ("如何解决 CUDA out of memory", None),
    ("config: oom_killer_disable: 1", None),
    # Programs.
    ("        except torch.cuda.OutOfMemoryError:\n            skipped += 1", None),
    ("class OutOfMemoryError(RuntimeError):\n    pass", None),
    ("    with pytest.raises(torch.OutOfMemoryError):\n        run()", None),
    ("from torch.cuda import OutOfMemoryError", None),
    ("if isinstance(error, MemoryError): retry()", None),
    ("AttributeError: module 'torch.cuda' has no attribute 'OutOfMemoryError'", "not_an_attribute"),
    # Signals that are no killer's.
    ("[launch.py:320:sigkill_handler] Killing subprocess 4711\n[launch.py:331:sigkill_handler] ['python', 'x.py'] exits with return code = 1", "not_a_kill"),
    ("worker did not stop within 30 s, sending SIGKILL", "not_a_kill"),
    ("failed to stop via SIGTERM, escalating to SIGKILL", "not_a_kill"),
    ("The reservation was killed by its owner", None),
    ("At the deadline all of the night's jobs were killed", None),
    ("main process exited, code=dumped, status=11/SEGV\nSegmentation fault (core dumped)", "not_a_segfault"),
    ('"OOMKilled": false, "ExitCode": 137', "not_killed"),
    # Other memories, and other things that run out.
    ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", "not_a_heap"),
    ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', "not_a_heap"),
    ("[h264_nvenc @ 0x5581] OpenEncodeSessionEx failed: out of memory (10): (no details)", "not_an_encoder"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes may help", "not_the_cards"),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 196608, available: 101376", "not_the_cards"),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 196608, available: 101376\n\n(does JAX not do memory allocation "
     "of 75 % at the start?)", "not_the_cards"),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Too many streams are open\n\nIs that the allocation of 75 % at the start?", None),
    ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack. It exceeded scoped vmem limit by 3.00M", "not_the_chips"),
    ("ptxas error: Entry function 'k' uses too much shared data (0x1c000 bytes, 0xc000 max)", "not_the_cards"),
    ("OSError: [Errno 28] No space left on device: 'step-200/model.pt'", "not_a_disk"),
    ("OSError: [Errno 24] Too many open files", "not_a_file"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "not_an_address"),
    ("grpc error: RESOURCE_EXHAUSTED: Received message larger than max (7340032 vs. 4194304)", "not_a_message"),
    ("google.api_core.exceptions.ResourceExhausted: 429 RESOURCE_EXHAUSTED: Quota exceeded for requests", "not_a_quota"),
    # Figures that are no failure.
    ("| 0  NVIDIA A10  | 21504MiB / 23028MiB |     97%      Default |", None),
    ("step 40: peak memory allocated 18.20 GiB, reserved 20.00 GiB", None),
    ("RuntimeError: CUDA error: device-side assert triggered", None),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 768x10)", None),
]
