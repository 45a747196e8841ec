"""Packed masks of a batch, as FlashInfer's prefill kernels take them: bits, each request starting at a whole byte.

Bit q * kv_len + k of a request is set if its query q sees key k; the lowest bit of a byte comes first
(flashinfer.quantization.segment_packbits with bitorder="little", docs/tutorials/kv_layout, "Mask Layout").
"""

from collections.abc import Sequence

import torch

from attnfuzz.kernels.planning.lengths import int32, running_sum
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.reference.case import Case, Step
from attnfuzz.reference.masks import mask_of

_BITS = 8


def masks_of_rows(case: Case, step: Step, rows: Sequence[Row]) -> list[torch.Tensor]:
    """Return the masks of planned rows, bool [q_len, kv_len], the requests' first. Padded rows see all keys."""
    found = []
    for request in step.requests:
        mask = mask_of(case, step, request)
        assert mask is not None, "the step is causal"
        found.append(mask)
    return found + [torch.ones(row.q_len, row.kv_len, dtype=torch.bool) for row in rows[len(found) :]]


def flat_masks(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the masks of requests one after another: bool [sum of q_len * kv_len]."""
    return torch.cat([torch.zeros(0, dtype=torch.bool), *(mask.flatten() for mask in masks)])


def packed_masks(masks: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bits of masks in uint8 [bytes], and where those of each request begin in int32 [batch + 1]."""
    places = 2 ** torch.arange(_BITS, dtype=torch.int32)
    packed = [torch.zeros(0, dtype=torch.uint8)]
    for mask in masks:
        bits = torch.nn.functional.pad(mask.flatten().int(), (0, -mask.numel() % _BITS)).view(-1, _BITS)
        packed.append((bits * places).sum(dim=1).to(torch.uint8))
    return torch.cat(packed), int32(running_sum(len(each) for each in packed[1:]))
