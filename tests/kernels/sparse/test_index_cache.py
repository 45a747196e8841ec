"""The keys that an indexer scores: as its cache holds them, if they are right."""

import torch

from attnfuzz.kernels.sparse.index_cache import cache_content, held_keys
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.reference.sparse.case import SparseCase, SparseGeometry, SparseMode, SparseOp, SparseRequest, SparseStep
from attnfuzz.reference.sparse.indexer import LARGEST, SMALLEST_MAGNITUDE, key_view, rounded, scale_view

GEOMETRY = SparseGeometry(page_size=64, index_dim=128, top_k=64, powers=False)


def inputs_of_keys(count: int) -> OpInputs:
    step = SparseStep(mode=SparseMode.DECODE, requests=(SparseRequest(q_len=1, kv_len=count),))
    return OpInputs(
        SparseCase(backend="mine", ops=(SparseOp.WRITE, SparseOp.LOGITS), steps=(step,), geometry=GEOMETRY), 0
    )


def test_keys_of_another_right_scale_are_scored_as_they_are_held_and_wrong_ones_as_they_should_be() -> None:
    inputs, size = inputs_of_keys(40), GEOMETRY.page_size
    cache, right = cache_content(inputs), inputs.index_cache_keys
    pages, of_page = inputs.all_slots // size, inputs.all_slots % size
    exact = inputs.index_keys.float()
    scales = exact.abs().amax(-1).clamp_min(SMALLEST_MAGNITUDE) / LARGEST
    scale_view(cache, size)[pages, of_page, 0, 0] = scales.view(torch.int32)
    numbers = rounded(exact.double() / scales.double().unsqueeze(-1))
    key_view(cache, size)[pages, of_page, 0] = numbers.view(torch.uint8)
    wrong = key_view(cache, size)[pages[7], of_page[7], 0]
    wrong[3] ^= 64
    keys, held = held_keys(inputs, cache)
    assert not torch.equal(held, right.scales)
    others = torch.arange(40) != 7
    assert torch.equal(held[others], scales[others])
    assert torch.equal(keys[others].float(), numbers[others].float())
    assert held[7] == right.scales[7]
    assert torch.equal(keys[7].float(), right.keys[7].float())
