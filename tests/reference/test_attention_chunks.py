"""Chunks of attention: a query sees the keys of its own chunk, up to itself."""

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.ablation import ablations, features_in
from attnfuzz.harness.verdict.describe import describe
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mask, Mode
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import mask_of
from attnfuzz.reference.validity import ImpossibleCase, validate

CHUNKED = Case(backend="any", geometry=replace(HEADS, attention_chunk=3), steps=(step(Mode.EXTEND, (4, 8)),))


def seen(case: Case) -> list[list[int]]:
    (only,) = case.steps
    mask = mask_of(case, only, only.requests[0])
    assert mask is not None
    return [row.nonzero().flatten().tolist() for row in mask]


def test_a_query_sees_the_keys_of_its_own_chunk_up_to_itself() -> None:
    assert seen(CHUNKED) == [[3, 4], [3, 4, 5], [6], [6, 7]]


def test_a_chunk_longer_than_all_keys_is_causal() -> None:
    longer = replace(CHUNKED, geometry=replace(CHUNKED.geometry, attention_chunk=8))
    assert seen(longer) == [[*range(5)], [*range(6)], [*range(7)], [*range(8)]]
    assert "attention chunk=longer than all keys" in TABLE.coverage_of(longer)


def test_queries_without_keys_see_none() -> None:
    short = replace(CHUNKED, steps=(step(Mode.EXTEND, (4, 2)),))
    assert seen(short) == [[], [], [0], [0, 1]]
    mask = mask_of(short, short.steps[0], short.steps[0].requests[0])
    assert mask is not None
    assert mask.dtype is torch.bool


@pytest.mark.parametrize("fields", [{"window_left": 2}, {"attention_chunk": -1}])
def test_a_layer_has_chunks_or_a_window(fields: dict[str, int]) -> None:
    with pytest.raises(ImpossibleCase, match=r"geometry\.attention_chunk"):
        validate(replace(CHUNKED, geometry=replace(CHUNKED.geometry, **fields)))
    with pytest.raises(ImpossibleCase, match=r"geometry\.attention_chunk"):
        validate(replace(CHUNKED, mask=Mask.FULL))


def test_a_backend_without_chunks_does_not_support_them() -> None:
    assert Capability(layouts=tuple(KvLayout)).why_not(CHUNKED) == "attention within chunks"
    assert Capability(attention_chunks=True, layouts=tuple(KvLayout)).why_not(CHUNKED) is None


def test_chunks_are_removed_printed_and_named_as_any_feature() -> None:
    names = {"attention chunk", "keys outside of the chunk"}
    assert names <= {each.name for each in features_in(CHUNKED)} & TABLE.words_of(CHUNKED)
    assert names <= {each.feature.name for each in ablations(CHUNKED)}
    assert "chunks of 3 keys" in describe(CHUNKED)
