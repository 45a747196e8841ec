"""Checks that the packed mask of each request lies inside their tensor, and intervals of keys among its keys."""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.entry_point import Breach, and_others
from attnfuzz.kernels.meaning.forms import described, tensor_of
from attnfuzz.kernels.meaning.spans import integers

_PACKED = "FlashInfer docstring of packed_custom_mask: a 1D packed uint8 mask tensor"
_LAYOUT = "FlashInfer docs, kv_layout, Mask Layout (2D Ragged Tensor): q_len * kv_len bits for each request"


def breaches(call: Attention) -> Iterator[Breach]:
    """Yield bits of another dtype, and masks outside of the tensor of bits.

    Requests may share a mask: no docstring forbids it, and masks are only read.
    """
    if call.masks is None:
        return
    name, starts = call.masks
    bits = tensor_of(call.arguments, name)
    if bits.dtype is not torch.uint8:
        yield Breach((name,), f"{name} is {described(bits)}, but must be uint8: it is rejected, or misread", _PACKED)
        return
    firsts = integers(tensor_of(call.arguments, starts))
    needed = [-(-max(0, span.q_len) * max(0, span.kv_len) // 8) for span in call.spans]
    outside = [
        request
        for request, (first, count) in enumerate(zip(firsts, needed, strict=False))
        if count and not 0 <= first <= len(bits) - count
    ]
    if outside:
        at = outside[0]
        span, first = call.spans[at], firsts[at]
        text = (
            f"{starts} puts the mask of request {at}, of {span.q_len} * {span.kv_len} bits, in bytes {first} to "
            f"{first + needed[at] - 1}, but {name} has {len(bits)}{and_others(outside)}: they are read out of bounds"
        )
        yield Breach((starts, name), text, _LAYOUT, at)


_VARIABLE = "FlashInfer docstring of variable_window_token_starts: positions in the request's keys, nondecreasing"


def intervals(call: Attention) -> Iterator[Breach]:
    """Yield intervals outside of the keys of a request, without a key, or that begin or end before an earlier query's.

    FlashInfer checks them if FLASHINFER_VALIDATE_INPUTS is set (0.7.4: prefill.py:8535).
    """
    if call.intervals is None:
        return
    first, last = (tensor_of(call.arguments, name).cpu() for name in call.intervals)
    # A request without keys has no interval.
    for request, span in ((request, span) for request, span in enumerate(call.spans) if span.kv_len > 0):
        begins, ends = (each[span.first_row :][: span.q_len] for each in (first, last))
        if bool(((begins < 0) | (begins > ends) | (ends >= span.kv_len)).any()):
            text = f"the intervals of request {request} are not of its {span.kv_len} keys"
        elif bool((begins.diff() < 0).any() or (ends.diff() < 0).any()):
            text = f"an interval of request {request} begins or ends before that of the query before"
        else:
            continue
        yield Breach(call.intervals, f"{text}: the kernel reads other keys, or skips some", _VARIABLE, request)
        return
