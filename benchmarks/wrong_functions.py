"""Function backends that are wrong for all of their cases, or for all that have one feature."""

from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.function_backend import PAGED, FunctionBackend
from attnfuzz.reference.noise import NoiseModel


def without_causal_mask(**arguments: Any) -> None:
    """Let each query see the keys behind it."""
    attend(**arguments, causal=False)


def attend(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    causal: bool = True,
    **_: Any,
) -> None:
    """Causal attention of a ragged batch over pages in the layout NHD."""
    page_size, group = k_cache.shape[1], query.shape[1] // k_cache.shape[2]
    for request, kv_len in enumerate(seq_lens.tolist()):
        first, last = cum_seq_lens_q[request : request + 2].tolist()
        if first == last:
            continue
        pages = block_tables[request, : -(-kv_len // page_size)].long()
        keys, values = (cache[pages].flatten(0, 1)[:kv_len].float() for cache in (k_cache, v_cache))
        keys, values = (each.repeat_interleave(group, 1).transpose(0, 1) for each in (keys, values))
        logits = query[first:last].float().transpose(0, 1) @ keys.transpose(1, 2) * scale
        if causal:
            behind = torch.arange(kv_len) > torch.arange(kv_len - (last - first), kv_len).unsqueeze(1)
            logits = logits.masked_fill(behind, -torch.inf)
        out[first:last] = (logits.softmax(-1).nan_to_num() @ values).transpose(0, 1).to(out.dtype)


RIGHT = FunctionBackend(attend, noise_model=NoiseModel.fp32_arithmetic())
WITHOUT_CAUSAL_MASK = FunctionBackend(without_causal_mask, noise_model=NoiseModel.fp32_arithmetic())
WITHOUT_WINDOW = FunctionBackend(
    attend, capability=replace(PAGED, windows=True), noise_model=NoiseModel.fp32_arithmetic()
)
"""As if a correct function were called without its keyword window_left."""
