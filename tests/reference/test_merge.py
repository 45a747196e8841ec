"""Merging partial attention results."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfuzz.reference.attention import Problem, attend
from attnfuzz.reference.merge import merge


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 99))
def test_keys_split_anywhere_and_merged_are_one_pass(left: int, right: int, seed: int) -> None:
    torch.manual_seed(seed)
    query = torch.randn(3, 4, 8)
    key, value = torch.randn(2, left + right, 2, 8)
    parts = [
        attend(Problem(query, key[part], value[part], (3,), (length,), 3.0, causal=False))
        for part, length in ((slice(0, left), left), (slice(left, None), right))
    ]
    out, lse = merge(parts[0].out, parts[0].lse, parts[1].out, parts[1].lse)
    whole = attend(Problem(query, key, value, (3,), (left + right,), 3.0, causal=False))
    torch.testing.assert_close(out, whole.out)
    torch.testing.assert_close(lse, whole.lse)


def test_a_part_without_keys_is_not_looked_at() -> None:
    out = torch.tensor([[[2.0, 3.0]]])
    garbage, nothing = torch.full_like(out, math.nan), torch.tensor([[-math.inf]])
    some = torch.tensor([[700.0]])
    for merged in (merge(out, some, garbage, nothing), merge(garbage, nothing, out, some)):
        assert merged[0].tolist() == out.tolist()
        assert merged[1].item() == 700.0


def test_two_parts_without_keys_are_empty() -> None:
    garbage, nothing = torch.full((1, 1, 2), math.nan), torch.tensor([[-math.inf]])
    out, lse = merge(garbage, nothing, garbage, nothing)
    assert out.tolist() == [[[0.0, 0.0]]]
    assert lse.item() == -math.inf
