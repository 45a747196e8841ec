"""The factors of the two products of attention, under the names that FlashInfer's entry points give them."""

import math
from typing import TypedDict

from attnfuzz.reference.case import Case


class BmmScales(TypedDict):
    """`bmm1_scale` multiplies the logits, 1 / sqrt(head dim) included, and `bmm2_scale` the output."""

    bmm1_scale: float
    bmm2_scale: float


def cached_scales(case: Case, head_dim: int) -> BmmScales:
    """The factors for attention to a KV cache, which is dequantised by the case's scales of K and V."""
    softmax = case.scales.softmax / math.sqrt(head_dim)
    return BmmScales(bmm1_scale=softmax * case.scales.k, bmm2_scale=case.scales.v)
