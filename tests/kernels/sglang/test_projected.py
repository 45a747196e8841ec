"""A latent prefill over keys and values of our own, without the release's way through its chunks."""

import pytest
import torch
from harness_cases import LATENT
from loaded_tree import LoadedTree, served, served_case

from attnfuzz.kernels.sglang.projected import ProjectedAttention
from attnfuzz.reference.case import Mode, Request, Step


@pytest.mark.parametrize(
    ("lengths", "roundings"),
    [([(2, 2)], 1), ([(1, 9)], 2), ([(1, 9), (2, 5)], 3), ([(0, 40), (2, 5)], 2), ([(2, 5), (0, 40), (3, 30)], 8)],
)
def test_an_output_is_rounded_once_more_for_each_chunk_of_the_requests_that_a_server_schedules(
    loaded: LoadedTree, lengths: list[tuple[int, int]], roundings: int
) -> None:
    requests = tuple(Request(slot, *each) for slot, each in enumerate(lengths))
    tokens = sum(q_len for q_len, _ in lengths)
    step = Step(mode=Mode.CHUNKED_PREFILL, requests=requests, padded_tokens=tokens)
    server = served(loaded, served_case(LATENT, step, chunk_capacity=8))
    prefill = ProjectedAttention(server)
    out = torch.zeros((tokens, LATENT.q_heads, LATENT.head_dim_vo))
    assert prefill.output(step, prefill.inputs(0, tokens), out).roundings == roundings
