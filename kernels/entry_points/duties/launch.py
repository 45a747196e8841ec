"""Checks of workspaces (large enough, with zero semaphores), of counters, of factors (finite), and of windows."""

import math
from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.entry_point import Breach, Role

_SIZE = "attnfuzz.kernels.native.ops; FlashInfer, xqa_batch_decode_with_kv_cache: 8 MiB for semaphores"
_ZERO = "FlashInfer docstrings of workspace_buffer: zero-initialized on first use (MLA decode, XQA)"


def workspace(call: Attention) -> Iterator[Breach]:
    """Yield a workspace that is too small, and semaphores that are not zero, if the kernel's use is known."""
    need = call.workspace()
    if need is None:
        return
    buffer = call.arguments["workspace_buffer"]
    if buffer.nbytes < need.total:
        text = (
            f"workspace_buffer has {buffer.nbytes} bytes, the call uses {need.total}: the kernel writes "
            f"{need.total - buffer.nbytes} past its end"
        )
        yield Breach(("workspace_buffer",), text, _SIZE)
    if buffer.is_meta or not buffer.is_contiguous():
        return
    semaphores = buffer.flatten().view(torch.uint8)[: need.semaphores]
    if semaphores.any():
        first = int(semaphores.nonzero()[0])
        text = (
            f"workspace_buffer has a semaphore that is not zero, in byte {first} of {need.semaphores}: some split of "
            "the keys is taken for the last one, and the rows behind it are merged too early or never"
        )
        yield Breach(("workspace_buffer",), text, _ZERO)


COUNTERS = "multi_ctas_kv_counter_buffer"
_COUNTED = "FlashInfer 0.7.4: utils.py, _resolve_trtllm_gen_multi_ctas_kv_counter_buffer"
_ALIGNED = 16
_PER_LINE = 8
"""Counters are rounded up to this number of 4 bytes each. A GPU with more multiprocessors needs more of them."""


def counters(call: Attention) -> Iterator[Breach]:
    """Yield counters of splits that FlashInfer rejects: too few for the requests and heads, with gaps, or misaligned.

    Their contents are not read: a server keeps them longer than the memory of one call is known.
    """
    buffer = call.arguments.get(COUNTERS)
    if not isinstance(buffer, torch.Tensor):
        return
    heads = call.size("q heads", Role.QUERY)
    need = 4 * -(-call.batch * heads // _PER_LINE) * _PER_LINE
    if buffer.nbytes < need:
        text = f"{COUNTERS} has {buffer.nbytes} bytes, {call.batch} requests with {heads} heads need {need}"
        yield Breach((COUNTERS,), f"{text}: it is rejected", _COUNTED)
    elif not buffer.is_contiguous() or (not buffer.is_meta and buffer.data_ptr() % _ALIGNED):
        text = f"{COUNTERS} is not contiguous, or not aligned to {_ALIGNED} bytes: it is rejected"
        yield Breach((COUNTERS,), text, _COUNTED)


_SCALES = "FlashInfer docstrings: fused scale for bmm1 and bmm2 input"
_WINDOW = "FlashInfer docstring of window_left: -1 is the full length of the sequence"


def factors(call: Attention) -> Iterator[Breach]:
    """Yield factors that make every result NaN, and windows below -1."""
    for name in ("bmm1_scale", "bmm2_scale"):
        scale = _number(call.arguments.get(name))
        if not math.isfinite(scale):
            yield Breach((name,), f"{name} is {scale}: no row is a number", _SCALES)
    if call.window_left < -1:
        text = f"window_left is {call.window_left}: it must be -1 (no window) or a number of keys"
        yield Breach(("window_left",), text, _WINDOW)


def _number(value: object) -> float:
    """Return a scale as a number; 1 if it has no content to judge."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        return float(value.item())
    return float(value) if isinstance(value, int | float) else 1.0
