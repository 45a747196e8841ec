"""Checks that the packed mask of each request lies inside their tensor."""

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
