"""Metamorphic relations: how often each is drawn, and that its other case is one that can be run and compared."""

from collections import Counter
from typing import Any

import pytest
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, steps_in_chunks
from attnfuzz.reference.related import Related, related
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.validity import validate
from attnfuzz.strategies.lean import NO_LEAN
from attnfuzz.strategies.rare_features import applicable, draw_relation

pytestmark = pytest.mark.slow
"""Many cases are drawn."""


def all_related(drawn: list[Case], capability: Capability) -> list[tuple[Case, Related]]:
    """Every relation that applies to each of the first cases."""
    return [
        (asked, related(asked))
        for case in drawn[:150]
        for relation in applicable(case, capability)
        for asked in [replace(case, relation=relation)]
    ]


@pytest.mark.slow
@pytest.mark.draws
def test_a_quarter_of_the_cases_has_a_relation(drawn: list[Case]) -> None:
    assert 0.18 <= sum(case.relation is not None for case in drawn) / len(drawn) <= 0.32


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize(
    ("backend", "never"),
    [
        ("mha", {Relation.CHUNKS_CHANGED}),
        ("mla", set()),
        ("eager", {Relation.CHUNKS_CHANGED, Relation.REPLAY_AS_EAGER, Relation.PADDING_ENLARGED}),
    ],
)
def test_every_relation_that_can_apply_is_drawn(
    backend: str, never: set[Relation], request: pytest.FixtureRequest
) -> None:
    drawn: list[Case] = request.getfixturevalue(backend)
    counted = Counter(case.relation for case in drawn if case.relation is not None)
    assert set(counted) == set(Relation) - never
    assert min(counted.values()) >= 0.005 * len(drawn)


def test_the_other_case_is_possible_and_supported_and_has_no_relation(
    drawn: list[Case], capability: Capability
) -> None:
    for asked, other in all_related(drawn, capability):
        validate(other.case)
        assert capability.why_not(other.case) is None
        assert other.case.relation is None
        assert other.case != replace(asked, relation=None) or asked.relation is Relation.SAME_CALL


def test_a_case_always_has_the_same_other_case(drawn: list[Case], capability: Capability) -> None:
    for asked, other in all_related(drawn, capability):
        assert related(asked) == other


def test_each_request_is_asked_again_where_the_mapping_says(drawn: list[Case], capability: Capability) -> None:
    for asked, other in all_related(drawn, capability):
        for step, index, positions in zip(asked.steps, other.steps, other.positions, strict=True):
            if index is None:
                assert step.launch is Launch.CAPTURE
                continue
            again = other.case.steps[index]
            assert again.mode is step.mode
            assert tuple(again.requests[position] for position in positions) == step.requests


def test_a_relation_changes_only_its_own_fields(drawn: list[Case], capability: Capability) -> None:
    changes = {
        Relation.SAME_CALL: set(),
        Relation.PAGES_RELABELLED: {"pages"},
        Relation.BATCH_PERMUTED: {"steps"},
        Relation.PADDING_ENLARGED: {"steps"},
        Relation.REPLAY_AS_EAGER: {"steps"},
        Relation.CHUNKS_CHANGED: {"chunk_capacity"},
        Relation.SPLITS_CHANGED: {"max_len_slack"},
    }
    for asked, other in all_related(drawn, capability):
        changed = {name for name in Case.__struct_fields__ if getattr(asked, name) != getattr(other.case, name)}
        chunked = steps_in_chunks(asked.steps, asked.geometry)
        appended = {"steps", "chunk_capacity"} if chunked else {"steps"}
        assert asked.relation is not None
        assert changed - {"relation"} == changes.get(asked.relation, appended)


def test_no_relation_is_drawn_for_a_case_that_is_not_supported() -> None:
    can, impossible = resolve("trtllm_mha").capability, replace(decode_case("trtllm_mha"), steps=())
    always: Any = lambda _: True  # noqa: E731 - a draw has attributes that no function needs here
    assert applicable(impossible, can) == ()
    assert draw_relation(always, impossible, can, NO_LEAN) is None
